"""Files that the controller's hook leaves: whose count, and that each is taken once."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
from in_memory.daemon import Daemon, incidents_of
from in_memory.world import World

from sentinel.config.settings import Daemon as DaemonSettings
from sentinel.daemon.ingest.event_files import EventFiles
from sentinel.daemon.wiring import event_files
from sentinel.engine.events import ReportedEnd
from sentinel.errors import Unavailable
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
        self.asked_about: set[int] = set()
        self.saves: list[asyncio.Future[None]] = []
        self.store_away = False
        self.box = EventFiles(
            self.folder, whose, self.report, Log(self.stream),
            asked_about=lambda: self.asked_about, saved=self.saved,
        )  # fmt: skip

    def report(self, event: str, jobs: Collection[int], ends: Mapping[int, ReportedEnd]) -> None:
        self.got.append((event, sorted(jobs)))
        self.ends.update(ends)

    def saved(self) -> asyncio.Future[None]:
        self.saves.append(asyncio.get_running_loop().create_future())
        if not self.store_away:
            self.saves[-1].set_result(None)
        return self.saves[-1]

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


async def test_one_file_that_cannot_be_removed_is_told_once_and_keeps_back_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Scene(tmp_path)
    there.leave(*(f"job_ended.{job}.1" for job in range(1, 10)))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "job_ended.5.1":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    await there.box.look()
    await there.box.look()
    assert there.got == [("job_ended", list(range(1, 10)))] and there.left() == ["job_ended.5.1"]
    assert there.stream.getvalue().count("Operation not permitted") == 1


async def test_a_file_stays_until_what_it_led_to_is_saved(tmp_path: Path) -> None:
    there = Scene(tmp_path)
    there.asked_about, there.store_away = {7}, True
    there.leave("job_ended.7.r0e3s0.a", "job_ended.8.b")
    await there.box.look()
    await there.box.look()
    assert there.got == [("job_ended", [7, 8])] and len(there.left()) == 2
    there.saves[0].set_result(None)
    await there.box.look()
    assert there.left() == ["job_ended.7.r0e3s0.a"] and len(there.saves) == 1
    there.asked_about = set()
    await there.box.look()
    there.saves[1].set_exception(Unavailable("the daemon is stopping"))
    there.store_away = False
    there.leave("job_ended.9.c")
    await there.box.look()
    assert there.got == [("job_ended", [7, 8]), ("job_ended", [9])] and there.left() == []


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


@pytest.mark.parametrize("store_away", [False, True], ids=["before Slurm answered", "while the store was away"])
async def test_a_daemon_that_ends_at_once_leaves_the_end_of_a_job_to_the_next_one(
    world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_away: bool
) -> None:
    """It failed while no daemon ran, and Slurm has forgotten it: that file is all that is left of it."""
    there, folder = world(), tmp_path / "events"
    folder.mkdir(mode=0o700)

    async def started() -> tuple[Daemon, EventFiles]:
        daemon = Daemon(there)
        await daemon.start()
        await daemon.quiet()
        box = event_files(DaemonSettings(events=str(folder)), daemon.runner, Log(daemon.stream))
        assert box is not None
        return daemon, box

    first, _ = await started()
    first.runner.report("job_started", {there.job})
    await first.quiet()
    await first.runner.stop()
    at = there.slurm.clock.now().timestamp()
    there.slurm.end(there.job, exit_code=3)
    there.slurm.purge(there.job)
    there.slurm.clock.advance(400.0)
    name = folder / f"job_ended.{there.job}.r0e3s0.abc"
    name.touch()
    os.utime(name, (at, at))

    async def hangs(_: float) -> None:
        await asyncio.Event().wait()

    def away(_: object) -> None:
        raise Unavailable("database or disk is full")

    with monkeypatch.context() as outage:
        second, box = await started()
        if store_away:
            outage.setattr(there.store, "commit", away)
        else:
            outage.setattr(second.fleets, "take_until_answered", hangs)
        await box.look()
        while store_away and second.runner.store_problem is None:
            await asyncio.sleep(0)
        await box.look()
        await second.runner.stop()
    assert not incidents_of(there.store)

    third, box = await started()
    await box.look()
    await third.quiet()
    await box.look()
    assert [job for _, job, _ in incidents_of(there.store).values()] == [there.job]
    assert not list(folder.iterdir())


async def test_the_file_of_a_job_whose_epilogs_hang_stays_until_slurm_says_how_it_ended(
    world: Callable[..., World], tmp_path: Path
) -> None:
    """Slurm is not asked about it on and on, and a later snapshot shows its end."""
    there, folder = world(), tmp_path / "events"
    folder.mkdir(mode=0o700)
    daemon = Daemon(there)
    await daemon.start()
    box = event_files(DaemonSettings(events=str(folder)), daemon.runner, Log(daemon.stream))
    assert box is not None
    there.slurm.jobs[there.job].state = "COMPLETING"
    (folder / f"job_ended.{there.job}.r0e3s0.abc").touch()
    await box.look()
    await daemon.pass_time(60.0)
    await box.look()
    assert list(folder.iterdir())
    there.slurm.jobs[there.job].state = "RUNNING"
    there.slurm.end(there.job, exit_code=3)
    daemon.runner.report("job_started", {there.job})
    await daemon.quiet()
    await box.look()
    assert [job for _, job, _ in incidents_of(there.store).values()] == [there.job]
    assert not list(folder.iterdir())
