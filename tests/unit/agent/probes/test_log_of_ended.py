"""The log of a job that was over before its follower began: no process of it is left that tells which file it wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_signatures

from sentinel.agent.collectors.log_path import of_ended, pattern_of
from sentinel.agent.probes import joblog
from sentinel.model.records import Where

FAILED = b"Traceback (most recent call last):\n  File \"a.py\", line 1\nModuleNotFoundError: No module named 'x'\n"
Read = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Texts of the evidence that a follower finds which begins when the job is over."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(joblog, "say", said.append)
    monkeypatch.setattr(joblog.time, "sleep", lambda _s: None)
    (tmp_path / "ended").touch()

    def made(name: str = "slurm-%A_%a.out", attempt: int = 0) -> list[str]:
        pattern = pattern_of(name, job=103, user="ada", node="n1", work_dir=str(tmp_path))
        arguments = {"uid": os.getuid(), "ended": str(tmp_path / "ended"), "path": pattern, "cursor": None,
                     "read_bytes": 1 << 20, "lines_per_s": 50, "burst": 500, "linger_s": 0.0, "poll_s": 0.2,
                     "began_s": time.time() - 0.5}  # fmt: skip
        joblog.follow(arguments, Where(node="n1", job=103, attempt=attempt, path=pattern), shipped_signatures())
        return [item["text"] for message in said if message["type"] == "evidence" for item in message["items"]]

    return made


def write(folder: Path, name: str, content: bytes = FAILED, age_s: float = 0.0) -> None:
    (folder / name).write_bytes(content)
    at_s = time.time() - age_s
    os.utime(folder / name, (at_s, at_s))


@pytest.mark.parametrize("name", ["train.out", "slurm-%j.out", "%x-%j.out"])
def test_a_log_whose_name_is_known(tmp_path: Path, read: Read, name: str) -> None:
    write(tmp_path, name.replace("%x", "train").replace("%j", "103"))
    assert any("ModuleNotFoundError" in text for text in read(name))


def test_the_only_log_of_an_arrays_tasks(tmp_path: Path, read: Read) -> None:
    write(tmp_path, "slurm-100_3.out")
    assert any("ModuleNotFoundError" in text for text in read())


def test_of_several_tasks_logs_the_only_one_that_was_written_since_it_began(tmp_path: Path, read: Read) -> None:
    write(tmp_path, "slurm-100_1.out", b"RuntimeError: CUDA out of memory\n", age_s=600.0)
    write(tmp_path, "slurm-100_3.out")
    found = read()
    assert any("ModuleNotFoundError" in text for text in found) and not any("memory" in text for text in found)


def test_of_several_that_were_written_since_none_is_taken(tmp_path: Path, read: Read) -> None:
    for task in (1, 3):
        write(tmp_path, f"slurm-100_{task}.out")
    assert read() == []


def test_a_later_attempt_may_have_written_nothing(tmp_path: Path) -> None:
    """It appends to its log: another task's may be the only one that was written since."""
    write(tmp_path, "slurm-100_1.out")
    write(tmp_path, "slurm-100_3.out", age_s=600.0)
    pattern = pattern_of("slurm-%A_%a.out", job=103, user="ada", node="n1", work_dir=str(tmp_path))
    assert of_ended(pattern, os.getuid(), 103, 1, time.time() - 0.5) is None
