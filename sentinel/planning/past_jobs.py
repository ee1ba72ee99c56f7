"""What a site lost before Sentinel, from Slurm's accounting: failures by cause, GPU-hours, and a history for planning.

Accounting does not say how far a job had come or where it resumed: an attempt that failed counts as lost *at most* whole.
Everything is counted between two times, so that the failures and the GPU-hours of a history belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.model.accounting import AccountedAttempt

# States in which an attempt did not end as its user wanted; what users, limits and preemption end is no failure.
FAILED = frozenset({"failed", "node_fail", "boot_fail", "out_of_memory"})
REQUEUED = "requeued"  # by a person or by its own script, which may have seen a failure: accounting does not say
UNKNOWN = "unknown"
_CAUSES = {"node_fail": "node_failure", "boot_fail": "node_failure", "out_of_memory": "app_oom_host"}
Key = tuple[int, int]  # job, attempt


@dataclass(frozen=True, slots=True)
class Judged:
    """What a log of the attempt says: cause, and what Sentinel would do (``Restart``)."""

    cause: str
    restart: str


@dataclass(slots=True)
class Lost:
    failures: int = 0
    gpu_hours_at_most: float = 0.0
    would: dict[str, int] = field(default_factory=dict)  # by restart, or "not known"


@dataclass(frozen=True, slots=True)
class PastJobs:
    """``gpus_unknown``: attempts of which accounting does not say how many GPUs they held; they count with none.

    ``requeued``: attempts that were put back into the queue; whether they had failed is not known, so they are no failures.
    """

    attempts: int
    failures: tuple[AccountedAttempt, ...]
    gpu_s: float
    gpus_unknown: int
    by_cause: Mapping[str, Lost]
    requeued: Lost


def is_failure(attempt: AccountedAttempt) -> bool:
    return attempt.state in FAILED


def cause_of(attempt: AccountedAttempt, judged: Mapping[Key, Judged]) -> str:
    """By its log; where that says nothing, by Slurm's state; else unknown."""
    found = judged.get((attempt.job, attempt.attempt))
    return found.cause if found is not None and found.cause != UNKNOWN else _CAUSES.get(attempt.state, UNKNOWN)


def past_jobs(
    attempts: Sequence[AccountedAttempt], judged: Mapping[Key, Judged], since: datetime, until: datetime
) -> PastJobs:
    """The sums over these attempts between two times. Only attempts that held GPUs count."""
    own = [attempt for attempt in attempts if attempt.gpus != 0]
    failures = tuple(attempt for attempt in own if is_failure(attempt) and since <= attempt.ended_at <= until)
    by_cause: dict[str, Lost] = {}
    requeued = Lost()
    for attempt in failures:
        lost = by_cause.setdefault(cause_of(attempt, judged), Lost())
        _add(lost, attempt, since, until)
        would = _would(attempt, judged.get((attempt.job, attempt.attempt)))
        lost.would[would] = lost.would.get(would, 0) + 1
    for attempt in own:
        if attempt.state == REQUEUED and since <= attempt.ended_at <= until:
            _add(requeued, attempt, since, until)
    return PastJobs(
        attempts=len(own),
        failures=failures,
        gpu_s=sum(attempt.held_s(since, until) * (attempt.gpus or 0) for attempt in own),
        gpus_unknown=sum(attempt.gpus is None for attempt in own),
        by_cause=dict(sorted(by_cause.items(), key=lambda item: -item[1].gpu_hours_at_most)),
        requeued=requeued,
    )


def _add(lost: Lost, attempt: AccountedAttempt, since: datetime, until: datetime) -> None:
    lost.failures += 1
    lost.gpu_hours_at_most += attempt.held_s(since, until) * (attempt.gpus or 0) / 3600


def _would(attempt: AccountedAttempt, found: Judged | None) -> str:
    """What Sentinel would do; Slurm's report that a node failed is enough where the log says nothing."""
    if (found is None or found.cause == UNKNOWN) and attempt.state in ("node_fail", "boot_fail"):
        return "resume_excluding"
    return found.restart if found is not None else "not known"


def history_document(
    past: PastJobs, judged: Mapping[Key, Judged], since: datetime, until: datetime, gpus_per_node: int
) -> dict[str, object]:
    """What ``sentinel plan --history`` and ``sentinel simulate --failures`` read; see ``sentinel.planning.history``."""
    failures: list[dict[str, object]] = [
        {"time": attempt.ended_at.isoformat(), "cause": cause_of(attempt, judged)}
        | ({"node_lost": True} if attempt.state == "node_fail" else {})
        for attempt in past.failures
    ]
    return {
        "start": since.isoformat(),
        "end": until.isoformat(),
        "gpu_s": past.gpu_s,
        "gpus_per_node": gpus_per_node,
        "failures": failures,
    }
