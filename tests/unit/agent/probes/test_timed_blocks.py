"""Lines that take too long to read: they are left out, what stands behind them is read, and the follower goes on."""

from __future__ import annotations

import re
import signal
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_signatures

from sentinel.adapters.host.logfile import Block
from sentinel.agent.collectors.timed_blocks import PARTS, TooLong, in_time, read_in_time
from sentinel.agent.probes import joblog
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, Where

ERROR = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
LIMIT_S = 20.0
SLOW = re.compile(rb"(a+)+$")


FEED = LogReader.feed


def feed(reader: LogReader, data: bytes, now: datetime) -> list[Evidence]:
    if b"slow" in data:
        raise TooLong  # as the clock does
    return FEED(reader, data, now)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a follower says of a log that is there before it begins, and whose job has ended."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(joblog, "say", said.append)
    monkeypatch.setattr(joblog.time, "sleep", lambda _: None)
    monkeypatch.setattr(LogReader, "feed", feed)
    (tmp_path / "ended").touch()

    def of(content: bytes) -> list[dict[str, Any]]:
        log = tmp_path / "job.out"
        log.write_bytes(content)
        arguments = {"uid": log.stat().st_uid, "ended": str(tmp_path / "ended"), "path": str(log), "cursor": {"inode": 1},
                     "read_bytes": 1 << 20, "lines_per_s": 50, "burst": 500, "linger_s": 0.0, "poll_s": 0.2,
                     "silent_s": 3 * LIMIT_S}  # fmt: skip
        joblog.follow(arguments, Where(node="n1", job=8, attempt=1), shipped_signatures())
        return said

    return of


def errors(said: list[dict[str, Any]]) -> list[int]:
    items = [item for message in said if message["type"] == "evidence" for item in message["items"]]
    return [item["line"] for item in items if item["kind"] not in ("step", "suppressed")]


def test_a_line_that_takes_too_long_starves_nothing(said: Any) -> None:
    told = said(ERROR + b"fine\n" * 200 + b"slow\n" + b"fine\n" * 200 + ERROR)
    assert errors(told) == [1, 403]
    (trouble,) = [message["reason"] for message in told if message["type"] == "trouble"]
    first, last = map(int, re.findall(r"^lines (\d+) to (\d+) \(", trouble)[0])
    assert first <= 202 <= last and last - first <= 403 / PARTS + 1
    assert trouble.endswith(f"take more than {LIMIT_S:g} s to read: left out")
    assert told[-1]["type"] == "done"


def test_the_cursor_comes_with_the_last_part(said: Any) -> None:
    """Killed within a later part, the follower reads the block again: its evidence is known by its number."""
    told = said(ERROR + b"fine\n" * 200 + b"slow\n" + b"fine\n" * 200 + ERROR)
    assert ["cursor" in message for message in told if message["type"] == "evidence"] == [False, True]


def test_a_last_line_without_end_that_takes_too_long_ends_the_follower_all_the_same(said: Any) -> None:
    told = said(ERROR + b"slow")
    assert errors(told) == [1] and told[-1]["type"] == "done"
    assert [message["reason"] for message in told if message["type"] == "trouble"] == [
        f"lines 2 to 2 (4 bytes) take more than {LIMIT_S:g} s to read: left out"
    ]


def test_an_end_that_takes_too_long_is_said(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(*_: object, **__: object) -> list[Evidence]:
        raise TooLong

    monkeypatch.setattr(LogReader, "finish", finish)
    told = said(ERROR)
    assert errors(told) == [1] and told[-1]["type"] == "done" and "its end takes" in told[-2]["reason"]


def test_what_is_in_time_is_read_once_and_whole() -> None:
    block = Block(b"a\nb\n", 7, True)
    got: list[Block] = []

    def read(given: Block) -> list[Evidence]:
        got.append(given)
        return []

    assert list(read_in_time(block, read, got.clear, got.clear, 60.0)) == [([], "")] and got == [block]


def test_parts_are_whole_lines_under_their_numbers() -> None:
    lines = [b"x" * (number % 7) + b"\n" for number in range(100)]
    block = Block(b"".join(lines) + b"rest", 5, True)
    got: list[Block] = []

    def read(given: Block) -> list[Evidence]:
        if given == block:
            raise TooLong
        got.append(given)
        return []

    forgotten: list[int] = []
    told = list(read_in_time(block, read, lambda: forgotten.append(len(got)), lambda: None, LIMIT_S))
    assert told == [([], "")] * len(got) and forgotten == [0] and 2 <= len(got) <= PARTS + 1
    assert b"".join(part.content for part in got) == block.content
    for part, follower in pairwise(got):
        assert part.content.endswith(b"\n") and follower.first_line == part.first_line + part.content.count(b"\n")
    assert [part.fresh for part in got] == [True] + [False] * (len(got) - 1)


def test_the_clock_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert in_time(lambda: 5, 60.0) == 5
    assert in_time(lambda: SLOW.match(b"a" * 64 + b"b"), 0.05) is None  # for ever
    with pytest.raises(KeyError):
        in_time(lambda: {}["x"], 60.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) == before
