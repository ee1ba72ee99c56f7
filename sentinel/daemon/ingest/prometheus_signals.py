"""Queries Prometheus for signals of storage, switches and power: for each incident, and periodically in between.

Incidents that ask at the same time share one round of queries. If Prometheus does not answer, the incident records that
the signals are *not known*, the verdict is made without them, and for ``_PAUSE_AFTER_FAILURE`` no incident waits for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sentinel.adapters.prometheus import Prometheus
from sentinel.config.settings import Settings
from sentinel.errors import ProtocolError, Refused, SentinelError, Unavailable
from sentinel.evidence.prometheus import Signal, evidence_of, holding
from sentinel.log import Log
from sentinel.model.records import Evidence, Incident, Kind, Scope, Source, Where, stable_id
from sentinel.ports import Clock
from sentinel.telemetry import Telemetry

_FRESH = timedelta(seconds=5)  # oldest answer that an incident may use
_PAUSE_AFTER_FAILURE = timedelta(seconds=30)  # after a failure, incidents do not wait for Prometheus for this long
_AT_ONCE = 4  # concurrent queries


class Ranges(Protocol):
    """The part of the Prometheus client that is used here; see ``sentinel.adapters.prometheus``."""

    async def range(self, query: str, start: datetime, end: datetime, step_s: float) -> dict[str, Any]: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class LastAnswers:
    """The answers of the last round of queries."""

    at: datetime | None = None
    firing: dict[str, list[Evidence]] = field(default_factory=dict)  # by signal
    problem: str = ""  # why Prometheus could not be asked; "" if it answered
    wrong: dict[str, str] = field(default_factory=dict)  # signal -> why Prometheus refused its query


class PrometheusSignals:
    def __init__(
        self, prometheus: Ranges, signals: Mapping[str, Signal], *, clock: Clock, log: Log, telemetry: Telemetry
    ) -> None:
        self._prometheus = prometheus
        self._signals = signals
        self._clock = clock
        self._log = log
        self._telemetry = telemetry
        self._lock = asyncio.Lock()
        self.last = LastAnswers()
        self._reported: frozenset[str] = frozenset()  # evidence of what fires; an incident may have asked first

    async def close(self) -> None:
        await self._prometheus.close()

    @property
    def shown(self) -> dict[str, Any]:
        """The newest answers as JSON, for views."""
        last = self.last
        return {
            "answers": last.at is not None and not last.problem,
            "asked_at": last.at,
            "problem": last.problem,
            "refused": dict(last.wrong),
            "firing": [
                {
                    "signal": name,
                    "since": min(item.at for item in items),
                    "text": items[0].text,
                    "nodes": _nodes(items),
                }
                for name, items in last.firing.items()
            ],
        }

    async def about(self, incident: Incident, nodes: Sequence[str]) -> list[Evidence]:
        """Signals firing now that may explain ``incident``: cluster-wide ones, and those of ``nodes``."""
        now = self._clock.now()
        last = self.last
        spared = last.problem and last.at is not None and now - last.at < _PAUSE_AFTER_FAILURE
        if not spared and (last.at is None or now - last.at > _FRESH):
            await self.ask()
        if self.last.problem:
            return [self._unreadable(incident)]
        found = [item for items in self.last.firing.values() for item in items]
        mine = [item for item in found if item.where.node is None or item.where.node in nodes]
        return [self._of(incident, item) for item in mine]

    async def ask(self) -> None:
        """Query all signals once; those who ask while an earlier round is under way share the next one's answers."""
        asked_at = self._clock.now()
        async with self._lock:
            if self.last.at is not None and self.last.at >= asked_at:
                return
            began_at = self._clock.now()  # who asks from now on shares the next answers with all who wait by then
            gate = asyncio.Semaphore(_AT_ONCE)
            answers = await asyncio.gather(*(self._one(signal, gate) for signal in self._signals.values()))
            problems = [str(answer) for _, answer in answers if isinstance(answer, SentinelError)]
            self._note(began_at, answers, problems[0] if problems else "")

    async def _one(self, signal: Signal, gate: asyncio.Semaphore) -> tuple[Signal, list[Evidence] | SentinelError]:
        now = self._clock.now()
        start = now - timedelta(seconds=signal.for_s)
        async with gate:
            try:
                answer = await self._prometheus.range(signal.query, start, now, signal.step_s)
                series = holding(signal, answer, now)
            except Refused as error:
                if self.last.wrong.get(signal.id) != error.message:
                    self.last.wrong[signal.id] = error.message
                    self._log.warning("signal-refused", signal=signal.id, reason=error.message)
                return signal, []  # this query is wrong; the other signals are known
            except (Unavailable, ProtocolError) as error:
                return signal, error
        self.last.wrong.pop(signal.id, None)
        since = {item.where.node: item.at for item in self.last.firing.get(signal.id, ())}
        return signal, evidence_of(signal, series, since, now)

    def _note(
        self, at: datetime, answers: Sequence[tuple[Signal, list[Evidence] | SentinelError]], problem: str
    ) -> None:
        last = self.last
        if problem != last.problem:
            if problem:
                self._log.warning("prometheus-unavailable", reason=problem)
            else:
                self._log.info("prometheus-answers-again")
        if problem:
            self._telemetry.unreadable.inc()
            self.last = dataclasses.replace(last, at=at, problem=problem)  # signals that fired before may still fire
            return
        firing = {signal.id: items for signal, items in answers if isinstance(items, list) and items}
        for name in firing.keys() - last.firing.keys():
            self._log.warning("signal-holds", signal=name, text=firing[name][0].text)
        for name in last.firing.keys() - firing.keys():
            self._log.info("signal-over", signal=name)
        self.last = LastAnswers(at, firing, "", last.wrong)

    async def report(self, observe: Callable[[Sequence[Evidence]], Awaitable[None]]) -> None:
        """Query once, and report each signal as evidence when it starts firing, for each node of it.

        Raises:
            Unavailable: the store does not take the evidence.
        """
        await self.ask()
        if self.last.problem:
            return
        firing = [item for items in self.last.firing.values() for item in items]
        if fresh := [item for item in firing if item.id not in self._reported]:
            await observe([_alone(item) for item in fresh])
        self._reported = frozenset(item.id for item in firing)

    def _of(self, incident: Incident, item: Evidence) -> Evidence:
        where = Where(node=item.where.node, job=incident.job, attempt=incident.attempt)
        return dataclasses.replace(item, id=stable_id(item.id, incident.id), where=where)

    def _unreadable(self, incident: Incident) -> Evidence:
        now = self._clock.now()
        return Evidence(
            id=stable_id("signals-unreadable", incident.id),
            at=now,
            seen_at=now,
            source=Source.PROMETHEUS,
            kind=Kind.UNREADABLE,
            where=Where(job=incident.job, attempt=incident.attempt),
            text=f"storage, switches and power are not known: {self.last.problem}",
        )


def _nodes(items: Sequence[Evidence]) -> list[str]:
    return [item.where.node for item in items if item.where.node is not None]


def connect_signals(
    settings: Settings, signals: Mapping[str, Signal], *, clock: Clock, log: Log, telemetry: Telemetry
) -> PrometheusSignals | None:
    """The signals of the configured Prometheus; None if none is configured."""
    if not settings.prometheus.url:
        return None
    return PrometheusSignals(Prometheus(settings.prometheus), signals, clock=clock, log=log, telemetry=telemetry)


def _alone(item: Evidence) -> Evidence:
    """Mark a cluster-wide signal as reported outside any job: it is then the only evidence of its cause."""
    alone = item.data.get("scope") == Scope.CLUSTER
    return dataclasses.replace(item, data={**item.data, "alone": alone})
