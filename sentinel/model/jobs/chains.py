"""Which jobs wait for which others, by their dependencies.

A job that failed by itself is over for Slurm: the next one of its chain (singleton) may have begun in its place. One that is
stopped while it runs is requeued before it ends, and the next one goes on waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from sentinel.model.records import JobView

SINGLETON = "singleton"  # kind of the dependency on all jobs of the same name and user: it names no job
CHAIN = "chain"  # data of a release: ids of the jobs that waited for its job by a singleton, separated by commas
MOST_LINKS = 5  # of a chain, the first by id: in that order Slurm lets one go after the other
_RUNS = frozenset({"running", "suspended"})
_BEGUN = _RUNS | {"completing"}


def waiting(jobs: Collection[JobView]) -> Iterator[tuple[int, str, int]]:
    """(job that waits, kind of its dependency, job that it waits for).

    Of those that a singleton waits for, the ones that have begun: Slurm lets it go when they come to their end, however they
    go on after that. Of many in one chain the first ``MOST_LINKS``: each pair of a user's many jobs would be too much.
    """
    singles: dict[object, list[int]] = {}
    for job in jobs:
        yield from ((job.id, kind, on) for kind, on in job.depends)
        if job.singleton and job.state == "pending":
            singles.setdefault(_chain(job), []).append(job.id)
    first = {chain: sorted(links)[:MOST_LINKS] for chain, links in singles.items()}
    for job in jobs if first else ():
        if job.state in _BEGUN:
            yield from ((link, SINGLETON, job.id) for link in first.get(_chain(job), ()))


def _chain(job: JobView) -> tuple[int | None, str, str]:
    return job.uid, job.user, job.name


def begun_instead(job: JobView, chain: Iterable[JobView]) -> str:
    """Why ``job`` is held and not restarted: the next one of its chain has begun. Empty where none has, or both run already.

    Args:
        chain: the jobs that waited for it.
    """
    if job.state in _RUNS:
        return ""
    other = next((one for one in chain if has_begun(one)), None)
    if other is None:
        return ""
    return (
        f"Job {other.id}, which waited for job {job.id} (--dependency=singleton), has begun: for Slurm the failure was the "
        "end. Restarted beside it, both would write the same files. Further ones of that name wait until job "
        f"{job.id} has run (scontrol release {job.spec}) or is cancelled (scancel {job.spec})."
    )


def still_linked(
    job: JobView, others: Mapping[int, str], jobs: Mapping[int, JobView], tasks: Mapping[int, int]
) -> dict[int, str]:
    """Of the jobs that waited for ``job``, and how, those that may still begin in its place, or have.

    One that waited by a singleton and has nodes at the same time as ``job`` does neither: its user took the dependency away,
    or somebody let both run.

    Args:
        jobs: all that Slurm knows, by id.
        tasks: see ``begun_tasks``. Such a task counts as its array.
    """
    found: dict[int, str] = {}
    for other, kind in others.items():
        begins = tasks.get(other, other) if kind == SINGLETON else other
        if kind == SINGLETON and begins in jobs and job.state in _RUNS and has_begun(jobs[begins]):
            continue
        found |= {link: kind for link in (other, begins) if link in jobs}
    return found


def begun_tasks(jobs: Iterable[JobView]) -> dict[int, int]:
    """By array: one task of it that has begun, under an id of its own; that of the array stays with the tasks that wait."""
    return {job.array[0]: job.id for job in jobs if job.array is not None and job.id != job.array[0] and has_begun(job)}


def has_begun(job: JobView) -> bool:
    """Whether Slurm has given the job nodes; of one that was over before it names none."""
    return job.state != "pending" and bool(job.nodes)
