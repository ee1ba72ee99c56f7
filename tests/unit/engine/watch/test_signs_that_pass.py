"""Signs of machines that convict no node, as a lockup of seconds or a port that comes back: running jobs go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import RULES, SETTINGS, Daemon
from in_memory.training_jobs import TrainingJobs
from in_memory.world import World
from made_records import evidence

from sentinel.config.settings import Mode, Modes
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Source, Where

Worlds = Callable[..., World]
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:812]"
PORT, UP = "mlx5_core 0000:9b:00.0 ens1f0np0: Link down", "mlx5_core 0000:9b:00.0 ens1f0np0: Link up"
ERROR = b"""Traceback (most recent call last):
  File "/home/ada/train.py", line 81, in main
IndexError: list index out of range
"""
DISK = "nvme nvme0: I/O 13 QID 4 timeout, aborting"


async def begun(there: World) -> TrainingJobs:
    jobs = TrainingJobs(there, jobs=2)
    await jobs.begin()
    await jobs.steps(10)
    return jobs


async def down(there: TrainingJobs) -> None:
    """The agent of n1 says that its port is down."""
    now = there.there.slurm.clock.now()
    seen = evidence("link_down", source=Source.FABRIC, node="n1", text="port mlx5_0:1 is DOWN", data={"state": "DOWN"})
    await there.daemon.observe([dataclasses.replace(seen, at=now, seen_at=now)])


async def prints_an_error(there: TrainingJobs) -> None:
    where = Where(job=there.there.job, attempt=0, node="n1", path="out")
    now = there.there.slurm.clock.now()
    error = LogReader(Signatures(RULES), source=Source.JOB_LOG, where=where).feed(ERROR, now)
    await there.daemon.observe([dataclasses.replace(item, at=now, seen_at=now) for item in error])


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


@pytest.mark.parametrize("restarted", [True, False], ids=["another daemon", "the same daemon"])
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "hangs"])
@pytest.mark.parametrize("steps", [20, 0], ids=["after some more steps", "at once"])
async def test_nor_does_it_get_the_node_where_that_shows_late(
    world: Worlds, steps: int, ends: bool, restarted: bool
) -> None:
    """What waits in a collective gives up after minutes (NCCL after 10)."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(DISK, ("n1",))
    await there.steps(steps)
    await there.minutes_pass(5)
    if restarted:
        await there.restart_daemon()
    await there.minutes_pass(6)
    assert there.restarts() == [0, 0]
    await (there.ended() if ends else there.called_hung(660.0))
    await there.settle()
    assert there.restarts() == [1, 0] and "n1" in there.there.slurm.jobs[there.there.job].excluded, there.daemon.said


async def test_a_job_that_makes_steps_again_after_it_was_called_hung_is_left_alone(world: Worlds) -> None:
    """As one whose processor was stuck for longer than its steps take."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(LOCKUP, ("n1",))
    await there.called_hung()
    await there.steps(3)
    await there.settle()
    assert there.restarts() == [0, 0], there.daemon.said


async def test_what_ends_a_job_that_went_on_for_long_is_a_failure_of_its_own(world: Worlds) -> None:
    """Its program's error is not restarted for a lockup of long before."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(LOCKUP, ("n1",))
    await there.steps(80)
    await prints_an_error(there)
    await there.ended()
    await there.settle()
    job = there.there.slurm.jobs[there.there.job]
    assert (job.state, job.held, there.restarts()) == ("PENDING", True, [1, 0]), there.daemon.said


@pytest.mark.parametrize("fails", [True, False])
async def test_a_node_that_two_signs_convict_is_drained_and_its_job_goes_on_until_it_fails(
    world: Worlds, fails: bool
) -> None:
    """As a port of which the kernel and the agent tell: Slurm's drain lets the job finish."""
    there = await begun(world(nodes=8, wide=2))
    await there.say(PORT, ("n1",))
    await down(there)
    await there.steps(20)
    await there.settle()
    assert (there.restarts(), there.drained()) == ([0, 0], {"n1"}), there.daemon.said
    await (there.called_hung() if fails else there.steps(5))
    await there.settle()
    assert there.restarts() == [int(fails), 0], there.daemon.said
    assert fails is ("n1" not in there.on())


SUGGEST = dataclasses.replace(SETTINGS, modes=Modes(default=Mode("suggest", "act")))


async def asked_about(there: TrainingJobs, steps: int) -> None:
    """Two signs agree on a node, people are asked whether to drain it, and its job makes some more steps."""
    there.daemon = Daemon(there.there, [there.sink], settings=SUGGEST)
    await there.begin()
    await there.steps(10)
    await there.say(PORT, ("n1",))
    await down(there)
    await there.steps(steps)


@pytest.mark.parametrize("steps", [20, 80])
async def test_a_job_that_is_done_while_a_drain_waits_is_not_started_again(world: Worlds, steps: int) -> None:
    there = TrainingJobs(world(nodes=8, wide=2))
    await asked_about(there, steps)
    there.there.slurm.end(there.there.job, exit_code=0)
    await there.settle()
    job = there.there.slurm.jobs[there.there.job]
    assert (job.state, job.restarts) == ("COMPLETED", 0), there.daemon.said


@pytest.mark.parametrize("long", [True, False])
async def test_what_ends_a_job_while_a_drain_waits_is_judged_by_itself_if_that_went_on_for_long(
    world: Worlds, long: bool
) -> None:
    there = TrainingJobs(world(nodes=8, wide=2))
    await asked_about(there, 80 if long else 5)
    await prints_an_error(there)
    await there.ended()
    await there.settle()
    job = there.there.slurm.jobs[there.there.job]
    assert (job.held, "n1" in job.excluded) == (long, not long), there.daemon.said


async def test_a_job_that_hangs_while_a_drain_waits_is_restarted_without_the_node(world: Worlds) -> None:
    there = TrainingJobs(world(nodes=8, wide=2))
    await asked_about(there, 80)
    await there.called_hung()
    await there.settle()
    assert there.restarts() == [1] and "n1" in there.there.slurm.jobs[there.there.job].excluded, there.daemon.said
