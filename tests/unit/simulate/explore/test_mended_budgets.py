"""Histories that explore found and that broke a promise once: people put nodes back while others wait for a budget."""

from __future__ import annotations

import pytest

from sentinel.simulate.histories import Happening, History, JobSpec, Setup, Value
from sentinel.simulate.world import World

THREE = (JobSpec(nodes=2), JobSpec(nodes=2, user="bob"), JobSpec(nodes=2, user="eve"))

CONVICTED_TWICE = (  # n1, by two incidents: one drains it, the other waits for the budget
    Happening("gpu-firmware", 85.516, "job0/0"),
    Happening("gpu-off-bus", 86.016, "job1/0"),
    Happening("node-lost", 86.516, "n10"),
    Happening("node-lost", 88.016, "job1/1"),
    Happening("gpu-memory", 88.516, "job0/1"),
    Happening("repair", 485.516),
)


def ran(setup: Setup, *happenings: Happening, rest_s: float = 260.0) -> World:
    world = World(History(1, 233, "many-nodes", setup, happenings, max(one.at_s for one in happenings) + rest_s))
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
        *CONVICTED_TWICE,
    )
    assert not world.slurm.nodes["n1"].drained


@pytest.mark.parametrize("off_s", [0.0, -100.0, -300.0, 300.0])
@pytest.mark.parametrize("whose", ["a node's", "the daemon's"])
def test_a_node_that_fails_anew_after_it_was_put_back_is_drained_whatever_its_clock_says(
    off_s: float, whose: str
) -> None:
    limits: dict[str, Value] = {"drain_fraction": 0.5, "drain_per_hour": 9, "restarts_per_job": 9}
    setup = Setup(nodes=6, jobs=THREE, limits=limits)
    clock = Happening("clock-off", 0.0, "n1", data={"by_s": off_s})
    if whose == "the daemon's":
        clock = Happening("own-clock", 0.0, data={"by_s": -off_s})
    fails, again = (Happening("gpu-off-bus", at_s, "n1") for at_s in (60.0, 500.0))
    world = ran(setup, clock, fails, Happening("repair", 458.5), again)
    assert world.slurm.nodes["n1"].drained


@pytest.mark.parametrize("off_s", [-300.0, 300.0])
def test_a_node_put_back_is_not_drained_for_old_news_whatever_its_clock_says(off_s: float) -> None:
    setup = Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.25, "drain_per_hour": 6}, switch_nodes=4)
    world = ran(
        setup,
        Happening("clock-off", 0.0, "n1", data={"by_s": off_s}),
        *CONVICTED_TWICE,
    )
    assert not world.slurm.nodes["n1"].drained


def test_a_job_on_a_node_that_was_tested_and_returned_is_not_taken_along_by_what_waits_for_another_one() -> None:
    jobs = (JobSpec(nodes=2), JobSpec(nodes=2, user="bob"), JobSpec(nodes=3, user="eve"))
    limits = {"drain_fraction": 0.1, "drain_per_hour": 2}
    setup = Setup(nodes=8, jobs=jobs, limits=limits, returns=True, spares=1)
    faults = (
        Happening("gpu-memory", 34.11910199179321, "job0/0"),
        Happening("gpu-firmware", 36.11910199179321, "job1/0"),
        Happening("gpu-memory", 38.11910199179321, "n7"),
        Happening("gpu-memory", 40.11910199179321, "n6"),
        Happening("gpu-off-bus", 130.1191019917932, "job2/0"),
        Happening("gpu-firmware", 225.1191019917932, "job2/0"),
    )
    assert World(History(1, 1709, "put-back", setup, faults, 1125.2)).run() == []


def test_what_becomes_free_goes_to_the_node_that_has_waited_longest() -> None:
    setup = Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.1, "drain_per_hour": 9})
    world = ran(
        setup,
        Happening("gpu-off-bus", 60.0, "n1"),
        Happening("gpu-off-bus", 90.0, "n8"),
        Happening("gpu-off-bus", 180.0, "n9"),
        Happening("gpu-memory", 330.0, "n8"),  # the first of the two that wait is judged once more
        Happening("repair", 450.0),
    )
    assert world.slurm.nodes["n8"].drained and not world.slurm.nodes["n9"].drained


def test_a_job_waits_rather_than_begin_in_turn_on_nodes_that_other_incidents_convict() -> None:
    """Of eight nodes one may be drained: the others that broke stay in service."""
    jobs = (JobSpec(nodes=3), JobSpec(nodes=3, user="bob"), JobSpec(nodes=3, user="eve"))
    setup = Setup(nodes=8, jobs=jobs, limits={"drain_fraction": 0.1, "drain_per_hour": 9})
    world = ran(
        setup,
        Happening("gpu-off-bus", 161.328, "job0/1"),
        Happening("gpu-off-bus", 251.328, "job2/0"),
        Happening("gpu-off-bus", 281.328, "job1/0"),
        Happening("node-lost", 311.328, "job1/1"),
        Happening("gpu-memory", 401.328, "n3"),
        Happening("requeue-hold", 491.328, "job2"),
        Happening("node-lost", 506.328, "job2/0"),
        rest_s=900.0,
    )
    assert world.slurm.jobs[102].state == "PENDING"


@pytest.mark.parametrize("off_s", [0.0, -300.0, 300.0])
def test_an_old_report_that_comes_after_a_nodes_return_is_no_new_failure(off_s: float) -> None:
    """The node was cut off; its agent's spool arrives when it is back."""
    world = ran(
        Setup(nodes=6, jobs=(JobSpec(nodes=2),), limits={"drain_fraction": 0.7, "drain_per_hour": 9}),
        Happening("clock-off", 0.0, "n1", data={"by_s": off_s}),
        Happening("gpu-off-bus", 60.0, "n1"),
        Happening("cut-off", 61.0, "n1", data={"for_s": 400.0}),
        Happening("gpu-memory", 100.0, "n1"),
        Happening("repair", 300.0),
        rest_s=600.0,
    )
    assert not world.slurm.nodes["n1"].drained


THREE_NODES = (JobSpec(nodes=2), JobSpec(nodes=1, user="bob"))


def test_a_job_whose_restart_waits_is_restarted_once_its_node_is_put_back() -> None:
    limits = {"drain_fraction": 0.7, "drain_per_hour": 9, "restarts_per_hour": 1, "restarts_fraction": 0.01}
    faults = Happening("gpu-off-bus", 30.0, "n3"), Happening("gpu-lost-silently", 60.0, "n1")
    back = Happening("resume-node", 300.0, "n1")
    world = ran(Setup(nodes=3, jobs=THREE_NODES, limits=limits), *faults, back, rest_s=3700.0)
    assert world.slurm.jobs[101].restarts == 1 and world.slurm.jobs[101].excluded == ()


@pytest.mark.parametrize("what", ["gpu-off-bus", "gpu-memory"])
def test_no_attempt_begins_on_a_node_that_was_put_back_and_failed_anew(what: str) -> None:
    """Its new drain waits; for the first incident, whose job waits for nodes, it is good."""
    limits = {"drain_fraction": 0.7, "drain_per_hour": 1, "restarts_per_job": 9}
    world = ran(
        Setup(nodes=3, jobs=THREE_NODES, limits=limits),
        Happening("gpu-off-bus", 60.0, "n1"),
        Happening("drain", 200.0, "n2"),
        Happening("repair", 300.0),
        Happening(what, 400.0, "n1"),
        Happening("resume-node", 480.0, "n2"),
    )
    assert not [one for one in world.observer.attempts if "n1" in one.nodes and one.attempt > 0]


def test_a_node_that_is_only_observed_to_be_bad_is_not_waited_for() -> None:
    limits = {"drain_fraction": 0.7, "drain_per_hour": 9}
    setup = Setup(nodes=4, jobs=(JobSpec(nodes=3),), mode="observe", restart_mode="act", limits=limits)
    happenings = (
        Happening("gpu-off-bus", 60.0, "n4"),
        Happening("drain", 150.0, "n1"),
        Happening("storage", 200.0, "job0"),
    )
    world = World(History(1, 233, "many-nodes", setup, happenings, 1000.0))
    assert world.run() == []
    assert world.slurm.jobs[101].state == "RUNNING" and world.slurm.jobs[101].restarts == 1


def test_a_drain_by_people_that_slurmctld_forgets_is_theirs_to_repeat() -> None:
    """The node waited to be drained; then there was nothing left to do for Sentinel."""
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), limits={"drain_count": 1})
    faults = Happening("gpu-off-bus", 60.0, "n8"), Happening("gpu-off-bus", 62.0, "job0/0")
    looks = Happening("program-error", 201.4, "job1/0")  # so that a snapshot shows the drain
    world = ran(setup, *faults, Happening("drain", 201.2, "n1"), looks, Happening("slurmctld-crash", 203.7))
    assert not world.slurm.nodes["n1"].drained
    assert [incident.state for incident in world.store.incidents.values()] == ["closed", "closed", "held"]


def test_a_drain_whose_answer_never_came_is_done_again_though_its_node_was_put_back() -> None:
    """slurmctld is slow: the drain is done, and nobody knows. Then it looks as if it had never arrived."""
    setup = Setup(nodes=7, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=1)
    happenings = (
        Happening("time-limit", 59.75879451384116, "job1/1"),
        Happening("slurmctld-slow", 177.43179069331237, data={"for_s": 90.0}),
        Happening("gpu-lost-silently", 195.05140176934032, "n7"),
        Happening("repair", 259.75879451384117),
    )
    world = World(History(8144, 2064, "spares", setup, happenings, 560.0))
    assert world.run() == []
    assert world.slurm.nodes["n7"].drained


def test_a_drain_that_was_answered_and_lost_while_the_daemon_waited_to_look_is_done_again() -> None:
    """The next answer comes 10 s late, and slurmctld was started in between."""
    setup = Setup(nodes=8, jobs=(JobSpec(nodes=4, trains_on=2), JobSpec(nodes=2, user="bob")))
    happenings = (
        Happening("gpu-off-bus", 61.95515547546372, "job0/2"),
        Happening("lose", 61.95515547546372, data={"nth": 6, "after": True, "times": 2}),
        Happening("slurmctld-crash", 63.74732803455866, data={"for_s": 2.0}),
    )
    world = World(History(8160, 4148, "in-allocation", setup, happenings, 300.0))
    assert world.run() == []
    assert world.slurm.nodes["n3"].drained


def test_a_node_put_back_seconds_after_its_drain_may_be_drained_again_once_slurmctld_was_started() -> None:
    """docs/limits.md: 21 s here. The daemon saw it, and was about to ask whether slurmctld had lost the drain."""
    setup = Setup(
        nodes=16, jobs=(JobSpec(nodes=3),) * 3, returns=True, limits={"drain_fraction": 0.1, "drain_per_hour": 2}
    )
    happenings = (
        Happening("gpu-memory", 59.12858331938056, "job0/0"),
        Happening("node-lost", 59.62858331938056, "n2"),
        Happening("repair", 80.12858331938057),
        Happening("slurmctld-crash", 98.12858331938057),
    )
    world = World(History(8172, 3959, "put-back", setup, happenings, 1170.0))
    assert world.run() == []
    assert [drain.node for drain in world.observer.drains] == ["n1", "n1", "n2"]


def test_a_return_by_a_person_that_slurmctld_forgot_takes_no_room_of_a_drain_decided_before() -> None:
    setup = Setup(
        nodes=8, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(nodes=3, user="eve")),
        limits={"drain_fraction": 0.25, "drain_per_hour": 9},
    )  # fmt: skip
    happenings = (
        Happening("gpu-firmware", 32.564662562566696, "n2"),
        Happening("node-lost", 33.064662562566696, "job0/0"),
        Happening("node-lost", 33.564662562566696, "n4"),
        Happening("repair", 333.9646625625667),
        Happening("slurmctld-crash", 334.9646625625667),
    )
    world = World(History(8230, 9335, "put-back", setup, happenings, 1303.6))
    assert world.run() == []
    assert world.slurm.nodes["n4"].drained
