"""Drains that Slurm ends with a reboot that somebody had asked for before the fault (scontrol reboot nextstate=RESUME)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, open_plan, silent, states
from in_memory.world import World
from made_records import lost_gpu

from sentinel.engine.drain_reasons import DRAIN_REASONS

Worlds = Callable[..., World]


async def rebooted(daemon: Daemon, node: str, *, seen: bool = True) -> None:
    """Slurm reboots the node, whose jobs are over, and has it in service again."""
    this = daemon.world.slurm.nodes[node]
    this.reboot_asked, this.rebooting, this.down = False, True, True
    this.reason = f"{this.reason} : reboot issued"
    if seen:
        await daemon.pass_time(20.0)
    this.rebooting = this.down = this.drained = False
    this.reason = ""
    daemon.world.slurm.schedule()
    await looked(daemon)


async def looked(daemon: Daemon) -> None:
    await daemon.pass_time(20.0)
    await daemon.runner.timer_due(DRAIN_REASONS)
    await daemon.quiet()
    await daemon.pass_time(20.0)


@pytest.mark.parametrize("seen", [True, False], ids=["a snapshot shows it", "between two snapshots"])
async def test_a_drain_that_a_reboot_of_before_it_ends_is_made_again(world: Worlds, seen: bool) -> None:
    there = silent(world(nodes=5))
    n1 = there.slurm.nodes["n1"]
    n1.reboot_asked, n1.reason = True, "reboot requested"
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    ours = n1.reason
    assert n1.drained and ours.startswith("sentinel:"), daemon.said
    await rebooted(daemon, "n1", seen=seen)
    assert n1.drained and (n1.reason == ours if seen else ours.startswith(n1.reason)), daemon.said
    assert "node-return-left" not in daemon.said and "returned to service by somebody else" not in daemon.said
    assert daemon.state.returns.known["n1"].reason == n1.reason
    there.slurm.person_resumes("n1")
    await looked(daemon)
    assert not n1.drained, "that is a person's return"
    assert daemon.bugs() == 0


async def test_a_daemon_that_starts_after_the_reboot_drains_the_node_again(world: Worlds) -> None:
    there = silent(world(nodes=5))
    n1 = there.slurm.nodes["n1"]
    n1.reboot_asked = True
    await fail(Daemon(there, settings=WIDE), lost_gpu("n1"))
    assert n1.drained
    n1.reboot_asked = n1.drained = False
    n1.reason = ""
    there.slurm.clock.advance(3600.0)
    daemon = Daemon(there, settings=WIDE)
    await daemon.start()
    await looked(daemon)
    assert n1.drained and n1.reason.startswith("sentinel:"), daemon.said


async def test_who_returns_a_node_before_its_reboot_has_returned_it(world: Worlds) -> None:
    there = silent(world(nodes=5))
    n1 = there.slurm.nodes["n1"]
    n1.reboot_asked = True
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    there.slurm.person_resumes("n1")
    await looked(daemon)
    await rebooted(daemon, "n1")
    assert not n1.drained, daemon.said


async def test_who_asks_for_a_reboot_of_a_node_that_we_drained_returns_it(world: Worlds) -> None:
    there = silent(world(nodes=5))
    n1 = there.slurm.nodes["n1"]
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(60.0)
    n1.reboot_asked = True
    await daemon.pass_time(20.0)
    await rebooted(daemon, "n1")
    assert not n1.drained, daemon.said


async def test_a_drain_of_slurms_own_until_a_reboot_is_not_a_persons(world: Worlds) -> None:
    """scontrol reboot ASAP nextstate=RESUME."""
    there = silent(world(nodes=5))
    there.slurm.person_drains("n1", "Reboot ASAP")
    n1 = there.slurm.nodes["n1"]
    n1.reboot_asked = True
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    ours = n1.reason
    assert n1.drained and ours.startswith("sentinel:"), daemon.said
    await rebooted(daemon, "n1")
    assert n1.drained and n1.reason == ours, daemon.said


@pytest.mark.parametrize("stays", [True, False], ids=["stays drained", "in service"])
async def test_a_person_who_reboots_a_node_with_a_reason_keeps_the_incident_open_until_then(
    world: Worlds, stays: bool
) -> None:
    """Whether the drain is the reboot's, and ends with it, is not known."""
    there, sink = silent(world(nodes=5)), FakeSink()
    there.slurm.person_drains("n1", "new kernel")
    n1 = there.slurm.nodes["n1"]
    n1.reboot_asked = True
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert n1.reason == "new kernel" and [wait.kind for wait in open_plan(there).waits] == ["reboot-pending"]
    n1.reboot_asked, n1.drained = False, stays
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert n1.drained and (n1.reason == "new kernel") is stays, daemon.said
    assert there.slurm.jobs[there.job].state == "RUNNING" and "waiting" not in states(there)
