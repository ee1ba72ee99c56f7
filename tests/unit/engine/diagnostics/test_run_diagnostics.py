"""Diagnostics that agents are asked to run: whatever they answer, or do not, becomes one event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from in_memory.daemon import FakeOrders
from in_memory.slurm import FakeClock
from made_records import evidence

from sentinel.config.settings import Diagnostics as Settings
from sentinel.config.settings import Settings as AllSettings
from sentinel.daemon.effects.diagnostics import Diagnostics, check_deadlines
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.events import DiagnosticEnded
from sentinel.engine.transition import ReadScores, RunDiagnostic
from sentinel.errors import Timeout, Unavailable, UserError
from sentinel.log import Log
from sentinel.model.records import Fleet, JobView, Kind, Source, Where
from sentinel.wire import to_json

FAILED = evidence(Kind.DIAG_FAILED, node="n1")


class Away:
    """A store that does not answer."""

    def each_incident(self, **_how: object) -> list[Any]:
        raise Unavailable("the store does not answer")


def performer(answer: object) -> tuple[Diagnostics, FakeOrders]:
    orders = FakeOrders({("n1", "diagnose"): answer})
    store: Any = Away()
    return Diagnostics(
        orders=orders, store=store, live=ClusterView(), counters={}, clock=FakeClock(), log=Log()
    ), orders  # fmt: skip


async def ended(answer: object) -> DiagnosticEnded:
    return await performer(answer)[0].run(RunDiagnostic("diagnostic:n1", "n1", 2, 900.0))


async def test_it_yields_to_jobs_and_tests_all_gpus() -> None:
    made, orders = performer({"result": "pass", "reason": ""})
    assert (await made.run(RunDiagnostic("diagnostic:n1", "n1", 2, 900.0))).result == "pass"
    assert orders.asked == [("n1", "diagnose", {"level": 2, "gpus": None, "yields": True})]


async def test_findings_come_with_the_answer() -> None:
    found = await ended({"result": "fail", "reason": "GPU 1 failed", "evidence": to_json([FAILED])})
    assert (found.result, found.reason, found.evidence) == ("fail", "GPU 1 failed", (FAILED,))


@pytest.mark.parametrize(
    "answer", ["what?", {}, Timeout("the agent of n1 did not answer"), None, {"result": "unknown", "evidence": {}}]
)
async def test_no_answer_and_nonsense_are_not_known(answer: object) -> None:
    found = await ended(answer)
    assert (found.effect, found.node, found.result, found.evidence) == ("diagnostic:n1", "n1", "unknown", ())


async def test_evidence_that_cannot_be_read_does_not_hide_the_result() -> None:
    found = await ended({"result": "fail", "evidence": [{"kind": 7}]})
    assert (found.result, found.evidence) == ("fail", ())


@pytest.mark.parametrize(
    "forged",
    [
        {"source": Source.SLURM},
        {"source": Source.OPERATOR},
        {"where": Where(node="n2")},
        {"where": Where("n1", job=8801, attempt=0)},
    ],
)
async def test_a_node_states_in_its_answer_no_more_than_elsewhere(forged: dict[str, Any]) -> None:
    """Root on a node that is tested would speak as Slurm, of other nodes, or of jobs that are not there."""
    job = JobView(8801, state="running", nodes=("n2",), restarts=0)
    fleet = Fleet(FAILED.at, {}, {8801: job})
    made, _ = performer({"result": "fail", "evidence": to_json([FAILED, replace(FAILED, **forged)])})
    made._live.see_fleet(fleet)
    found = await made.run(RunDiagnostic("diagnostic:n1", "n1", 2, 900.0))
    assert (found.result, found.evidence) == ("fail", ())


async def test_scores_are_not_known_while_the_store_is_away() -> None:
    assert await performer(None)[0].scores(ReadScores("scores")) is None


@pytest.mark.parametrize("deadlines_s", [[60.0], [1.0, 1.0, 1.0, 0.0], []])
def test_settings_that_do_not_fit_are_refused(deadlines_s: list[float]) -> None:
    with pytest.raises(UserError, match="four positive"):
        check_deadlines(AllSettings(diagnostics=Settings(deadline_s=deadlines_s)))
