"""Which incidents turn out to be one failure once a snapshot shows what the job did."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from made_records import ended, evidence, fleet, incident, job, later

from sentinel.correlate import merging
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import JobView, Kind, Source

WINDOW = timedelta(seconds=120)
FAILED = incident(ended(at_s=-20.0))
LOST = evidence(Kind.NODE_UNREACHABLE, at_s=-25.0, source=Source.PROBE, node="n2")
NODE = incident(LOST, id="other", job=None, attempt=None, nodes=("n2",), opened_s=-20.0)


def joined(began_s: float, now: JobView | None) -> list[str]:
    """With a job that ran as attempt 0 from then on, and what the newest snapshot shows of it."""
    cluster = ClusterView()
    cluster.see_fleet(dataclasses.replace(fleet(jobs=[job(started_s=began_s)]), at=later(-30.0)))
    newest = fleet(jobs=[now] if now is not None else [])
    cluster.see_fleet(newest)
    return [one.id for one in merging.same_failure(FAILED, [NODE], (), cluster, newest, WINDOW)]


@pytest.mark.parametrize(
    "now",
    [
        job(),
        job(state="failed"),
        dataclasses.replace(job(state="completing", restarts=1, started_s=0.0), submitted_at=later(-3700)),
        job(state="pending", nodes=(), restarts=1, started_s=None),  # Slurm requeued it itself
        job(state="pending", nodes=(), restarts=1, started_s=121.0),  # ... and says when it may start
        job(nodes=("n3", "n4"), restarts=1, started_s=0.0),  # ... and it runs elsewhere
        None,  # purged
    ],
    ids=["runs", "failed", "goes back", "waits", "is forecast", "runs again", "purged"],
)
def test_a_fault_of_its_node_belongs_to_the_attempt_that_ran_there(now: JobView | None) -> None:
    assert joined(-3600.0, now) == ["other"]


def test_a_fault_from_before_the_attempt_does_not() -> None:
    assert joined(-10.0, job(started_s=-10.0)) == []
    assert joined(-10.0, job(nodes=("n3", "n4"), restarts=1, started_s=0.0)) == []


def test_a_job_that_is_found_late_failed_in_the_attempt_that_ran_when_it_happened() -> None:
    """By then Slurm counts its requeue, and the next attempt has not begun."""
    cluster = ClusterView()
    cluster.see_fleet(dataclasses.replace(fleet(jobs=[job(started_s=-3600.0)]), at=later(-30.0)))
    newest = fleet(jobs=[job(state="pending", nodes=(), restarts=1, started_s=None)])
    cluster.see_fleet(newest)
    told = evidence(Kind.XID, at_s=-31.0, node="n1")
    assert merging.with_job(incident(told, attempt=None), cluster, newest).attempt == 0
