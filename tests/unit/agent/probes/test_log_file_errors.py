"""A job's log on a file system that fails for a moment, e.g. a soft NFS mount whose server fails over."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.host.logfile import LogFile
from sentinel.errors import Unavailable

FIRST = b"step 1\n"


def stale(*_: object, **__: object) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.out"
    path.write_bytes(FIRST)
    return path


@pytest.fixture
def file(log: Path) -> Iterator[LogFile]:
    """Followed by a process that was started when the log's first line had been read."""
    made = LogFile(str(log), {"inode": log.stat().st_ino, "offset": len(FIRST), "line": 2})
    yield made
    made.close()


def fails(file: LogFile, call: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, call, stale)
        with pytest.raises(Unavailable, match="Stale"):
            list(file.read())


def put(log: Path, line: bytes) -> None:
    with log.open("ab") as stream:
        stream.write(line)


@pytest.mark.parametrize("call", ["stat", "fstat", "pread"])
def test_it_goes_on_where_it_stood(log: Path, file: LogFile, call: str) -> None:
    """Read again, it would tell old failures as new ones, and steps that go back: no hang is found without their rhythm."""
    put(log, b"step 2\n")
    assert [block.content for block in file.read()] == [b"step 2\n"]
    put(log, b"step 3\n")
    fails(file, call)
    assert [(block.first_line, block.content, block.fresh) for block in file.read()] == [(3, b"step 3\n", False)]


def test_a_log_that_could_not_be_opened_yet_keeps_the_place_from_which_it_is_read(log: Path, file: LogFile) -> None:
    """The agent keeps it for the next process."""
    known = file.cursor
    fails(file, "open")
    assert file.cursor == known and known["offset"] == len(FIRST)
    put(log, b"step 2\n")
    assert [(block.first_line, block.content) for block in file.read()] == [(2, b"step 2\n")]


def test_another_file_that_took_its_place_meanwhile_is_read_from_its_start(log: Path, file: LogFile) -> None:
    list(file.read())
    fails(file, "stat")
    other = log.with_name("other")
    other.write_bytes(b"of the next attempt\n")
    other.replace(log)
    assert [(block.first_line, block.content, block.fresh) for block in file.read()] == [
        (1, b"of the next attempt\n", True)
    ]


def test_lines_that_the_file_system_calls_a_hole_are_read(
    log: Path, file: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ZFS did of what was just written (OpenZFS issue 15526)."""
    put(log, b"step 2\n" * 1000)
    monkeypatch.setattr(os, "lseek", lambda _descriptor, offset, _whence: offset + 4096)
    assert b"".join(block.content for block in file.read()) == b"step 2\n" * 1000
