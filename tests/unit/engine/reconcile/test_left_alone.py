"""A job that was to be stopped and went on may fail later in the same attempt: that is another failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink, commands_of, fail, silent, states
from in_memory.world import World
from made_records import AT, evidence, lost_gpu

from sentinel.model.records import Evidence, Kind, Source

Worlds = Callable[..., World]


def stall(there: World, step: int | None) -> Evidence:
    at_s = (there.slurm.clock.now() - AT).total_seconds()
    where: dict[str, Any] = {"source": Source.PROGRESS, "job": there.job, "attempt": 0}
    return evidence(Kind.STALL, at_s=at_s, data={"step": step, "silent_s": 60.0}, text=f"after {step}", **where)


@pytest.mark.parametrize("first", [None, 4])  # before its first step, or later
async def test_a_hang_after_one_that_was_over_is_judged(world: Worlds, first: int | None) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    there.progress.last_step = lambda *_: 5  # type: ignore[method-assign]
    await fail(daemon, stall(there, first))
    assert states(there) == ["closed"] and there.slurm.jobs[there.job].restarts == 0
    await daemon.pass_time(3600.0)
    there.progress.last_step = lambda *_: 500  # type: ignore[method-assign]
    await fail(daemon, stall(there, 500))
    assert there.slurm.jobs[there.job].restarts == 1 and len(states(there)) == 2


async def test_its_end_long_after_that_is_judged(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.progress.last_step = lambda *_: 5  # type: ignore[method-assign]
    await fail(daemon, stall(there, 4))
    await daemon.pass_time(3600.0)
    bus = {"node": "n1", "data": {"xid": 79, "pci": "0000:3b:00"}, "text": "NVRM: Xid 79"}
    await fail(daemon, evidence(Kind.XID, at_s=(there.slurm.clock.now() - AT).total_seconds(), **bus))
    assert there.slurm.jobs[there.job].restarts == 1 and there.slurm.nodes["n1"].drained


def ecc(node: str) -> Evidence:
    return evidence(Kind.XID, node=node, data={"xid": 95, "pci": "0000:3b:00"}, text="NVRM: Xid 95")


@pytest.mark.parametrize("given_back", [("n2",), ("n1",)])
async def test_a_job_that_has_given_the_broken_node_back_is_left_alone(
    world: Worlds, given_back: tuple[str, ...]
) -> None:
    """scontrol update NodeList=..., after the snapshot of which the plan is."""
    there, sink = silent(world(wide=3)), FakeSink()
    daemon = Daemon(there, [sink])
    job = there.slurm.jobs[there.job]
    drain = there.slurm.drain

    async def meanwhile(node: str, reason: str) -> None:
        job.on = tuple(name for name in job.on if name not in given_back)
        await drain(node, reason)

    there.slurm.drain = meanwhile  # type: ignore[method-assign]
    await fail(daemon, ecc("n2"))
    assert there.slurm.nodes["n2"].drained
    if given_back == ("n2",):
        assert (job.restarts, job.on, states(there)) == (0, ("n1", "n3"), ["closed"])
        assert "job 101 has given n2 back and runs without" in str(daemon.said)
        await fail(daemon, stall(there, 400))
    assert job.restarts == 1, "it had kept the node, or hung later"


async def test_a_job_whose_start_slurmctld_lost_is_not_said_to_have_given_the_node_back(world: Worlds) -> None:
    """It begins anew under the number of the same attempt, on other nodes."""
    there, sink = silent(world(wide=3)), FakeSink()
    daemon = Daemon(there, [sink])
    job = there.slurm.jobs[there.job]
    drain = there.slurm.drain

    async def meanwhile(node: str, reason: str) -> None:
        job.on, job.started = ("n1", "n3"), there.slurm.time_s() + 1
        await drain(node, reason)

    there.slurm.drain = meanwhile  # type: ignore[method-assign]
    await fail(daemon, ecc("n2"))
    assert (job.restarts, job.on, states(there)) == (0, ("n1", "n3"), ["closed"])
    assert "job 101 has begun anew without n2" in str(daemon.said)


@pytest.mark.parametrize("beside", ["stalled", "lost"])
async def test_a_job_that_stalls_or_lost_the_node_is_not_said_to_have_given_it_back(world: Worlds, beside: str) -> None:
    """Slurm takes a lost node from a job with --no-kill, which then hangs as any other does."""
    there = silent(world(wide=3))
    daemon = Daemon(there)
    job = there.slurm.jobs[there.job]
    drain = there.slurm.drain

    async def meanwhile(node: str, reason: str) -> None:
        await drain(node, reason)
        job.on = ("n1", "n3")
        there.slurm.nodes["n2"].down = beside == "lost"

    there.slurm.drain = meanwhile  # type: ignore[method-assign]
    await fail(daemon, ecc("n2"), *([stall(there, 400)] if beside == "stalled" else []))
    assert job.restarts == 1


def reaches_its_limit(there: World) -> None:
    there.slurm.end(there.job, exit_code=0, exit_signal=15, state="TIMEOUT")


@pytest.mark.parametrize("when", ["while paused", "while its node is drained"])
async def test_a_job_that_reaches_its_time_limit_before_its_restart_stays_over(world: Worlds, when: str) -> None:
    """That its node broke before changes nothing: it would get its whole time limit once more."""
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    job, drain = there.slurm.jobs[there.job], there.slurm.drain

    async def meanwhile(node: str, reason: str) -> None:
        await drain(node, reason)
        reaches_its_limit(there)

    if when == "while paused":
        await commands_of(daemon).make("pause", {}, 0)
        await fail(daemon, lost_gpu("n1"))
        reaches_its_limit(there)
        await daemon.pass_time(20.0)
        await commands_of(daemon).make("resume", {}, 0)
        await daemon.quiet()
    else:
        there.slurm.drain = meanwhile  # type: ignore[method-assign]
        await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert there.slurm.nodes["n1"].drained and states(there) == ["closed"], daemon.said
    assert (job.state, job.restarts) == ("TIMEOUT", 0) and daemon.bugs() == 0
    assert not {"failed", "held", "restarting"} & {*sink.stages}, sink.stages
    assert "is over and is not restarted: " in (told := str(sink.all[-1].data["owner_text"]))
    assert "reached its time limit, or the end of its reservation" in told
