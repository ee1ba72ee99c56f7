"""What we send to Alertmanager, held to a real one: one alert for an incident, and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from made_records import incident, job, plan, step, verdict
from servers import alertmanager

from sentinel.adapters.notify.alertmanager import Alertmanager
from sentinel.alerts import IncidentFacts, Stage, compose, next_stage, with_next
from sentinel.errors import Refused
from sentinel.model.records import IncidentState, Outcome, Result, StepKind

pytestmark = pytest.mark.skipif(
    alertmanager.BINARY is None, reason="optional: Debian's prometheus-alertmanager is not installed"
)
RELEASE, CONFIRM = (step(kind, job=8801, attempt=0) for kind in (StepKind.RELEASE, StepKind.CONFIRM))


@pytest.fixture(scope="module")
def server() -> Iterator[alertmanager.AlertmanagerServer]:
    made = alertmanager.AlertmanagerServer()
    made.wait()
    yield made
    made.stop()


def facts(name: str, *outcomes: Outcome, closed: bool = False, **how: Any) -> IncidentFacts:
    happened = dataclasses.replace(
        incident(job=8801, id=name), state=IncidentState.CLOSED if closed else IncidentState.WATCHING
    )
    return IncidentFacts(
        happened, verdict(drain=("n2",)), plan(RELEASE, CONFIRM), outcomes,
        job=job(8801, name="<b>x</b> https://evil.example", partition="gpu"), cluster="alps", **how,
    )  # fmt: skip


def outcome(of: Any, result: Result = Result.DONE, reason: str = "") -> Outcome:
    return Outcome(of, result, datetime.now(UTC), reason)


async def tell(server: alertmanager.AlertmanagerServer, *facts: IncidentFacts) -> list[Any]:
    """The active alerts of the incident after each message."""
    sink, thread, seen = Alertmanager(server.url, name="am", deadline_s=60.0), None, []
    for one in facts:
        stage = next_stage(thread, one)
        assert stage is not None
        thread = with_next(thread, one, stage, "")
        shown = dataclasses.replace(one, resolved=stage is Stage.RESOLVED)
        await sink.send(compose(shown, thread, datetime.now(UTC)))
        seen.append([one_ for one_ in server.alerts() if one_["labels"]["incident"] == one.incident.id])
    return seen


async def test_restart_is_one_alert_until_the_job_runs_again(server: alertmanager.AlertmanagerServer) -> None:
    first, last = await tell(
        server, facts("inc1", outcome(RELEASE)), facts("inc1", outcome(RELEASE), outcome(CONFIRM), closed=True)
    )
    (alert,) = first
    assert alert["labels"] == {
        "alertname": "SentinelIncident", "incident": "inc1", "cluster": "alps", "severity": "warning", "job": "8801",
        "cause": "gpu_memory_ecc", "scope": "gpu", "partition": "gpu", "user": "ada", "node": "n2",
    }  # fmt: skip
    assert alert["annotations"]["stage"] == "restarting" and alert["status"]["state"] == "active"
    stands = datetime.fromisoformat(alert["endsAt"]) - datetime.now(UTC)
    assert stands > timedelta(days=29), "a held job waits for its user for weeks"
    assert datetime.fromisoformat(alert["startsAt"]) <= datetime.now(UTC)
    assert last == []


async def test_incident_that_becomes_worse_is_one_alert_of_the_new_severity(
    server: alertmanager.AlertmanagerServer,
) -> None:
    failed = outcome(RELEASE, Result.FAILED, "no such job")
    first, worse, over = await tell(
        server, facts("inc2", outcome(RELEASE)), facts("inc2", failed), facts("inc2", failed, closed=True)
    )
    assert [alert["labels"]["severity"] for alert in first] == ["warning"]
    assert [alert["labels"]["severity"] for alert in worse] == ["critical"]
    assert over == []


async def test_text_of_users_is_text(server: alertmanager.AlertmanagerServer) -> None:
    ((alert,),) = await tell(
        server, facts("inc3", outcome(RELEASE, Result.FAILED, "<!here> https://evil.example @all"))
    )
    text = "".join(alert["annotations"].values())
    assert "evil" in text and "<" not in text and "https:" not in text and "@" not in text


async def test_wrong_address_is_refused(server: alertmanager.AlertmanagerServer) -> None:
    sink = Alertmanager(f"{server.url}/elsewhere", name="am", deadline_s=60.0)
    made = facts("inc4", outcome(RELEASE))
    with pytest.raises(Refused, match="answered 404"):
        await sink.send(compose(made, with_next(None, made, Stage.RESTARTING, ""), datetime.now(UTC)))


async def test_a_restarted_one_gets_back_what_stands_and_its_end_is_the_end() -> None:
    server = alertmanager.AlertmanagerServer()
    try:
        server.wait()
        sink = Alertmanager(server.url, name="am", deadline_s=60.0)
        one, thread = facts("inc9", outcome(RELEASE)), None
        stage = next_stage(thread, one)
        assert stage is not None
        thread = with_next(thread, one, stage, "")
        standing = compose(one, thread, datetime.now(UTC))
        await sink.send(standing)
        before = [alert["labels"] for alert in server.alerts()]
        server.restart()
        assert server.alerts() == []
        await sink.repeat([standing], datetime.now(UTC))
        assert [alert["labels"] for alert in server.alerts()] == before
        server.restart()
        await sink.repeat([standing], standing.at + timedelta(days=31))
        assert server.alerts() == [], "what nobody ended has ended by itself"
        await sink.repeat([standing], datetime.now(UTC))
        await sink.send(dataclasses.replace(standing, at=datetime.now(UTC), data={**standing.data, "final": True}))
        assert server.alerts() == []
    finally:
        server.stop()
