"""A start with half a state: what cannot be read is kept and said, and nothing is done before a person has looked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from in_memory.daemon import RULES, SETTINGS
from made_records import AT, evidence, incident, later, plan, step, verdict

from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine, Transition
from sentinel.engine.events import OperatorCommand, Started
from sentinel.engine.loading import PAUSED, UNREADABLE, state_of
from sentinel.engine.transition import CarryOutStep, DeliverNotice
from sentinel.model.changes import SettingChanged
from sentinel.model.records import StepKind
from sentinel.model.stored import Stored, UnreadableRecord

TORN = UnreadableRecord("Plan", "no key steps", {"incident": "i2"})


def started(*unreadable: UnreadableRecord, settings: Mapping[str, Any] | None = None) -> tuple[Engine, Transition]:
    """With the plan of another incident under way: its node is to be drained."""
    found = incident(evidence(node="n1", data={"xid": 79}), id="i1", job=None, attempt=None, nodes=["n1"])
    stored = Stored(
        incidents=(found,),
        verdicts={"i1": verdict(drain=("n1",))},
        plans={"i1": plan(step(StepKind.DRAIN, node="n1"), incident="i1")},
        open_plans=frozenset({"i1"}),
        settings=settings or {},
        unreadable=unreadable,
    )
    engine = Engine(state_of(stored, ClusterView(), rules=RULES, settings=SETTINGS, receivers=("ops",)))
    return engine, engine.handle(Started(AT, stored))


def kept(out: Transition) -> dict[str, Any]:
    return {change.name: change.value for change in out.changes if isinstance(change, SettingChanged)}


def steps(out: Transition) -> list[StepKind]:
    return [effect.task.step.kind for effect in out.effects if isinstance(effect, CarryOutStep)]


def messages(out: Transition) -> list[Any]:
    return [effect.notice.data["event"] for effect in out.effects if isinstance(effect, DeliverNotice)]


def test_a_state_that_can_be_read_is_carried_on() -> None:
    _, out = started()
    assert steps(out) == [StepKind.DRAIN] and kept(out).keys().isdisjoint({PAUSED, UNREADABLE})


def test_with_a_record_that_cannot_be_read_nothing_is_done_until_an_operator_resumes() -> None:
    engine, out = started(TORN)
    assert steps(out) == [] and engine.state.paused and messages(out) == ["unreadable_state"]
    assert kept(out)[PAUSED] is True
    assert kept(out)[UNREADABLE] == {TORN.id: {"kind": "Plan", "why": "no key steps", "record": {"incident": "i2"}}}
    assert steps(engine.handle(OperatorCommand(later(5.0), "resume", "operator"))) == [StepKind.DRAIN]


def test_what_an_operator_has_seen_pauses_nothing_again_and_another_record_does() -> None:
    _, first = started(TORN)
    known = {UNREADABLE: kept(first)[UNREADABLE], PAUSED: False}
    engine, out = started(TORN, settings=known)
    assert steps(out) == [StepKind.DRAIN] and messages(out) == [] and not engine.state.paused
    engine, out = started(TORN, UnreadableRecord("Verdict", "cause", {"cause": "later"}), settings=known)
    assert steps(out) == [] and messages(out) == ["unreadable_state"] and len(kept(out)[UNREADABLE]) == 2
