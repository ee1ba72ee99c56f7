"""Detects why an attempt ended without a step: a checkpoint that Sentinel chose, or Slurm did not start the program."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, Incident, Kind, Scalar, Source, Where, stable_id

# Slurm says that it could not start the program, where nothing else is said: of one that ran it says some of this, too.
_NOT_STARTED = frozenset({"controller-gone", "step-contact", "step-setup"})
_NO_STEP = "srun: error: Unable to create step for job "  # whatever the reason given
_ENDED = "task-exit"  # srun tells of the end of a task
_BY_SLURM = ("srun: ", "slurmstepd: ")  # how the lines begin that are not the program's


def failed_resume(
    incident: Incident, cluster: ClusterView, chosen_after: Mapping[int, Mapping[str, Scalar]], now: datetime
) -> list[Evidence]:
    """Evidence that the chosen checkpoint is suspect; empty if the attempt printed a step, did not begin to read, or none
    was chosen for it.

    Args:
        chosen_after: by failed attempt, the checkpoint chosen for the next one: path and step.
    """
    kinds = {item.kind for item in incident.evidence}
    if (
        incident.job is None
        or not incident.attempt
        or Kind.JOB_ENDED not in kinds
        or "resumed" in kinds
        or _did_not_start(incident)
    ):
        return []
    if cluster.first_step(incident.job, incident.attempt) is not None:
        return []
    chosen = chosen_after.get(incident.attempt - 1)
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


def _did_not_start(incident: Incident) -> bool:
    """Whether the job's log says that the program was not started, and nothing that only one which ran leads to."""
    said = [item for item in incident.evidence if item.source is Source.JOB_LOG]
    ran = any(item.kind == _ENDED or not item.text.startswith(_BY_SLURM) for item in said)
    return not ran and any(item.kind in _NOT_STARTED or item.text.startswith(_NO_STEP) for item in said)


def started_before(incident: Incident, cluster: ClusterView, now: datetime) -> list[Evidence]:
    """Evidence that what Slurm did not start this time made steps in an earlier attempt: its settings were right then."""
    job, attempt = incident.job, incident.attempt
    if job is None or not attempt or not _did_not_start(incident):
        return []
    ran = next((n for n in reversed(range(attempt)) if cluster.first_step(job, n) is not None), None)
    if ran is None:
        return []
    return [
        Evidence(
            id=stable_id("started-before", job, attempt),
            at=now,
            seen_at=now,
            source=Source.PROGRESS,
            kind=Kind.STARTED_BEFORE,
            where=Where(job=job, attempt=attempt),
            text=f"attempt {attempt} was not started; attempt {ran} made steps with the same settings",
            data={"ran": ran},
        )
    ]
