"""The engine alone: one event in, changes and effects out; the same events, the same transitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import AT, evidence, fleet, incident, job, later, node, plan, step, verdict

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine, Transition
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import (
    EffectCompleted,
    Event,
    EvidenceReceived,
    FleetObserved,
    HistoryForgotten,
    OperatorCommand,
    TimerDue,
)
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.reconcile import in_allocation, late_evidence
from sentinel.engine.state import RESTS, KnownEvidence, Places, State
from sentinel.engine.transition import CarryOutStep, ObserveFleet, StartTimer
from sentinel.model.changes import EvidenceAdded, IncidentChanged, PlanMade, StepIntended, VerdictReached
from sentinel.model.records import Fleet, IncidentState, Kind, NodeView, Outcome, Result, StepKind, Unread

THERE = fleet(20, [job(101, nodes=("n1", "n2"))])
XID = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid (PCI:0000:3b:00): 79, pid=7")


def engine() -> Engine:
    view = ClusterView()
    return Engine(State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement)))


def fresh(at_s: float) -> Fleet:
    return Fleet(later(at_s), THERE.nodes, THERE.jobs)


def run(made: Engine, events: Iterable[Event]) -> list[Transition]:
    return [made.handle(event) for event in events]


def judged(made: Engine) -> Transition:
    """Evidence of a lost GPU, its timer, a snapshot: the transition with the verdict."""
    first = run(made, [FleetObserved(AT, THERE), EvidenceReceived(AT, (XID,))])[-1]
    (timer,) = (effect for effect in first.effects if isinstance(effect, StartTimer))
    wanted = made.handle(TimerDue(later(2.0), timer.id))
    (look,) = (effect for effect in wanted.effects if isinstance(effect, ObserveFleet))
    made.handle(FleetObserved(later(2.1), fresh(2.1)))
    return made.handle(EffectCompleted(later(2.1), look.id))


def test_evidence_is_a_change_and_its_settling_an_effect() -> None:
    out = engine().handle(EvidenceReceived(AT, (XID,)))
    assert [type(change) for change in out.changes] == [EvidenceAdded]
    assert [type(effect) for effect in out.effects] == [StartTimer]


def test_what_was_delivered_twice_changes_nothing() -> None:
    made = engine()
    made.handle(EvidenceReceived(AT, (XID,)))
    out = made.handle(EvidenceReceived(later(1.0), (XID,)))
    assert out.changes == [] and out.effects == []


def test_incident_verdict_plan_and_the_intent_are_one_transition_with_the_first_step() -> None:
    out = judged(engine())
    kinds = [type(change) for change in out.changes]
    assert (
        kinds.index(IncidentChanged) < kinds.index(VerdictReached) < kinds.index(PlanMade) < kinds.index(StepIntended)
    )
    (first,) = (effect for effect in out.effects if isinstance(effect, CarryOutStep))
    assert first.task.step.kind is StepKind.DRAIN and first.task.step.node == "n1"


def test_next_step_follows_the_outcome_and_a_missing_one_is_tried_again() -> None:
    made = engine()
    (drain,) = (effect for effect in judged(made).effects if isinstance(effect, CarryOutStep))
    unknown = Outcome(drain.task.step, Result.NOT_KNOWN, later(3.0), "no answer")
    out = made.handle(EffectCompleted(later(3.0), drain.id, outcome=unknown))
    (timer,) = (effect for effect in out.effects if isinstance(effect, StartTimer))  # beside it Slurm is asked
    assert timer.due > later(3.0)
    (again,) = made.handle(TimerDue(timer.due, timer.id)).effects
    assert isinstance(again, CarryOutStep) and again.id == drain.id
    done = Outcome(drain.task.step, Result.DONE, later(4.0))
    out = made.handle(EffectCompleted(later(4.0), drain.id, outcome=done))
    assert [e.task.step.kind for e in out.effects if isinstance(e, CarryOutStep)] == [StepKind.REQUEUE_HOLD]


def test_nothing_is_begun_while_paused_and_what_waited_goes_on() -> None:
    made = engine()
    (drain,) = (effect for effect in judged(made).effects if isinstance(effect, CarryOutStep))
    made.handle(OperatorCommand(later(2.5), "pause", "root"))
    done = Outcome(drain.task.step, Result.DONE, later(3.0))
    assert not any(
        isinstance(e, CarryOutStep) for e in made.handle(EffectCompleted(later(3.0), drain.id, outcome=done)).effects
    )
    out = made.handle(OperatorCommand(later(9.0), "resume", "root"))
    assert [e.task.step.kind for e in out.effects if isinstance(e, CarryOutStep)] == [StepKind.REQUEUE_HOLD]


def test_same_events_same_transitions() -> None:
    first, second = engine(), engine()
    assert judged(first) == judged(second)


def test_unknown_effects_timers_and_commands_harm_nothing() -> None:
    made = engine()
    outcome = Outcome(step(StepKind.DRAIN, node="n1"), Result.DONE, AT)
    events: list[Event] = [
        TimerDue(AT, "judge:nobody"), TimerDue(AT, "retry:nobody"), TimerDue(AT, "tell:nobody"), TimerDue(AT, ""),
        EffectCompleted(AT, "ask:nobody"), EffectCompleted(AT, "no such step", outcome=outcome),
    ]  # fmt: skip
    assert all(out == Transition() for out in run(made, events))
    with pytest.raises(ValueError, match="no command"):
        made.handle(OperatorCommand(AT, "drain", "root"))


def test_only_the_newest_ids_are_remembered() -> None:
    known = KnownEvidence(["a"], most=2)
    assert not known.add("a") and known.add("b") and known.add("c") and known.add("a")


def test_what_the_store_deleted_leaves_memory_and_what_it_kept_does_not() -> None:
    made = engine()
    for name, state, updated_s, unfinished in (
        ("held", IncidentState.HELD, 0.0, False), ("waits", IncidentState.WAITING, 0.0, True),
        ("open", IncidentState.OPEN, 0.0, True), ("young", IncidentState.HELD, 20.0, False),
        ("wants", IncidentState.HELD, 0.0, True), ("spared", IncidentState.HELD, 0.0, False),
    ):  # fmt: skip
        made.state.put(incident(id=name, job=None, nodes=("n1",), state=state, updated_s=updated_s))
        made.state.plans[name] = plan(step(StepKind.DRAIN, node="n1"), incident=name)
        made.state.open_plans |= {name} if unfinished else set()
    made.handle(HistoryForgotten(later(30.0), before=later(10.0), spared=frozenset({"spared"})))
    kept = {"open", "spared", "waits", "wants", "young"}
    assert set(made.state.incidents) == set(made.state.plans) == kept
    assert {found.id for found in made.state.index.about(None, ["n1"])} == kept


def test_a_held_incident_of_a_job_that_slurm_forgot_long_ago_leaves_memory() -> None:
    made, old_s = engine(), RESTS.total_seconds() + 10.0
    for name, of_job, nodes, suspect, updated_s in (
        ("gone", 7, (), (), 0.0), ("young", 8, (), (), 60.0), ("there", 101, (), (), 0.0), ("suspects", 9, (), ("n3",), 0.0),
        ("drained", 10, ("n2",), (), 0.0), ("opens", 11, (), (), 0.0),
    ):  # fmt: skip
        made.state.put(incident(id=name, job=of_job, nodes=nodes, state=IncidentState.HELD, updated_s=updated_s))
        made.state.verdicts[name] = verdict(drain=(), suspect=suspect)
        done = [step(StepKind.DRAIN, node=node) for node in nodes]
        made.state.plans[name] = plan(step(StepKind.HOLD, job=of_job, attempt=0), *done, incident=name)
    made.state.open_plans.add("opens")
    kept = {"young", "there", "suspects", "drained", "opens"}
    unread = dataclasses.replace(fresh(old_s), unread=(Unread("job", "", "torn"),))
    for shown, left in ((unread, kept | {"gone"}), (fresh(old_s + 1.0), kept)):
        made.handle(FleetObserved(shown.at, shown))
        made.handle(TimerDue(shown.at, HOUSEKEEPING))
        assert made.state.incidents.keys() == left and made.state.plans.keys() == left


def test_what_comes_later_of_a_node_of_a_resting_incident_is_judged_for_the_node() -> None:
    """The incident's job is gone: nothing can be restarted for it, and a broken node is drained whoever ran there."""
    made, day_s = engine(), RESTS.total_seconds() + 10.0
    made.state.put(incident(id="gone", job=7, nodes=(), state=IncidentState.HELD))
    made.state.verdicts["gone"], made.state.plans["gone"] = verdict(), plan(step(StepKind.HOLD, job=7), incident="gone")
    made.handle(FleetObserved(later(day_s), fresh(day_s)))
    made.handle(TimerDue(later(day_s), HOUSEKEEPING))
    late = dataclasses.replace(XID, seen_at=later(day_s + 1.0))
    made.handle(EvidenceReceived(later(day_s + 1.0), (late,)))
    (found,) = made.state.incidents.values()
    assert found.id != "gone" and found.nodes == ("n1",)


def test_each_late_report_of_a_suspect_of_a_closed_incident_is_looked_at_by_itself() -> None:
    """One that does not convict the node said for all that came after it that nothing does."""
    state, looks = engine().state, PreliminaryVerdicts(RULES)
    weak = evidence(Kind.XID, node="n1", data={"xid": 74, "pci": "0000:3b:00"}, text="NVRM: Xid 74")
    state.verdicts["inc1"], closed = verdict(suspect=("n1",)), incident(weak, id="inc1", job=7)
    look = partial(looks, now=later(0.0))
    assert late_evidence.without_new_convictions(state, closed, {weak.id}, look) == closed
    both = incident(weak, XID, id="inc1", job=7)
    assert late_evidence.without_new_convictions(state, both, {XID.id}, look).evidence == (weak,)
    assert state.regrouped == [XID]


def test_a_daemon_that_has_not_seen_slurm_yet_knows_which_runs_in_an_allocation_are_older() -> None:
    state = engine().state
    state.put(incident(job=101, attempt=0))
    state.verdicts["inc1"] = verdict(suspect=("n3",))
    stop = step(StepKind.STOP_RUN, job=101, attempt=0)
    bound = in_allocation.bound(state, state.incidents["inc1"], stop, ("n3",))
    assert bound.data["run"] == 1, "without it the action takes no run for older, and ends none"


def test_nodes_that_are_alike_are_counted_as_from_the_beginning_however_they_changed() -> None:
    def counted(*nodes: NodeView) -> dict[tuple[object, ...], int]:
        seen = fleet(nodes)
        found = kept.counted(seen)
        assert found == Places().counted(seen)
        return found

    kept, n1, n2 = Places(), node("n1"), node("n2")
    assert list(counted(n1, n2).values()) == [2]
    ours = dataclasses.replace(n2, flags=frozenset({"drain"}), reason="sentinel: inc1")
    assert sorted(counted(n1, ours).values()) == [1, 1]
    assert counted(n1, dataclasses.replace(n2)) == {(True, False, n1.topology, n1.partitions): 2}
    assert list(counted(n1).values()) == [1] and counted() == {}
