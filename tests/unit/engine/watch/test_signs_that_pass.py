"""Signs of machines that convict no node, as a lockup of seconds or a port that comes back: running jobs go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.training_jobs import TrainingJobs
from in_memory.world import World

Worlds = Callable[..., World]
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:812]"
PORT, UP = "mlx5_core 0000:9b:00.0 ens1f0np0: Link down", "mlx5_core 0000:9b:00.0 ens1f0np0: Link up"
DISK = "nvme nvme0: I/O 13 QID 4 timeout, aborting"


async def begun(there: World) -> TrainingJobs:
    jobs = TrainingJobs(there, jobs=2)
    await jobs.begin()
    await jobs.steps(10)
    return jobs


@pytest.mark.parametrize(("line", "again"), [(LOCKUP, ""), (PORT, UP), (PORT, ""), (DISK, "")])
@pytest.mark.parametrize("steps", [20, 0], ids=["whose steps are seen", "whose steps are not known"])
async def test_a_job_is_not_stopped_for_what_one_line_of_a_node_says(
    world: Worlds, line: str, again: str, steps: int
) -> None:
    there = await begun(world(nodes=8, wide=2))
    await there.say(line, ("n1",))
    if again:
        await there.say(again, ("n1",))
    await there.steps(steps)
    await there.settle()
    assert (there.restarts(), there.drained()) == ([0, 0], set()), there.daemon.said


async def test_nor_for_what_several_nodes_say_at_once(world: Worlds) -> None:
    """A switch that restarts takes the ports of all its nodes along for a while."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(PORT, tuple(there.readers))
    await there.steps(20)
    await there.settle()
    assert (there.restarts(), there.drained()) == ([0, 0], set()), there.daemon.said


@pytest.mark.parametrize("line", [LOCKUP, PORT, DISK])
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "hangs"])
async def test_a_job_that_stands_still_after_it_is_restarted_without_the_node(
    world: Worlds, line: str, ends: bool
) -> None:
    there = await begun(world(nodes=8, wide=2))
    await there.say(line, ("n1",))
    await there.settle()
    assert there.restarts() == [0, 0]
    await (there.ended() if ends else there.called_hung())
    await there.settle()
    assert there.restarts() == [1, 0] and "n1" not in there.on(), there.daemon.said


async def test_a_job_that_makes_steps_again_after_it_was_called_hung_is_left_alone(world: Worlds) -> None:
    """As one whose processor was stuck for longer than its steps take."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(LOCKUP, ("n1",))
    await there.called_hung()
    await there.steps(3)
    await there.settle()
    assert there.restarts() == [0, 0], there.daemon.said
