"""Which nodes' prologs refused a job, as far as their agents tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from made_records import fleet, job

from sentinel.daemon.ingest.refusals import Refusals
from sentinel.detect.cluster_view import AttemptSeen, ClusterView

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIVE = ClusterView()  # in which nothing is known of any job
TOLD = {"job": 7, "attempt": 1, "reason": "gpu_lost: a GPU is lost", "ago_s": 60.0}


def test_a_refusal_is_kept_once_with_its_time() -> None:
    kept = Refusals()
    for later_s in (0, 2, 4):  # each heartbeat tells it again
        kept.heard("n1", [TOLD], NOW + timedelta(seconds=later_s), LIVE)
    kept.heard("n2", [{**TOLD, "ago_s": 5.0}], NOW, LIVE)
    first, second = kept.of(7, LIVE)
    assert (first.node, first.attempt, first.reason, first.at) == ("n1", 1, TOLD["reason"], NOW - timedelta(seconds=60))
    assert second.node == "n2" and kept.of(8, LIVE) == [] and kept.of(None, LIVE) == []


@pytest.mark.parametrize(
    "told",
    [None, "x", [None], [{}], [{"job": True, "attempt": 0}], [{"job": "7", "attempt": 1}], [{**TOLD, "ago_s": 1e300}]],
)
def test_what_is_malformed_is_left_out(told: object) -> None:
    kept = Refusals()
    kept.heard("n1", told, NOW, LIVE)
    assert kept.of(7, LIVE) == []
    kept.heard("n1", [{"job": 7, "attempt": 1, "reason": "x" * 5000, "ago_s": "soon"}], NOW, LIVE)
    assert [(one.at, len(one.reason)) for one in kept.of(7, LIVE)] == [(NOW, 300)]


def test_of_very_many_of_one_node_the_first_told_are_dropped_and_no_other_nodes() -> None:
    kept = Refusals()
    kept.heard("n2", [TOLD], NOW, LIVE)
    for number in range(1000, 3000):
        kept.heard("n1", [{**TOLD, "job": number}], NOW, LIVE)
    assert kept.of(1000, LIVE) == [] and kept.of(2999, LIVE)
    assert [one.node for one in kept.of(7, LIVE)] == ["n2"]


def test_a_node_tells_of_no_attempt_that_slurm_had_elsewhere_or_has_not_come_to() -> None:
    live, kept = ClusterView(), Refusals()
    there = job(7, nodes=("n1", "n2"), restarts=1)
    live.fleet = fleet(5, [there])
    live.attempts[7, 1] = AttemptSeen(there, nodes=("n1", "n2"), nodes_whole=True)
    for node in ("n2", "n3"):
        kept.heard(node, [{**TOLD, "attempt": number} for number in (0, 1, 2)], NOW, live)
    told = {(one.node, one.attempt) for one in kept.of(7, live)}
    assert told == {("n2", 0), ("n2", 1), ("n3", 0)}, "Slurm does not tell which nodes the first attempt had"


def test_what_was_heard_before_slurm_showed_the_attempt_elsewhere_is_not_told() -> None:
    live, kept = ClusterView(), Refusals()
    kept.heard("n3", [TOLD], NOW, live)
    there = job(7, nodes=("n1", "n2"), restarts=1)
    live.fleet = fleet(5, [there])
    assert [one.node for one in kept.of(7, live)] == ["n3"]
    live.attempts[7, 1] = AttemptSeen(there, nodes=("n1", "n2"), nodes_whole=True)
    assert kept.of(7, live) == []
