"""What happened before, as the verdict uses it. Unknown history is fine: everything defaults to nothing known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from sentinel.classify.ageing import Trend
from sentinel.model.identity import taken_along_id
from sentinel.model.records import Cause, require_aware

WINDOW = timedelta(days=30)
_LEAST_CHANCE = 1e-9  # a chance that no fleet meets
_MOST_COUNTED = 40  # failures of one node in a month; more are no rarer than these for the bounds below
REPEATED = timedelta(minutes=2)  # what a node without a job says again so soon is the same failure
WRONG_SHARE = 0.05  # of the nodes called lemons: so many may be good ones that had bad luck
PRIOR = 0.25  # failures' worth of belief that a node is like the others


@dataclass(frozen=True, slots=True)
class PastFailure:
    """One judged incident, as far as it concerns one node or one job."""

    at: datetime
    cause: Cause
    node: str | None = None  # the culprit's, or where the words of a program's fault were seen
    gpu: str | None = None  # index or PCI address on the node
    job: int | None = None
    attempt: int | None = None
    user: str | None = None
    incident: str | None = None  # several records of one incident are one failure
    ranks: tuple[int, ...] = ()
    step: int | None = None  # at which numbers went bad
    nodes: tuple[str, ...] = ()  # all that the job had then, where bad numbers name none
    blamed: bool = True  # False: the node was only where the words were seen
    users_words: bool = False  # nothing but what users' programs printed spoke for it

    def __post_init__(self) -> None:
        require_aware(self.at)


@dataclass(frozen=True, slots=True)
class History:
    """Failures before this one, and how long each node carried work in the same time."""

    failures: tuple[PastFailure, ...] = ()
    busy_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    trends: tuple[Trend, ...] = ()  # of counters that age
    nodes: tuple[str, ...] = ()  # of the attempt that is judged
    user: str | None = None  # who owns the job that is judged; None: not known
    # One verdict asks several times, of thousands of failures.
    _recent: dict[datetime, tuple[PastFailure, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def recent(self, now: datetime) -> tuple[PastFailure, ...]:
        if now not in self._recent:
            self._recent.clear()
            self._recent[now] = tuple(past for past in self.failures if now - WINDOW <= past.at <= now)
        return self._recent[now]

    def under_other_jobs(self, node: str, job: int | None, now: datetime) -> tuple[PastFailure, ...]:
        """Failures that this node hosted under jobs other than ``job``; where either job is not known none is another's."""
        if job is None:
            return ()
        return tuple(past for past in self.recent(now) if past.node == node and past.job not in (None, job))

    def of_job(self, job: int, now: datetime) -> tuple[PastFailure, ...]:
        return tuple(past for past in self.recent(now) if past.job == job)


EMPTY = History()


@dataclass(frozen=True, slots=True)
class NodeScore:
    """Failures hosted per day of work, with a 90 % interval; a lemon fails more often than chance explains."""

    node: str
    failures: int
    busy_days: float
    rate: float
    low: float
    high: float
    lemon: bool
    reasons: tuple[str, ...] = ()
    others: float = 0.0  # rate of all other nodes together
    last_at: datetime | None = None
    told: int = 0  # further failures that only users' programs tell of: they count against no node
    burst_s: float | None = None  # time within which the newest BURST failures came; None: fewer

    @property
    def suspicion(self) -> float:
        """For an order: how many times the others' rate this node's is at least; 0 without a failure."""
        return self.low / self.others if self.failures and self.others > 0 else 0.0


BURST = 3


def node_scores(history: History, now: datetime) -> list[NodeScore]:
    """Nodes by suspicion, worst first; of those called lemons at most ``WRONG_SHARE`` are good ones that had bad luck.

    The rate is a Gamma posterior around the rate of the other nodes, so three failures in a busy month and three in an hour
    differ, and one failure on a new node says little. Failures of the application do not count against a node,
    nor do those that only a program's words speak for: whoever prints an Xid in every job would make lemons.
    """
    hosted = [p for p in history.recent(now) if p.node is not None and p.blamed and p.cause not in APPLICATION]
    against = each_once(without_repeats([past for past in hosted if not past.users_words]))
    told = Counter(past.node for past in each_once(without_repeats([past for past in hosted if past.users_words])))
    pasts: dict[str, list[PastFailure]] = {}
    for past in sorted(against, key=lambda past: past.at):
        pasts.setdefault(past.node or "", []).append(past)
    days = {node: max(seconds, 0.0) / 86400 for node, seconds in history.busy_s.items()}
    total_days = sum(days.values()) or float(max(len(pasts), 1))
    work = {node: days.get(node, total_days / max(len(days), 1)) for node in sorted(set(days) | set(pasts))}
    lemons = _lemons(pasts, work)
    scores = []
    for node, busy in work.items():
        own = pasts.get(node, [])
        others = max(len(against) - len(own), 0.5) / max(total_days - busy, 1.0)
        shape, rate = len(own) + PRIOR, busy + PRIOR / others
        low, high = _gamma_interval(shape, rate)
        burst_s = (own[-1].at - own[-BURST].at).total_seconds() if len(own) >= BURST else None
        scores.append(
            NodeScore(
                node=node,
                failures=len(own),
                busy_days=busy,
                rate=shape / rate,
                low=low,
                high=high,
                lemon=node in lemons,
                reasons=_reasons(own, {past.job for past in own if past.job is not None}, burst_s),
                others=others,
                last_at=own[-1].at if own else None,
                told=told[node],
                burst_s=burst_s,
            )
        )
    scores.sort(key=lambda score: (-score.low, score.node))
    return scores


def without_repeats(failures: Sequence[PastFailure]) -> list[PastFailure]:
    """Leaves out incidents without a job that came within ``REPEATED`` of one of the same cause on the same node: the lines
    of one burst are no failures of their own, whoever opened an incident for each."""
    last: dict[tuple[str, Cause], datetime] = {}
    kept = []
    for past in sorted(failures, key=lambda past: past.at):
        if past.node is not None:
            before = last.get((past.node, past.cause))
            last[past.node, past.cause] = past.at
            if past.job is None and before is not None and past.at - before <= REPEATED:
                continue
        kept.append(past)
    return kept


def each_once(failures: Sequence[PastFailure]) -> list[PastFailure]:
    """Leaves out jobs that only shared the node of another incident: each would count the same failure again."""
    on: dict[str | None, set[str]] = {}
    for past in failures:
        if past.incident is not None:
            on.setdefault(past.node, set()).add(past.incident)
    return [
        past
        for past in failures
        if past.job is None
        or past.attempt is None
        or not any(taken_along_id(name, past.job, past.attempt) == past.incident for name in on.get(past.node, ()))
    ]


def _lemons(pasts: Mapping[str, Sequence[PastFailure]], work: Mapping[str, float]) -> frozenset[str]:
    """Nodes that failed more often than chance explains, or the same part of which did; ``work``: days of each.

    Chance is a Poisson count at the rate of the nodes that are not called lemons, so a few very bad nodes do not hide the
    next. Most lemons have one bad part (Kokolis et al., arXiv:2410.21680, root causes), and a good node's failures fall on
    any: two of one cause on one GPU are rarer than two of any kind. So many are named that the good nodes which chance alone
    would bring beyond the same bound are at most ``WRONG_SHARE`` of them: Benjamini and Hochberg's step-up rule (1995), with
    the chances that counts can have (Heyse 2011). Two failures are the least: one says nothing, however short the work was.
    """
    named: frozenset[str] = frozenset()
    for _ in range(len(work) + 1):
        good = [past for node, own in pasts.items() if node not in named for past in own]
        days = sum(busy for node, busy in work.items() if node not in named)
        rate = max(len(good), 0.5) / max(days, 1.0)
        shares = _shares(good)
        chances = sorted(
            (min(_at_least(len(own), rate * work[node]), _alike(_most(own), rate * work[node], shares)), node)
            for node, own in pasts.items()
            if len(own) >= 2
        )
        last, expected, steps = 0, 0.0, iter(sorted(_steps([rate * busy for busy in work.values()], shares)))
        step = next(steps, None)
        for k, (chance, _) in enumerate(chances, 1):
            while step is not None and step[0] <= chance * (1.0 + 1e-9):
                expected += step[1]
                step = next(steps, None)
            if expected <= WRONG_SHARE * k:
                last = k
        again = named | {node for _, node in chances[:last]}
        if again == named:
            break
        named = again
    return named


def _steps(means: Sequence[float], shares: Sequence[float]) -> Iterator[tuple[float, float]]:
    """(bound, how many more good nodes chance brings beyond it) for every bound at which that number changes."""
    for mean in means:
        for alike in (False, True):
            values = []
            for count in range(2, _MOST_COUNTED):
                values.append(_alike(count, mean, shares) if alike else _at_least(count, mean))
                if values[-1] < _LEAST_CHANCE:
                    break
            before = 0.0
            for value in reversed(values):
                if value > before:
                    yield value, value - before
                    before = value


def _part(past: PastFailure) -> tuple[str, str]:
    """What failed, as far as it is named: the cause, and the GPU on its node."""
    return past.cause.value, past.gpu or ""


def _most(own: Sequence[PastFailure]) -> int:
    """Failures of the part that failed most."""
    return max(Counter(map(_part, own)).values())


def _shares(good: Sequence[PastFailure]) -> list[float]:
    """Share of each part among the failures of good nodes; those that were not seen have one share together."""
    whole = len(good) + 1
    return [count / whole for count in Counter(map(_part, good)).values()] + [1.0 / whole]


def _alike(count: int, mean: float, shares: Sequence[float]) -> float:
    """At most the chance that any one part of a good node fails so often."""
    if count < 2:
        return 1.0
    alike = sum(share**count for share in shares)
    if mean <= 0.0 or alike <= 0.0:
        return 0.0
    return math.exp(min(0.0, count * math.log(mean) + math.log(alike) - math.lgamma(count + 1)))


def _at_least(count: int, mean: float) -> float:
    """The chance of ``count`` or more events where ``mean`` are expected (Poisson); summed from the small end."""
    term = math.exp(-mean)
    for k in range(1, count + 1):
        term *= mean / k
    total, k = 0.0, count
    while term > total * 1e-12 or k <= mean:
        total += term
        k += 1
        term *= mean / k
    return min(total, 1.0)


def _reasons(pasts: list[PastFailure], jobs: set[int], burst_s: float | None) -> tuple[str, ...]:
    by_cause = Counter(past.cause.value for past in pasts)
    reasons = [f"{count} x {cause}" for cause, count in sorted(by_cause.items(), key=lambda item: -item[1])]
    if len(jobs) > 1:
        reasons.append(f"under {len(jobs)} different jobs")
    gpus = {past.gpu for past in pasts if past.gpu is not None}
    if len(gpus) == 1 and len(pasts) > 1:
        reasons.append(
            f"always GPU {gpus.pop()}" if all(p.gpu for p in pasts) else f"GPU {gpus.pop()} where one was named"
        )
    if burst_s is not None:
        reasons.append(f"{BURST} within {span(burst_s)}")
    return tuple(reasons)


def span(seconds: float) -> str:
    """A length of time for a person: "41 min", "3.5 h", "12 d"."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            number = seconds / size
            return f"{number:.1f} {unit}" if number < 10 and unit != "min" else f"{number:.0f} {unit}"
    return f"{seconds:.0f} s"


def _gamma_interval(shape: float, rate: float) -> tuple[float, float]:
    """5 % and 95 % points of Gamma(shape, rate) by the Wilson-Hilferty approximation."""
    points = []
    for z in (-1.645, 1.645):
        root = 1 - 1 / (9 * shape) + z / (3 * shape**0.5)
        points.append(shape * max(root, 0.0) ** 3 / rate)
    return points[0], points[1]


APPLICATION = frozenset(
    {
        Cause.USER_CODE,
        Cause.USER_CONFIG,
        Cause.SOFTWARE_ENV,
        Cause.APP_OOM_GPU,
        Cause.APP_OOM_HOST,
        Cause.DATALOADER,
        Cause.COLLECTIVE_MISMATCH,
        Cause.CHECKPOINT_CORRUPT,
        Cause.DISK_FULL,
        Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT,
        Cause.UNKNOWN,
    }
)
