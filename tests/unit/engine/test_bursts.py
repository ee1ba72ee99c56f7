"""What a node says again and again, with nothing to be done about it: one incident, one message, one failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence

from sentinel.model.records import Evidence, Kind, Source

Worlds = Callable[..., World]
ADDRESSES = ("0000:1b:00", "0000:43:00")


def now_s(daemon: Daemon) -> float:
    return (daemon.world.slurm.clock.now() - evidence().at).total_seconds()


def xid(daemon: Daemon, number: int, *, gpu: int) -> Evidence:
    text = f"NVRM: Xid (PCI:{ADDRESSES[gpu]}): {number}, pid=77, name=python"
    return evidence(node="n1", at_s=now_s(daemon), text=text, data={"xid": number, "pci": ADDRESSES[gpu]})


async def burst(daemon: Daemon, count: int, number: int, *, gpu: int = 1) -> None:
    for _ in range(count):
        await daemon.observe([xid(daemon, number, gpu=gpu)])
        await daemon.pass_time(2.0)


def idle(world: World, *sinks: FakeSink) -> Daemon:
    world.slurm.cancel(world.job)
    return Daemon(world, sinks)


def told(daemon: Daemon) -> list[dict[str, Any]]:
    return sorted(daemon.world.store.incident_rows(), key=lambda row: row["opened_at"])


async def test_what_an_idle_node_says_again_is_of_the_incident_that_told_of_it(world: Worlds) -> None:
    sink = FakeSink()
    daemon = idle(world(nodes=4), sink)
    await burst(daemon, 12, 119)
    (row,) = told(daemon)
    assert (row["state"], row["culprit_nodes"]) == ("closed", ["n1"]), row
    assert len(sink.all) == 1, sink.stages
    assert len(daemon.state.past.failures(without=None).failures) == 1
    assert len(daemon.world.store.incident(row["id"]).evidence) == 12, "all of it is kept"


async def test_more_than_was_told_is_an_incident_of_its_own(world: Worlds) -> None:
    daemon = idle(world(nodes=4))
    await burst(daemon, 3, 119)
    await burst(daemon, 3, 119, gpu=0)
    assert [row["culprit_gpus"] for row in told(daemon)] == [[f"n1:{ADDRESSES[1]}"], [f"n1:{ADDRESSES[0]}"]]
    await burst(daemon, 1, 79)
    assert daemon.world.slurm.nodes["n1"].drained and len(told(daemon)) == 3, daemon.said


async def test_what_comes_long_after_or_after_a_passed_test_is_told_again(world: Worlds) -> None:
    daemon = idle(world(nodes=4))
    await burst(daemon, 2, 119)
    await daemon.observe([evidence(Kind.DIAG_PASSED, node="n1", at_s=now_s(daemon), source=Source.DIAGNOSTIC)])
    await daemon.pass_time(2.0)
    await burst(daemon, 2, 119)
    assert len(told(daemon)) == 2
    await daemon.pass_time(600.0)
    await daemon.housekeeping()
    await burst(daemon, 2, 119)
    assert len(told(daemon)) == 3


async def test_a_program_s_burst_on_a_mended_node_stops_no_job(world: Worlds) -> None:
    daemon = idle(world(nodes=4))
    slurm = daemon.world.slurm
    job = slurm.submit(nodes=1, required=("n1",), comment=OPTED_IN)
    await daemon.pass_time(10.0)
    await burst(daemon, 1, 79, gpu=0)
    assert slurm.nodes["n1"].drained, daemon.said
    slurm.cancel(job)
    await daemon.pass_time(120.0)
    slurm.nodes["n1"].drained = False
    await daemon.pass_time(120.0)
    await burst(daemon, 20, 13)
    job = slurm.submit(nodes=1, required=("n1",), comment=OPTED_IN)
    await daemon.pass_time(60.0)
    await burst(daemon, 1, 13)
    assert slurm.jobs[job].restarts == 0 and slurm.jobs[job].state == "RUNNING", daemon.said
    assert len(told(daemon)) == 1


@pytest.mark.parametrize(("waits_s", "cause"), [(20.0, "unknown"), (-20.0, "user_code")])
async def test_what_a_program_did_before_a_job_began_says_nothing_of_it(
    world: Worlds, waits_s: float, cause: str
) -> None:
    """``waits_s``: from the Xid to the beginning of the job."""
    there = world(nodes=1)
    daemon = idle(there)
    first = xid(daemon, 13, gpu=1)
    if waits_s > 0:
        await daemon.observe([first])
        await daemon.pass_time(waits_s)
    job = there.slurm.submit(nodes=1, comment=OPTED_IN)
    await daemon.fleets.take()
    assert there.slurm.jobs[job].on == ("n1",)
    await daemon.pass_time(30.0)
    if waits_s < 0:
        await daemon.observe([xid(daemon, 13, gpu=1)])
    there.slurm.end(job, exit_code=1)
    await daemon.fleets.take()
    await daemon.observe([ended(job, at_s=now_s(daemon))])
    await daemon.quiet()
    assert [row["cause"] for row in daemon.world.store.incident_rows() if row["job"] == job] == [cause]
