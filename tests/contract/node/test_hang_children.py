"""Dumps are read by children: one that hangs or dies costs its own dump only."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sentinel.cli.offline import hang_input
from sentinel.cli.offline.hang_input import Found, read_all
from sentinel.model.collectives import RankTrace, Unreadable

DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
    "pg_status": {"0": {"last_enqueued_collective": 7, "last_started_collective": 6, "last_completed_collective": 6}},
    "entries": [],
}


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"trace_rank_{rank}" for rank in range(6)]
    for file in files:
        file.write_text(json.dumps(DUMP))
    return files


def read(files: list[Path], **how: float) -> dict[str, Found]:
    found: dict[str, Found] = {}
    read_all(files, lambda file, item: found.__setitem__(file.name, item), workers=2, **how)  # type: ignore[arg-type]
    return found


def test_each_file_is_told_once(dumps: list[Path]) -> None:
    found = read(dumps)
    assert sorted(found) == [file.name for file in dumps]
    assert {item.rank for item in found.values() if isinstance(item, RankTrace)} == set(range(6))


def test_no_file_is_no_child() -> None:
    assert read([]) == {}


@pytest.mark.parametrize(("how", "reason"), [("sleep", "not read within 5 s"), ("die", "its reader died (9)")])
def test_a_reader_that_hangs_or_dies_costs_one_dump(
    dumps: list[Path], monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    plain = hang_input._read

    def hostile(file: Path) -> Found:
        if file.name.endswith(("_1", "_4")):
            if how == "die":
                os._exit(9)
            time.sleep(60)
        return plain(file)

    monkeypatch.setattr(hang_input, "_read", hostile)  # children are forks of ours
    found = read(dumps, deadline_s=5.0)
    for rank, item in ((int(name[-1]), item) for name, item in found.items()):
        if rank in (1, 4):
            assert isinstance(item, Unreadable) and reason in item.reason and item.rank == rank
        else:
            assert isinstance(item, RankTrace)


def test_want_of_memory_is_said(dumps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_input, "MEMORY_BYTES", 600 << 20)
    plain = hang_input._read
    monkeypatch.setattr(hang_input, "_read", lambda file: plain(file) if "_2" not in file.name else bytes(4 << 30))  # type: ignore[arg-type, return-value]
    found = read(dumps)
    item = found["trace_rank_2"]
    assert isinstance(item, Unreadable) and "takes more than 600 MiB" in item.reason
    assert sum(isinstance(item, RankTrace) for item in found.values()) == 5
