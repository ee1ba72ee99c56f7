"""An attempt that ended before a step and was to resume from a checkpoint we chose: that one is suspect."""

from __future__ import annotations

from datetime import datetime

from sentinel.adapters.store import Store
from sentinel.daemon.live import Live
from sentinel.model import Evidence, Incident, Kind, Source, StepKind, Where, stable_id


def failed_resume(incident: Incident, live: Live, store: Store, now: datetime) -> list[Evidence]:
    kinds = {item.kind for item in incident.evidence}
    if incident.job is None or not incident.attempt or Kind.JOB_ENDED not in kinds or "resumed" in kinds:
        return []
    if live.first_step(incident.job, incident.attempt) is not None:
        return []
    rows = store.steps_done([StepKind.CHOOSE_CHECKPOINT], job=incident.job)
    chosen = next((r["data"] for r in rows if r["attempt"] == incident.attempt - 1 and r["data"].get("path")), None)
    if chosen is None:
        return []
    path, step = str(chosen["path"]), chosen.get("step")
    return [
        Evidence(
            id=stable_id("failed-resume", incident.job, incident.attempt),
            at=now,
            seen_at=now,
            source=Source.CHECKPOINT,
            kind=Kind.CHECKPOINT_INVALID,
            where=Where(job=incident.job, attempt=incident.attempt, path=path),
            text=f"attempt {incident.attempt} was to resume from {path} and gained no step",
            data={"path": path, "step": step, "reason": "the job did not resume from it"},
        )
    ]
