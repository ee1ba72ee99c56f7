"""Prometheus beside a daemon: one shared fault is told once, explains jobs that fail by it, and silence says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import ended, evidence

from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals
from sentinel.errors import Refused, SentinelError, Timeout, Unavailable
from sentinel.evidence.prometheus import MOST_NODES, Signal
from sentinel.log import Log
from sentinel.model.records import Cause, Evidence, Kind, Scope, Source

Worlds = Callable[..., World]
STORAGE = Signal("nas", "the NAS does not answer", "nas", Cause.FILESYSTEM_STORAGE, below=1.0, weight=3.0)
PORTS = Signal(
    "ports", "a port counts errors", "ports", Cause.NETWORK_FABRIC, above=10.0, for_s=0.0, scope=Scope.LINK,
    node_label="instance",
)  # fmt: skip


class FakePrometheus:
    """Answers each query with the series it was given, steady for as long as asked; or fails."""

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[dict[str, str], float]]] = {}
        self.fails: SentinelError | None = None
        self.refuses: set[str] = set()
        self.asked: list[str] = []

    async def close(self) -> None:
        self.fails = Timeout("closed")

    async def range(self, query: str, start: datetime, end: datetime, step_s: float) -> dict[str, Any]:
        self.asked.append(query)
        if self.fails is not None:
            raise self.fails
        if query in self.refuses:
            raise Refused("parse error")
        times = [start.timestamp() + step_s * n for n in range(int((end - start).total_seconds() / step_s) + 1)]
        result = [
            {"metric": labels, "values": [[at, str(value)] for at in times]}
            for labels, value in self.series.get(query, [])
        ]
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}


class Ticking:
    """Never shows the same time twice, as the system's."""

    def __init__(self, at: datetime) -> None:
        self._at, self.asked = at, 0

    def now(self) -> datetime:
        self.asked += 1
        return self._at + timedelta(microseconds=self.asked)


class Case:
    def __init__(self, world: World) -> None:
        self.world, self.sink, self.prometheus = world, FakeSink(), FakePrometheus()
        self.made: list[PrometheusSignals] = []
        self.daemon = Daemon(world, [self.sink], signals=self._signals)

    def _signals(self, daemon: Daemon, log: Log) -> PrometheusSignals:
        both = {signal.id: signal for signal in (STORAGE, PORTS)}
        clock = self.world.slurm.clock
        self.made.append(PrometheusSignals(self.prometheus, both, clock=clock, log=log, telemetry=daemon.telemetry))
        return self.made[-1]

    @property
    def signals(self) -> PrometheusSignals:
        return self.made[0]

    async def watch(self) -> None:
        """Once, as is done periodically."""
        await self.signals.report(self.daemon.runner.observe)
        await self.daemon.quiet()

    async def fails(self, *items: Evidence, node: str = "n1") -> dict[str, Any]:
        """A job on one node fails; its incident."""
        slurm = self.world.slurm
        job = slurm.submit(nodes=1, required=(node,))
        await self.daemon.fleets.take()
        slurm.end(job, exit_code=1)
        at_s = slurm.clock.now().timestamp() - evidence().at.timestamp()
        await self.daemon.observe([*items, ended(job, at_s=at_s)])
        await self.daemon.quiet()
        assert self.daemon.bugs() == 0, self.daemon.said
        (row,) = self.world.store.incident_rows(job=job)
        return row


@pytest.fixture
def case(world: Worlds) -> Case:
    there = world(nodes=6)
    there.slurm.cancel(there.job)
    return Case(there)


async def test_shared_fault_is_told_once_for_as_long_as_it_holds(case: Case) -> None:
    await case.watch()
    assert case.world.store.incident_rows() == []
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    for _ in range(3):
        case.world.slurm.clock.advance(60.0)
        await case.watch()
    (row,) = case.world.store.incident_rows()
    assert (row["cause"], row["scope"], row["culprit_nodes"]) == ("filesystem_storage", "cluster", [])
    (notice,) = case.sink.got
    assert "the NAS does not answer" in notice.body
    case.prometheus.series.clear()
    case.world.slurm.clock.advance(600.0)
    await case.watch()
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    case.world.slurm.clock.advance(600.0)
    await case.daemon.housekeeping()
    await case.watch()
    assert len(case.world.store.incident_rows()) == 2  # it came again


async def test_job_that_says_nothing_is_explained_by_what_is_shared(case: Case) -> None:
    mount = evidence("mount_error", node="n1", source=Source.HOST, text="/shared does not answer")
    alone = await case.fails(mount)
    case.world.slurm.clock.advance(400.0)
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    at_s = case.world.slurm.clock.now().timestamp() - evidence().at.timestamp()
    same = evidence("mount_error", node="n2", at_s=at_s, source=Source.HOST, text="/shared does not answer")
    shared = await case.fails(same, node="n2")
    assert (shared["cause"], shared["scope"]) == ("filesystem_storage", "cluster")
    assert shared["confidence"] > alone["confidence"]
    verdict = case.world.store.last_verdict(shared["id"])
    assert verdict is not None and "the NAS does not answer" in [ground.note for ground in verdict.grounds]


async def test_signal_of_a_node_is_for_its_own_jobs(case: Case) -> None:
    case.prometheus.series["ports"] = [({"instance": "n1"}, 500.0), ({"instance": "n3"}, 500.0)]
    row = await case.fails(node="n1")
    seen = case.world.store.incident(row["id"])
    assert seen is not None
    told = [item for item in seen.evidence if item.kind == "signal"]
    assert [(item.where.node, item.where.job) for item in told] == [("n1", row["job"])]
    assert not case.world.slurm.nodes["n1"].drained


async def test_broken_gpu_is_drained_whatever_prometheus_says(case: Case) -> None:
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    xid = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")
    row = await case.fails(xid)
    assert row["cause"] == "gpu_fallen_off_bus" and case.world.slurm.nodes["n1"].drained


async def test_silent_prometheus_is_not_known_and_is_waited_for_once(case: Case) -> None:
    case.prometheus.fails = Timeout("Prometheus did not answer within 2 s")
    row = await case.fails(node="n1")
    asked = len(case.prometheus.asked)
    case.signals.last.at = case.world.slurm.clock.advance(10.0) - timedelta(seconds=10)
    assert await case.signals.about(case.daemon.state.incidents[row["id"]], ["n1"])
    assert len(case.prometheus.asked) == asked == 2  # not known, and not waited for
    case.world.slurm.clock.advance(25.0)
    await case.signals.about(case.daemon.state.incidents[row["id"]], ["n1"])
    assert len(case.prometheus.asked) == 4
    seen = case.world.store.incident(row["id"])
    assert seen is not None
    (said,) = [item for item in seen.evidence if item.kind == Kind.UNREADABLE]
    assert said.source is Source.PROMETHEUS and "did not answer within 2 s" in said.text
    case.world.slurm.clock.advance(31.0)
    case.prometheus.fails = None
    await case.watch()
    assert "prometheus-unavailable" in case.daemon.said and "prometheus-answers-again" in case.daemon.said


async def test_signal_that_held_before_a_silence_is_not_told_again_after_it(case: Case) -> None:
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    await case.watch()
    case.prometheus.fails = Timeout("away")
    case.world.slurm.clock.advance(60.0)
    await case.watch()
    case.prometheus.fails = None
    case.world.slurm.clock.advance(60.0)
    await case.watch()
    assert len(case.world.store.incident_rows()) == 1


async def test_signal_that_an_incident_saw_first_is_told_for_its_own_nodes_too(case: Case) -> None:
    told: list[Evidence] = []

    async def take(items: Sequence[Evidence]) -> None:
        told.extend(items)

    case.prometheus.series["ports"] = [({"instance": "n3"}, 500.0)]
    await case.signals.ask()  # as an incident of another node does
    for _ in range(2):
        case.world.slurm.clock.advance(60.0)
        await case.signals.report(take)
    assert [item.where.node for item in told] == ["n3"]


async def test_each_node_of_a_signal_is_told_when_its_own_begins(case: Case) -> None:
    told: list[Evidence] = []

    async def take(items: Sequence[Evidence]) -> None:
        told.extend(items)

    began = case.world.slurm.clock.now()
    for nodes in (["n1"], ["n1", "n3"], ["n1", "n3"], ["n3"], ["n1", "n3"]):
        case.prometheus.series["ports"] = [({"instance": node}, 500.0) for node in nodes]
        await case.signals.report(take)
        case.world.slurm.clock.advance(60.0)
    at = [(item.where.node, (item.at - began).total_seconds()) for item in told]
    assert at == [("n1", 0.0), ("n3", 60.0), ("n1", 240.0)]


async def test_signal_that_no_store_took_is_told_again(case: Case) -> None:
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]

    async def refuses(_items: object) -> None:
        raise Unavailable("the store does not answer")

    with pytest.raises(Unavailable):
        await case.signals.report(refuses)
    case.world.slurm.clock.advance(60.0)
    await case.watch()
    (row,) = case.world.store.incident_rows()
    assert row["cause"] == "filesystem_storage"


async def test_query_that_is_wrong_does_not_blind_for_the_others(case: Case) -> None:
    case.prometheus.refuses = {"ports"}
    case.prometheus.series["nas"] = [({"job": "nas"}, 0.0)]
    await case.watch()
    await case.watch()
    assert list(case.signals.last.firing) == ["nas"] and case.signals.last.problem == ""
    assert case.daemon.said.count("signal-refused") == 1


async def test_many_incidents_at_once_ask_once(case: Case) -> None:
    now = case.world.slurm.clock.now()
    await asyncio.gather(*(case.signals.ask() for _ in range(20)))
    assert sorted(case.prometheus.asked) == ["nas", "ports"] and case.signals.last.at == now


async def test_incidents_that_come_while_it_is_asked_share_the_next_answers(case: Case) -> None:
    """No two of them come in the same microsecond; each asked by itself, one after the other, and waited for all before."""
    case.signals._clock = ticking = Ticking(case.world.slurm.clock.now())
    await asyncio.gather(*(case.signals.ask() for _ in range(20)))
    assert len(case.prometheus.asked) == 4 and ticking.asked >= 20


async def test_where_more_nodes_fire_than_are_named_each_is_told_once(case: Case) -> None:
    """Which of them are the worst changes with every answer."""
    told: list[Evidence] = []

    async def take(items: Sequence[Evidence]) -> None:
        told.extend(items)

    for turn in range(5):
        worst = {f"m{node}": 500.0 + (node * 37 + turn * 61) % 200 for node in range(200)}
        case.prometheus.series["ports"] = [({"instance": node}, value) for node, value in worst.items()]
        await case.signals.report(take)
        case.world.slurm.clock.advance(60.0)
    assert len(told) == MOST_NODES == len({item.where.node for item in told})
