"""The generated two-faced failures are told apart, and no fault of a program drains a node."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Scope

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest):
    """(case, verdict) of every generated case."""
    sys.path.insert(0, str(BENCH))
    request.addfinalizer(lambda: sys.path.remove(str(BENCH)))
    cases = importlib.import_module("judgement_cases").cases
    rules = shipped_rules()
    found = []
    for case in cases(Signatures(rules), each=4, seed=1):
        now = case.incident.updated_at + timedelta(hours=1)
        found.append((case, classify(case.incident, history=case.history, rules=rules, now=now)))
    return found


def test_there_are_enough_of_them(judged) -> None:
    assert len(judged) >= 150


def test_causes_are_told_apart(judged) -> None:
    wrong = [(case.name, verdict.cause) for case, verdict in judged if verdict.cause is not case.cause]
    assert len(wrong) <= 0.05 * len(judged), wrong


def test_scopes_are_told_apart(judged) -> None:
    wrong = [(c.name, v.scope) for c, v in judged if c.scope not in {None, Scope.UNKNOWN} and v.scope is not c.scope]
    assert len(wrong) <= 0.05 * len(judged), wrong


def test_nothing_is_drained_without_need_and_what_needs_it_is(judged) -> None:
    assert not [case.name for case, verdict in judged if case.drain is False and verdict.drain]
    assert not [case.name for case, verdict in judged if case.drain and not verdict.drain]


def test_every_verdict_says_why_and_what_would_change_it(judged) -> None:
    for case, verdict in judged:
        assert verdict.grounds, case.name
        assert verdict.would_change, case.name
        assert verdict.advice, case.name
