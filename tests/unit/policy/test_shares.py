"""Limits that are shares: cut off as a person counts, not as floats are multiplied."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from made_records import AT, fleet, incident, job, verdict

from sentinel import policy
from sentinel.config.settings import Diagnostics, Limits, Mode, Modes
from sentinel.engine.diagnostics.due_tests import due_tests
from sentinel.model.records import OURS, Fleet
from sentinel.policy import Situation
from sentinel.policy.shares import at_least, at_most
from sentinel.policy.stops import stops_allowed

ACT = Modes(default=Mode(drain="act", restart="act"))


def test_every_share_in_hundredths_is_cut_off_exactly() -> None:
    for percent in range(101):
        for of in (*range(300), 1000, 16_384, 1_000_000):
            assert at_most(percent / 100, of) == percent * of // 100
            assert at_least(percent / 100, of) == -(-percent * of // 100)


def out(count: int, of: int) -> Fleet:
    there = fleet(of)
    names = [f"n{number}" for number in range(of, of - count, -1)]
    drained = {name: replace(there.nodes[name], flags=frozenset({"drain"}), reason=f"{OURS}x") for name in names}
    return replace(there, nodes={**there.nodes, **drained})


@pytest.mark.parametrize(("before", "allowed"), [(28, True), (29, False)])
def test_a_share_of_a_partition_of_a_hundred_nodes(before: int, allowed: bool) -> None:
    limits = Limits(drain_fraction=0.29, drain_count=100)
    situation = Situation(fleet=out(before, 100))
    plan = policy.decide(
        verdict(drain=("n1",)), incident(), situation, limits=limits, modes=ACT, act_confidence=0.6, now=AT
    )
    assert [step.node for step in plan.steps if step.node] == (["n1"] if allowed else [])


def test_shares_of_running_jobs() -> None:
    limits = Limits(
        restarts_per_hour=0, restarts_fraction=0.29, silent_restarts_per_hour=0, silent_restarts_fraction=0.07
    )
    assert stops_allowed(fleet(2, [job(number) for number in range(1, 101)]), limits) == (7, 29)


def test_a_share_of_idle_nodes() -> None:
    settings = Diagnostics(idle_level=2, idle_fraction=0.29, idle_per_hour=100)
    idle = {f"n{number}": AT - timedelta(days=1) for number in range(100)}
    assert len(due_tests({}, idle, waiting=False, settings=settings, now=AT)) == 29
