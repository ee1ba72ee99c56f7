"""Storage that does not answer for a while: no running job is stopped for it, and one that hangs on it is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from in_memory.training_jobs import TrainingJobs
from in_memory.world import World

Worlds = Callable[..., World]
NOT_RESPONDING, OK = "nfs: server nas1 not responding, still trying", "nfs: server nas1 OK"
LOST = (
    "Lustre: lfs-OST0001-osc-ffff: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations using "
    "this service will wait for recovery to complete"
)
RESTORED = "Lustre: lfs-OST0001-osc-ffff: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)"
CLOSED = "libceph: osd3 (1)10.0.0.1:6801 socket closed (con state OPEN)"


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize(("fault", "again"), [(NOT_RESPONDING, OK), (LOST, RESTORED), (CLOSED, "")])
async def test_a_server_that_is_rebooted_stops_no_job(world: Worlds, fault: str, again: str, passes: bool) -> None:
    """Whether it says that it is back, and whether the jobs make steps in that time."""
    there = TrainingJobs(world(nodes=8, wide=2), jobs=4)
    await there.begin()
    await there.steps(10)
    await there.say(fault, tuple(there.readers))
    await asyncio.sleep(20.0)
    if again and passes:
        await there.say(again, tuple(there.readers))
    await there.steps(20 if passes else 0)
    await there.settle()
    assert there.restarts() == [0, 0, 0, 0]
    assert bool(there.sink.got) is bool(again), "it is told all the same; that an idle connection was closed is not"


async def test_a_job_that_hangs_on_storage_that_stays_away_is_restarted(world: Worlds) -> None:
    there = TrainingJobs(world(nodes=8, wide=2))
    await there.begin()
    await there.steps(10)
    await there.say(NOT_RESPONDING, ("n1",))
    await there.settle()
    assert there.restarts() == [0]
    await there.called_hung()
    await there.settle()
    assert there.restarts() == [1]


async def test_a_job_that_makes_steps_again_after_it_was_called_hung_is_left_alone(world: Worlds) -> None:
    there = TrainingJobs(world(nodes=8, wide=2))
    await there.begin()
    await there.steps(10)
    await there.say(NOT_RESPONDING, ("n1",))
    await there.called_hung()
    await there.steps(3)
    await there.settle()
    assert there.restarts() == [0]
