"""Snapshots: shared by who asks at the same time, never older than asked for, and never guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon
from in_memory.watch import Seconds
from in_memory.world import World

from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.records import Fleet
from sentinel.simulate.slurm.records import KeptNodes

Worlds = Callable[..., World]


class Counted:
    """How often Slurm was really asked."""

    def __init__(self, world: World, seconds: Seconds, takes_s: float = 0.0) -> None:
        self.world, self.seconds, self.takes_s, self.count = world, seconds, takes_s, 0

    async def fleet(self) -> Fleet:
        self.count += 1
        self.seconds.now_s += self.takes_s
        await asyncio.sleep(0)
        return await self.world.slurm.fleet()


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


def wired(world: World, seconds: Seconds, takes_s: float = 0.0) -> tuple[Daemon, Counted]:
    daemon = Daemon(world)
    counted = Counted(world, seconds, takes_s)
    daemon.fleets._reader, daemon.fleets._seconds = counted, seconds.monotonic  # type: ignore[assignment]
    return daemon, counted


async def test_snapshot_is_as_fresh_as_asked_for(world: Worlds, seconds: Seconds) -> None:
    daemon, counted = wired(world(), seconds)
    first = await daemon.fleets.take(5.0)
    seconds.now_s += 5.0
    assert await daemon.fleets.take(5.0) is first and counted.count == 1
    assert await daemon.fleets.take(4.9) is not first and counted.count == 2
    seconds.now_s += 0.1
    await daemon.fleets.take()
    assert counted.count == 3


async def test_those_who_wait_together_share_one(world: Worlds, seconds: Seconds) -> None:
    daemon, counted = wired(world(), seconds)
    found = await asyncio.gather(*(daemon.fleets.take(1.0) for _ in range(50)))
    assert counted.count == 1 and all(fleet is found[0] for fleet in found)


async def test_age_counts_from_the_request_and_not_from_the_answer(world: Worlds, seconds: Seconds) -> None:
    """What happened while slurmctld wrote its answer may not be in it."""
    daemon, counted = wired(world(), seconds, takes_s=8.0)
    await daemon.fleets.take()
    await daemon.fleets.take(7.0)
    assert counted.count == 2


async def test_snapshot_from_before_a_change_of_ours_is_too_old_for_everybody(world: Worlds, seconds: Seconds) -> None:
    daemon, counted = wired(world(), seconds)
    first = await daemon.fleets.take()
    assert await daemon.fleets.after_changes() is first and counted.count == 1
    daemon.fleets.changed_by_us()
    seconds.now_s += 1.0
    second = await daemon.fleets.take(5.0)
    assert second is not first and await daemon.fleets.take(5.0) is second and counted.count == 2
    assert await daemon.fleets.after_changes() is second and counted.count == 2


async def test_snapshot_under_way_during_a_change_may_be_from_before_it(world: Worlds, seconds: Seconds) -> None:
    daemon, counted = wired(world(), seconds)
    answer = counted.fleet

    async def changed_meanwhile() -> Fleet:
        fleet = await answer()
        seconds.now_s += 1.0
        daemon.fleets.changed_by_us()
        return fleet

    counted.fleet = changed_meanwhile  # type: ignore[method-assign]
    first = await daemon.fleets.take()
    counted.fleet = answer  # type: ignore[method-assign]
    seconds.now_s += 1.0
    assert await daemon.fleets.after_changes() is not first and counted.count == 2


async def test_without_an_answer_the_snapshot_from_before_a_change_is_all_there_is(
    world: Worlds, seconds: Seconds
) -> None:
    there = world()
    daemon, counted = wired(there, seconds)
    assert await daemon.fleets.after_changes() is None and counted.count == 0  # nothing was seen or changed yet
    first = await daemon.fleets.take()
    daemon.fleets.changed_by_us()
    there.slurm.answers = False
    for _ in range(3):
        assert await daemon.fleets.after_changes() is first
    assert counted.count == 2  # who only looks does not wait for a slurmctld that is known not to answer


async def test_who_asks_for_news_shares_a_request_that_is_under_way(world: Worlds, seconds: Seconds) -> None:
    """One that a listing began while the news waited their turn: slurmctld has not failed to answer it."""
    daemon, counted = wired(world(), seconds)
    go_on = asyncio.Event()
    answer = counted.fleet

    async def held() -> Fleet:
        await go_on.wait()
        return await answer()

    counted.fleet = held  # type: ignore[method-assign]
    tasks = []
    for asked in (daemon.fleets.take_news, daemon.fleets.take_news, daemon.fleets.take):
        seconds.now_s += 1.0
        tasks.append(asyncio.create_task(asked()))
        for _ in range(5):
            await asyncio.sleep(0)
    go_on.set()
    _, news, listing = await asyncio.gather(*tasks)
    assert news is listing and counted.count == 2


async def test_no_answer_is_told_once_and_its_end_too(world: Worlds, seconds: Seconds) -> None:
    there = world()
    daemon, _ = wired(there, seconds)
    there.slurm.answers = False
    for _ in range(3):
        with pytest.raises(Unavailable):
            await daemon.fleets.take()
    assert daemon.fleets.problem and daemon.live.fleet is None
    assert daemon.said.count("slurm-unavailable") == 1
    there.slurm.answers = True
    for _ in range(2):
        seconds.now_s += 1.0
        await daemon.fleets.take()
    assert daemon.fleets.problem == "" and daemon.said.count("slurm-answers-again") == 1
    value = daemon.telemetry.registry.get_sample_value
    assert value("sentinel_slurm_snapshots_total", {"result": "unavailable"}) == 3.0
    assert value("sentinel_slurm_snapshots_total", {"result": "answered"}) == 2.0


async def test_those_who_wait_together_share_a_failure(world: Worlds, seconds: Seconds) -> None:
    there = world()
    daemon, counted = wired(there, seconds, takes_s=10.0)
    there.slurm.answers = False
    found = await asyncio.gather(*(daemon.fleets.take(1.0) for _ in range(50)), return_exceptions=True)
    assert counted.count == 1 and {str(error) for error in found} == {daemon.fleets.problem}
    assert all(isinstance(error, Unavailable) for error in found)
    there.slurm.answers = True
    assert there.job in (await daemon.fleets.take(1.0)).jobs and counted.count == 2, "who asks later asks anew"


async def test_refusal_is_no_answer_either(world: Worlds, seconds: Seconds) -> None:
    there = world()
    daemon, _ = wired(there, seconds)
    there.slurm.denies = True
    with pytest.raises(Unavailable, match="refused"):
        await daemon.fleets.take()


async def test_who_insists_waits_ever_longer_and_gets_it(
    world: Worlds, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    daemon, _ = wired(there, seconds)
    there.slurm.answers = False
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(pause_s: float) -> None:
        if pause_s:
            slept.append(pause_s)
        there.slurm.answers = len(slept) >= 6
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert there.job in (await daemon.fleets.take_until_answered()).jobs
    assert slept == [0.5, 1.0, 2.0, 5.0, 5.0, 5.0]


async def test_a_reservation_that_slurm_does_not_know_is_said_once(world: Worlds) -> None:
    """A name that was mistyped: jobs would wait in the queue beside idle spare nodes, and nobody would know why."""
    daemon = Daemon(world())
    slurm, clock = daemon.world.slurm, Seconds()
    fleets = FleetSnapshots(
        slurm, daemon.live, daemon.telemetry, Log(daemon.stream), seconds=clock.monotonic, spares="spare"
    )

    async def said() -> int:
        clock.now_s += 1.0
        await fleets.take()
        return daemon.said.count("spares-not-known")

    assert [await said(), await said()] == [1, 1]
    assert "reservation=spare" in daemon.said and daemon.live.fleet is not None and daemon.live.fleet.spares is None
    slurm.kept = KeptNodes("spare", 1)
    assert await said() == 1 and daemon.live.fleet.spares is not None
    slurm.kept = None
    assert await said() == 2
