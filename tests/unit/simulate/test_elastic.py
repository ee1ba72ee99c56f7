"""An elastic job goes on with fewer nodes where no other is left, and with all of them again at its next restart."""

from __future__ import annotations

import dataclasses

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

FAULT = Happening("gpu-off-bus", 60.0, "job0/1")


def ran(spec: JobSpec, *more: Happening, nodes: int = 4) -> World:
    world = World(History(7, 1, "elastic", Setup(nodes=nodes, jobs=(spec,)), (FAULT, *more), 900.0))
    assert world.run() == []
    return world


def waits_for(wait_s: float, *more: Happening, ends_s: float = 2400.0) -> World:
    """A job of four nodes that can run on two, for which waiting is cheaper at first."""
    spec = Setup(nodes=4, jobs=(JobSpec(nodes=4, least=2),))
    world = World(History(7, 0, "elastic", spec, (FAULT, *more), ends_s))  # 0: runs to its end
    world.settings = dataclasses.replace(
        world.settings, recovery=dataclasses.replace(world.settings.recovery, wait_s=wait_s)
    )
    assert world.run() == []
    return world


def explanation(world: World) -> str:
    return next(plan.explanation for plan in world.store.plans.values() if plan.steps)


def test_when_the_node_that_was_expected_does_not_come_it_starts_smaller() -> None:
    world = waits_for(900.0)
    assert sizes(world) == [4, 3]
    assert world.began_s(101, 1) >= 60.0 + 900.0
    assert "Waiting it is. Another node was expected within 0.25 h and did not come" in explanation(world)


def test_when_the_node_comes_in_time_it_starts_with_all_of_them() -> None:
    world = waits_for(900.0, Happening("repair", 500.0))
    assert sizes(world) == [4, 4]
    assert "did not come" not in explanation(world)


def sizes(world: World) -> list[int]:
    return [len(began.nodes) for began in world.observer.attempts]


def test_it_starts_smaller_where_no_node_is_left_and_why_says_what_that_costs() -> None:
    world = ran(JobSpec(nodes=4, least=2))
    assert sizes(world) == [4, 3]
    (plan,) = (plan for plan in world.store.plans.values() if plan.steps)
    assert "starts smaller" in plan.explanation
    assert "4.0 node-hours" in plan.explanation
    assert "16.0" in plan.explanation


def test_with_another_node_it_keeps_its_size() -> None:
    assert sizes(ran(JobSpec(nodes=4, least=2), nodes=5)) == [4, 4]


def test_with_too_few_nodes_it_waits() -> None:
    assert sizes(ran(JobSpec(nodes=4, least=4))) == [4]


def test_repaired_it_grows_again_at_the_next_restart() -> None:
    again = Happening("gpu-memory-contained", 300.0, "job0/0")
    assert sizes(ran(JobSpec(nodes=4, least=2), Happening("repair", 200.0), again)) == [4, 3, 4]


def test_a_comment_gets_it_no_more_nodes_than_slurm_gave_it() -> None:
    world = ran(JobSpec(nodes=2, least=1, most=8), nodes=6)
    assert sizes(world) == [2, 2]
