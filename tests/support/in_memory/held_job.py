"""A job that is held for a person, and what tests of recoveries ask of the world around it."""

from __future__ import annotations

import dataclasses

from made_records import AT, lost_gpu

from in_memory.daemon import WIDE, Daemon, FakeSink, fail, states
from in_memory.world import World
from sentinel.config.settings import Limits

NO_RESTARTS = dataclasses.replace(WIDE, limits=Limits(drain_fraction=1.0, restarts_per_job=0))


def now_s(there: World) -> float:
    return (there.slurm.clock.now() - AT).total_seconds()


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


async def held(there: World, *sinks: FakeSink) -> Daemon:
    """A daemon that holds the world's job for a person."""
    daemon = Daemon(there, sinks, settings=NO_RESTARTS)
    await fail(daemon, lost_gpu("n1"))
    assert states(there) == ["held"] and there.slurm.jobs[there.job].held
    return daemon
