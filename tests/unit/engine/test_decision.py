"""Verdict and plan of one incident, how plans grow, and promise 2: what a user's program prints never drains a node."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory.daemon import RULES
from made_records import AT, ended, evidence, fleet, incident, job, later, plan, step, verdict

from sentinel.classify import EMPTY, History, PastFailure
from sentinel.config.settings import Limits, Mode, Modes, Settings
from sentinel.engine import decision, judging
from sentinel.model.approvals import plan_words
from sentinel.model.intent import Intent
from sentinel.model.records import (
    NODE_STEPS,
    USER_SOURCES,
    Cause,
    Evidence,
    Kind,
    Plan,
    Restart,
    Scalar,
    Scope,
    Source,
    Step,
    StepKind,
    Trust,
    Verdict,
    Wait,
    Where,
)
from sentinel.model.vocabulary import ABSENCE
from sentinel.policy import Situation

ACT = Settings(
    modes=Modes(default=Mode("act", "act")),
    limits=Limits(drain_fraction=1.0, keep_healthy=0, drain_count=99, drain_per_hour=99),
)
BUS = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="Xid (PCI:0000:3b:00): 79")
REMAP = evidence(Kind.XID, node="n1", data={"xid": 63, "pci": "0000:3b:00"}, text="Xid (PCI:0000:3b:00): 63")
DRAIN1, DRAIN2 = step(StepKind.DRAIN, node="n1"), step(StepKind.DRAIN, node="n2")
HOLD = step(StepKind.HOLD, job=101, attempt=0)
REQUEUE, RELEASE = (step(kind, job=101, attempt=0) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE))


def situation() -> Situation:
    return Situation(fleet=fleet(8, [job()]), intent=Intent(restart=True), job=job(), last_step=10)


# --- decide ------------------------------------------------------------------------------------------------------------


def test_trusted_evidence_drains() -> None:
    """Without this the property below would hold for a core that never drains."""
    made = judging.decide(incident(BUS, nodes=("n1",)), situation(), history=EMPTY, rules=RULES, settings=ACT, now=AT)
    assert made.verdict.drain == ("n1",) and made.plan.steps[0].kind is StepKind.DRAIN


@pytest.mark.parametrize(
    ("beside", "cause", "broken"),
    [((), Cause.NODE_FAILURE, ()), ((BUS,), Cause.GPU_FALLEN_OFF_BUS, ("n1",)), ((REMAP,), Cause.NODE_FAILURE, ())],
    ids=["only gone", "off the bus", "remapped"],
)
def test_the_judgement_says_what_convicts_a_node_without_its_absence(
    beside: tuple[Evidence, ...], cause: Cause, broken: tuple[str, ...]
) -> None:
    gone = [evidence(kind, node="n1", source=Source.PROBE) for kind in sorted(ABSENCE)]
    happened = incident(*gone, *beside, nodes=("n1",))
    made = judging.decide(happened, situation(), history=EMPTY, rules=RULES, settings=ACT, now=AT).verdict
    assert (made.cause, made.drain, made.broken) == (cause, ("n1",), broken)


RULE_IDS = [rule.id for rule in RULES.rules]
KINDS = sorted({rule.kind for rule in RULES.rules} | {str(kind) for kind in Kind})
scalars: st.SearchStrategy[Scalar] = st.none() | st.booleans() | st.integers(-5, 200) | st.text(max_size=8)
data = st.fixed_dictionaries(
    {},
    optional={
        "xid": st.sampled_from(sorted(RULES.xids)) | st.integers(-1, 200),
        "pci": st.sampled_from(["0000:3b:00", "x"]),
        "action": st.integers(0, 5),
        "code": st.integers(0, 200),
        "severity": scalars,
        "level": st.integers(0, 5),
        "state": st.sampled_from(["failed", "node_fail", "D", "T", "Z", "out_of_memory"]),
        "exit_code": st.integers(0, 255),
        "signal": st.integers(0, 15),
        "peer": st.sampled_from(["n1", "n2", "n9"]),
        "step": st.integers(0, 1000),
        "loss": st.floats(),
        "opens": st.booleans(),
        "nodes": scalars,
    },
)
wheres = st.builds(
    Where,
    node=st.none() | st.sampled_from([f"n{i}" for i in range(1, 9)]),
    gpu=st.none() | st.integers(0, 7),
    rank=st.none() | st.integers(0, 15),
    job=st.none() | st.just(101),
    attempt=st.none() | st.just(0),
)
texts = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 94, Contained ECC error",
        "CUDA error: uncorrectable ECC error encountered",
        "Kernel panic - not syncing",
    ]
) | st.text(max_size=40)


def _evidence(sources: list[Source], trust: Trust) -> st.SearchStrategy[Evidence]:
    return st.builds(
        Evidence,
        id=st.uuids().map(str),
        at=st.just(AT),
        seen_at=st.just(AT),
        source=st.sampled_from(sources),
        kind=st.sampled_from(KINDS),
        where=wheres,
        text=texts,
        rule=st.none() | st.sampled_from(RULE_IDS),
        line=st.none() | st.integers(1, 100),
        data=data,
        trust=st.just(trust),
    )


# Whatever source is claimed with trust USER (a user's program may imitate any), and user sources that claim more.
user_evidence = _evidence(list(Source), Trust.USER) | _evidence(sorted(USER_SOURCES), Trust.SYSTEM)
# Beside it what the machine says of any failure that convicts nobody.
harmless = st.just(ended()) | st.builds(
    lambda name, kind: evidence(kind, node=name, source=Source.AGENT),
    st.sampled_from(["n1", "n2"]),
    st.sampled_from([Kind.UNREADABLE, Kind.PROBE_HUNG, Kind.NODE_BACK, Kind.DIAG_PASSED]),
)
histories = st.just(EMPTY) | st.builds(
    lambda causes: History(tuple(PastFailure(AT, cause, "n1", job=n) for n, cause in enumerate(causes))),
    st.lists(st.sampled_from(list(Cause)), max_size=30),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(user_evidence, min_size=1, max_size=8), st.lists(harmless, max_size=3), histories)
def test_user_evidence_never_drains(items: list[Evidence], more: list[Evidence], history: History) -> None:
    happened = incident(*items, *more, nodes=("n1",))
    made = judging.decide(happened, situation(), history=history, rules=RULES, settings=ACT, now=AT)
    assert made.verdict.drain == ()
    assert not [s for s in made.plan.steps if s.kind in NODE_STEPS]


@settings(max_examples=300, deadline=None)
@given(st.lists(user_evidence, min_size=1, max_size=8), histories)
def test_user_evidence_never_widens_a_drain(items: list[Evidence], history: History) -> None:
    """Beside an honest Xid of one node, a program's output may convict no other node."""
    happened = incident(BUS, *items, nodes=("n1",))
    made = judging.decide(happened, situation(), history=history, rules=RULES, settings=ACT, now=AT)
    assert {s.node for s in made.plan.steps if s.kind in NODE_STEPS} <= {"n1"}


# --- matters -----------------------------------------------------------------------------------------------------------

NOTHING = verdict(Cause.UNKNOWN, scope=Scope.UNKNOWN, restart=Restart.NONE)


@pytest.mark.parametrize(
    ("items", "judged", "expected"),
    [
        ([BUS], NOTHING, False),
        ([BUS], verdict(drain=("n1",)), True),
        ([BUS], verdict(suspect=("n1",)), True),
        ([REMAP], verdict(suspect=("n1",)), False),
        ([REMAP], verdict(drain=("n1",)), True),
        ([REMAP, BUS], verdict(suspect=("n1",)), True),
        ([REMAP, ended()], verdict(suspect=("n1",)), True),
        ([ended()], NOTHING, True),
        ([REMAP, ended(state="cancelled")], verdict(suspect=("n1",)), False),
        ([ended(state="timeout")], NOTHING, False),
        ([evidence(Kind.STALL, source=Source.PROGRESS, job=101)], NOTHING, True),
        ([BUS], verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.CLUSTER), True),
        ([BUS], verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.CLUSTER, restart=Restart.NONE), False),
        ([BUS], verdict(Cause.UNKNOWN, scope=Scope.CLUSTER), False),
        ([BUS], verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.NODE), False),
    ],
)
def test_matters(items: list[Evidence], judged: Verdict, expected: bool) -> None:
    assert decision.matters(incident(*items), judged, RULES) is expected


# --- extend ------------------------------------------------------------------------------------------------------------


def kinds(made: Plan) -> list[tuple[StepKind, object]]:
    return [(s.kind, s.node or s.job) for s in made.steps]


@pytest.mark.parametrize(
    "before", [None, plan(refusal="breaker"), plan(DRAIN1, observe_only=True), plan()], ids=["none", "no", "seen", "-"]
)
def test_nothing_was_begun_so_the_newer_plan_stands(before: Plan | None) -> None:
    after = plan(DRAIN2, REQUEUE, RELEASE)
    assert decision.extend(before, after) == after


@pytest.mark.parametrize("after", [plan(refusal="drain-budget"), plan(DRAIN2, observe_only=True)])
def test_what_was_begun_is_finished(after: Plan) -> None:
    before = plan(DRAIN1, REQUEUE, RELEASE)
    assert decision.extend(before, after) == before


def test_beside_steps_that_were_done_nobody_reads_that_nothing_is_done() -> None:
    """The job is restarted, and its node's drain only observed: of the plan that is made then nothing is allowed."""
    observed = Settings(modes=Modes(default=Mode("observe", "act")))
    lost = incident(
        evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}), ended(), job=None, nodes=["n1"]
    )
    again = judging.plan_for(
        verdict(drain=("n1",)), lost, Situation(fleet=fleet(), job=None), settings=observed, now=AT
    )
    assert [wait.explanation for wait in again.waits] == ["Observe mode: nothing is done."]
    (wait,) = decision.extend(plan(REQUEUE, RELEASE), again).waits
    assert (wait.kind, wait.explanation) == ("observe", "Observed only: drain n1.")
    assert decision.extend(plan(observe_only=True), again) == again


def test_newly_convicted_node_goes_before_the_jobs_steps() -> None:
    made = decision.extend(plan(DRAIN1, REQUEUE, RELEASE), plan(DRAIN2, HOLD))
    assert kinds(made) == [
        (StepKind.DRAIN, "n1"),
        (StepKind.DRAIN, "n2"),
        (StepKind.REQUEUE_HOLD, 101),
        (StepKind.RELEASE, 101),
    ]


def test_a_wait_that_is_over_is_not_said_any_more() -> None:
    few = Wait("last-healthy", AT, "partition gpu would be left with 0 usable nodes.", ("drain n1",))
    fewer = dataclasses.replace(few, explanation="partition gpu would be left with 1 usable nodes.")
    before = dataclasses.replace(plan(REQUEUE, RELEASE), explanation="Job 101 is restarted.", waits=(few,))
    over = decision.extend(before, dataclasses.replace(plan(DRAIN1, REQUEUE, RELEASE), explanation="Other words."))
    assert plan_words(over) == "Job 101 is restarted."
    still = dataclasses.replace(plan(REQUEUE, RELEASE), explanation="Other words.", waits=(fewer,))
    assert (
        plan_words(decision.extend(before, still)) == f"Job 101 is restarted. Waits (last-healthy): {fewer.explanation}"
    )


def test_job_steps_join_a_plan_that_had_none() -> None:
    made = decision.extend(plan(DRAIN1), plan(DRAIN1, REQUEUE, RELEASE))
    assert kinds(made) == [(StepKind.DRAIN, "n1"), (StepKind.REQUEUE_HOLD, 101), (StepKind.RELEASE, 101)]


def test_extending_by_the_same_plan_changes_nothing() -> None:
    before = plan(DRAIN1, REQUEUE, RELEASE)
    assert decision.extend(before, dataclasses.replace(before, at=AT)) == before


def test_a_wait_keeps_the_end_that_it_has_by_itself_only_while_it_has_one() -> None:
    """A drain waits for the budget of an hour, then for that of its partition: that ends when a node is put back."""

    def waiting(until_s: float | None) -> Plan:
        until = later(until_s) if until_s is not None else None
        return dataclasses.replace(
            plan(DRAIN1), waits=(Wait("drain-budget", later(until_s or 0.0), "", ("drain n2",), until),)
        )

    hour = waiting(3600.0)
    (goes_on,) = decision.extend(hour, waiting(3700.0)).waits
    assert goes_on.until == later(3600.0)
    (other,) = decision.extend(hour, waiting(None)).waits
    assert other.until is None and other.since == hour.waits[0].since


steps = st.lists(st.sampled_from([DRAIN1, DRAIN2, HOLD, REQUEUE, RELEASE]), unique_by=lambda s: s.key("inc1"))


@given(steps, steps, steps)
def test_no_step_is_lost_or_doubled_however_a_plan_grows(
    first: list[Step], second: list[Step], third: list[Step]
) -> None:
    grown = plan(*first)
    for more in (second, third):
        before, grown = grown, decision.extend(grown, plan(*more))
        let_go = {HOLD} if REQUEUE in {*grown.steps} - {*before.steps} else set()
        assert set(before.steps) - let_go <= set(grown.steps)
        assert len(set(grown.steps)) == len(grown.steps)
