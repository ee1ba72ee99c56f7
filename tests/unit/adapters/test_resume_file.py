"""Resume points: whole or not at all, readable by the job, and nothing in them but name=value lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hanging_threads import all_threads_hang

from sentinel.adapters import resume_file
from sentinel.adapters.resume_file import ResumeFiles
from sentinel.errors import Refused, Timeout, Unavailable

VALUES = {"SENTINEL_JOB": "101", "SENTINEL_RESUME_PATH": "/shared/run 1/step-200", "SENTINEL_RESUME_STEP": "200"}
TEXT = "SENTINEL_JOB=101\nSENTINEL_RESUME_PATH=/shared/run 1/step-200\nSENTINEL_RESUME_STEP=200\n"


async def test_file_is_what_taskprolog_reads(tmp_path: Path) -> None:
    await ResumeFiles(tmp_path).write(101, VALUES)
    assert [path.name for path in tmp_path.iterdir()] == ["101.env"]
    assert (tmp_path / "101.env").read_text() == TEXT and (tmp_path / "101.env").stat().st_mode & 0o777 == 0o644


async def test_newer_one_replaces_the_older_and_leaves_others(tmp_path: Path) -> None:
    files = ResumeFiles(tmp_path)
    await files.write(101, {"A": "1", "B": "2"})
    await files.write(102, {"A": "3"})
    await files.write(101, {"A": "4"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"101.env": "A=4\n", "102.env": "A=3\n"}


@pytest.mark.parametrize("value", ["a\nSENTINEL_JOB=1", "a\0b", "a\rb", "a\x1b[2J", "a\u2028b", "a\ud800b"])
async def test_value_that_would_be_another_line_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(Refused, match="SENTINEL_RESUME_PATH"):
        await ResumeFiles(tmp_path).write(101, {"SENTINEL_RESUME_PATH": value})
    assert list(tmp_path.iterdir()) == []


async def test_without_a_folder_it_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        await ResumeFiles(None).write(101, VALUES)
    assert "[daemon] resume" in caught.value.fix


async def test_folder_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        await ResumeFiles(tmp_path / "gone").write(101, VALUES)


@pytest.mark.parametrize("step", ["fsync", "replace"])
async def test_failure_in_the_middle_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    files = ResumeFiles(tmp_path)
    await files.write(101, {"A": "old"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(Unavailable, match="No space left"):
        await files.write(101, VALUES)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"101.env": "A=old\n"}


async def test_it_is_on_disk_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        order.append("fsync")
        real_fsync(handle)

    def replace(this: Path, to: Path) -> Path:
        order.append("replace")
        return real_replace(this, to)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    await ResumeFiles(tmp_path).write(101, VALUES)
    assert order[:2] == ["fsync", "replace"]


async def test_frozen_file_system_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thaw = threading.Event()
    monkeypatch.setattr(resume_file, "_replace", lambda *_: thaw.wait(30.0))
    try:
        with pytest.raises(Timeout, match=r"longer than 0\.01 s"):
            await asyncio.wait_for(ResumeFiles(tmp_path, deadline_s=0.01).write(101, VALUES), 30.0)
    finally:
        thaw.set()


async def test_nothing_is_written_while_an_earlier_write_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries would take a thread each, and one that thaws late would put an older resume point over a newer one."""
    thaw, begun, real = threading.Event(), list[str](), resume_file._replace

    def frozen(folder: Path, name: str, *rest: Any) -> None:
        begun.append(name)
        thaw.wait(60.0)
        real(folder, name, *rest)

    monkeypatch.setattr(resume_file, "_replace", frozen)
    files = ResumeFiles(tmp_path, deadline_s=0.2)
    try:
        with pytest.raises(Timeout):
            await files.write(101, {"A": "old"})
        for job in (101, 102, 103):
            with pytest.raises(Unavailable, match="an earlier write has not ended") as caught:
                await files.write(job, VALUES)
            assert not isinstance(caught.value, Timeout)
        assert begun == ["101.env"]
    finally:
        thaw.set()
    files.deadline_s = 60.0
    async with asyncio.timeout(60.0):
        while begun == ["101.env"]:
            await asyncio.sleep(0)
            with contextlib.suppress(Unavailable):  # until the thread has come back
                await files.write(101, VALUES)
    assert (tmp_path / "101.env").read_text() == TEXT


async def test_whether_the_folder_can_be_written_is_not_known_while_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``sentinel doctor`` asks it: each time that somebody does would take a thread of the store's."""
    thaw, begun = threading.Event(), list[Path]()
    hanging = all_threads_hang()
    assert await ResumeFiles(tmp_path).writable() is True and await ResumeFiles(None).writable() is None
    assert await ResumeFiles(tmp_path / "gone").writable() is False

    def frozen(folder: Path, _mode: int) -> bool:
        begun.append(folder)
        return thaw.wait(60.0)

    monkeypatch.setattr(os, "access", frozen)
    files = ResumeFiles(tmp_path, deadline_s=0.2)
    try:
        assert [await files.writable() for _ in range(3)] == [None, None, None]
        assert begun == [tmp_path] and not hanging.asked
    finally:
        thaw.set()


async def test_a_folder_that_hangs_takes_no_thread_of_others_and_waits_for_none(tmp_path: Path) -> None:
    hanging = all_threads_hang()
    await asyncio.wait_for(ResumeFiles(tmp_path).write(101, VALUES), 30.0)
    assert (tmp_path / "101.env").read_text() == TEXT and not hanging.asked


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757, 0o775, 0o2775])
async def test_a_folder_that_others_may_write_to_gets_no_resume_point(tmp_path: Path, mode: int) -> None:
    """A resume point of somebody else would name the checkpoint that a job loads."""
    tmp_path.chmod(mode)
    with pytest.raises(Refused, match="others can write"):
        await ResumeFiles(tmp_path).write(7, {"SENTINEL_JOB": "7"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", [os.ST_RDONLY, 0])
async def test_folder_whose_mount_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int) -> None:
    assert await ResumeFiles(None).read_only() is await ResumeFiles(tmp_path / "gone").read_only() is False
    assert await ResumeFiles(tmp_path).read_only() is False
    monkeypatch.setattr(os, "statvfs", lambda _folder: type("Status", (), {"f_flag": flag | os.ST_NOSUID})())
    assert await ResumeFiles(tmp_path).read_only() is bool(flag)


async def test_what_was_written_for_a_job_before_a_time_is_removed_and_nothing_else(tmp_path: Path) -> None:
    files, begun = ResumeFiles(tmp_path), datetime.now(UTC)
    for job in (7, 8, 9):
        await files.write(job, VALUES)
    for name in (".8.env.tmp", "notes.env", "8.txt"):
        (tmp_path / name).write_text("")
    limits = {7: begun - timedelta(seconds=5), 8: datetime.now(UTC) + timedelta(seconds=5), 9: None}
    assert await files.remove_former(limits.get) == [8]
    assert {path.name for path in tmp_path.iterdir()} == {"7.env", "9.env", ".8.env.tmp", "notes.env", "8.txt"}
    assert await ResumeFiles(None).remove_former(limits.get) == []
    with pytest.raises(Unavailable, match="No such file"):
        await ResumeFiles(tmp_path / "gone").remove_former(limits.get)
