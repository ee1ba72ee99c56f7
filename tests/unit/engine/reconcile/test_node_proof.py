"""When a node counts as good again after it was left out of a job."""

from __future__ import annotations

from datetime import timedelta

import pytest
from in_memory.daemon import SETTINGS
from made_records import AT
from shipped import shipped_rules

from sentinel.detect.bad_numbers_onset import OnsetTracker
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.diagnostics.due_tests import DiagnosticRecord
from sentinel.engine.reconcile import node_proof
from sentinel.engine.state import State

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("record", "good"),
    [
        (DiagnosticRecord(passed=AT + HOUR), True),
        (DiagnosticRecord(passed=AT - HOUR), False),  # before what speaks against it
        (DiagnosticRecord(passed=AT + HOUR, suspect=AT + 2 * HOUR), False),  # suspected anew since
        (DiagnosticRecord(tried=AT + HOUR), False),
    ],
)
def test_a_passed_diagnostic_counts_when_its_evidence_is_long_forgotten(record: DiagnosticRecord, good: bool) -> None:
    view = ClusterView()
    state = State(rules=shipped_rules(), settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    view.node("n1")
    state.diagnostics.known["n1"] = record
    assert node_proof.good_since(state, "n1", AT) is good
