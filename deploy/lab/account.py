"""As whom jobs run: never as root. Agents read and move no file of root's jobs, as on a real cluster.

A lab of root's submits its jobs as ``nobody``, one of an ordinary user as that user. Python may lie where only root can
look (a version of it in root's home): then the system's own, of the same release, runs the jobs with the packages of ours.
``environment.sh`` chooses and makes a virtual environment for which this holds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab.layout import LabError

NOBODY = 65534
PROBE_S = 60.0
# Programs for a Python: what it is; whether it is of a release; whether it finds packages.
_ASK = "import sysconfig as s; print(s.get_python_version(), s.get_path('purelib'), s.get_path('platlib'), sep='\\n')"
_SAME = "import sys, sysconfig; sys.exit(sysconfig.get_python_version() != sys.argv[1])"
_FIND = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"


@dataclass(frozen=True)
class Account:
    """Who runs jobs, and by which Python. ``packages``: for its PYTHONPATH."""

    uid: int
    gid: int
    python: str
    packages: tuple[str, ...] = ()

    @property
    def sbatch(self) -> list[str]:
        """Further arguments for sbatch."""
        return [f"--uid={self.uid}", f"--gid={self.gid}"] if os.geteuid() == 0 else []

    def finds(self, *names: str) -> bool:
        """Whether those packages are there, and the account may read them."""
        return runs([self.python, "-c", _FIND, *names], self.packages)


@cache
def account(python: str) -> Account:
    """The account of jobs.

    Raises:
        LabError: it can run no Python that is like ours.
    """
    if os.geteuid() != 0:
        return Account(os.getuid(), os.getgid(), python)
    if runs([python, "-c", ""]):
        return Account(NOBODY, NOBODY, python)
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=PROBE_S, check=True)
    release, *packages = asked.stdout.splitlines()
    for name in (f"python{release}", "python3"):
        found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        if found is not None and runs([found, "-c", _SAME, release]):
            return Account(NOBODY, NOBODY, found, tuple(dict.fromkeys(packages)))
    raise LabError(
        f"jobs run as uid {NOBODY}, which can run neither {python} nor another Python {release}; remove that virtual "
        "environment, so that it is made anew of Debian's python3, or run the lab as an ordinary user"
    )


def require_reach(folder: Path) -> None:
    """Raises LabError where jobs could not even come to that folder."""
    if os.geteuid() == 0 and not runs(["test", "-x", str(folder)]):
        raise LabError(
            f"jobs run as uid {NOBODY}, which cannot come to {folder}; give a --dir that everybody may enter"
        )


def runs(command: list[str], packages: tuple[str, ...] = ()) -> bool:
    """Whether the account of jobs can run it, and it ends well."""
    other = NOBODY if os.geteuid() == 0 else None
    try:
        done = subprocess.run(
            command,
            user=other,
            group=other,
            extra_groups=None if other is None else [],
            cwd=Path("/"),
            env={**os.environ, "PYTHONPATH": ":".join(packages)},
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except OSError:  # it may not even be started
        return False
    return done.returncode == 0
