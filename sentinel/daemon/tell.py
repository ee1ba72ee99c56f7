"""Notices: composed once for each incident, delivered at least once to each receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from sentinel.adapters.store import Store
from sentinel.alerts import compose
from sentinel.daemon.live import Live
from sentinel.errors import SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model import Incident, JobView, Notice, Outcome, Plan, Result, Scope, StepKind, Verdict
from sentinel.ports import Clock, Sink
from sentinel.telemetry import Telemetry

_BREAKER = (
    "breaker_told"  # in the store: the incident whose notice told of the breaker, and the last one that joined it
)
_SHARED = "shared_told"  # in the store, by cause: whose notice told of what all share, and who joined it
_SHARED_WINDOW = timedelta(minutes=10)  # since the last of them: what many jobs failed of is told once
_JOINED = 2000
_PAUSES_S = (0.5, 2.0, 10.0, 30.0)


class Tell:
    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        sinks: Sequence[Sink],
        attempts: int,
        clock: Clock,
        telemetry: Telemetry,
        log: Log,
        breaker_window_s: float = 60.0,
    ) -> None:
        self._store = store
        self._live = live
        self._sinks = {sink.name: sink for sink in sinks}
        self._attempts = attempts
        self._clock = clock
        self._telemetry = telemetry
        self._log = log
        self._told: set[str] = set()
        self._breaker_window = timedelta(seconds=breaker_window_s)
        self._sending: set[asyncio.Task[None]] = set()

    async def about(self, incident: Incident, verdict: Verdict, plan: Plan, job: JobView | None) -> None:
        """Tell every receiver of ``incident``, each once, whatever happens later."""
        if incident.id in self._told:
            return
        if plan.refusal == "breaker" and self._known_breaker(incident.id):
            self._told.add(incident.id)
            self._log.info("notice-joined", incident=incident.id, reading="the breaker that is open was told of")
            return
        outcomes = [found for step in plan.steps if (found := self._store.outcome(incident.id, step)) is not None]
        if self._known_fault(incident, verdict, plan, outcomes):
            self._log.info("notice-joined", incident=incident.id, reading=f"people know of the shared {verdict.cause}")
            return  # asked again when all is over: what could not be carried out is told all the same
        notice = self._compose(incident, verdict, plan, outcomes, job)
        for name in self._sinks:
            if self._store.knows_notice(notice.id, name):
                continue
            self._store.record_notice(notice, name, delivered=False)
            self._send(notice, name)
        self._told.add(incident.id)  # only now: a store that failed above must not silence the incident

    def _known_breaker(self, incident: str) -> bool:
        """Whether people were told of the breaker that froze this incident: one shared cause, one message. It counts as the
        same one as long as the next incident comes within the breaker's window. Kept, so that a start tells nobody again."""
        now = self._clock.now()
        kept = self._store.get(_BREAKER) or {}
        same = bool(kept) and now - datetime.fromisoformat(kept["at"]) <= self._breaker_window
        first = kept["incident"] if same else incident
        self._store.put(_BREAKER, {"incident": first, "at": now.isoformat()})
        return bool(first != incident)

    def _known_fault(self, incident: Incident, verdict: Verdict, plan: Plan, outcomes: Sequence[Outcome]) -> bool:
        """Whether people were told of the fault that this job shares with others, and it goes on by itself. A job that does
        not, for whatever reason, is told of for its own sake, and so is whatever takes a node out."""
        if verdict.scope is not Scope.CLUSTER or verdict.drain or plan.refusal or plan.observe_only:
            return False
        goes_on = incident.job is None or any(step.kind is StepKind.RELEASE for step in plan.steps)
        if not goes_on or any(outcome.result is Result.FAILED or outcome.data.get("held") for outcome in outcomes):
            return False
        now, known = self._clock.now(), self._store.get(_SHARED) or {}
        fault = known.get(verdict.cause)
        if fault is not None and incident.id in (fault["incident"], *fault["joined"]):
            return bool(incident.id != fault["incident"])
        if fault is None or now - datetime.fromisoformat(fault["at"]) > _SHARED_WINDOW:
            fault = {"incident": incident.id, "joined": []}
        else:
            fault["joined"] = [*fault["joined"][1 - _JOINED :], incident.id]
        self._store.put(_SHARED, {**known, str(verdict.cause): {**fault, "at": now.isoformat()}})
        return bool(incident.id != fault["incident"])

    def send_undelivered(self) -> None:
        """After a start: what was composed and not delivered."""
        for notice, name in self._store.undelivered():
            self._told.add(notice.incident)
            if name in self._sinks:
                self._send(notice, name)

    def _compose(
        self, incident: Incident, verdict: Verdict, plan: Plan, outcomes: Sequence[Outcome], job: JobView | None
    ) -> Notice:
        if job is None and incident.job is not None and incident.attempt is not None:
            seen = self._live.attempts.get((incident.job, incident.attempt))
            job = seen.view if seen else None
        reached = None
        if incident.job is not None and incident.attempt is not None:
            reached = self._live.last_step(incident.job, incident.attempt)
        return compose(incident, verdict, plan, outcomes, job=job, last_step=reached, now=self._clock.now())

    def _send(self, notice: Notice, name: str) -> None:
        task = asyncio.create_task(self._deliver(notice, name))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, notice: Notice, name: str) -> None:
        try:
            for attempt in range(self._attempts):
                try:
                    await self._sinks[name].send(notice)
                except Unavailable as error:
                    self._log.warning("notice-not-delivered", receiver=name, attempt=attempt + 1, reason=error.message)
                    await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
                    continue
                await asyncio.to_thread(self._store.record_notice, notice, name, True)
                self._telemetry.notices.labels(result="delivered").inc()
                return
        except SentinelError as error:
            self._log.warning("notice-refused", receiver=name, reason=error.message)
        self._telemetry.notices.labels(result="failed").inc()
