"""What a node said before its job began, or before it was rebooted, heard late: that job is not restarted for it, nor the
node drained for what its reboot has ended."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime

import pytest
from in_memory.daemon import Daemon, incidents_of
from in_memory.world import World
from made_records import OPTED_IN, evidence

from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.model.records import Evidence, Kind

Worlds = Callable[..., World]
HOUR_S = 3600.0


def xid(number: int, at: datetime) -> Evidence:
    text = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=7"
    made = evidence(Kind.XID, node="n1", data={"xid": number, "pci": "0000:3b:00"}, text=text, id=f"{number} {at}")
    return dataclasses.replace(made, at=at, seen_at=at)


async def heard(
    daemon: Daemon, job: int, ahead_s: float = 0.0, up_s: float | None = 30 * 24 * HOUR_S, word: str = "OK"
) -> None:
    """Heartbeats of n1, whose clock is that much ahead, and which is up for so long."""
    for seconds in (0.0, 2.0, 4.0):
        at = daemon.world.slurm.clock.now()
        await daemon.runner.handle(
            HeartbeatReceived(at, "n1", now_s=seconds, sent_s=None if up_s is None else up_s + seconds, boot="b",
                              clock_offset_s=ahead_s, jobs=((job, 0),), kernel_readable=True, lost=0,
                              spool={"pending": 0}, verdict={"word": word})
        )  # fmt: skip
        await daemon.pass_time(2.0)


async def at_work_for_an_hour(daemon: Daemon) -> None:
    await daemon.start()
    await daemon.housekeeping()
    await daemon.pass_time(1.0)
    await asyncio.sleep(HOUR_S)  # of the fake clock, as all of them here


async def told(daemon: Daemon, item: Evidence) -> None:
    await daemon.observe([item])
    await daemon.quiet()
    await daemon.pass_time(30.0)
    await daemon.housekeeping()
    await daemon.quiet()


@pytest.mark.parametrize("away", [True, False], ids=["daemon", "agent"])
@pytest.mark.parametrize(("number", "drained"), [(94, False), (119, False), (48, True), (79, True)])
async def test_a_fault_heard_hours_later_is_not_that_of_the_job_that_began_since(
    world: Worlds, number: int, drained: bool, away: bool
) -> None:
    """One job ran there then, and completed; the next one is another user's."""
    there = world(nodes=2, wide=2)
    slurm, daemon = there.slurm, Daemon(there)
    await at_work_for_an_hour(daemon)
    at = slurm.clock.now()
    await asyncio.sleep(600.0)
    slurm.end(there.job)
    if not away:
        await daemon.fleets.take()
        await daemon.quiet()
    await asyncio.sleep(HOUR_S)
    job = slurm.submit(nodes=2, user="bo", uid=1002, comment=OPTED_IN)
    slurm.schedule()
    await asyncio.sleep(HOUR_S)
    if away:
        daemon = Daemon(there)
        await daemon.start()
    await daemon.fleets.take()
    await daemon.housekeeping()
    await heard(daemon, job)
    await told(daemon, xid(number, at))
    assert slurm.jobs[job].state == "RUNNING" and slurm.jobs[job].restarts == 0
    assert [number for _, number, _ in incidents_of(there.store).values()] == [None]
    assert slurm.nodes["n1"].drained is drained, "what the node has is the node's"


@pytest.mark.parametrize("ahead_s", [0.0, -2 * HOUR_S])
@pytest.mark.parametrize("late_s", [0.0, 1200.0])
async def test_of_a_job_that_ran_then_and_still_runs_it_is_also_where_it_is_heard_late_or_the_clock_is_off(
    world: Worlds, late_s: float, ahead_s: float
) -> None:
    there = world(nodes=3, wide=2)
    slurm, daemon = there.slurm, Daemon(there)
    await at_work_for_an_hour(daemon)
    at = daemon.world.slurm.clock.now()
    await asyncio.sleep(late_s)
    await daemon.fleets.take()
    await heard(daemon, there.job, ahead_s)
    await told(daemon, xid(79, datetime.fromtimestamp(at.timestamp() + ahead_s, at.tzinfo)))
    assert slurm.jobs[there.job].restarts == 1 and slurm.nodes["n1"].drained


@pytest.mark.parametrize(
    ("number", "up_s", "word", "before", "drained"),
    [
        (79, HOUR_S, "OK", 0, False),
        (48, HOUR_S, "OK", 0, False),
        (79, 3 * HOUR_S, "OK", 0, True),  # it is up since before
        (79, None, "OK", 0, True),  # since when is not known
        (79, HOUR_S, "UNKNOWN", 0, True),
        (48, HOUR_S, "BAD", 0, True),  # as of rows that could not be remapped
        (79, HOUR_S, "OK", 1, True),  # it comes again
    ],
)
async def test_a_reboot_ends_what_the_agent_holds_against_its_node(
    world: Worlds, number: int, up_s: float | None, word: str, before: int, drained: bool
) -> None:
    there = world(nodes=2, wide=2)
    slurm, daemon = there.slurm, Daemon(there)
    await at_work_for_an_hour(daemon)
    if before:
        await told(daemon, xid(number, slurm.clock.now()))
        slurm.nodes["n1"].reason, slurm.nodes["n1"].drained = "", False  # by a person
        await asyncio.sleep(2 * HOUR_S)
        await daemon.fleets.take()
        await daemon.housekeeping()
    at = slurm.clock.now()
    await asyncio.sleep(2 * HOUR_S)
    slurm.jobs[there.job].started = slurm.clock.now().timestamp() - 600.0
    daemon = Daemon(there)
    await daemon.start()
    await daemon.fleets.take()
    await daemon.housekeeping()
    await heard(daemon, there.job, up_s=up_s, word=word)
    await told(daemon, xid(number, at))
    assert slurm.nodes["n1"].drained is drained
    assert before or slurm.jobs[there.job].restarts == 0, "it began since"
