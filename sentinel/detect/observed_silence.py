"""Measures how much of a job's silence was observed: the clock of a stall runs only while its log is being read. Pure.

A missing step line means something only if it would have been noticed. The agent on a job's batch host follows the
job's log. With each heartbeat it says, for each log, how long ago it reached the log's end with everything before it
acknowledged by the daemon (``LogRead``). The time between two such reports counts as silence if they are close
together. Uncovered time does not count, whatever the reason: a cut network, a dead agent, a frozen file system, a
stopped daemon, or a step line that still waits in the agent's spool.

Only durations are sent, since clocks of nodes differ. The transit time of a request (a daemon that stood still finds
requests half a minute old in its socket) is measured against the quickest request of the same agent (``Transit``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite

FRESH_S = 3.0  # oldest report for concluding a hang; the agent of a suspected job sends one each half second
# The quickest request of the last one or two of these: a hundred heartbeats, in which clocks drift 15 ms
BUCKET_S = 150.0


@dataclass(frozen=True, slots=True)
class LogRead:
    """An agent's report on one log that it follows, by its own clock when sending."""

    job: int
    attempt: int
    looked_ago_s: float  # since it reached the log's end, with all that it had read acknowledged by the daemon


@dataclass(frozen=True, slots=True)
class Transit:
    """The daemon's clock minus an agent's when its requests arrive; smallest for the request with the least transit."""

    boot: str
    since_s: float
    least_s: float  # smallest difference since ``since_s``
    before_s: float  # smallest difference of the bucket before


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed silence of one attempt, in seconds of the daemon's monotonic clock. Starts empty."""

    after: datetime | None = None  # time of the step line that the silence follows
    since_s: float = 0.0  # when the daemon received that line; time before it does not count
    through_s: float | None = None  # the log is known to be read up to here; None: no report yet
    silent_s: float = 0.0  # how much of the time since ``since_s`` was covered by reports

    def fresh(self, now_s: float) -> bool:
        """Whether the newest report is recent enough to conclude a hang from."""
        return self.through_s is not None and now_s - self.through_s <= FRESH_S


def logs_of(value: object) -> Iterator[LogRead]:
    """Parse the field ``logs`` of a heartbeat; malformed entries are skipped."""
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, Mapping):
            continue
        job, attempt, ago_s = item.get("job"), item.get("attempt"), seconds_of(item.get("looked_ago_s"))
        if isinstance(job, int) and isinstance(attempt, int) and ago_s is not None and ago_s >= 0.0:
            yield LogRead(job, attempt, ago_s)


def seconds_of(value: object) -> float | None:
    """A finite number of seconds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value)
    except OverflowError:  # an integer that no float holds
        return None
    return seconds if isfinite(seconds) else None


def transit_of(known: Transit | None, boot: str, sent_s: float, now_s: float) -> tuple[Transit, float]:
    """The new record after a request, and the request's transit time in seconds beyond that of the quickest one.

    ``sent_s`` is the agent's monotonic clock when sending, ``now_s`` ours on arrival. The first request after a boot of the
    node counts as quick.
    """
    apart_s = now_s - sent_s
    if known is None or known.boot != boot:
        return Transit(boot, now_s, apart_s, apart_s), 0.0
    if now_s - known.since_s > BUCKET_S:
        known = Transit(boot, now_s, apart_s, known.least_s)
    if apart_s < known.least_s:
        known = replace(known, least_s=apart_s)
    return known, apart_s - min(known.least_s, known.before_s)


def after_line(observed: Observed, last_at: datetime | None, now_s: float) -> Observed:
    """The clock after ``last_at``: it restarts with each step line (also with the end of a save, or a resumption)."""
    return observed if observed.after == last_at else Observed(last_at, now_s, observed.through_s)


def after_report(observed: Observed, end_s: float, apart_s: float) -> Observed:
    """The clock after a report that the log was read up to ``end_s``, with nothing new in it.

    ``apart_s``: reports further apart do not cover the time between them. The first one covers nothing.
    """
    before_s = observed.through_s
    if before_s is None:
        return replace(observed, through_s=end_s)
    if end_s <= before_s:
        return observed
    began_s = max(before_s, observed.since_s)
    covered_s = end_s - began_s if end_s - before_s <= apart_s else 0.0
    return replace(observed, through_s=end_s, silent_s=observed.silent_s + max(0.0, covered_s))
