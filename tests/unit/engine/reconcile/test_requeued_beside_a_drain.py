"""A restart in the allocation that fails while a drain beside it is under way: the requeue after it is carried out once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import AT, evidence, fleet, incident, job, later, verdict

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine, Transition, decision, recovery
from sentinel.engine.events import EffectCompleted, TimerDue
from sentinel.engine.state import Recovery, State
from sentinel.engine.transition import CarryOutStep, ObserveFleet, StartTimer
from sentinel.model.records import Outcome, Plan, Result, Scalar, Step, StepKind

OF_A_REQUEUE = (
    StepKind.REQUEUE_HOLD, StepKind.CHOOSE_CHECKPOINT, StepKind.WRITE_RESUME, StepKind.EXCLUDE, StepKind.RELEASE,
    StepKind.CONFIRM,
)  # fmt: skip
DRAINS = tuple(Step(StepKind.DRAIN, node=name) for name in ("n1", "n2"))
SAID: dict[StepKind, dict[str, Scalar]] = {
    StepKind.EXCLUDE: {"excluded": "n1,n2"},
    StepKind.REQUEUE_HOLD: {"deferred": True},
}


def of_job(kind: StepKind, **data: Scalar) -> Step:
    return Step(kind, job=101, attempt=0, data=data)


STOP = of_job(StepKind.STOP_RUN)
IN_ALLOCATION = (*DRAINS, STOP, of_job(StepKind.START_RUN), of_job(StepKind.CONFIRM, in_allocation=True))


class Actions:
    """Carries out what the engine asks for, one after the other, in the order in which it is told to."""

    def __init__(self) -> None:
        view = ClusterView()
        view.see_fleet(fleet(8, [job(nodes=("n1", "n2", "n3", "n4"))]))
        self.state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
        self.state.put(incident(evidence(node="n1"), evidence(node="n2", at_s=1), nodes=("n1", "n2")))
        self.state.verdicts["inc1"] = verdict(drain=("n1", "n2"))
        self.state.plans["inc1"] = Plan("p", "inc1", AT, IN_ALLOCATION, "", "")
        self.state.open_plans.add("inc1")
        self.engine = Engine(self.state)
        self.under_way: list[Step] = []
        self.count: Counter[tuple[StepKind, str | int | None]] = Counter()
        self.at_s = 0.0

    def take(self, out: Transition) -> None:
        for effect in out.effects:
            if isinstance(effect, CarryOutStep):
                step = effect.task.step
                self.count[step.kind, step.node or step.job] += 1
                self.under_way.append(step)

    def ends(self, step: Step, result: Result = Result.DONE, why: str = "") -> None:
        self.at_s += 1.0
        at = later(self.at_s)
        self.under_way.remove(step)
        outcome = Outcome(step, result, at, why, SAID.get(step.kind, {}))
        self.take(self.engine.handle(EffectCompleted(at, step.key("inc1"), outcome=outcome)))

    def begin(self) -> None:
        """The drain of n1 is done, that of n2 and the stop of the run are under way at once."""
        first, second = DRAINS
        self.state.ledger.intend("inc1", first, AT)
        self.state.ledger.record("inc1", Outcome(first, Result.DONE, AT))
        self.state.recoveries["inc1"] = Recovery(under_way=STOP)
        self.state.ledger.intend("inc1", STOP, AT)
        self.under_way.append(STOP)
        out = Transition()
        recovery.advance(self.state, out, "inc1", AT)
        self.take(out)
        assert self.under_way == [STOP, second]

    def requeued(self) -> None:
        """Policy plans a requeue."""
        before = self.state.plans["inc1"]
        after = dataclasses.replace(before, steps=tuple(of_job(kind) for kind in OF_A_REQUEUE), waits=())
        self.state.plans["inc1"] = decision.extend(before, after)
        out = Transition()
        recovery.carry_out_plan(self.state, out, "inc1", later(self.at_s))
        self.take(out)


@pytest.mark.parametrize("slow", [False, True], ids=["ends-first", "ends-later"])
def test_each_step_is_carried_out_once_and_the_restart_counts_once(slow: bool) -> None:
    there = Actions()
    there.begin()
    there.ends(STOP, Result.FAILED, "its launcher does not answer")
    if not slow:
        there.ends(DRAINS[1])
    there.requeued()
    while there.under_way and there.state.ledger.outcome("inc1", there.under_way[0]) is None:
        there.ends(there.under_way[0])
    assert set(there.count.values()) == {1}, there.count
    assert (StepKind.RELEASE, 101) in there.count and len(there.state.past.restarts(101)) == 1


def test_a_late_outcome_leaves_the_step_under_way_as_it_is() -> None:
    """The plan was finished, and taken up again, while a drain of it was under way."""
    there = Actions()
    there.begin()
    there.state.recoveries["inc1"] = Recovery(under_way=STOP)  # of the plan that was taken up again
    there.ends(DRAINS[1])
    assert there.state.recoveries["inc1"].under_way == STOP and there.under_way == [STOP]


def test_a_slurm_that_does_not_answer_is_asked_more_and_more_seldom_whether_a_good_node_was_drained() -> None:
    actions = Actions()
    state, drain = actions.state, DRAINS[0]
    state.ledger.intend("inc1", drain, AT)
    state.ledger.record("inc1", Outcome(drain, Result.NOT_KNOWN, later(1.0), "slurmctld did not answer"))
    state.recoveries["inc1"] = Recovery()
    state.cluster.node("n1").released_at = later(5.0)
    out, at, asked = Transition(), later(6.0), 0
    recovery.advance(state, out, "inc1", at)
    while at < later(66.0):
        looks = [effect for effect in out.effects if isinstance(effect, ObserveFleet)]
        assert all(look.once for look in looks), "none waits beside the next one"
        asked += len(looks)
        at = next(effect.due for effect in out.effects if isinstance(effect, StartTimer) and effect.id == "retry:inc1")
        out = actions.engine.handle(TimerDue(at, "retry:inc1"))
    assert 0 < asked <= 20
