"""Detects why an attempt ended without a step: a checkpoint that Sentinel chose, or Slurm did not start the program.

An attempt without a step proves nothing about a checkpoint: the program may have ended before it read one, or after it with
nothing left to train. A checkpoint is left out only where two attempts in a row that were to resume from it ended so, and
nothing says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Cause, Evidence, Incident, Kind, Scalar, Source, Where, stable_id
from sentinel.model.vocabulary import JOB_OUTPUT, RUN_START

# Slurm says that it could not start the program, where nothing else is said: of one that ran it says some of this, too.
_NOT_STARTED = frozenset({"controller-gone", "step-contact", "step-setup"})
_NO_STEP = "srun: error: Unable to create step for job "  # whatever the reason given
_ENDED = "task-exit"  # srun tells of the end of a task
_BY_SLURM = ("srun: ", "slurmstepd: ")  # how the lines begin that are not the program's
_NO_REASON = frozenset({RUN_START, "pause", "preparing", "straggler"})  # kinds of its lines that say of no failure


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint that was chosen for a restart.

    Attributes:
        attempt: the attempt that had failed before it.
        level: at which it was found valid.
        failed_before: name of the checkpoint from which that attempt was to resume and did not, as far as is known; else
            empty.
    """

    attempt: int
    path: str
    step: int | None
    level: str = ""
    failed_before: str = ""

    @property
    def name(self) -> str:
        return checkpoint_name(self.path, self.step)


def checkpoint_name(path: object, step: object) -> str:
    """Of one checkpoint: several steps may share a folder."""
    return f"{path}@{step}"


def resume_of(attempt: int, data: Mapping[str, Scalar]) -> Resume | None:
    """What a choice after ``attempt`` says of itself; None if nothing was chosen."""
    path, step = data.get("path"), data.get("step")
    if not path:
        return None
    step = step if isinstance(step, int) else None
    return Resume(attempt, str(path), step, str(data.get("level") or ""), str(data.get("failed_before") or ""))


def is_left_out(item: Evidence) -> bool:
    """Whether the checkpoint that this evidence is about is not to be chosen again for the job's next attempt."""
    times = item.data.get("times")
    return item.kind == Kind.NOT_RESUMED and isinstance(times, int) and times > 1


def gained(cluster: ClusterView, job: int, attempt: int, step: int | None) -> bool:
    """Whether the attempt, which began from this step, made steps or saves."""
    seen = cluster.attempts.get((job, attempt))
    saves = [item.data.get("step") for item in list(seen.saves)] if seen is not None else []
    later = any(isinstance(saved, int) and (step is None or saved > step) for saved in saves)
    return later or cluster.first_step(job, attempt) is not None


def failed_resume(
    incident: Incident,
    cluster: ClusterView,
    resume: Resume | None,
    cause: Callable[[], Cause],
    *,
    reached: int | None,
    observed: bool,
    now: datetime,
) -> list[Evidence]:
    """Evidence that the attempt did not resume from its checkpoint, and nothing says why; empty where that is not known.

    Its ``times`` is 2 where the attempt before ended so, too, from the same checkpoint, which is to be left out then.

    Args:
        resume: the newest choice for the job before this incident; None: none was made, or not for a whole attempt.
        cause: gives that of the incident, as far as it is known; asked last, since it costs a judgement.
        reached: the highest step that any earlier attempt is known to have made; None: no steps of the job are known.
        observed: whether the attempt was watched from its beginning.
    """
    job, attempt = incident.job, incident.attempt
    if job is None or not attempt or resume is None or resume.attempt != attempt - 1:
        return []
    ended = any(item.kind == Kind.JOB_ENDED for item in incident.evidence)
    if not ended or _says_why(incident) or not observed or not _was_read(incident, cluster):
        return []
    if reached is None or gained(cluster, job, attempt, resume.step) or _may_be_complete(resume.step, reached):
        return []
    if cause() is not Cause.UNKNOWN:
        return []
    twice = resume.failed_before == resume.name
    whole = f", found valid (level {resume.level})," if resume.level else ""
    text = f"attempt {attempt} was to resume from {resume.path}{whole} and ended without a step, and nothing says why"
    if twice:
        text = (
            f"attempts {attempt - 1} and {attempt} were to resume from {resume.path}{whole} and ended without a step, and "
            "nothing says why: the job goes on from the one before"
        )
    return [
        Evidence(
            id=stable_id("failed-resume", job, attempt),
            at=now,
            seen_at=now,
            source=Source.CHECKPOINT,
            kind=Kind.NOT_RESUMED,
            where=Where(job=job, attempt=attempt, path=resume.path),
            text=text,
            data={"path": resume.path, "step": resume.step, "times": 2 if twice else 1},
        )
    ]


def _says_why(incident: Incident) -> bool:
    """Whether the program said anything that rules know, be it that it resumed: then that is what it was."""
    said = [item for item in incident.evidence if item.source in JOB_OUTPUT]
    return any(item.kind not in _NO_REASON and not item.text.startswith(_BY_SLURM) for item in said) or _did_not_start(
        incident
    )


def _was_read(incident: Incident, cluster: ClusterView) -> bool:
    """Whether the job's log was read in this attempt: without (an agent that is dead) nothing is known of it."""
    seen = cluster.attempts.get((incident.job or -1, incident.attempt or 0))
    read = seen is not None and seen.observed.through_s is not None
    return read or any(item.source is Source.JOB_LOG for item in incident.evidence)


def _may_be_complete(step: int | None, reached: int) -> bool:
    """Whether the checkpoint is of the last step that any attempt made, or that is not known.

    From such a one a finished training has nothing to do, and what fails is what follows it in the script.
    """
    return step is None or step + 1 >= reached  # a log may count from 1 and saves from 0


def _did_not_start(incident: Incident) -> bool:
    """Whether the job's log says that the program was not started, and nothing that only one which ran leads to."""
    # Also the batch script begins an attempt, and is paused.
    said = [i for i in incident.evidence if i.source is Source.JOB_LOG and i.kind not in _NO_REASON]
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
