"""Small state files: replaced in one step, and a disk that hangs holds up nobody."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sentinel.adapters.spool import Spool
from sentinel.agent.collectors.own_disk import DiskWatch
from sentinel.agent.process import state_files
from sentinel.agent.process.state_files import Folder, restore, save, write_atomically
from sentinel.model.records import Evidence, Kind


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    assert save(tmp_path / "a.json", {"n": 1}) is True
    assert restore(tmp_path / "a.json") == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert restore(tmp_path / "b.json") is None


def test_any_text_can_be_written(tmp_path: Path) -> None:
    assert write_atomically(tmp_path / "a", "BAD \ud800 \udcff ☃\n") is True
    assert (tmp_path / "a").read_text(encoding="utf-8") == "BAD \\ud800 \\xff ☃\n"
    assert save(tmp_path / "b", {"path": "\udcff"}) and restore(tmp_path / "b") == {"path": "\udcff"}


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    assert write_atomically(tmp_path / "no" / "such" / "folder", "x") is False
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").write_text("x")
    assert write_atomically(tmp_path / "a", "y") is False
    assert (tmp_path / "a" / "kept").read_text() == "x"


class Gate:
    """A disk that answers when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        really = state_files._replace

        def replace(path: Path, content: bytes, mode: int) -> bool:
            self.opened.wait()
            return really(path, content, mode)

        monkeypatch.setattr(state_files, "_replace", replace)


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, folder = Gate(monkeypatch), Folder(patience_s=0.02)
    for number in range(50):
        assert folder.write(tmp_path / f"f{number % 2}", b"%d" % number, 0o600) is False
    assert folder.stuck_s > 0
    assert list(tmp_path.iterdir()) == []
    gate.opened.set()
    folder.patience_s = 60.0
    assert folder.write(tmp_path / "f2", b"last", 0o600) is True
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"f0": "48", "f1": "49", "f2": "last"}


def test_one_folder_does_not_hold_up_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = state_files._replace
    gate = threading.Event()

    def replace(path: Path, content: bytes, mode: int) -> bool:
        if path.parent.name == "state":
            gate.wait()
        return really(path, content, mode)

    monkeypatch.setattr(state_files, "_replace", replace)
    monkeypatch.setattr(state_files, "_folders", {tmp_path / "state": Folder(patience_s=0.02)})
    for name in ("state", "run"):
        (tmp_path / name).mkdir()
    assert save(tmp_path / "state" / "cursor.json", 1) is False
    assert write_atomically(tmp_path / "run" / "verdict", "ok\n") is True, "the prolog has its answer"
    assert list(state_files.stuck()) == [tmp_path / "state"]
    gate.set()


def test_a_state_disk_that_hangs_is_said_once_each_time(tmp_path: Path) -> None:
    kept: list[Evidence] = []
    late: dict[Path, float] = {}
    watch = DiskWatch("n1", Spool(tmp_path), kept.append, hung_s=5.0, stuck=lambda: late)
    for seconds in (1.0, 4.9):
        late[Path("/state")] = seconds
        watch.look()
    assert kept == []
    for seconds in (5.5, 6.5, 900.0):
        late[Path("/state")] = seconds
        watch.look()
    (item,) = kept
    assert (item.kind, item.where.node, item.where.path) == (Kind.PROBE_HUNG, "n1", "/state")
    late.clear()
    watch.look()
    late[Path("/state")] = 7.0
    watch.look()
    assert len(kept) == 2
