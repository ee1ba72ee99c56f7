"""One suite for every implementation of SlurmWriter: drains, returns and lost nodes."""

from __future__ import annotations

import asyncio

import pytest
from servers.slurm_worlds import FakeWorld, World, running, waiting, waits_held

from sentinel.errors import Refused
from sentinel.simulate.slurm.records import SlurmTimes


async def test_drain_and_undrain_twice_each(world: World) -> None:
    node = world.names[1]
    for _ in range(2):
        await world.writer.drain(node, "sentinel: i42 Xid 79 on GPU 3\nsecond line")
    seen = await world.node(node, lambda seen: seen.drained)
    assert seen.reason == "sentinel: i42 Xid 79 on GPU 3 second line"
    assert not seen.usable
    for _ in range(2):
        await world.writer.undrain(node)
    seen = await world.node(node, lambda seen: seen.usable)
    assert not seen.drained


async def test_the_reason_of_a_drain_of_ours_is_replaced_where_that_is_asked_for(world: World) -> None:
    node = world.names[1]
    await world.writer.drain(node, "sentinel: i42 Xid 79")
    await world.writer.drain(node, "sentinel:root: fan broken", replace=True)
    seen = await world.node(node, lambda seen: seen.reason != "sentinel: i42 Xid 79")
    assert seen.drained and seen.reason == "sentinel:root: fan broken"


async def test_a_running_job_outlives_the_drain_of_its_node(world: World) -> None:
    job = world.submit()
    node = (await world.job(job, running)).nodes[0]
    await world.writer.drain(node, "sentinel: i42")
    assert (await world.node(node, lambda seen: seen.drained)).state in {"allocated", "mixed"}
    await world.job(job, running)


async def test_somebody_elses_drain_stays_theirs(world: World) -> None:
    node = world.names[2]
    world.person_drains(node, "cable is being replaced")
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.drain(node, "sentinel: i42")
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.drain(node, "sentinel:root: mine", replace=True)
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.undrain(node)
    assert (await world.node(node, lambda seen: seen.drained)).reason == "cable is being replaced"


async def test_down_of_somebody_elses_drain_keeps_their_reason(world: World) -> None:
    node = world.names[2]
    world.person_drains(node, "cable is being replaced")
    world.lose(node)
    await world.writer.down(node, "sentinel: i42 lost")
    seen = await world.node(node, lambda seen: seen.state == "down")
    assert seen.drained and seen.reason == "cable is being replaced"
    with pytest.raises(Refused):
        await world.writer.undrain(node)


async def test_unknown_nodes_are_refused(world: World) -> None:
    for verb in (world.writer.drain, world.writer.down):
        with pytest.raises(Refused, match="nowhere"):
            await verb("nowhere", "sentinel: i42")
    with pytest.raises(Refused, match="nowhere"):
        await world.writer.undrain("nowhere")


async def test_down_ends_the_jobs_of_a_lost_node_and_keeps_it_out(world: World) -> None:
    job = world.submit(nodes=2)
    node = (await world.job(job, running)).nodes[1]
    world.lose(node)
    for _ in range(2):
        await world.writer.down(node, "sentinel: i42 lost")
    seen = await world.node(node, lambda seen: seen.state == "down")
    assert seen.drained and seen.reason == "sentinel: i42 lost"
    back = await world.job(job, waiting)
    assert back.restarts == 1 and not back.held
    world.revive(node)
    seen = await world.node(node, lambda seen: "not_responding" not in seen.flags)
    assert seen.drained and not seen.usable and seen.reason == "sentinel: i42 lost"
    await world.writer.undrain(node)
    await world.node(node, lambda seen: seen.usable)


async def test_down_frees_a_job_that_completes_on_a_lost_node(world: World) -> None:
    job = world.submit(nodes=2)
    node = (await world.job(job, running)).nodes[1]
    world.lose(node)
    await world.writer.requeue_hold(job)
    await world.writer.down(node, "sentinel: i42 lost")
    assert (await world.job(job, waits_held)).restarts == 1


async def test_a_job_that_completes_on_a_lost_node_keeps_its_times_over_the_requeue(world: World) -> None:
    """So the time of its submission does not tell one requeue from the next."""
    job = world.submit()
    first = await world.job(job, running)
    if isinstance(world, FakeWorld):
        world.slurm.times = SlurmTimes(epilog_s=1.0)
        world.slurm.clock.advance(2.0)
    else:
        await asyncio.sleep(2.0)  # Slurm counts whole seconds
    world.lose(first.nodes[0])
    await world.writer.requeue_hold(job)
    await world.writer.down(first.nodes[0], "sentinel: i42 lost")
    back = await world.job(job, waits_held)
    assert back.restarts == 1 and back.requeue_held and back.submitted_at == first.submitted_at


async def test_only_slurms_own_words_for_a_refused_node_are_replaced(world: World) -> None:
    name = world.names[1]
    world.person_drains(name, "Prolog error")
    await world.node(name, lambda node: node.reason == "Prolog error")
    await world.writer.explain(name, "sentinel:ab12 gpu_lost: GPU 1 is lost")
    await world.writer.explain(name, "sentinel:ab12 something else")
    assert (await world.node(name, lambda node: node.drained)).reason == "sentinel:ab12 gpu_lost: GPU 1 is lost"
    with pytest.raises(Refused):
        await world.writer.explain(world.names[2], "sentinel:ab12 it is in service")
