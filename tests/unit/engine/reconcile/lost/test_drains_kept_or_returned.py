"""A drain that is gone was lost by slurmctld, or a person returned the node: only the first is done again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, fail, silent
from in_memory.world import World
from made_records import AT, OPTED_IN, lost_gpu

from sentinel.config.settings import Limits

Worlds = Callable[..., World]


WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


async def test_a_node_that_a_person_returned_is_left_in_service(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.nodes["n1"].drained = False  # scontrol update State=RESUME
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained and daemon.bugs() == 0


async def test_a_job_that_starts_on_a_node_which_a_person_returned_at_once_is_left_there(world: Worlds) -> None:
    """The drain might have been lost by slurmctld, so it is asked about; until then nothing is known of the node."""
    there = world(nodes=6)
    daemon = Daemon(there, settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(5.0)
    there.slurm.nodes["n1"].drained = False
    young = there.slurm.submit(nodes=4, comment=OPTED_IN)
    assert "n1" in there.slurm.jobs[young].on
    for _ in range(6):
        await daemon.pass_time(10.0)
    assert there.slurm.jobs[young].restarts == 0 and not there.slurm.nodes["n1"].drained, daemon.said


async def test_a_drain_that_was_seen_for_long_was_not_lost_with_a_later_restart_of_slurmctld(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(60.0)
    there.slurm.nodes["n1"].drained = False
    there.slurm.save_state()
    there.slurm.crash()
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained


async def test_a_drain_that_outlived_a_restart_of_slurmctld_and_was_then_taken_back_stays_so(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    write = there.resume.write

    async def returned(job: int, values: Any) -> None:
        there.slurm.clock.advance(2.0)
        there.slurm.save_state()
        there.slurm.crash()
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        assert there.slurm.nodes["n1"].drained
        there.slurm.person_resumes("n1")
        await write(job, values)

    there.resume.write = returned  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, daemon.said


async def test_the_next_daemon_knows_that_a_drain_outlived_a_restart_of_slurmctld(world: Worlds) -> None:
    there = silent(world())
    first = Daemon(there)
    await fail(first, lost_gpu("n1"))
    there.slurm.clock.advance(2.0)
    there.slurm.save_state()
    there.slurm.crash()
    there.slurm.clock.advance(3.0)
    await first.fleets.take()
    await first.quiet()
    there.slurm.person_resumes("n1")
    second = Daemon(there)
    await second.start()
    await second.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, second.said


def paused_after_the_drain(there: World, daemon: Daemon, meanwhile: Callable[[], None]) -> None:
    write = there.resume.write

    async def pausing(job: int, values: Any) -> None:
        there.resume.write = write  # type: ignore[method-assign]
        daemon.state.paused = True
        there.store.put("paused", True)
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        meanwhile()
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        await write(job, values)

    there.resume.write = pausing  # type: ignore[method-assign]


@pytest.mark.parametrize("daemons", [1, 2])
async def test_a_node_that_a_person_returned_in_a_pause_is_left_there_though_slurmctld_was_restarted_in_it(
    world: Worlds, daemons: int
) -> None:
    there = silent(world())
    daemon = Daemon(there)
    paused_after_the_drain(there, daemon, lambda: there.slurm.person_resumes("n1"))
    await fail(daemon, lost_gpu("n1"))
    if daemons == 2:
        daemon = Daemon(there)
        await daemon.start()
    await daemon.pass_time(20.0)
    there.slurm.save_state()
    there.slurm.crash()
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, daemon.said


async def test_only_the_drain_that_may_be_lost_is_asked_about_and_not_those_beside_it(world: Worlds) -> None:
    """The other node was seen drained for a minute before a person returned it: that drain was saved."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    paused_after_the_drain(there, daemon, lambda: there.slurm.person_resumes("n2"))
    await fail(daemon, lost_gpu("n1"), lost_gpu("n2"))
    assert there.slurm.nodes["n1"].drained
    await daemon.pass_time(60.0)
    there.slurm.person_resumes("n1")
    await daemon.pass_time(5.0)
    there.slurm.save_state()
    there.slurm.crash()
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained and not there.slurm.nodes["n2"].drained, daemon.said


async def test_a_drain_that_slurmctld_lost_in_a_pause_is_done_again_after_it(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.slurm.save_state()
    paused_after_the_drain(there, daemon, there.slurm.crash)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(40.0)
    assert not there.slurm.nodes["n1"].drained
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert there.slurm.nodes["n1"].drained, daemon.said


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("daemons", [1, 2])
async def test_slurmctld_that_kept_a_later_drain_kept_the_one_before_it(
    world: Worlds, daemons: int, kept: bool
) -> None:
    """It saves all nodes in one file: the node before was put back by a person. If both are gone, it lost both."""
    there = silent(world(nodes=6))
    wide = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0, drain_count=99, drain_per_hour=99))
    daemon = Daemon(there, settings=wide)

    def drained() -> set[str]:
        return {name for name, node in there.slurm.nodes.items() if node.drained}

    there.slurm.save_state()
    await fail(daemon, lost_gpu("n5"))
    await daemon.pass_time(9.0)
    await fail(daemon, lost_gpu("n6", at_s=(there.slurm.clock.now() - AT).total_seconds()))
    assert drained() == {"n5", "n6"}
    there.slurm.clock.advance(3.0)
    if kept:
        there.slurm.save_state()
    there.slurm.crash()
    assert drained() == ({"n5", "n6"} if kept else set())
    if kept:
        there.slurm.person_resumes("n5")
    if daemons == 2:
        daemon = Daemon(there, settings=wide)
        await daemon.start()
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert drained() == ({"n6"} if kept else {"n5", "n6"}), daemon.said


@pytest.mark.parametrize("daemons", [1, 2])
@pytest.mark.parametrize("drained_s", [2.0, 60.0])
async def test_another_machine_of_the_same_name_is_not_drained_for_the_one_that_slurm_has_no_more(
    world: Worlds, drained_s: float, daemons: int
) -> None:
    """A dynamic node that was deleted and made anew: its drain went with it, and no start of slurmctld lost it."""
    there = world()
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n4"))
    await daemon.pass_time(drained_s)
    successor = there.slurm.nodes.pop("n4")
    successor.drained, successor.reason = False, ""
    await daemon.pass_time(20.0)
    there.slurm.save_state()
    there.slurm.crash()
    if daemons == 2:
        daemon = Daemon(there)
        await daemon.start()
    there.slurm.nodes["n4"] = successor
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n4"].drained, daemon.said
    await fail(daemon, lost_gpu("n4", at_s=(there.slurm.clock.now() - AT).total_seconds()))
    assert there.slurm.nodes["n4"].drained, "what is said of it since is of this machine"
