"""Prometheus asked: when something fails, since its verdict may need it, and slowly in between.

Asked by many incidents at once it is asked once. One that does not answer is *not known*: the incident says so, the verdict
goes on without it, and for a while it is not waited for again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sentinel.adapters.prometheus import Prometheus
from sentinel.errors import ProtocolError, Refused, SentinelError, Unavailable
from sentinel.evidence.prometheus import Signal, evidence_of, holding
from sentinel.log import Log
from sentinel.model import Evidence, Incident, Kind, Scope, Source, Where, stable_id
from sentinel.ports import Clock
from sentinel.settings import Settings
from sentinel.telemetry import Telemetry

_FRESH = timedelta(seconds=5)  # an answer this old does for an incident
_SPARED = timedelta(seconds=30)  # after it did not answer, incidents do not wait for it
_AT_ONCE = 4  # queries under way


class Ranges(Protocol):
    """What is asked: see ``sentinel.adapters.prometheus``."""

    async def range(self, query: str, start: datetime, end: datetime, step_s: float) -> dict[str, Any]: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Heard:
    """What was heard last."""

    at: datetime | None = None
    firing: dict[str, list[Evidence]] = field(default_factory=dict)  # by signal
    since: dict[str, datetime] = field(default_factory=dict)
    problem: str = ""  # why nothing is known; "" where it answered
    wrong: dict[str, str] = field(default_factory=dict)  # signals whose query it refuses


class Signals:
    def __init__(
        self, prometheus: Ranges, signals: Mapping[str, Signal], *, clock: Clock, log: Log, telemetry: Telemetry
    ) -> None:
        self._prometheus = prometheus
        self._signals = signals
        self._clock = clock
        self._log = log
        self._telemetry = telemetry
        self._lock = asyncio.Lock()
        self.heard = Heard()

    async def close(self) -> None:
        await self._prometheus.close()

    @property
    def shown(self) -> dict[str, Any]:
        """For people."""
        heard = self.heard
        return {
            "answers": heard.at is not None and not heard.problem,
            "asked_at": heard.at,
            "problem": heard.problem,
            "refused": dict(heard.wrong),
            "firing": [
                {"signal": name, "since": heard.since.get(name), "text": items[0].text, "nodes": _nodes(items)}
                for name, items in heard.firing.items()
            ],
        }

    async def about(self, incident: Incident, nodes: Sequence[str]) -> list[Evidence]:
        """What holds now and may explain ``incident``: signals of the cluster, and those of ``nodes``."""
        now = self._clock.now()
        heard = self.heard
        spared = heard.problem and heard.at is not None and now - heard.at < _SPARED
        if not spared and (heard.at is None or now - heard.at > _FRESH):
            await self.ask()
        if self.heard.problem:
            return [self._unreadable(incident)]
        found = [item for items in self.heard.firing.values() for item in items]
        mine = [item for item in found if item.where.node is None or item.where.node in nodes]
        return [self._of(incident, item) for item in mine]

    async def ask(self) -> None:
        """All signals, once; whoever comes meanwhile waits for the same answers."""
        asked_at = self._clock.now()
        async with self._lock:
            if self.heard.at is not None and self.heard.at >= asked_at:
                return
            gate = asyncio.Semaphore(_AT_ONCE)
            answers = await asyncio.gather(*(self._one(signal, gate) for signal in self._signals.values()))
        problems = [str(answer) for _, answer in answers if isinstance(answer, SentinelError)]
        self._note(asked_at, answers, problems[0] if problems else "")

    async def _one(self, signal: Signal, gate: asyncio.Semaphore) -> tuple[Signal, list[Evidence] | SentinelError]:
        now = self._clock.now()
        start = now - timedelta(seconds=signal.for_s)
        async with gate:
            try:
                answer = await self._prometheus.range(signal.query, start, now, signal.step_s)
                series = holding(signal, answer, now)
            except Refused as error:
                if self.heard.wrong.get(signal.id) != error.message:
                    self.heard.wrong[signal.id] = error.message
                    self._log.warning("signal-refused", signal=signal.id, reason=error.message)
                return signal, []  # its author's fault: the others are known
            except (Unavailable, ProtocolError) as error:
                return signal, error
        self.heard.wrong.pop(signal.id, None)
        since = self.heard.since.get(signal.id, now) if series else now
        return signal, evidence_of(signal, series, since, now)

    def _note(
        self, at: datetime, answers: Sequence[tuple[Signal, list[Evidence] | SentinelError]], problem: str
    ) -> None:
        heard = self.heard
        if problem != heard.problem:
            if problem:
                self._log.warning("prometheus-unavailable", reason=problem)
            else:
                self._log.info("prometheus-answers-again")
        if problem:
            self._telemetry.unreadable.inc()
            self.heard = dataclasses.replace(heard, at=at, problem=problem)  # what held before may hold or not
            return
        firing = {signal.id: items for signal, items in answers if isinstance(items, list) and items}
        for name in firing.keys() - heard.firing.keys():
            self._log.warning("signal-holds", signal=name, text=firing[name][0].text)
        for name in heard.firing.keys() - firing.keys():
            self._log.info("signal-over", signal=name)
        since = {name: heard.since.get(name, at) for name in firing}
        self.heard = Heard(at, firing, since, "", heard.wrong)

    async def forever(self, observe: Callable[[Sequence[Evidence]], Awaitable[None]], every_s: float) -> None:
        """What begins to hold is evidence, once for as long as it holds."""
        while True:
            try:
                before = set(self.heard.firing)
                await self.ask()
                fresh = [item for name, items in self.heard.firing.items() if name not in before for item in items]
                if fresh and not self.heard.problem:
                    await observe([_alone(item) for item in fresh])
            except Unavailable as error:  # the store: asked again
                self._log.warning("signals-not-kept", reason=error.message)
            except Exception as error:  # a loop of a root: the daemon goes on, the bug is seen
                self._telemetry.bugs.inc()
                self._log.error("bug", where="signals", error=repr(error))
            await asyncio.sleep(every_s)

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
            text=f"storage, switches and power are not known: {self.heard.problem}",
        )


def _nodes(items: Sequence[Evidence]) -> list[str]:
    return [item.where.node for item in items if item.where.node is not None]


def listening(
    settings: Settings, signals: Mapping[str, Signal], *, clock: Clock, log: Log, telemetry: Telemetry
) -> Signals | None:
    """None where no Prometheus is named."""
    if not settings.prometheus.url:
        return None
    return Signals(Prometheus(settings.prometheus), signals, clock=clock, log=log, telemetry=telemetry)


def _alone(item: Evidence) -> Evidence:
    """As a finding of its own, under no job: then nothing but it speaks for its cause."""
    alone = item.data.get("scope") == Scope.CLUSTER
    return dataclasses.replace(item, data={**item.data, "alone": alone})
