"""When a node counts as good again after it was left out of a job."""

from __future__ import annotations

from datetime import timedelta

import pytest
from in_memory.daemon import SETTINGS
from made_records import AT, evidence, incident, verdict
from shipped import shipped_rules

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine.diagnostics.due_tests import DiagnosticRecord, read, written
from sentinel.engine.reconcile import node_proof
from sentinel.engine.state import State
from sentinel.model.records import Cause, Evidence, Kind, Source, Trust

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("record", "deepest"),
    [
        (DiagnosticRecord(passed=AT + HOUR, passes={2: AT + HOUR}), 2),
        (DiagnosticRecord(passed=AT + 2 * HOUR, passes={3: AT + HOUR, 1: AT + 2 * HOUR}), 3),  # a light one later
        (DiagnosticRecord(passed=AT + HOUR, passes={3: AT - HOUR, 1: AT + HOUR}), 1),
        (DiagnosticRecord(passed=AT + HOUR), 0),  # of a daemon before this: which level is not known
        (DiagnosticRecord(passed=AT - HOUR, passes={3: AT - HOUR}), None),  # before what speaks against it
        (
            DiagnosticRecord(passed=AT + HOUR, passes={3: AT + HOUR}, suspect=AT + 2 * HOUR),
            None,
        ),  # suspected anew since
        (DiagnosticRecord(tried=AT + HOUR), None),
    ],
)
def test_a_passed_diagnostic_counts_when_its_evidence_is_long_forgotten(
    record: DiagnosticRecord, deepest: int | None
) -> None:
    state = a_state()
    state.diagnostics.known = read(written({"n1": record}))
    assert [node_proof.good_since(state, "n1", AT, level) for level in range(5)] == [
        deepest is not None and level <= deepest for level in range(5)
    ]


def a_state() -> State:
    view = ClusterView()
    view.node("n1")
    return State(rules=shipped_rules(), settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))


def failed(level: int | None = None) -> Evidence:
    return evidence(Kind.DIAG_FAILED, node="n1", data={"code": 80} | ({} if level is None else {"level": level}))


XID, CLAIMED = evidence(node="n1", data={"xid": 64}), evidence("oom", node="n1", trust=Trust.USER)


@pytest.mark.parametrize(
    ("items", "cause", "level"),
    [
        ([XID], Cause.GPU_MEMORY_ECC, 3),
        ([XID], Cause.GPU_GSP_OR_DRIVER, 2),
        ([failed(1), CLAIMED], Cause.GPU_MEMORY_ECC, 1),  # what failed is what must pass
        ([failed(2), failed(4)], Cause.GPU_MEMORY_ECC, 4),
        ([failed(1), XID], Cause.GPU_MEMORY_ECC, 3),
        ([failed()], Cause.GPU_MEMORY_ECC, 3),  # which level is not known
        ([], Cause.GPU_MEMORY_ECC, 3),
    ],
)
def test_a_convicted_node_is_proven_good_by_the_level_that_failed_or_the_last_of_its_cause(
    items: list[Evidence], cause: Cause, level: int
) -> None:
    state, about = a_state(), incident(*items, id="i1", nodes=["n1", "n2"])
    assert node_proof.proving_level(state, about, "n1") == 0, "nothing is judged"
    state.verdicts["i1"] = verdict(cause=cause, drain=("n1",), suspect=("n2",))
    assert node_proof.proving_level(state, about, "n1") == level
    assert node_proof.proving_level(state, about, "n2") == 0, "a suspect: any test that passes clears it"


ADVISED = evidence(node="n1", data={"xid": 171})
UNREACHABLE = evidence(Kind.NODE_UNREACHABLE, node="n1", source=Source.PROBE)
PANIC = evidence("kernel_panic", node="n1")


@pytest.mark.parametrize(
    ("items", "good"),
    [
        pytest.param([XID], True, id="what-it-holds-by-itself"),
        pytest.param([XID, CLAIMED, UNREACHABLE], True, id="and-what-a-user-wrote-and-an-absence-that-is-over"),
        pytest.param([ADVISED, evidence(node="n1", data={"xid": 172})], False, id="two-that-convict-together"),
        pytest.param([XID, ADVISED], False, id="one-of-two"),
        pytest.param([PANIC], False, id="seen-by-others"),
        pytest.param([], False, id="nothing-of-this-node"),
    ],
)
def test_an_agent_that_takes_its_verdict_back_proves_what_it_held_against_its_node(
    items: list[Evidence], good: bool
) -> None:
    state, about = a_state(), incident(*items, id="i1", nodes=["n1", "n2"])
    state.cluster.node("n2")
    state.put(about)
    state.verdicts["i1"] = verdict(cause=Cause.GPU_MEMORY_ECC, drain=("n1",), suspect=("n2",))
    state.called_good = {"n1": AT + HOUR, "n2": AT + HOUR}
    assert node_proof.proven_good(state, about, ("n1", "n2")) == ({"n1", "n2"} if good else {"n2"})
    state.cluster.node("n1").released_at = AT + 2 * HOUR
    assert "n1" in node_proof.proven_good(state, about, ("n1",)), "a person's word is enough"
