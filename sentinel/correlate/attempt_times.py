"""When an attempt of a job ran, and which one ran at a time: what Slurm says of a job is the next attempt's from the moment
of a requeue."""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.own_host import MOST_SKEW_S
from sentinel.model.records import Evidence, JobView, Source

Ran = tuple[datetime | None, datetime | None]  # began (None: not known), ended (None: not yet)
SLACK = timedelta(seconds=2)  # Slurm's times are whole seconds, and clocks of nodes are not the same
_BY_DAEMON = frozenset({Source.PROBE, Source.PROMETHEUS, Source.OPERATOR})  # whose times are of the daemon's clock


def ran(job: int | None, attempt: int | None, view: JobView | None, cluster: ClusterView) -> Ran:
    """When this attempt ran. ``view``: what the newest snapshot shows of the job."""
    seen = cluster.attempts.get((job, attempt)) if job is not None and attempt is not None else None
    if seen is not None and seen.view.started_at is not None:
        return seen.view.started_at, seen.view.ended_at
    return (view.started_at, view.ended_at) if view is not None and view.restarts == attempt else (None, None)


def ran_at(at: datetime, when: Ran) -> bool:
    began, ended = when
    if began is None or at < began - SLACK:
        return False
    return ended is None or at <= ended + SLACK


def attempt_at(job: JobView, at: datetime, cluster: ClusterView) -> int:
    """The attempt of the job that ran at this time; where that is not known the one that holds its nodes, or held them."""
    known = sorted((attempt for number, attempt in cluster.attempts if number == job.id), reverse=True)
    those = (attempt for attempt in known if ran_at(at, ran(job.id, attempt, job, cluster)))
    return next(those, cluster.attempt_on(job))


def by_own_clock(item: Evidence, cluster: ClusterView) -> datetime | None:
    """When it happened by the daemon's clock; None where the clock of its node is not known."""
    if item.source in _BY_DAEMON:
        return item.at
    node = cluster.nodes.get(item.where.node) if item.where.node is not None else None
    off_s = node.clock_offset_s if node is not None else None
    return item.at - timedelta(seconds=off_s) if off_s is not None else None


def by_slurms_clock(item: Evidence, cluster: ClusterView) -> datetime:
    """When it happened by slurmctld's clock, which is taken to go with most nodes'; as it is told where the clock of its
    node is not known."""
    own = by_own_clock(item, cluster)
    if own is None or (item.source not in _BY_DAEMON and abs((item.at - own).total_seconds()) <= MOST_SKEW_S):
        return item.at
    return own - timedelta(seconds=cluster.own_clock_ahead_s() or 0.0)


def was_there(job: JobView, item: Evidence, cluster: ClusterView) -> bool:
    """Whether an attempt of the job, which is on the node now, ran there when ``item`` happened. False: not known, too."""
    at = by_slurms_clock(item, cluster)
    if ran_at(at, ran(job.id, cluster.attempt_on(job), job, cluster)):
        return True
    return any(
        number == job.id and item.where.node in seen.nodes and ran_at(at, (seen.view.started_at, seen.view.ended_at))
        for (number, _), seen in cluster.attempts.items()
    )
