"""Which drains cost budget: those done, those under way, and no others."""

from __future__ import annotations

from typing import Any

from core_records import AT, fleet, later, plan, step

from sentinel.daemon.under_way import with_plans
from sentinel.model import Result, StepKind

PLAN = plan(step(StepKind.DRAIN, node="n1"))


def row(result: Result, reason: str = "", at_s: float = -60.0) -> dict[str, Any]:
    at = later(at_s)
    return {
        "incident": "inc1", "node": "n1", "result": result, "reason": reason, "intended_at": at, "finished_at": at,
    }  # fmt: skip


def test_drain_that_was_done_costs_once() -> None:
    seen, hour = with_plans(fleet(4), [PLAN], [row(Result.DONE)], AT)
    assert hour == [later(-60.0)] and not seen.nodes["n1"].drained


def test_drain_under_way_counts_and_shows() -> None:
    seen, hour = with_plans(fleet(4), [PLAN], [], AT)
    assert hour == [AT] and seen.nodes["n1"].drained


def test_drain_that_failed_costs_nothing() -> None:
    seen, hour = with_plans(fleet(4), [PLAN], [row(Result.FAILED, "Slurm does not know node n1")], AT)
    assert hour == [] and not seen.nodes["n1"].drained


def test_somebody_elses_drain_costs_nothing() -> None:
    _, hour = with_plans(fleet(4), [PLAN], [row(Result.DONE, "was drained by somebody else already")], AT)
    assert hour == []
