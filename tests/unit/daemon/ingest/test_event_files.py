"""Files that the controller's hook leaves: whose count, and that each is taken once."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from sentinel.daemon.ingest.event_files import EventFiles
from sentinel.engine.events import ReportedEnd
from sentinel.log import Log
from sentinel.model.records import utc


class Scene:
    def __init__(self, folder: Path, trusted: Collection[int] | None = None) -> None:
        self.folder = folder / "events"
        self.folder.mkdir(mode=0o700)
        self.got: list[tuple[str, list[int]]] = []
        self.ends: dict[int, ReportedEnd] = {}
        self.stream = io.StringIO()
        whose = {os.getuid()} if trusted is None else trusted
        self.box = EventFiles(self.folder, whose, self.report, Log(self.stream))

    def report(self, event: str, jobs: Collection[int], ends: Mapping[int, ReportedEnd]) -> None:
        self.got.append((event, sorted(jobs)))
        self.ends.update(ends)

    def leave(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


async def test_what_was_left_is_told_together_and_taken(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    there.leave("job_ended.7.100", "job_ended.7.17fe90uM8s", "job_ended.4294967291.7", "node_down.0.5")
    await there.box.look()
    await there.box.look()
    assert there.got == [("job_ended", [7, 4294967291]), ("node_down", [0])] and there.left() == []


async def test_how_the_newest_attempt_ended_is_told_with_its_time(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    names = ("job_ended.7.r1e3s0.17fe90uM8s", "job_ended.7.r0e0s15.abc", "job_ended.8.17fe90uM8s")
    there.leave(*names)
    os.utime(there.folder / names[0], (1000.0, 1772366400.0))
    await there.box.look()
    assert there.got == [("job_ended", [7, 8])] and there.ends == {7: ReportedEnd(utc(1772366400.0), 1, 3, 0)}


@pytest.mark.parametrize(
    "name", ["job_ended.x.1", "job_ended.7", ".job_ended.7.1", "JOB.7.1", "job_ended.99999999999.1"]
)
async def test_what_is_no_event_stays_and_is_said_once(tmp_path: Path, name: str) -> None:
    there = Scene(tmp_path)
    there.leave(name)
    await there.box.look()
    await there.box.look()
    assert there.got == [] and there.left() == [name]
    assert there.stream.getvalue().count("event-refused") == 1


async def test_one_file_that_stays_keeps_back_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it are gone from the folder: nobody would tell of them again."""
    there = Scene(tmp_path)
    there.leave(*(f"job_ended.{job}.1" for job in range(1, 10)))
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.endswith("job_ended.5.1"):
            raise PermissionError(1, "Operation not permitted")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    await there.box.look()
    assert there.got == [("job_ended", [1, 2, 3, 4, 6, 7, 8, 9])] and there.left() == ["job_ended.5.1"]
    assert "Operation not permitted" in there.stream.getvalue()


async def test_a_link_is_no_event(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    (there.folder / "job_ended.7.1").symlink_to(tmp_path)
    await there.box.look()
    assert there.got == [] and there.left() == ["job_ended.7.1"]


async def test_a_folder_that_everybody_can_write_to_is_not_believed(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    there.leave("job_ended.7.1")
    there.folder.chmod(0o777)
    await there.box.look()
    await there.box.look()
    assert there.got == [] and there.stream.getvalue().count("events-unreadable") == 1
    there.folder.chmod(0o770)
    await there.box.look()
    assert there.got == [("job_ended", [7])]


async def test_files_and_folders_of_others_are_not_believed(tmp_path: Path) -> None:
    there = Scene(tmp_path, trusted={os.getuid() + 1})
    there.leave("job_ended.7.1")
    await there.box.look()
    assert there.got == [] and "not read" in there.stream.getvalue()


async def test_a_folder_that_is_not_there_is_said_and_tried_again(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    there.folder.rmdir()
    await there.box.look()
    assert "cannot be read" in there.stream.getvalue()
    there.folder.mkdir(mode=0o700)
    there.leave("job_ended.7.1")
    await there.box.look()
    assert there.got == [("job_ended", [7])]
