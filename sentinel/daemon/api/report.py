"""Makes the report of a period: interruptions, recovery times and cost, compared with the period before it.

An *interruption* is an incident of a job with a verdict. Jobs ended on purpose (preemption, time limit, by a person)
are counted separately, also where no incident tells of them. Unknown values add nothing and are counted as not known.
Read-only; blocking reads of the store.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.daemon.api.commands import RELEASED
from sentinel.daemon.api.fleet_history import outages
from sentinel.daemon.api.histories import at_fault, groups, since_of
from sentinel.daemon.api.jobs import JobAttempts
from sentinel.daemon.api.lost import HOUR_S, ON_PURPOSE, Loss, grouped, sums, training_share, untold_ends, worked_s
from sentinel.daemon.api.scores import Scores, running
from sentinel.daemon.incident_search import Found
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.history import as_corrected
from sentinel.errors import UserError
from sentinel.model.records import OURS, Fleet, IncidentState, Scope, StepKind
from sentinel.planning.history import MtbfEstimate, estimate_mtbf
from sentinel.planning.poisson import same_rate_probability
from sentinel.wire import time_from, to_json

_REPORTED = timedelta(days=7)
_LONGEST = timedelta(days=200)  # longest period; with the one before it 400 days, which the store keeps
_NODES = 10  # nodes in the list of the worst
_TEXTS = 2  # lines of evidence quoted per node
_DRAINED_BEFORE = timedelta(days=90)  # drains are searched from this long before the period
_CHANCE = 0.05  # significance level: a change is reported as real below this p-value

_FREE: Mapping[str, Any] = {"lost_gpu_h": 0.0, "not_known": 0}  # what failures cost that ended no attempt

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Periods:
    """The data of a report: two periods of the same length, of which the second is reported.

    ``running``: (job, attempt) that run now; None: not known. ``read_since``: of more incidents than are read at once, the
    time of those read; None: all were. What is before it is in neither period, neither failures nor work.
    """

    since: datetime
    until: datetime
    read_since: datetime | None
    incidents: Sequence[Row]  # of both periods
    attempts: Sequence[Row]  # that ran in them, or in a part
    fleet: Fleet | None
    running: frozenset[tuple[int, int]] | None

    @property
    def before(self) -> datetime:
        return self.since - (self.until - self.since)

    def known(self, at: datetime) -> datetime:
        """``at``, or when what was read begins."""
        return at if self.read_since is None else max(at, self.read_since)


def reported_since(arguments: Mapping[str, Any], now: datetime) -> datetime:
    """The start of the reported period from a request's arguments.

    Raises:
        UserError: not a time in the past, or too long ago.
    """
    since = since_of(arguments) or now - _REPORTED
    if not now - _LONGEST <= since < now:
        raise UserError(
            "a report is about a time that has been", fix=f"the last {_LONGEST.days} days, or a part of them"
        )
    return since


def past_of(
    attempts: JobAttempts,
    live: ClusterView,
    seen: Found,
    *,
    since: datetime,
    until: datetime,
    user: str | None,
) -> Periods:
    """Read the data of a report. Blocking. ``user``: only this user's jobs; None: all."""
    ran = attempts.read(since=since - (until - since), user=user)
    alive = running(live)
    running_now = frozenset(alive) if alive is not None else None
    return Periods(since, until, seen.since, seen.rows, ran, live.fleet, running_now)


def report(store: Store, attempts: JobAttempts, past: Periods, scores: Scores) -> dict[str, Any]:
    """The report as JSON. Blocking."""
    ledger = _ledger(store, past.before)
    now = _Period(ledger, attempts, past, past.known(past.since), past.until)
    before = _Period(ledger, attempts, past, min(past.known(past.before), past.since), past.since)
    summary, earlier = now.summary(), before.summary()
    return {
        "since": to_json(now.start),
        "until": to_json(past.until),
        "before": to_json(before.start),
        "now": summary,
        "previous": earlier,
        "changes": _changes(summary, earlier if before.was_seen else None),
        "causes": _causes(now, before),
        "corrections": [
            {"judged": was, "corrected": cause, "count": count}
            for (was, cause), count in sorted(now.corrected.items(), key=lambda item: (-item[1], item[0]))
        ],
        "partitions": _partitions(now, before),
        "days": groups(now.rows, "time")["time"],
        "nodes": _worst(store, now, scores),
        "jobs": grouped(now.losses, "job")[:_NODES],
    }


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the ledger has on both periods, read once.

    ``ends``: (incident, kind) of the steps that say how an incident ended. ``released``: when an operator returned a
    node.
    """

    ends: frozenset[tuple[str, str]]
    drains: Sequence[Row]
    released: Mapping[str, datetime]


def _ledger(store: Store, since: datetime) -> _Ledger:
    """Read the ledger. Blocking."""
    ends = store.steps_done((StepKind.CONFIRM, StepKind.HOLD), since=since)
    return _Ledger(
        ends=frozenset((row["incident"], row["kind"]) for row in ends),
        drains=store.steps_done((StepKind.DRAIN, StepKind.DOWN), since=since - _DRAINED_BEFORE),
        released={name: time_from(at) for name, at in store.get(RELEASED, {}).items()},
    )


class _Period:
    """One of the two periods."""

    def __init__(self, ledger: _Ledger, attempts: JobAttempts, past: Periods, start: datetime, end: datetime) -> None:
        self._ledger, self._past, self.start, self.end = ledger, past, start, end
        told = [row for row in past.incidents if start <= row["opened_at"] < end and row["cause"] is not None]
        judged = [as_corrected(row) for row in told]
        self.corrected = Counter(
            (str(row["cause"]), str(row["corrections"][-1]["cause"])) for row in told if row.get("corrections")
        )
        of_jobs = [row for row in judged if row["job"] is not None]
        self.rows = [row for row in of_jobs if row["cause"] != ON_PURPOSE]
        self.on_purpose = len(of_jobs) - len(self.rows) + untold_ends(past.attempts, past.incidents, start, end)
        self.without_job = len(judged) - len(of_jobs)
        self.machines = [row for row in self.rows if row["scope"] != Scope.APPLICATION]
        self.losses: list[Loss] = attempts.lost(of_jobs, past.attempts)
        self._gpus = attempts.gpus
        each = ((row, worked_s(row, start, end, now=past.until, alive=past.running)) for row in past.attempts)
        self._ran = [(row, seconds) for row, seconds in each if seconds > 0]
        self.gpu_s = sum((attempts.gpus(row["nodes"]) or 0) * seconds for row, seconds in self._ran)

    def shares(self) -> dict[str, float]:
        return training_share(self._ran, self.losses, self._gpus)

    @property
    def was_seen(self) -> bool:
        """Whether anything is known of this period: not so before Sentinel was there."""
        return bool(self._ran or self.rows or self.on_purpose or self.without_job)

    def ettr(self) -> float | None:
        """Effective training time ratio over all partitions, from what is known; None if nothing is."""
        return training_share(self._ran, self.losses, self._gpus, together=True).get("")

    def summary(self) -> dict[str, Any]:
        lost = sums((loss, 1.0) for loss in self.losses)
        return {
            "interruptions": len(self.rows),
            "of_machines": len(self.machines),
            "on_purpose": self.on_purpose,
            "without_job": self.without_job,
            "corrected": sum(self.corrected.values()),
            "worked_gpu_h": self.gpu_s / HOUR_S,
            "mtbf": self._mtbf(len(self.rows)),
            "mtbf_machines": self._mtbf(len(self.machines)),
            "mttr": _repair_times([loss.down_s for loss in self.losses]),
            "ettr": self.ettr(),
            "automation": self._automation(),
            "lost_gpu_h": lost["lost_gpu_h"],
            "redone_gpu_h": lost["redone_gpu_h"],
            "down_gpu_h": lost["down_gpu_h"],
            "lost_not_known": lost["not_known"],
            "downtime": self._downtime(),
        }

    def _mtbf(self, count: int) -> dict[str, Any] | None:
        """Mean time between interruptions: in GPU-hours, and in hours at the average number of busy GPUs."""
        if self.gpu_s <= 0:
            return None
        of_gpus = estimate_mtbf(count, self.gpu_s)
        began = max(self.start, min(row["started_at"] for row, _ in self._ran))  # Sentinel observed no work before
        mean_gpus = self.gpu_s / (self.end - began).total_seconds()
        return {
            "mean_gpus": mean_gpus,
            "gpu_h": _hours(of_gpus, 1.0),
            "hours": _hours(of_gpus, mean_gpus),
        }

    def _automation(self) -> dict[str, Any]:
        """How interruptions ended. ``rate``: share closed by Sentinel alone, of those closed or left to a person."""
        done = self._ledger.ends
        found: Counter[str] = Counter()
        for row in self.rows:
            if row["state"] == IncidentState.HELD or (row["id"], StepKind.HOLD) in done:
                found["person"] += 1
            elif row["state"] != IncidentState.CLOSED:
                found["open"] += 1
            else:
                found["alone" if (row["id"], StepKind.CONFIRM) in done else "otherwise"] += 1
        over = found["alone"] + found["person"] + found["otherwise"]
        return {
            "rate": found["alone"] / over if over else None,
            **{name: found[name] for name in ("alone", "person", "otherwise", "open")},
        }

    def _downtime(self) -> dict[str, Any]:
        """Node-hours out of service by our drains: until an operator returned the node or a job ran on it.

        ``not_known``: drains whose end was not observed.
        """
        drains: dict[str, list[Row]] = {}
        first = self.start - _DRAINED_BEFORE
        for row in self._ledger.drains:
            if (
                row["node"]
                and row["intended_at"] >= first
                and row["finished_at"] is not None
                and row["finished_at"] < self.end
            ):
                drains.setdefault(row["node"], []).append(row)
        back: dict[str, list[datetime]] = {name: [] for name in drains}
        for attempt in self._past.attempts:
            for name in attempt["nodes"]:
                if name in back:
                    back[name].append(attempt["started_at"])
        seconds, nodes, not_known = 0.0, set(), 0
        for name, steps in drains.items():
            returned = [at] if (at := self._ledger.released.get(name)) is not None else []
            times, ends = outages(steps, [*back[name], *returned])
            for number, began in enumerate(times):
                following = times[number + 1] if number + 1 < len(times) else None
                ended = next((at for at in ends if at > began and (following is None or at <= following)), None)
                if ended is None and following is None and self._is_out(name):
                    ended = self._past.until
                if ended is None:
                    not_known += began >= self.start
                elif ended > self.start:
                    seconds += max(0.0, (min(ended, self.end) - max(began, self.start)).total_seconds())
                    nodes.add(name)
        return {"node_h": seconds / HOUR_S, "nodes": len(nodes), "not_known": not_known}

    def _is_out(self, name: str) -> bool:
        node = self._past.fleet.nodes.get(name) if self._past.fleet is not None else None
        return node is not None and node.drained and node.reason.startswith(OURS)


def _hours(estimate: MtbfEstimate, gpus: float) -> dict[str, float | None]:
    size = HOUR_S * gpus
    return {
        "mean": estimate.mtbf_s / size if estimate.mtbf_s is not None else None,
        "low": estimate.mtbf_low_s / size,
        "high": estimate.mtbf_high_s / size if estimate.mtbf_high_s is not None else None,
    }


def _repair_times(down_s: Sequence[float | None]) -> dict[str, Any]:
    """Times from a failure to new steps: median, mean and confidence interval.

    The interval assumes exponentially distributed times, as is usual for a mean time to repair. It is too wide if the
    times are alike.
    """
    known = sorted(value for value in down_s if value is not None)
    made: dict[str, Any] = {"known": len(known), "not_known": len(down_s) - len(known)}
    total = sum(known)
    if not known or total <= 0:
        return made | dict.fromkeys(("mean_s", "low_s", "high_s", "median_s", "p90_s"))
    estimate = estimate_mtbf(len(known), total)
    return made | {
        "mean_s": estimate.mtbf_s,
        "low_s": estimate.mtbf_low_s,
        "high_s": estimate.mtbf_high_s,
        "median_s": statistics.median(known),
        "p90_s": known[min(len(known) - 1, int(0.9 * len(known)))],
    }


def _beyond_chance(now: int, now_gpu_s: float, before: int, before_gpu_s: float) -> bool | None:
    """Whether two counts differ by more than chance, given the GPU time of each. None: a period has no GPU time."""
    if now_gpu_s <= 0 or before_gpu_s <= 0:
        return None
    return same_rate_probability(now, now_gpu_s, before, before_gpu_s) < _CHANCE


def _changes(a: Row, b: Row | None) -> list[dict[str, Any]]:
    """Both periods side by side; ``b`` None: nothing is known of it. ``beyond_chance`` only for counts of rare events."""
    rows: list[dict[str, Any]] = []
    for what, unit in (
        ("interruptions", "count"),
        ("of_machines", "count"),
        ("lost_gpu_h", "GPU-h"),
        ("ettr", "share"),
    ):
        row = {"what": what, "unit": unit, "now": a[what], "before": b and b[what], "beyond_chance": None}
        if unit == "count" and b is not None:
            row["beyond_chance"] = _beyond_chance(
                a[what], HOUR_S * a["worked_gpu_h"], b[what], HOUR_S * b["worked_gpu_h"]
            )
        rows.append(row)
    for what, unit, path in (
        ("mttr", "s", ("mttr", "mean_s")),
        ("automation", "share", ("automation", "rate")),
        ("downtime", "node-h", ("downtime", "node_h")),
    ):
        rows.append({"what": what, "unit": unit, "now": a[path[0]][path[1]], "before": b and b[path[0]][path[1]],
                     "beyond_chance": None})  # fmt: skip
    return rows


def _causes(now: _Period, before: _Period) -> list[dict[str, Any]]:
    """Interruptions by cause and scope, the most frequent first; causes of only the earlier period are last."""

    def key(row: Row) -> tuple[str, str]:
        return str(row["cause"]), str(row["scope"] or Scope.UNKNOWN)

    counts, earlier = Counter(map(key, now.rows)), Counter(map(key, before.rows))
    costs: dict[tuple[str, str], list[Loss]] = {}
    for loss in now.losses:
        costs.setdefault(key(loss.incident), []).append(loss)
    rows = [
        {
            "cause": cause, "scope": scope, "count": counts[cause, scope],
            "before": earlier[cause, scope] if before.was_seen else None,
            **_cost([(loss, 1.0) for loss in costs.get((cause, scope), [])]),
            "beyond_chance": _beyond_chance(counts[cause, scope], now.gpu_s, earlier[cause, scope], before.gpu_s),
        }
        for cause, scope in counts.keys() | earlier.keys()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["count"], -(row["before"] or 0), row["cause"], row["scope"]))


def _cost(parts: Sequence[tuple[Loss, float]]) -> dict[str, Any]:
    made = sums(parts)
    return {name: made[name] for name in ("lost_gpu_h", "not_known")}


def _partitions(now: _Period, before: _Period) -> list[dict[str, Any]]:
    shares, earlier = now.shares(), before.shares()
    names = sorted(shares.keys() | earlier.keys())
    return [{"partition": name, "ettr": shares.get(name), "before": earlier.get(name)} for name in names]


def _worst(store: Store, now: _Period, scores: Scores) -> list[dict[str, Any]]:
    """Nodes at fault, by interruptions and then by GPU-hours lost, with the evidence of the newest incident of each."""
    charged = [row for row in now.machines if at_fault(row)]
    lost = {row["node"]: row for row in grouped(now.losses, "node")}
    found = groups(charged, "node")["node"]
    found.sort(
        key=lambda group: (-group["failures"], -(lost.get(group["key"], _FREE)["lost_gpu_h"] or 0.0), group["key"])
    )
    rows = []
    for group in found[:_NODES]:
        name = group["key"]
        newest = max((row for row in charged if name in at_fault(row)), key=lambda row: row["opened_at"])
        verdict = store.last_verdict(newest["id"])
        texts = [ground.evidence.text or ground.evidence.kind for ground in verdict.grounds] if verdict else []
        score = scores.shown(name)
        rows.append(
            {
                "node": name,
                "failures": group["failures"],
                "causes": group["causes"],
                **{what: lost.get(name, _FREE)[what] for what in _FREE},
                "incident": newest["id"],
                "last_at": to_json(newest["opened_at"]),
                "suspect": score["suspect"],
                "reasons": score["suspect_reasons"],
                "evidence": list(dict.fromkeys(texts))[:_TEXTS],
            }
        )
    return rows
