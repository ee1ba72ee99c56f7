"""Which nodes' prologs refused a job, as far as their agents tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sentinel.daemon.ingest.refusals import Refusals

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOLD = {"job": 7, "attempt": 1, "reason": "gpu_lost: a GPU is lost", "ago_s": 60.0}


def test_a_refusal_is_kept_once_with_its_time() -> None:
    kept = Refusals()
    for later_s in (0, 2, 4):  # each heartbeat tells it again
        kept.heard("n1", [TOLD], NOW + timedelta(seconds=later_s))
    kept.heard("n2", [{**TOLD, "ago_s": 5.0}], NOW)
    first, second = kept.of(7)
    assert (first.node, first.attempt, first.reason, first.at) == ("n1", 1, TOLD["reason"], NOW - timedelta(seconds=60))
    assert second.node == "n2" and kept.of(8) == [] and kept.of(None) == []


@pytest.mark.parametrize(
    "told",
    [None, "x", [None], [{}], [{"job": True, "attempt": 0}], [{"job": "7", "attempt": 1}], [{**TOLD, "ago_s": 1e300}]],
)
def test_what_is_malformed_is_left_out(told: object) -> None:
    kept = Refusals()
    kept.heard("n1", told, NOW)
    assert kept.of(7) == []
    kept.heard("n1", [{"job": 7, "attempt": 1, "reason": "x" * 5000, "ago_s": "soon"}], NOW)
    assert [(one.at, len(one.reason)) for one in kept.of(7)] == [(NOW, 300)]


def test_of_very_many_the_first_told_are_dropped() -> None:
    kept = Refusals()
    for job in range(20_100):
        kept.heard("n1", [{**TOLD, "job": job}], NOW)
    assert kept.of(0) == [] and kept.of(20_099)
