"""Nodes that Slurm switches off, on or reboots: their silence says nothing, also where the last snapshot is older."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from in_memory.watch import Ports, Scene

from sentinel.engine.watch.events import ConnectionLost

Open = Callable[..., Awaitable[Scene]]


@pytest.mark.parametrize("power", ["POWERED_DOWN", "POWERING_UP"])
async def test_a_node_that_slurm_switches_on_for_a_job_is_not_lost_while_it_boots(
    opened: Open, ports: Ports, power: str
) -> None:
    """Slurm gives the job to the node first and switches it on then."""
    scene = await opened()
    ports.answers["n1"] = "Connection refused"
    scene.world.slurm.nodes["n1"].power = power
    await scene.look()
    await scene.pass_s(60.0, "n2", "n3", "n4")
    assert scene.reported == [] and scene.live.nodes["n1"].state == "silent"
    scene.world.slurm.nodes["n1"].power = ""
    await scene.look()
    await scene.pass_s(30.0, "n2", "n3", "n4")
    assert [item.where.node for item in scene.reported] == ["n1"]


@pytest.mark.parametrize("what", ["POWERING_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED"])
async def test_a_node_that_slurm_switched_off_since_the_last_snapshot_is_not_lost(
    opened: Open, ports: Ports, what: str
) -> None:
    """Its connection breaks some seconds after Slurm noted that it goes: a snapshot is older."""
    scene = await opened()
    scene.world.slurm.nodes["n3"].power = what
    await scene.advance(5.0)
    ports.answers["n3"] = "Connection refused"
    scene.apply(ConnectionLost(scene.now, "n3"))
    await scene.settle()
    assert scene.reported == [] and scene.live.nodes["n3"].state == "silent"
    assert ports.asked == ["n3"] * 3


async def test_a_lost_node_is_reported_also_while_slurm_does_not_answer(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers["n3"] = "Connection refused"
    scene.world.slurm.answers = False
    scene.apply(ConnectionLost(scene.now, "n3"))
    await scene.settle()
    assert [item.where.node for item in scene.reported] == ["n3"]


async def test_a_node_that_is_heard_while_slurm_is_asked_is_not_lost(
    opened: Open, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await opened()
    ports.answers["n3"] = "Connection refused"
    take = scene.fleets.take

    async def late(max_age_s: float = 0.0) -> object:
        await scene.advance(20.0)  # all attempts to connect are over by then
        scene.hear("n3")
        return await take(max_age_s)

    monkeypatch.setattr(scene.fleets, "take", late)
    scene.apply(ConnectionLost(scene.now, "n3"))
    await scene.settle()
    assert scene.reported == [] and scene.live.nodes["n3"].state == "heard"


@pytest.mark.parametrize("still_up", [1, 2])
async def test_a_lost_node_is_found_while_slurm_has_switched_off_the_others(
    opened: Open, ports: Ports, still_up: int
) -> None:
    """Nodes that are switched off are silent, too, and say nothing of the daemon's own network."""
    scene = await opened()
    names = [f"n{number}" for number in range(1, 5)]
    for name in names[still_up:]:
        scene.world.slurm.nodes[name].power = "POWERED_DOWN"
        ports.answers[name] = "timed out"
    await scene.look()
    await scene.pass_s(60.0, *names[:still_up])
    assert scene.reported == []
    for name in names[:still_up]:
        ports.answers[name] = "timed out"
    await scene.pass_s(60.0)
    assert sorted(str(item.where.node) for item in scene.reported) == names[:still_up]


async def test_three_nodes_in_service_that_fall_silent_together_are_not_lost(opened: Open, ports: Ports) -> None:
    scene = await opened()
    names = [f"n{number}" for number in range(1, 5)]
    scene.world.slurm.nodes["n4"].power = "POWERED_DOWN"
    ports.answers.update(dict.fromkeys(names, "timed out"))
    await scene.look()
    await scene.pass_s(60.0, "n1", "n2", "n3")
    await scene.pass_s(60.0)
    assert scene.reported == []
