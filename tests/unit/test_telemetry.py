"""Every series is there, at zero, from the first scrape, and none of its labels is free text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from sentinel.model.records import Cause, Result, Source, StepKind
from sentinel.telemetry import Telemetry


def test_every_series_is_there_at_zero() -> None:
    registry = CollectorRegistry()
    Telemetry(registry)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert all(line.endswith(" 0.0") for line in lines) and not any("_created" in line for line in lines)
    assert all(line.startswith("sentinel_") for line in lines)
    values = {line.split(" ")[0] for line in lines}
    assert {f'sentinel_evidence_total{{source="{source}"}}' for source in Source} <= values
    assert {f'sentinel_incidents_total{{cause="{cause}"}}' for cause in Cause} <= values
    expected = {f'sentinel_actions_total{{kind="{kind}",result="{r}"}}' for kind in StepKind for r in Result}
    assert expected <= values
    for reason in ("breaker", "drain-budget", "last-healthy"):
        assert f'sentinel_policy_refusals_total{{reason="{reason}"}}' in values
    assert {"sentinel_bugs_total", "sentinel_agents_connected", "sentinel_decision_seconds_count"} <= values


def test_two_registries_do_not_meet() -> None:
    one, two = Telemetry(CollectorRegistry()), Telemetry(CollectorRegistry())
    one.bugs.inc()
    assert two.registry.get_sample_value("sentinel_bugs_total") == 0.0
