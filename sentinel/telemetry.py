"""The daemon's metrics, in one table. Every series exists at zero from the first scrape; labels are bounded sets."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sentinel.model import Cause, Result, Source, StepKind

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)


class Telemetry:
    """Metrics on a registry that is handed in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.evidence = Counter("sentinel_evidence", "Evidence stored", ["source"], registry=registry)
        self.unreadable = Counter(
            "sentinel_evidence_unreadable", "Reports of a source that could not be read", registry=registry
        )
        self.incidents = Counter("sentinel_incidents", "Incidents judged, by cause", ["cause"], registry=registry)
        self.open_incidents = Gauge("sentinel_incidents_open", "Incidents not closed", registry=registry)
        self.steps = Counter("sentinel_actions", "Steps of plans, by result", ["kind", "result"], registry=registry)
        self.refusals = Counter("sentinel_policy_refusals", "Plans refused", ["reason"], registry=registry)
        self.notices = Counter("sentinel_alerts", "Notices, by what became of them", ["result"], registry=registry)
        self.slurm = Counter("sentinel_slurm_requests", "Requests to slurmctld", ["result"], registry=registry)
        self.snapshots = Counter("sentinel_slurm_snapshots", "Snapshots of the cluster", ["result"], registry=registry)
        self.bugs = Counter("sentinel_bugs", "Errors of our own that a loop survived", registry=registry)
        self.agents = Gauge("sentinel_agents_connected", "Nodes whose agent is heard", registry=registry)
        self.decision_s = Histogram(
            "sentinel_decision_seconds", "Evidence seen to plan", buckets=_SECONDS, registry=registry
        )
        self.restart_s = Histogram(
            "sentinel_restart_seconds", "Plan to the job running again", buckets=_SECONDS, registry=registry
        )
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        for source in Source:
            self.evidence.labels(source=source)
        for cause in Cause:
            self.incidents.labels(cause=cause)
        for kind in StepKind:
            for result in Result:
                self.steps.labels(kind=kind, result=result)
        for reason in ("breaker", "drain-budget", "last-healthy"):
            self.refusals.labels(reason=reason)
        for delivery in ("delivered", "failed"):
            self.notices.labels(result=delivery)
        for answer in ("answered", "unavailable"):
            self.slurm.labels(result=answer)
            self.snapshots.labels(result=answer)
