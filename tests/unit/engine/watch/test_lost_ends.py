"""A job that ended and that Slurm lists as running: found by its nodes' word, and only by that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.daemon import FakeOrders
from in_memory.watch import Scene
from in_memory.world import World

from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]
NODES = ("n1", "n2", "n3", "n4")
NONE = {"tasks": [], "at_s": 1.0, "has_gpus": False, "gpus": None}
SOME = {"tasks": [{"rank": None, "state": "S", "pid": 40, "leaf": False}]}


def answers(**by_node: object) -> FakeOrders:
    return FakeOrders({(node, "task_states"): answer for node, answer in by_node.items()})


async def beats(scene: Scene, span_s: float, *on: str, silent: str = "") -> None:
    """Agents send heartbeats for so long; those in ``on`` have the job."""
    job = [{"job": scene.world.job, "attempt": 0, "gpus": ""}]
    for _ in range(round(span_s)):
        await scene.advance(1.0)
        for node in NODES:
            if node != silent:
                scene.beat(node, {"boot_id": "b", "sent_s": scene.seconds(), "jobs": job if node in on else []})
        await scene.check_nodes()


async def opened(there: World, orders: FakeOrders) -> Scene:
    scene = Scene(there, orders=orders)
    await scene.fleets.take()
    scene.settled()
    return scene


async def test_a_job_that_is_on_none_of_its_nodes_any_more_has_ended(world: Worlds) -> None:
    scene = await opened(world(), answers(n1=NONE, n2=NONE))
    await beats(scene, 5.0, "n1", "n2")
    await beats(scene, 90.0)
    (end,) = scene.reported
    assert (end.kind, end.source, end.where.job, end.where.attempt) == (
        Kind.JOB_ENDED,
        Source.SLURM,
        scene.world.job,
        0,
    )
    assert end.data["state"] == "failed" and end.data["exit_code"] is None and end.data["nodes"] == "n1,n2"


@pytest.mark.parametrize(
    "answered",
    [
        answers(n1=NONE),  # the other does not answer
        answers(n1=NONE, n2=SOME),
        answers(n1={"error": "whose job it is is not known"}, n2={"error": "whose job it is is not known"}),
    ],
)
async def test_what_not_every_node_answers_is_not_known(world: Worlds, answered: FakeOrders) -> None:
    scene = await opened(world(), answered)
    await beats(scene, 5.0, "n1", "n2")
    await beats(scene, 90.0)
    assert scene.reported == [] and answered.asked


async def test_nodes_that_never_had_the_job_are_not_asked(world: Worlds) -> None:
    """Without the prolog hook no agent knows of any job; and a long prolog of the site's may come before ours."""
    orders = answers(n1=NONE, n2=NONE)
    scene = await opened(world(), orders)
    await beats(scene, 90.0)
    assert scene.reported == [] and orders.asked == []


async def test_while_one_node_has_it_or_is_silent_nothing_is_asked(world: Worlds) -> None:
    orders = answers(n1=NONE, n2=NONE)
    scene = await opened(world(), orders)
    await beats(scene, 5.0, "n1", "n2")
    await beats(scene, 60.0, "n2")
    await beats(scene, 60.0, silent="n2")
    assert [asked for asked in orders.asked if asked[1] == "task_states"] == []


async def test_a_job_that_slurm_knows_to_have_ended_is_no_news(world: Worlds) -> None:
    there = world()
    scene = await opened(there, answers(n1=NONE, n2=NONE))
    await beats(scene, 5.0, "n1", "n2")
    there.slurm.end(there.job)
    await beats(scene, 60.0)
    assert scene.reported == []


async def test_an_allocation_without_a_script_may_be_without_a_process(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].batch = False
    orders = answers(n1=NONE, n2=NONE)
    scene = await opened(there, orders)
    await beats(scene, 5.0, "n1", "n2")
    await beats(scene, 60.0)
    assert scene.reported == [] and orders.asked == []
