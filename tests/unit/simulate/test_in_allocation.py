"""A job with spare nodes of its own goes on in its allocation; what cannot be done there a requeue does."""

from __future__ import annotations

import pytest

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.engine.reconcile import in_allocation
from sentinel.model.launching import NODES, RUN
from sentinel.model.records import StepKind
from sentinel.policy import NextRun
from sentinel.simulate.explore import run
from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.slurm.requests import Requests
from sentinel.simulate.world import World

SPEC = JobSpec(nodes=4, trains_on=3)
FAULT = Happening("gpu-off-bus", 60.0, "job0/1")


def ran(*happenings: Happening, spec: JobSpec = SPEC) -> World:
    world = World(History(7, 1, "in-allocation", Setup(nodes=8, jobs=(spec,)), happenings, 900.0))
    assert world.run() == []
    return world


def runs(world: World) -> list[tuple[int, int, str]]:
    return [(one.attempt, one.run, ",".join(one.nodes)) for one in world.observer.attempts]


def verbs(world: World) -> list[str]:
    return [call[0] for call in world.slurm.calls]


def test_it_trains_on_without_the_bad_node_and_without_the_queue() -> None:
    world = ran(FAULT)
    assert runs(world) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n3,n4")]
    assert "requeue_hold" not in verbs(world)
    (job,) = world.slurm.jobs.values()
    assert job.on == ("n1", "n3", "n4")  # the bad one can be repaired meanwhile
    again = world.observer.attempts[1]
    assert again.by_order and again.valid and again.resumed == 25


def test_a_node_that_is_gone_is_left_behind() -> None:
    assert runs(ran(Happening("node-lost", 60.0, "job0/2"))) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n2,n4")]


def test_a_hang_starts_anew_without_the_node_that_is_suspected() -> None:
    world = ran(Happening("hang", 60.0, "job0/1"))
    assert runs(world) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n3,n4")]
    held = ran(Happening("hang", 60.0, "job0/1"), spec=JobSpec(nodes=3, trains_on=3))
    assert runs(held) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n2,n3")]  # it has no other


def test_the_next_failure_is_one_of_its_own() -> None:
    world = ran(FAULT, Happening("gpu-off-bus", 80.0, "job0/2"), spec=JobSpec(nodes=5, trains_on=3))
    assert runs(world) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n3,n4"), (0, 2, "n1,n3,n5")]
    assert world.programs.resume[101][RUN] == "2" and world.programs.resume[101][NODES] == "n1,n3,n5"
    assert len(world.store.plans) == 2


def test_the_incident_of_an_earlier_run_does_not_take_care_of_the_end_of_a_later_one() -> None:
    second, end = Happening("gpu-off-bus", 120.0, "job0/2"), Happening("time-limit", 123.0, "job0")
    world = ran(FAULT, second, end, spec=JobSpec(nodes=5, trains_on=3))
    _, later = sorted(world.store.incidents.values(), key=lambda one: one.opened_at)
    assert later.outcome == "attempt 0 ended as timeout before it gained a step"


def test_when_the_spare_nodes_are_used_up_it_is_requeued() -> None:
    world = ran(FAULT, Happening("gpu-off-bus", 200.0, "job0/2"))
    assert runs(world) == [(0, 0, "n1,n2,n3"), (0, 1, "n1,n3,n4"), (1, 0, "n1,n3,n5")]


def test_a_spare_node_that_breaks_stops_nothing() -> None:
    world = ran(Happening("gpu-off-bus", 60.0, "job0/3"))
    assert runs(world) == [(0, 0, "n1,n2,n3")]
    assert world.slurm.jobs[101].on == ("n1", "n2", "n3")


@pytest.mark.parametrize("at_s", [60.5, 75.0])
@pytest.mark.parametrize(("kind", "again"), [("storage", (1, 0)), ("hang", (0, 1))])
def test_what_happens_to_a_job_that_gave_a_spare_node_back_is_another_failure(
    kind: str, again: tuple[int, int], at_s: float
) -> None:
    world = ran(Happening("gpu-off-bus", 60.0, "job0/3"), Happening(kind, at_s, "job0/1"))
    assert [(attempt, run) for attempt, run, _ in runs(world)] == [(0, 0), again]


def test_a_launcher_that_does_not_start_leads_to_a_requeue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.simulate.programs.WAIT_S", 0.0)
    monkeypatch.setattr("sentinel.simulate.programs.run_of", lambda _name: None)  # nobody hears that the step ended
    world = ran(FAULT)
    assert [one.attempt for one in world.observer.attempts] == [0, 1]
    (plan,) = world.store.plans.values()
    assert StepKind.RELEASE in [step.kind for step in plan.to_do]
    assert "its launcher did not start there" in plan.explanation


def test_a_requeue_that_had_to_wait_chooses_the_checkpoint_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.simulate.programs.WAIT_S", 0.0)
    monkeypatch.setattr("sentinel.simulate.programs.run_of", lambda _name: None)
    world = ran(FAULT, Happening("pause", 80.0), Happening("resume", 200.0))
    assert [one.attempt for one in world.observer.attempts] == [0, 1]
    (plan,) = world.store.plans.values()
    again = {step.kind: step.tries for step in plan.to_do if step.job is not None}
    assert again[StepKind.CHOOSE_CHECKPOINT] == again[StepKind.QUARANTINE] == 1 and again[StepKind.RELEASE] == 0


def test_a_script_that_ends_meanwhile_leads_to_a_requeue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.simulate.programs.WAIT_S", 0.0)
    assert [one.attempt for one in ran(FAULT).observer.attempts] == [0, 1]


def test_explore_finds_a_run_on_the_bad_node(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(7, 1, "in-allocation", Setup(nodes=8, jobs=(SPEC,)), (FAULT,), 600.0)
    monkeypatch.setattr(in_allocation, "next_run", lambda job, fleet, count, **_how: NextRun(("n1", "n2", "n3"), (), 1))
    assert "not-offered-back" in {one.promise for one in run(history)[0]}


def test_explore_finds_a_job_whose_end_is_taken_for_that_of_its_spare_node(monkeypatch: pytest.MonkeyPatch) -> None:
    what = Happening("gpu-off-bus", 60.0, "job0/3"), Happening("storage", 75.0, "job0/1")
    monkeypatch.setattr(in_allocation, "stops_nothing", lambda _plan: False)
    found = run(History(7, 1, "in-allocation", Setup(nodes=8, jobs=(SPEC,)), what, 600.0))[0]
    assert "brought-back" in {one.promise for one in found}


def test_who_approved_a_restart_in_the_allocation_is_asked_again_before_the_requeue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sentinel.simulate.programs.WAIT_S", 2000.0)
    monkeypatch.setattr("sentinel.simulate.programs.LOOK_S", 120.0)
    setup = Setup(nodes=8, jobs=(SPEC,), mode="suggest")
    world = World(History(7, 1, "in-allocation", setup, (FAULT, Happening("approve", 70.0)), 900.0))
    assert world.run() == []
    assert world.slurm.nodes["n2"].drained and world.slurm.jobs[101].restarts == 0
    (plan,) = world.store.plans.values()
    assert [wait.what for wait in plan.waits if wait.kind == "approval"] == [("restart 101",)]
    assert "requeue_hold" not in verbs(world)


def test_an_order_that_nobody_took_in_time_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the launcher begins while the requeue waits, and is stopped in the middle of its work."""
    monkeypatch.setattr("sentinel.simulate.programs.LOOK_S", 120.0)
    world = ran(FAULT, Happening("pause", 80.0), Happening("resume", 200.0))
    assert (0, 1) not in {(attempt, run) for attempt, run, _ in runs(world)}
    assert [one.attempt for one in world.observer.attempts] == [0, 1]


@pytest.mark.parametrize("at_s", [60.1, 60.35, 60.6, 61.0, 65.0])
@pytest.mark.parametrize("first", ["n2", "n4"])
def test_a_second_spare_that_breaks_is_given_back_too(first: str, at_s: float) -> None:
    """Whether its failure comes with the first one's, while the plan of that is carried out, or after it."""
    world = ran(
        Happening("gpu-off-bus", 60.0, first), Happening("gpu-off-bus", at_s, "n5"), spec=JobSpec(nodes=5, trains_on=3)
    )
    (job,) = world.slurm.jobs.values()
    assert job.restarts == 0 and not {first, "n5"} & set(job.on), job.on
    assert {node.name for node in world.slurm.nodes.values() if node.drained} == {first, "n5"}


def test_requeued_without_enough_nodes_for_its_spares_it_starts_on_those_that_it_trains_on() -> None:
    world = World(
        History(7, 1, "in-allocation", Setup(nodes=4, jobs=(SPEC,)), (Happening("gpu-off-bus", 60.0, "job0/0"),), 900.0)
    )
    assert world.run() == []
    assert runs(world) == [(0, 0, "n1,n2,n3"), (1, 0, "n2,n3,n4")]
    (plan,) = world.store.plans.values()
    assert "Job 101 starts on 3 of 4 nodes: it trains on 3, the others are its spares." in plan.explanation
    assert ("set_job", "101", "NumNodes=3-4") in {
        (one[0], one[1], text) for one in world.slurm.calls for text in one[2:]
    }


def test_a_step_that_slurm_does_not_end_is_requeued_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Requests, job: str, step: int) -> None:
        raise SlurmSaidNo(Answer.OTHER, "Unspecified error")

    monkeypatch.setattr(Requests, "end_step", refused)
    world = ran(Happening("hang", 60.0, "job0/1"))
    job = world.slurm.jobs[101]
    began_s = world.slurm.time_s() - world.now_s
    assert job.restarts == 1 and job.submitted - began_s < 180.0
