"""Which checkpoints below a job's shared folders may be those of another job of its user.

Folders often stand for several runs: the one above them all, or that of an array, whose tasks have one comment. Which run
lies in which folder below is then not known, and a job must not go on from another's checkpoint, nor have it moved aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from sentinel.checkpoints.records import Candidate
from sentinel.model.intent import Intent, intent_of
from sentinel.model.records import Fleet, JobView

_AT_WORK = frozenset({"running", "suspended", "completing"})


def of_others(fleet: Fleet, job: JobView) -> dict[str, int]:
    """Shared folders of the user's other jobs that have run and are not over, with their ids."""
    return {
        root.rstrip("/"): other.id
        for other in fleet.jobs.values()
        if other.id != job.id and other.user == job.user and (other.het is None or other.het != job.het)
        if other.state in _AT_WORK or (other.state == "pending" and other.restarts > 0)
        for root in intent_of(other.comment, other.id).global_roots
    }


def works_there(path: str, others: dict[str, int], intent: Intent) -> str:
    """The folder of another job in which this lies; empty if there is none. One above this job's own does not count."""
    own = {root.rstrip("/") for root in intent.global_roots}
    inside = [root for root in others if _is_within(path, root)]
    return next((root for root in inside if root in own or any(_is_within(root, one) for one in own)), "")


def without_others(
    candidates: Iterable[Candidate], others: dict[str, int], intent: Intent
) -> tuple[list[Candidate], list[str]]:
    """The candidates that are this job's own, and why others below its folders may not be.

    In a folder that two jobs name, the saves are one run's if they lie side by side: then the jobs work on the same run.
    """
    kept = list(candidates)
    reasons = []
    for root in dict.fromkeys(root.rstrip("/") for root in intent.global_roots):
        below = [c for c in kept if c.tier == "global" and _is_within(c.path, root)]
        theirs = [
            c for c in below if any(one != root and _is_within(one, root) and _is_within(c.path, one) for one in others)
        ]
        mixed = root in others and len({PurePosixPath(c.path).parent for c in below}) > 1
        if mixed:
            reasons.append(
                f"job {others[root]} has named {root}, too, and it holds several runs: which is this job's is not known; "
                "give each job a folder of its own"
            )
        gone = {id(c) for c in (below if mixed else theirs)}
        kept = [c for c in kept if id(c) not in gone]
    return kept, reasons


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
