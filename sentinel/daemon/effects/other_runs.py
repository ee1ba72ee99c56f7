"""Which checkpoints below a job's shared folders may be those of another job of its user.

Folders often stand for several runs: the one above them all, or that of an array, whose tasks have one comment. Which run
lies in which folder below is then not known, and a job must not go on from another's checkpoint, nor have it moved aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


FoldersOfOthers = Mapping[str, Sequence[OtherFolder]]  # by path


def folders_of_others(fleet: Fleet, job: JobView) -> FoldersOfOthers:
    """Of each folder the first job that names it, and the first that is at work: a user may have thousands of jobs that
    name the same ones."""
    found: dict[str, list[OtherFolder]] = {}
    for other in fleet.jobs.values():
        if other.id == job.id or other.user != job.user or (other.het is not None and other.het == job.het):
            continue
        if not (other.nodes or other.restarts > 0):
            continue  # one that was cancelled in the queue has saved nothing
        at_work = other.state in _AT_WORK
        for root in intent_of(other.comment, other.id).global_roots:
            known = found.setdefault(root.rstrip("/"), [])
            if not known or (at_work and not any(one.at_work for one in known)):
                known.append(OtherFolder(root.rstrip("/"), other.id, at_work))
    return found


def may_be_anothers(path: str, others: FoldersOfOthers, intent: Intent, *, to_move: bool = False) -> OtherFolder | None:
    """The folder of another job to which a checkpoint in a shared folder may belong; None: it is this job's.

    What lies in a folder itself that both name is one run's, on which both jobs work. What lies in a folder below may be
    either's.

    Args:
        to_move: it is to be moved aside: while the other job is at work on the same run, it may be saving there.
    """
    own = {root.rstrip("/") for root in intent.global_roots}
    flat = f"{PurePosixPath(path).parent}" in own
    above = list(_with_folders_above(path))
    home = next((folder for folder in above if folder in own), None)
    for folder in above:
        both = home is not None and len(folder) <= len(home)  # the folder is the one of this job, or above that
        for one in others.get(folder, ()):
            if not both or not flat or (to_move and one.at_work and folder in own):
                return one
    return None


def _with_folders_above(path: str) -> Iterator[str]:
    """The path itself first; the empty one, which is ``/``, last."""
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def without_others(
    candidates: Iterable[Candidate], others: FoldersOfOthers, intent: Intent
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
