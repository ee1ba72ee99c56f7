"""Which processes that hold a GPU belong to nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.adapters.host.readings import strays

USER = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files and processes of several users")


def process(folder: Path, program: str, *, owner: int = 0, mode: int = 0o755, job: str = "") -> Path:
    """A process of a user, called nvidia-persistenced, that holds a GPU and runs this program."""
    file = folder / "bin" / program
    file.parent.mkdir(exist_ok=True)
    file.touch()
    file.chmod(mode)
    os.chown(file, owner, owner)
    place = folder / "proc" / "812"
    (place / "fd").mkdir(parents=True)
    (place / "fd" / "3").symlink_to("/dev/nvidia0")
    (place / "exe").symlink_to(file)
    (place / "comm").write_text("nvidia-persiste\n")
    (place / "environ").write_bytes(f"SLURM_JOB_ID={job}\0".encode() if job else b"PATH=/bin\0")
    os.chown(place, USER, USER)
    return folder / "proc"


@pytest.mark.parametrize("program", ["nvidia-persistenced", "nv-hostengine", "nvvs", "nvidia-persistenced (deleted)"])
def test_a_service_of_nvidia_is_no_stray(tmp_path: Path, program: str) -> None:
    assert strays(process(tmp_path, program), []) == []


def test_one_that_only_calls_itself_so_is(tmp_path: Path) -> None:
    assert strays(process(tmp_path, "python3"), []) == [(812, "nvidia-persiste")]


@pytest.mark.parametrize(("owner", "mode"), [(USER, 0o755), (0, 0o775), (0, 0o757)])
def test_a_users_program_of_that_name_is(tmp_path: Path, owner: int, mode: int) -> None:
    assert strays(process(tmp_path, "nvidia-persistenced", owner=owner, mode=mode), []) == [(812, "nvidia-persiste")]


def test_a_process_of_a_job_is_none(tmp_path: Path) -> None:
    assert strays(process(tmp_path, "python3", job="7"), [7]) == []
    assert len(strays(tmp_path / "proc", [8])) == 1


@pytest.mark.parametrize(("uid", "stray"), [(USER, True), (0, False)])
def test_who_began_a_program_that_acts_as_root_counts(tmp_path: Path, uid: int, stray: bool) -> None:
    """Found as an attack: su, waiting for a password with a GPU's file that it had inherited, was seen by nobody."""
    place = process(tmp_path, "su") / "812"
    os.chown(place, 0, 0)
    (place / "status").write_text(f"Name:\tsu\nUid:\t{uid}\t0\t0\t0\n")
    assert bool(strays(tmp_path / "proc", [])) is stray
