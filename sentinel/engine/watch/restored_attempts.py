"""Restores recent attempts from the store after a start, so that a hang that began meanwhile is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.step_rhythm import observe
from sentinel.model.records import Evidence, JobView, Kind, Source, Where, stable_id

_STEPS = 10  # step lines reconstructed to restore a job's rhythm


def restore(cluster: ClusterView, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add stored attempts to the cluster view, with the steps that they reached."""
    for row in rows:
        seen = cluster.see_attempt(view_of(row))
        seen.first_step, seen.last_step, seen.step_time_s = row["first_step"], row["last_step"], row["step_time_s"]
        seen.ended = row["ended_at"] is not None


def view_of(row: Mapping[str, Any]) -> JobView:
    """The attempt of this row, as far as the store has it."""
    return JobView(
        id=row["job"],
        state=row["state"] or "unknown",
        user=row["user"] or "",
        name=row["name"] or "",
        partition=row["partition"] or "",
        restarts=row["attempt"],
        nodes=tuple(row["nodes"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        het=row["het"],
    )


def restore_rhythms(cluster: ClusterView, now: datetime) -> None:
    """Reconstruct the last step lines of attempts that still run, so that they have a rhythm."""
    for (job, attempt), seen in cluster.attempts.items():
        if seen.ended or seen.last_step is None or seen.rhythm.lines:
            continue
        for item in _step_lines(job, attempt, seen.last_step, seen.step_time_s, now):
            seen.rhythm = observe(seen.rhythm, item)
        if seen.step_time_s is None:  # what these lines are apart was not seen
            seen.rhythm = replace(seen.rhythm, times=())


def _step_lines(job: int, attempt: int, last: int, step_time_s: float | None, now: datetime) -> list[Evidence]:
    """The last step lines of an attempt, dated so that the newest is now: later lines are not known."""
    gap_s = max(step_time_s or 1.0, 1.0)  # agents pass at most one line a second
    return [
        Evidence(
            id=stable_id("remembered", job, attempt, step, now.isoformat()),
            at=now - timedelta(seconds=gap_s * back),
            seen_at=now,
            source=Source.PROGRESS,
            kind=Kind.STEP,
            where=Where(job=job, attempt=attempt),
            data={"step": step, "step_time_s": step_time_s},
        )
        for back in range(_STEPS, -1, -1)
        if (step := last - back) >= 0
    ]
