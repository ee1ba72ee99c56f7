"""The search for what an ended job left: each place is searched whatever lies in the others."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.probes import finding

MOST = 40  # entries of one folder here
TORN = '{"entries": ['  # a dump that ends early
WORKER = "none_x/attempt_0/0/error.json"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    made = tmp_path / "tmp"
    made.mkdir()
    monkeypatch.setattr(finding, "ENTRIES", MOST)
    monkeypatch.setattr(finding, "PREFIXES", (f"{made}/nccl_trace_rank_", f"{made}/torch/comm_lib_trace_rank_"))
    monkeypatch.setattr(finding, "ELASTIC", (f"{made}/torchelastic_",))
    return made


def put(path: Path, content: str = '{"message": "boom"}') -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def crowd(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"a{number:04d}").touch()


def search(**arguments: Any) -> tuple[list[str], list[str]]:
    """The paths of the files that were found, and what was said of the search."""
    told: list[Mapping[str, Any]] = []
    finding.look(
        {
            "began_s": 0.0, "files": 50, "dumps": 50, "file_bytes": 1 << 20, "total_bytes": 1 << 24, "look_s": 1e6,
            "uid": os.getuid(), "first": True, "places": {}, "work_dir": "", "log": "", **arguments,
        },
        lambda header, _content: told.append(header),
    )  # fmt: skip
    return sorted(said["path"] for said in told if "path" in said), [said["note"] for said in told if "note" in said]


def test_a_full_folder_hides_nothing_that_lies_in_another(tmp: Path, tmp_path: Path) -> None:
    crowd(tmp, MOST + 1)
    other = tmp_path / "scratch"
    wanted = [
        put(other / f"torchelastic_a/{WORKER}"), put(tmp_path / "work" / "error.json"),
        put(tmp_path / "given" / "nccl_trace_rank_0", TORN),
    ]  # fmt: skip
    places = {"temporary": [str(other)], "dumps": [f"{tmp_path}/given/nccl_trace_rank_"]}
    found, notes = search(work_dir=str(tmp_path / "work"), places=places)
    assert found == sorted(wanted)
    assert notes == [f"more than {MOST} files and folders below {tmp}: the rest was not looked at"]


def test_a_folder_that_is_nearly_full_is_searched_for_everything(
    tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(tmp, MOST - 3)
    wanted = [put(tmp / "nccl_trace_rank_0", TORN), put(tmp / f"torchelastic_a/{WORKER}")]
    wanted += [put(tmp / "torch" / "comm_lib_trace_rank_1", TORN), put(tmp_path / "work" / "error.json")]
    listed = count_listings(monkeypatch)
    assert search(work_dir=str(tmp_path / "work")) == (sorted(wanted), [])
    assert set(listed.values()) == {1}, listed


def count_listings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    listed: Counter[str] = Counter()
    really: Callable[[str], Any] = os.scandir

    def scandir(folder: str) -> Any:
        listed[folder] += 1
        return really(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    return listed


def test_the_workers_of_a_run_are_searched_once(tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    wanted = [put(run / f"attempt_0/{rank}/error.json") for rank in range(8)]
    listed = count_listings(monkeypatch)
    assert search(places={"errors": wanted}) == (wanted, [])
    assert listed[str(run)] == 1


def test_one_tree_that_is_too_large_is_cut_and_the_next_is_searched(tmp: Path) -> None:
    crowd(tmp / "torchelastic_a" / "none_x", MOST + 1)
    wanted = put(tmp / f"torchelastic_b/{WORKER}")
    found, notes = search()
    assert found == [wanted]
    assert notes == [f"more than {MOST} files and folders below {tmp}/torchelastic_a: the rest was not looked at"]


def test_the_time_is_the_limit_of_all_together(tmp: Path, tmp_path: Path) -> None:
    put(tmp_path / "work" / "error.json")
    found, notes = search(work_dir=str(tmp_path / "work"), look_s=0.0)
    assert found == [] and notes == ["looking took longer than 0.0 s: the rest was not looked at"]


def test_a_file_whose_time_no_calendar_has_hides_no_other(tmp: Path, tmp_path: Path) -> None:
    """A user can set it to any, and tmpfs keeps that."""
    wanted = [put(tmp_path / "run" / f"attempt_0/{rank}/error.json") for rank in range(2)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        odd = put(Path(memory) / "attempt_0/0/error.json")
        os.utime(odd, (3e11, 3e11))
        if os.stat(odd).st_mtime < 3e11:
            pytest.skip("no file system here that keeps such a time")
        assert search(places={"errors": [odd, *wanted]}) == (sorted([odd, *wanted]), [])
