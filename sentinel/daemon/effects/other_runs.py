"""Which checkpoints below a job's shared folders may be those of another job of its user.

Folders often stand for several runs: the one above them all, or that of an array, whose tasks have one comment. Which run
lies in which folder below is then not known, and a job must not go on from another's checkpoint, nor have it moved aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from sentinel.checkpoints.records import Candidate
from sentinel.model.intent import Intent, intent_of
from sentinel.model.records import Fleet, JobView

_AT_WORK = frozenset({"running", "suspended", "completing"})


@dataclass(frozen=True, slots=True)
class OtherFolder:
    """A shared folder that another job of the user names, one that has run; also if it is over and Slurm still knows it."""

    path: str
    job: int
    at_work: bool


def folders_of_others(fleet: Fleet, job: JobView) -> list[OtherFolder]:
    return [
        OtherFolder(root.rstrip("/"), other.id, other.state in _AT_WORK)
        for other in fleet.jobs.values()
        if other.id != job.id and other.user == job.user and (other.het is None or other.het != job.het)
        if other.nodes or other.restarts > 0  # one that was cancelled in the queue has saved nothing
        for root in intent_of(other.comment, other.id).global_roots
    ]


def may_be_anothers(
    path: str, others: Sequence[OtherFolder], intent: Intent, *, to_move: bool = False
) -> OtherFolder | None:
    """The folder of another job to which a checkpoint in a shared folder may belong; None: it is this job's.

    What lies in a folder itself that both name is one run's, on which both jobs work. What lies in a folder below may be
    either's.

    Args:
        to_move: it is to be moved aside: while the other job is at work on the same run, it may be saving there.
    """
    own = {root.rstrip("/") for root in intent.global_roots}
    flat = f"{PurePosixPath(path).parent}" in own
    for one in others:
        if not _is_within(path, one.path):
            continue
        both = any(_is_within(root, one.path) and _is_within(path, root) for root in own)
        if not both or not flat or (to_move and one.at_work and one.path in own):
            return one
    return None


def without_others(
    candidates: Iterable[Candidate], others: Sequence[OtherFolder], intent: Intent
) -> tuple[list[Candidate], list[str]]:
    """The candidates that are this job's own, and why others below its folders may not be."""
    kept: list[Candidate] = []
    reasons: dict[str, None] = {}
    for candidate in candidates:
        other = may_be_anothers(candidate.path, others, intent) if candidate.tier == "global" else None
        if other is None:
            kept.append(candidate)
        else:
            words = f"job {other.job} names {other.path}, too, and which of the runs below is this job's is not known"
            reasons[f"{words}: give each job a folder of its own"] = None
    return kept, list(reasons)


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
