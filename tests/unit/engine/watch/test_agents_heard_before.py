"""Nodes without a job that die while the daemon is away: the next daemon misses their agents, and asks slurmd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.watch import Ports, Scene
from in_memory.world import World

from sentinel.engine.watch.nodes import AGENTS_KEPT, heard_before
from sentinel.model.records import Kind

Worlds = Callable[..., World]


async def daemon(world: World, span_s: float, *heard: str) -> Scene:
    """A daemon that begins now and lives for ``span_s``, in which these agents are heard."""
    scene = Scene(world)
    await scene.fleets.take()
    for _ in range(round(span_s / 0.25)):
        await scene.advance(0.25)
        scene.hear(*heard)
        await scene.check_nodes()
    return scene


async def test_node_without_a_job_that_dies_between_two_daemons_is_found_lost(world: Worlds, ports: Ports) -> None:
    there = world()  # the job runs on n1 and n2
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    ports.answers["n3"] = "Connection refused"
    scene = await daemon(there, 25.0, "n1", "n2", "n4")
    assert scene.reported == [] and "n3" not in ports.asked  # its agent may take some seconds to connect again
    for _ in range(60):
        await scene.advance(0.25)
        scene.hear("n1", "n2", "n4")
        await scene.check_nodes()
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_UNREACHABLE, "n3")]


async def test_agent_that_was_removed_is_no_longer_missed_once_slurmd_answered(world: Worlds, ports: Ports) -> None:
    there = world()
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    scene = await daemon(there, 60.0, "n1", "n2", "n4")
    assert scene.reported == [] and ports.asked == ["n3"]
    ports.answers["n3"] = "Connection refused"  # while slurmd is restarted: nobody but Slurm watches this node
    again = await daemon(there, 60.0, "n1", "n2", "n4")
    assert again.reported == [] and ports.asked == ["n3"]


async def test_node_that_was_found_lost_and_that_a_person_returned_is_not_missed(world: Worlds, ports: Ports) -> None:
    """It is dead still; that was told once, and whoever returned it knows."""
    there = world()
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    ports.answers["n3"] = "Connection refused"
    found = await daemon(there, 60.0, "n1", "n2", "n4")
    assert found.kinds == [Kind.NODE_UNREACHABLE]
    after = await daemon(there, 60.0, "n1", "n2", "n4")
    assert after.reported == []
    back = await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    again = await daemon(there, 60.0, "n1", "n2", "n4")
    assert back.reported == [] and again.kinds == [Kind.NODE_UNREACHABLE]


@pytest.mark.parametrize("why", ["drained", "down", "power", "maintenance", "gone from slurm.conf"])
async def test_node_that_is_out_of_service_is_not_missed(world: Worlds, ports: Ports, why: str) -> None:
    there = world()
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    out = there.slurm.nodes["n3"]
    if why == "gone from slurm.conf":
        del there.slurm.nodes["n3"]
    else:
        setattr(out, why, "POWERED_DOWN" if why == "power" else True)
    ports.answers["n3"] = "Connection refused"
    scene = await daemon(there, 60.0, "n1", "n2", "n4")
    assert scene.reported == [] and "n3" not in ports.asked


async def test_all_nodes_missing_at_first_is_more_likely_our_own_network(world: Worlds, ports: Ports) -> None:
    there = world(wide=1)
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    ports.answers = dict.fromkeys(there.slurm.nodes, "no answer")
    assert (await daemon(there, 60.0)).reported == []


@pytest.mark.parametrize("kept", [None, 7, "n3", {"n3": 1}, [3, ["n3"], None]])
def test_what_is_no_list_of_names_is_none(kept: object) -> None:
    assert heard_before(kept) == set()


async def test_names_are_saved_now_and_then(world: Worlds, ports: Ports) -> None:
    there = world()
    scene = await daemon(there, 1.0, "n1", "n2")
    assert there.store.get(AGENTS_KEPT) == ["n1", "n2"]
    scene.hear("n3")
    await scene.check_nodes()
    assert there.store.get(AGENTS_KEPT) == ["n1", "n2"]  # a cluster that starts costs few writes
    await scene.advance(10.0)
    await scene.check_nodes()
    assert there.store.get(AGENTS_KEPT) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("why", ["drained", "power"])
async def test_last_node_in_service_that_dies_is_no_sign_of_our_own_network(
    world: Worlds, ports: Ports, why: str
) -> None:
    """The others are out of service since the daemon before this one: their silence says nothing."""
    there = world(wide=1)
    await daemon(there, 15.0, "n1", "n2", "n3", "n4")
    for name in ("n2", "n3", "n4"):
        setattr(there.slurm.nodes[name], why, "POWERED_DOWN" if why == "power" else True)
    scene = await daemon(there, 40.0, "n1")
    ports.answers["n1"] = "Connection refused"
    for _ in range(120):
        await scene.advance(0.25)
        await scene.check_nodes()
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_UNREACHABLE, "n1")]
