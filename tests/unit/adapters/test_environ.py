"""The environment of another user's process: bounded, whatever it says of its size and content."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.adapters.host.environ import environment_of

NAMES = frozenset({"SLURM_JOB_ID", "HOME", "RANK"})


def written(folder: Path, content: bytes) -> Path:
    (folder / "environ").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", {}),
        (b"SLURM_JOB_ID=7\0HOME=/home/a=b\0PATH=/bin\0", {"SLURM_JOB_ID": "7", "HOME": "/home/a=b"}),
        (b"XRANK=1\0RANK=2", {"RANK": "2"}),  # cut off in its last value
        (b"RANK\0RANK=\0", {"RANK": ""}),
        (b"RANK=1\0RANK=2\0", {"RANK": "1"}),  # as getenv
        (b"A=\nRANK=1\0HOME=/\xff\xfe\0", {"HOME": "/\udcff\udcfe"}),
        (b"HOME=" + b"x" * 4096 + b"\0RANK=3\0", {"HOME": "x" * 4096, "RANK": "3"}),
        (b"HOME=" + b"x" * 4097 + b"\0RANK=3\0", {"RANK": "3"}),
        (b"HOME=" + b"x" * 5000, {}),
    ],
)
def test_variables(tmp_path: Path, content: bytes, found: dict[str, str]) -> None:
    assert environment_of(written(tmp_path, content), NAMES) == found


def test_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="environ"):
        environment_of(tmp_path, NAMES)


PROBES = """
import json, sys
from pathlib import Path
from sentinel.adapters.host.readings import strays
from sentinel.agent.probes.job_processes import outputs_of
from sentinel.agent.probes.leftovers import left_behind
from sentinel.agent.probes.places import places_of
from sentinel.agent.probes.tasks import environments, tasks_of
proc, uid = Path(sys.argv[1]), Path(sys.argv[1], "10").stat().st_uid
print(json.dumps([len(tasks_of(7, proc, uid=uid)), environments(7, proc, uid=uid)[0][2], places_of(7, uid, "", proc),
                  len(left_behind(7, uid, [], proc=proc)), len(outputs_of(7, uid, proc)), strays(proc, [7])]))
"""


def test_gigabytes_that_a_process_calls_its_environment_are_not_read(tmp_path: Path) -> None:
    """Found as an attack: by PR_SET_MM_MAP a user makes it as long as an address space, and root's probes read all of it."""
    place = tmp_path / "10"
    (place / "fd").mkdir(parents=True)
    (place / "fd" / "0").symlink_to("/dev/nvidia0")
    (place / "fd" / "1").symlink_to("/home/a/log")
    (place / "stat").write_text(f"10 (python) S 1 {' '.join(['0'] * 17)} 100\n")
    written(place, b"SLURM_JOB_ID=7\0RANK=3\0LOCAL_RANK=1\0EVIL=" + b"x" * 100_000)
    with (place / "environ").open("r+b") as stream:
        stream.truncate(8 << 30)
    if os.getuid() == 0:
        os.chown(place, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", PROBES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"RANK": "3"' in done.stdout and "EVIL" not in done.stdout
