"""Sets the metrics about the cluster from the store: modes, budgets, open incidents, losses.

They are computed every 30 s and not at each scrape, so that scrapers cannot keep the daemon busy. Sums over a month take
seconds on a large cluster and change little in a minute: the longer they take to read, the longer they are kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from sentinel import __version__
from sentinel.adapters.store.store import Store
from sentinel.config.settings import Settings
from sentinel.daemon.api import status
from sentinel.daemon.api.jobs import JobAttempts
from sentinel.daemon.api.lost import training_share, worked_s
from sentinel.daemon.api.scores import kept_s, running
from sentinel.daemon.incident_search import IncidentSearch
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.history import as_corrected
from sentinel.engine.node_return import state as node_return
from sentinel.model.records import OURS, Cause, Fleet, StepKind
from sentinel.ports import Clock
from sentinel.telemetry import RETURN_STAGES, Telemetry

EVERY_S = 30.0
_WINDOW = timedelta(days=30)
_MOST_VERSIONS = 20  # most label values of agent releases: more than any site has at once


class Labelled(Protocol):
    """A Prometheus gauge with labels."""

    def labels(self, *labels: str) -> Any: ...
    def remove(self, *labels: str) -> Any: ...


class FleetMetrics:
    def __init__(
        self,
        store: Store,
        live: ClusterView,
        settings: Settings,
        telemetry: Telemetry,
        clock: Clock,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._live, self._settings = store, live, settings
        self._telemetry, self._clock = telemetry, clock
        self._attempts = JobAttempts(store, live, clock)
        self._search = IncidentSearch(store)
        self._seconds = seconds
        self._losses_due_s = seconds()
        self._shown: dict[str, set[tuple[str, ...]]] = {}  # metric -> its label sets, where these change
        telemetry.build_info.labels(version=__version__).set(1)

    def read(self) -> None:
        """Set all metrics. Blocking: reads the store.

        Raises:
            Unavailable: the store does not answer.
        """
        now, fleet = self._clock.now(), self._live.fleet
        self._modes(fleet, now)
        self._budget(fleet, now)
        self._open()
        self._steps(now)
        if (began_s := self._seconds()) >= self._losses_due_s:
            self._losses(now)
            ended_s = self._seconds()
            self._losses_due_s = ended_s + kept_s(ended_s - began_s)
        self._agents()
        self._returning()
        self._checkpoints(now)
        if fleet is not None:
            self._drained(fleet)

    def _set(self, metric: Labelled, values: Mapping[tuple[str, ...], float]) -> None:
        """Set these label sets and remove earlier ones not among them; those that stay are in every scrape."""
        for labels, value in values.items():
            metric.labels(*labels).set(value)
        before = self._shown.get(str(metric), set())
        for labels in before - values.keys():
            metric.remove(*labels)
        self._shown[str(metric)] = set(values)

    def _modes(self, fleet: Fleet | None, now: datetime) -> None:
        paused = bool(self._store.get("paused", False))
        self._telemetry.paused.set(paused)
        modes = status.modes_by_partition(self._settings.modes, fleet, paused=paused)
        acting: dict[tuple[str, ...], float] = {
            (name, kind): float(mode[kind] == "act" and not paused)
            for name, mode in modes.items()
            for kind in ("drain", "restart")
        }
        self._set(self._telemetry.acting, acting)
        for name, entry in status.breaker(self._store, self._settings.limits, now).items():
            self._telemetry.breaker_open.labels(breaker=name).set(entry["open"])

    def _budget(self, fleet: Fleet | None, now: datetime) -> None:
        entries = status.budget(self._store, fleet, self._settings.limits, now)
        left: dict[tuple[str, ...], float] = {
            (name,): max(0, entry["limit"] - entry["used"])
            for name, entry in entries.items()
            if entry["used"] is not None
        }
        self._set(self._telemetry.budget_left, left)

    def _open(self) -> None:
        rows = map(as_corrected, self._search.counted(None, still_open=True).rows)
        counts = Counter(row["cause"] or Cause.UNKNOWN for row in rows)
        self._telemetry.open_incidents.set(counts.total())
        for cause in Cause:
            self._telemetry.open_by_cause.labels(cause=cause).set(counts[cause])

    def _steps(self, now: datetime) -> None:
        longest = status.longest_under_way_s(self._store, now)
        for kind in StepKind:
            self._telemetry.step_under_way_s.labels(kind=kind).set(longest.get(kind, 0.0))

    def _losses(self, now: datetime) -> None:
        """As ``sentinel lost`` and reports count them; of too many failures only the time of those read."""
        seen = self._search.counted(None, since=now - _WINDOW)
        since = seen.since or now - _WINDOW
        attempts = self._attempts.read(since=since)
        found = self._attempts.lost(seen.rows, attempts)
        lost = dict.fromkeys(Cause, 0.0)
        for loss in found:
            lost[Cause(loss.incident["cause"])] += loss.gpu_h * 3600
        for cause, gpu_s in lost.items():
            self._telemetry.lost_gpu_s.labels(cause=cause).set(gpu_s)
        alive = running(self._live)
        ran = [(row, worked_s(row, since, now, now=now, alive=alive)) for row in attempts]
        shares = training_share(ran, found, self._attempts.gpus)
        self._set(self._telemetry.ettr, {(partition,): share for partition, share in shares.items()})

    def _agents(self) -> None:
        nodes = list(self._live.nodes.values())  # copied: the event loop adds others meanwhile
        counts = Counter(seen.version or "unknown" for seen in nodes if seen.state == "heard")
        newest = dict(counts.most_common(_MOST_VERSIONS))
        self._set(self._telemetry.agents_by_version, {(version,): count for version, count in newest.items()})

    def _returning(self) -> None:
        counts = Counter(str(entry.get("stage")) for entry in self._store.get(node_return.KEPT, {}).values())
        for stage in RETURN_STAGES:
            self._telemetry.nodes_returning.labels(stage=stage).set(counts[stage])

    def _checkpoints(self, now: datetime) -> None:
        oldest: dict[str, float] = {}
        for seen in list(self._live.attempts.values()):
            newest = max((item.at for item in list(seen.saves)), default=None)
            if newest is not None and not seen.ended and seen.view.state == "running":
                age_s = max(0.0, (now - newest).total_seconds())
                oldest[seen.view.partition] = max(age_s, oldest.get(seen.view.partition, 0.0))
        self._set(self._telemetry.checkpoint_age_s, {(partition,): age_s for partition, age_s in oldest.items()})

    def _drained(self, fleet: Fleet) -> None:
        counts = Counter(
            "sentinel" if node.reason.startswith(OURS) else "others" for node in fleet.nodes.values() if node.drained
        )
        for whose in ("sentinel", "others"):
            self._telemetry.nodes_drained.labels(by=whose).set(counts[whose])
