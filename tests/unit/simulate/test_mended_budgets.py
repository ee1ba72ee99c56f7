"""Histories that explore found and that broke a promise once: people put nodes back while others wait for a budget."""

from __future__ import annotations

import pytest

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

THREE = (JobSpec(nodes=2), JobSpec(nodes=2, user="bob"), JobSpec(nodes=2, user="eve"))


def ran(setup: Setup, *happenings: Happening) -> World:
    world = World(History(1, 233, "many-nodes", setup, happenings, max(one.at_s for one in happenings) + 260.0))
    assert world.run() == []
    return world


@pytest.mark.parametrize("back", [Happening("repair", 458.5), Happening("resume-node", 458.5, "n5")])
def test_a_node_put_back_that_does_not_answer_takes_no_budget_from_the_other_one_of_its_incident(
    back: Happening,
) -> None:
    """It was drained and lost. A person put it back: repaired, or before its slurmd runs again."""
    setup = Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.1, "drain_per_hour": 4})
    faults = Happening("gpu-off-bus", 58.522, "n5"), Happening("node-lost", 59.022, "n5")
    world = ran(setup, *faults, Happening("gpu-off-bus", 59.522, "n6"), back)
    assert world.slurm.nodes["n6"].drained
    assert not world.slurm.nodes["n5"].drained


def test_a_node_put_back_is_not_drained_by_another_incident_for_what_it_failed_with_before() -> None:
    """The other one convicts it as well, and waits for the budget until then."""
    setup = Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.25, "drain_per_hour": 6}, switch_nodes=4)
    world = ran(
        setup,
        Happening("gpu-firmware", 85.516, "job0/0"),
        Happening("gpu-off-bus", 86.016, "job1/0"),
        Happening("node-lost", 86.516, "n10"),
        Happening("node-lost", 88.016, "job1/1"),
        Happening("gpu-memory", 88.516, "job0/1"),
        Happening("repair", 485.516),
    )
    assert not world.slurm.nodes["n1"].drained
