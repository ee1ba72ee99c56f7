"""What jobs need lies where their account can reach it, wherever the checkout lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import account, cluster
from lab.layout import ROOT, Lab, LabError

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="optional: jobs have another account only where root runs the lab"
)
PREPARE = """
import sys
from pathlib import Path
from lab import account, hooks, layout, submit
lab = layout.load(Path(sys.argv[1]))
user = account.account(sys.executable)
hooks.install(lab)
submit.install(lab)
print(user.python, *user.packages, sep=":")
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="account-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def environment_of(*commands: str, **variables: str) -> str:
    """What those shell commands print, with the functions of environment.sh."""
    script = "\n".join(("set -euo pipefail", f". '{ROOT}/deploy/lab/environment.sh'", *commands))
    environment = {name: value for name, value in os.environ.items() if name != "SENTINEL_VENV"} | variables
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


@needs_root
def test_jobs_of_a_checkout_that_only_root_can_enter(
    make_lab: Callable[..., Lab], tmp_path: Path, open_folder: Path
) -> None:
    checkout = tmp_path / "checkout"
    for part in ("deploy", "prolog", "epilog", "sentinel"):
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (checkout, *checkout.rglob("*")):
        path.chmod(0o700)  # as git leaves them below umask 077
    assert not account.runs(["test", "-r", str(checkout / "deploy" / "lab" / "training" / "standin.py")])
    lab = make_lab(dir=str(open_folder / "lab"))
    lab.save()
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(lab.dir)],
        env={**os.environ, "PYTHONPATH": str(checkout / "deploy")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    python, *packages = done.stdout.strip().split(":")
    noted = lab.dir / "nodes" / "n1" / "run" / "jobs" / "5.json"  # as the prolog writes it
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text('{"job":"5","attempt":"1"}\n')
    told = ["env", "SLURM_JOB_ID=5", "SLURMD_NODENAME=n1", str(lab.etc / "taskprolog")]
    assert account.runs(["sh", "-c", '"$@" | grep -qx "print sentinel: job 5 attempt 1 begins"', "sh", *told])
    assert account.runs([python, "-m", "lab.training.standin", "--help"], (str(lab.dir / "lib"), *packages))
    assert not [path for path in lab.lib.rglob("*") if path.stat().st_mode & 0o022], "nobody else may write them"


@needs_root
def test_packages_that_only_root_can_read_are_not_found(tmp_path: Path, open_folder: Path) -> None:
    for place, found in ((open_folder, True), (tmp_path, False)):
        (place / "package_of_a_job.py").touch()
        user = account.Account(account.NOBODY, account.NOBODY, "/usr/bin/python3", (str(place),))
        assert user.finds("json", "package_of_a_job") is found


def test_the_virtual_environment_lies_where_jobs_can_read_it(tmp_path: Path, open_folder: Path) -> None:
    assert environment_of(f"environment_folder {open_folder}") == f"{open_folder}/.venv"
    closed = environment_of(f"environment_folder {tmp_path}")
    if os.geteuid() == 0:
        assert closed.startswith("/var/cache/sentinel-checkouts/")
        assert closed != environment_of(f"environment_folder {tmp_path.parent}"), "one for each checkout"
    else:
        assert closed == f"{tmp_path}/.venv"
    assert environment_of(f"environment_folder {tmp_path}", SENTINEL_VENV="mine") == f"{tmp_path}/mine"


def test_no_virtual_environment_is_made_of_a_python_that_jobs_cannot_run(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\ncase $* in *account*) exit 1 ;; esac\n")  # new enough, with venv
    python.chmod(0o755)
    chosen = environment_of(f"base_python '{ROOT}' || echo none", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert chosen and str(tmp_path) not in chosen


@needs_root
def test_another_users_folder_is_not_made_a_lab_of(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made it first, with a name that can be guessed, could swap the hooks that run as root."""
    monkeypatch.setattr("lab.packages.ensure", lambda: None)
    monkeypatch.setattr(account, "account", lambda python: None)
    monkeypatch.setattr(cluster, "_start", lambda lab, ready_s: None)
    lab = make_lab()
    shutil.rmtree(lab.dir)
    lab.dir.mkdir()
    os.chown(lab.dir, account.NOBODY, account.NOBODY)
    with pytest.raises(LabError, match="another user's"):
        cluster.up(lab.spec, ready_s=1.0)
