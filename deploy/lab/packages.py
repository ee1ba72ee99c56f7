"""What the lab needs from the distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from lab.layout import LabError

# command -> Debian package
NEEDED = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"


def missing() -> list[str]:
    return sorted({package for command, package in NEEDED.items() if shutil.which(command, path=SEARCH) is None})


def ensure() -> None:
    """Install what is missing (root on Debian or Ubuntu), or say the line that does."""
    wanted = missing()
    if not wanted:
        return
    line = f"apt-get install -y --no-install-recommends {' '.join(wanted)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LabError(f"missing: {', '.join(wanted)}; install it as root: {line}")
    print(f"lab: installing {' '.join(wanted)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The packages start their own slurmctld, slurmd and munged where systemd runs; the lab brings its own. A policy file
    # that forbids it for the time of the installation is Debian's way to say so.
    policy = "/usr/sbin/policy-rc.d"
    own = not os.path.exists(policy)
    try:
        if own:
            with open(policy, "w", encoding="utf-8") as script:
                script.write("#!/bin/sh\nexit 101\n")
            os.chmod(policy, 0o755)
        for command in ("apt-get update -q", line + " -q"):
            done = subprocess.run(
                command.split(), env=environment, capture_output=True, text=True, timeout=900, check=False
            )
            if done.returncode != 0:
                raise LabError(f"`{command}` failed; run it by hand and try again:\n{done.stderr.strip()[-800:]}")
    finally:
        if own:
            os.unlink(policy)
    left = missing()
    if left:
        raise LabError(f"still missing after the installation: {', '.join(left)}")
