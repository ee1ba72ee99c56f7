"""The daemon's metrics, in one table. Labels are bounded sets.

Every series exists at zero from the first scrape, but for those whose labels are names of the site, and for what is left of
a budget: zero would say that it is used up.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from sentinel.model.records import Cause, Result, Source, StepKind

EXPOSITION_TYPE = CONTENT_TYPE_LATEST
RETURN_EVENTS = (
    "test_passed", "test_failed", "test_unanswered", "command_done", "command_failed", "returned", "repair", "ticket_sent",
    "ticket_failed",
)  # fmt: skip
UNREAD = ("job", "node", "switches")  # what a snapshot can lack; see ``model.records.Unread``
RETURN_STAGES = (
    "waiting", "testing", "acting", "starting", "passed", "returning", "probation", "returned", "repair"
)  # fmt: skip
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)


class Telemetry:
    """Metrics on a registry that is handed in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter says nothing here
        self.registry = registry
        self.described: list[tuple[str, str, tuple[str, ...], str]] = []  # name, type, labels, meaning
        self.evidence = self._counter("evidence", "Evidence stored", "source")
        self.unreadable = self._counter("evidence_unreadable", "Reports of a source that could not be read")
        self.incidents = self._counter("incidents", "Incidents judged, by cause", "cause")
        self.corrections = self._counter("corrections", "Verdicts corrected by operators, by the cause judged", "cause")
        self.steps = self._counter("actions", "Steps of plans, by result", "kind", "result")
        self.refusals = self._counter("policy_refusals", "Plans refused", "reason")
        self.node_returns = self._counter(
            "node_returns", "What became of drained nodes: tests, resets and reboots, returns, repairs", "event"
        )
        self.notices = self._counter("alerts", "Notices, by what became of them", "result")
        self.slurm = self._counter("slurm_requests", "Requests to slurmctld", "result")
        self.snapshots = self._counter("slurm_snapshots", "Snapshots of the cluster", "result")
        self.unread = self._gauge("slurm_records_unreadable", "Records left out of the newest snapshot", "what")
        self.blind_s = self._gauge("slurm_blind_seconds", "For how long Slurm could not be read; 0 while it can")
        self.bugs = self._counter("bugs", "Errors of our own that a loop survived")
        self.agents = self._gauge("agents_connected", "Nodes whose agent is heard")
        self.connections = self._gauge("http_connections", "Open connections to the daemon")
        self.refused = self._counter("http_refused", "Requests refused, by HTTP status", "status")
        self.decision_s = self._histogram("decision_seconds", "Evidence seen to plan")
        self.restart_s = self._histogram("restart_seconds", "Plan to the job running again")
        self._of_the_cluster()
        self._start_at_zero()

    def _of_the_cluster(self) -> None:
        """Metrics that ``sentinel.daemon.fleet_metrics`` sets."""
        self.build_info = self._gauge("build_info", "The daemon's release; the value is 1", "version")
        self.acting = self._gauge(
            "acting", "Whether steps of this kind are carried out there: 1, or 0", "partition", "step"
        )
        self.active = self._gauge("active", "Whether this daemon is the active one: 1, or 0")
        self.standbys = self._gauge("standbys", "Daemons that stand by and are heard in the database")
        self.paused = self._gauge("paused", "Whether an operator paused it: 1, or 0")
        self.breaker_open = self._gauge("breaker_open", "Whether that breaker holds everything up: 1, or 0", "breaker")
        self.nodes_drained = self._gauge("nodes_drained", "Drained nodes, by who drained them", "by")
        self.nodes_returning = self._gauge(
            "nodes_returning", "Nodes that Sentinel drained or returned lately, by what they wait for", "stage"
        )
        self.step_under_way_s = self._gauge(
            "step_under_way_seconds",
            "For how long the oldest step under way has been, also one that is tried again",
            "kind",
        )
        self.open_incidents = self._gauge("incidents_open", "Incidents not closed")
        self.open_by_cause = self._gauge("incidents_open_by_cause", "Incidents not closed, by cause", "cause")
        self.lost_gpu_s = self._gauge(
            "lost_gpu_seconds", "GPU time lost to failures in the last 30 days, by cause, of what is known", "cause"
        )
        self.ettr = self._gauge(
            "effective_training_time_ratio",
            "GPU time that made new steps, of that time and the time that failures took, in the last 30 days",
            "partition",
        )
        self.budget_left = self._gauge("budget_left", "What may still be done before a limit holds it up", "budget")
        self.checkpoint_age_s = self._gauge(
            "checkpoint_age_seconds",
            "Age of the newest save of the running job whose newest save is oldest",
            "partition",
        )
        self.agents_by_version = self._gauge("agents", "Nodes whose agent is heard, by the agent's release", "version")

    def exposition(self, *only: str) -> bytes:
        """The text that Prometheus scrapes: of all metrics, or of those with these names."""
        return generate_latest(self.registry.restricted_registry(only) if only else self.registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        self._describe(f"{name}_total", "counter", labels, meaning)
        return Counter(f"sentinel_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        self._describe(name, "gauge", labels, meaning)
        return Gauge(f"sentinel_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        self._describe(name, "histogram", (), meaning)
        return Histogram(f"sentinel_{name}", meaning, buckets=_SECONDS, registry=self.registry)

    def _describe(self, name: str, kind: str, labels: Sequence[str], meaning: str) -> None:
        self.described.append((f"sentinel_{name}", kind, tuple(labels), meaning))

    def _start_at_zero(self) -> None:
        for source in Source:
            self.evidence.labels(source=source)
        for cause in Cause:
            self.incidents.labels(cause=cause)
            self.corrections.labels(cause=cause)
        for kind in StepKind:
            for result in Result:
                self.steps.labels(kind=kind, result=result)
        for reason in (
            "breaker",
            "drain-budget",
            "drain-refused",
            "hang-breaker",
            "last-healthy",
            "missing-node",
            "reboot-pending",
            "restart-budget",
            "switch",
            "unread-node",
        ):
            self.refusals.labels(reason=reason)
        for status in (400, 403, 404, 405, 408, 409, 413, 415, 421, 422, 503):
            self.refused.labels(status=status)
        for breaker in ("breaker", "hang-breaker"):
            self.breaker_open.labels(breaker=breaker)
        for event in RETURN_EVENTS:
            self.node_returns.labels(event=event)
        for stage in RETURN_STAGES:
            self.nodes_returning.labels(stage=stage)
        for whose in ("sentinel", "others"):
            self.nodes_drained.labels(by=whose)
        for cause in Cause:
            self.open_by_cause.labels(cause=cause)
            self.lost_gpu_s.labels(cause=cause)
        for delivery in ("delivered", "failed"):
            self.notices.labels(result=delivery)
        for what in UNREAD:
            self.unread.labels(what=what)
        for answer in ("answered", "unavailable"):
            self.slurm.labels(result=answer)
            self.snapshots.labels(result=answer)


def described_metrics() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Every metric as (name, type, labels, meaning), for documentation."""
    return Telemetry(CollectorRegistry()).described
