"""Two incidents restart one job: what its next attempt begins with is written by one of them at a time."""

from __future__ import annotations

from in_memory.daemon import RULES, SETTINGS
from made_records import AT, fleet, incident, job, plan, verdict

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import recovery
from sentinel.engine.state import Recovery, State
from sentinel.engine.transition import CarryOutStep, Transition
from sentinel.model.records import Outcome, Result, Step, StepKind

_KINDS = (StepKind.REQUEUE_HOLD, StepKind.WRITE_RESUME, StepKind.RELEASE, StepKind.CONFIRM)


def under_way() -> State:
    """slurmctld forgot attempt 1 of a job: what restarts it after attempt 0 is done once more, and both have stopped it."""
    view = ClusterView()
    view.see_fleet(fleet(4, [job(state="pending", nodes=(), restarts=1, started_s=None)]))
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    for name, attempt in (("first", 0), ("second", 1)):
        steps = [Step(kind, job=101, attempt=attempt) for kind in _KINDS]
        state.put(incident(id=name, job=101, attempt=attempt, nodes=[]))
        state.verdicts[name], state.plans[name] = verdict(), plan(*steps, incident=name)
        state.recoveries[name] = Recovery()
        state.open_plans.add(name)
        does(state, name, StepKind.REQUEUE_HOLD)
    return state


def does(state: State, name: str, kind: StepKind) -> None:
    step = next(step for step in state.plans[name].steps if step.kind is kind)
    state.ledger.intend(name, step, AT)
    state.ledger.record(name, Outcome(step, Result.DONE, AT, ""))


def begun(state: State, name: str) -> list[StepKind]:
    out = Transition()
    recovery.retry(state, out, name, AT)
    return [effect.task.step.kind for effect in out.effects if isinstance(effect, CarryOutStep)]


def test_the_later_one_waits_until_the_earlier_waits_for_the_first_step() -> None:
    state = under_way()
    assert begun(state, "second") == [] and state.recoveries["second"].waits
    assert begun(state, "first") == [StepKind.WRITE_RESUME]
    does(state, "first", StepKind.WRITE_RESUME)
    assert begun(state, "second") == [], "the earlier is about to let the job go"
    does(state, "first", StepKind.RELEASE)
    assert begun(state, "second") == [StepKind.WRITE_RESUME]
