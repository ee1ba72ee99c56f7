"""A large log read in parts, by several processes, gives what reading it from end to end gives."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from shipped import shipped_signatures

from sentinel.cli.offline import classify_input, parallel_logs
from sentinel.cli.offline.classify_input import read_path
from sentinel.cli.offline.parallel_logs import Log, on_all_cores, read_log, read_parts, together
from sentinel.model.records import Kind, Source
from sentinel.model.vocabulary import BROKEN_OFF

SIGNATURES = shipped_signatures()
NOW = datetime(2026, 3, 4, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(parallel_logs, "PART_BYTES", 3000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    lines = [f"iteration {i:8d}/ 5000 | lm loss: 2.1 |" for i in range(400)]
    lines[30:30] = ["[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered"] * 9
    lines[300:300] = ["[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered"] * 9
    lines[200:200] = ["x" * 7000, "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."]
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines))
    return Log(path, Source.JOB_LOG, None)


def test_parts_give_what_the_whole_gives(log: Log) -> None:
    whole = read_log(log, SIGNATURES, NOW)
    parts = read_parts(log, SIGNATURES, NOW)
    key = lambda item: (item.line, item.rule)  # noqa: E731
    assert sorted((replace(item, id="") for item in parts), key=key) == sorted(
        (replace(item, id="") for item in whole), key=key
    )
    assert len({item.id for item in parts}) == len(parts)
    assert sum(item.kind == Kind.STEP for item in parts) == parallel_logs.KEEP_STEPS


def test_a_traceback_between_two_parts_does_not_break_off(log: Log) -> None:
    head = "Traceback (most recent call last):"
    frames = ['  File "/home/u/run/model.py", line 12, in forward', "    return self.inner(x)"]
    whole = [*log.file.read_text().splitlines()[:20], head, *frames * 60, "ValueError: batch of 3 rows"]
    log.file.write_text("\n".join(whole))
    assert not any(item.kind == BROKEN_OFF for item in read_parts(log, SIGNATURES, NOW))
    log.file.write_text("\n".join([*whole, head, *frames]))
    assert sum(item.kind == BROKEN_OFF for item in read_parts(log, SIGNATURES, NOW)) == 1


def test_results_come_in_order_and_from_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    here = os.getpid()
    found = list(on_all_cores(lambda task: (task, os.getpid() != here), [3, 1, 2]))
    assert found == [(3, True), (1, True), (2, True)]


def test_a_killed_process_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    here = os.getpid()

    def dies(task: int) -> int:
        if os.getpid() != here:
            os._exit(9)
        return task

    assert list(on_all_cores(dies, [1, 2, 3])) == [1, 2, 3]


def test_only_long_files_are_worth_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("x" * 60)
    two.write_text("x" * 60)
    assert not together([one, two])
    monkeypatch.setattr(parallel_logs, "LEAST_TOGETHER", 100)
    assert together([one, two])
    assert not together([one])
    assert not together([one, two, Path("-")])


def test_the_files_of_a_folder_are_read_beside_each_other_and_in_order(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "failure"
    folder.mkdir()
    for name in ("c.log", "a.log", "b.log"):
        (folder / name).write_bytes(log.file.read_bytes())
    (folder / "d.log").write_bytes(bytes(range(32)) * 4000)
    one_by_one = read_path(folder, SIGNATURES, NOW)
    monkeypatch.setattr(parallel_logs, "LEAST_TOGETHER", 1)
    readers, here = [], os.getpid()
    alone = parallel_logs.read_whole
    monkeypatch.setattr(classify_input, "read_whole", lambda *given: readers.append(os.getpid()) or alone(*given))
    beside = read_path(folder, SIGNATURES, NOW)
    assert beside == one_by_one and len(beside.left_out) == 1 and "d.log" in beside.left_out[0]
    assert [path.rpartition("/")[2] for path in dict.fromkeys(item.where.path for item in beside[0])] == [
        "a.log",
        "b.log",
        "c.log",
    ]
    assert here not in readers, "no file was read by this process"
