"""Drives the engine live: hands it events in order, saves each transition's changes, then performs its effects.

Events are handled immediately, on the event loop. A thread writes the changes in the same order, batching waiting
transitions into one transaction. No effect but a timer begins before its transition is saved. While the store does not
answer, no effect begins and new evidence is refused, so that its senders keep it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.adapters.threads import Threads
from sentinel.daemon.measure import measure
from sentinel.daemon.unsaved import Unsaved, changes_of, named, next_batch, taken
from sentinel.engine import Engine, Transition
from sentinel.engine.audit import AUDITED, AuditTrail
from sentinel.engine.events import (
    EffectCompleted,
    EffectProgressed,
    Event,
    EvidenceReceived,
    FleetObserved,
    FleetUnavailable,
    IncidentCorrected,
    NoticeNotDelivered,
    OperatorCommand,
    ReportedEnd,
    SlurmReported,
    StoreAnswers,
    TimerDue,
)
from sentinel.engine.grouping import TELEMETRY
from sentinel.engine.transition import CarryOutStep, DeliverNotice, Effect, ObserveFleet, StartTimer
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.audit import Stage
from sentinel.model.changes import Audited, Batch, Change, EvidenceAdded, StepIntended
from sentinel.model.corrections import Correction
from sentinel.model.records import Evidence, Fleet, Outcome, Result, Scalar, Step, Task
from sentinel.ports import Clock
from sentinel.telemetry import Telemetry

# That a stop waits for deliveries, however long one may take: systemd gives all of the stop 30 s, and the lease is held.
_LAST_DELIVERIES_S = 10.0
_STORE_PAUSE_S = 1.0  # before the next try when the store did not answer
_BUG_PAUSE_S = 5.0  # before the next snapshot after an unexpected exception
_DECIDED_S = 10.0  # that a person waits until a decision is saved: a command waits 15 s for its answer

# Performs one effect and returns the event of its completion; None if there is none.
Perform = Callable[[Any], Awaitable[Event | None]]

_LEAST_WAIT_S = 0.01  # what is left of a wait is not halved for ever


class Runner:
    """Connects one engine to its store and to the functions that perform its effects.

    ``perform`` maps each type of effect to its function; it is set before the first event.
    """

    perform: Mapping[type[Any], Perform]

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        clock: Clock,
        telemetry: Telemetry,
        log: Log,
        seconds: Callable[[], float] = time.monotonic,
        host: str = "",
        may_act: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            seconds: a monotonic clock.
            host: name of this host, for the audit.
            may_act: returns as soon as an effect may begin; None: always.
        """
        self._may_act = may_act
        self._trail = AuditTrail(host)
        self.engine = engine
        self.state = engine.state
        self._store = store
        self._threads = Threads("commit", 1)  # a daemon that cannot save must not go on because others' calls hang
        self._clock = clock
        self._telemetry = telemetry
        self._log = log
        self.seconds = seconds
        self._waiting: deque[Unsaved] = deque()
        self._saving: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._effects: set[asyncio.Task[None]] = set()
        self._deliveries: set[asyncio.Task[None]] = set()  # those of messages
        telemetry.blind_s.set_function(self._blind_s)
        telemetry.agents.set_function(lambda: self.state.watch.agents)
        self._stopping = False
        self._problem_since: datetime | None = None
        self._problem = ""  # why the last write to the store failed; empty if it succeeded

    # --- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, *, patient: bool = False) -> asyncio.Future[None]:
        """Apply ``event`` immediately. The returned future is done when its changes are saved.

        The future raises ``Unavailable`` when the store does not answer: the changes are then saved later, before those
        of any later event. ``patient``: only when they are not tried again.
        """
        transition = Transition()
        if getattr(event, "now_s", 0.0) is None:
            event = dataclasses.replace(event, now_s=self.seconds())  # type: ignore[arg-type]
        try:
            self.engine.handle(event, transition)
        except Exception:  # a bug in handling one event must not stop the next
            self._telemetry.bugs.inc()
            self._log.bug(type(event).__name__)
            self.engine.abandon(event, transition)
            if isinstance(event, EvidenceReceived):
                self._one_by_one(event, transition)
        for remark in transition.remarks:
            fields = {name: value for name, value in remark.fields.items() if value is not None}
            (self._log.warning if remark.warning else self._log.info)(remark.name, **fields)
        self._trail.note(event, transition, self.state)
        measure(transition, self._telemetry)
        self._start_timers(transition)
        return self._save(transition, patient=patient)

    def saved(self) -> asyncio.Future[None]:
        """Done when the changes of all events so far are saved, however long that takes; fails when the daemon stops."""
        return self._save(Transition(), patient=True)

    def _save(self, transition: Transition, *, patient: bool) -> asyncio.Future[None]:
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not transition.changes and not transition.effects and not self._waiting and not self._is_saving():
            saved.set_result(None)
            return saved
        self._waiting.append(Unsaved(transition, saved, patient))
        if not self._is_saving():
            self._saving = asyncio.create_task(self._save_all())
            self._saving.add_done_callback(taken)
        return saved

    def _start_timers(self, transition: Transition) -> None:
        """Start timers at once: they change nothing outside, and the events that they cause are saved later."""
        if any(isinstance(effect, StartTimer) for effect in transition.effects):
            for effect in transition.effects:
                if isinstance(effect, StartTimer):
                    self._begin(effect)
            transition.effects[:] = [effect for effect in transition.effects if not isinstance(effect, StartTimer)]

    def _one_by_one(self, event: EvidenceReceived, out: Transition) -> None:
        """After an exception, handle a batch again item by item, so that only the item that causes it is not judged.

        That item is saved nevertheless: it will be acknowledged and would otherwise be lost.
        """
        for item in event.items:
            single = Transition()
            try:
                self.engine.handle(dataclasses.replace(event, items=(item,)), single)
            except Exception:
                self._log.bug("EvidenceReceived", evidence=item.id, kind=item.kind)
                if not event.saved and item.kind not in TELEMETRY:
                    single.save(EvidenceAdded((item,)))
            out.add(single)

    async def observe(self, items: Sequence[Evidence]) -> None:
        """Take evidence; returns when ``items`` are saved and may be acknowledged.

        Raises:
            Unavailable: the store cannot be written; the sender must keep them.
        """
        if self._problem or self._stopping:
            raise Unavailable(self._problem or "the daemon is stopping")
        await self.handle(EvidenceReceived(self._clock.now(), tuple(items)))

    def observed(self, fleet: Fleet) -> None:
        """Hand a new Slurm snapshot to the engine."""
        self.handle(FleetObserved(self._clock.now(), fleet))

    def unobserved(self, error: Unavailable) -> None:
        """Tell the engine that a Slurm snapshot failed."""
        self.handle(FleetUnavailable(self._clock.now(), error.message, error.fix))

    def report(self, event: str, jobs: Collection[int], ends: Mapping[int, ReportedEnd] | None = None) -> None:
        """Hand an event that a hook of slurmctld reported to the engine."""
        self.handle(SlurmReported(self._clock.now(), event, frozenset(jobs), ends or {}))

    async def decide(self, event: Event) -> None:
        """Hand what a person decided to the engine; returns when it is saved.

        Raises:
            Unavailable: the store cannot be written: nothing was done. Or it does not answer: whether it is in force is not
            known, which the message says.
        """
        if why := self._problem or ("the daemon is stopping" if self._stopping else ""):
            raise Unavailable(f"nothing was done: {why}", fix="give the command again when the store answers")
        saved = self.handle(event, patient=True)
        await asyncio.wait({saved}, timeout=_DECIDED_S)
        if not saved.done() or saved.exception() is not None:
            raise Unavailable(
                "whether it was done is not known: the store does not answer",
                fix="it is in force when the store answers, unless another daemon takes over first: look at sentinel status",
            ) from (saved.exception() if saved.done() else None)

    async def command(self, command: str, by: str, origin: str = "") -> None:
        await self.decide(OperatorCommand(self._clock.now(), command, by, origin))

    async def correct(self, row: Mapping[str, Any], correction: Correction, origin: str = "") -> None:
        """Hand an operator's correction of a verdict to the engine; returns when it is saved."""
        await self.decide(IncidentCorrected(self._clock.now(), row, correction, origin))

    async def timer_due(self, timer: str) -> None:
        await self.handle(TimerDue(self._clock.now(), timer, self.seconds()))

    @property
    def store_problem(self) -> tuple[datetime, str] | None:
        """Since when the store takes no changes, and why; None if the last ones were saved."""
        return (self._problem_since, self._problem) if self._problem_since is not None else None

    async def stop(self) -> None:
        """Stop timers and effects, and finish saving. The next daemon resumes from what is saved.

        Deliveries under way have the time of one attempt (``alerts.deadline_s``, but ``_LAST_DELIVERIES_S`` at most) to
        end: one that is cut off may have been made, and the next daemon, if there is one, makes it again.
        """
        self._stopping = True
        tasks = {*self._timers.values(), *self._effects}
        for task in tasks - self._deliveries:
            task.cancel()
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=min(self.state.settings.alerts.deadline_s, _LAST_DELIVERIES_S))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)

    def is_idle(self, repeated: Collection[str] = ()) -> bool:
        """Whether nothing waits to be saved, no effect is under way, and no timer runs but ``repeated`` ones."""
        return not (self._waiting or self._is_saving() or self._effects or self._timers.keys() - set(repeated))

    def _blind_s(self) -> float:
        """Seconds since Slurm became unreadable; 0 while it can be read."""
        since = self.state.blind_since
        return 0.0 if since is None else max(0.0, (self._clock.now() - since).total_seconds())

    # --- saving, then performing --------------------------------------------------------------------------------------

    def _is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    async def _save_all(self) -> None:
        """Save waiting transitions in order, in batches, and begin the effects of each batch once it is saved."""
        while self._waiting:
            batch = next_batch(self._waiting)
            try:
                await self._commit(changes_of(batch), batch)
            except BaseException as error:
                self._not_saved(batch, error, again=False)
                self._waiting.clear()
                raise
            for one in batch:
                for effect in one.transition.effects:
                    self._begin(effect)
                if not one.saved.done():
                    one.saved.set_result(None)

    def _not_saved(self, batch: Sequence[Unsaved], error: BaseException, *, again: bool) -> None:
        """Tell those who wait for these transitions, and for all queued after them."""
        for one in (*batch, *self._waiting):
            one.not_saved(error, again=again)

    async def _commit(self, changes: Batch, batch: Sequence[Unsaved]) -> None:
        """Write the changes of a batch in one transaction; retries while the store does not answer.

        Raises:
            Unavailable: the store did not answer and the daemon is stopping.
        """
        while changes:
            try:
                await self._threads.call(self._store.commit, changes)
            except Unavailable as error:
                if self._stopping:
                    raise
                if error.message != self._problem:
                    self._log.warning("store-unavailable", reason=error.message)
                self._problem, self._problem_since = error.message, self._problem_since or self._clock.now()
                self._not_saved(batch, error, again=True)
                await asyncio.sleep(_STORE_PAUSE_S)
            except Exception:  # one change that cannot be saved must not block the others
                if len(batch) == 1 and len(changes) == 1:
                    self._telemetry.bugs.inc()
                    self._log.bug("store", change=type(changes[0]).__name__)
                    self._leave_out(batch[0].transition, changes[0])
                    return
                for one in batch:
                    for change in tuple(one.transition.changes):
                        await self._commit(named(change), [one])
                return
            else:
                since, self._problem, self._problem_since = self._problem_since, "", None
                if since is not None:
                    self._log.info("store-answers-again")
                    self.handle(StoreAnswers(self._clock.now(), since))
                return

    def _leave_out(self, transition: Transition, change: Change) -> None:
        """Drop a change that cannot be saved, and its effects: nothing is done that ledger and audit do not have."""
        if isinstance(change, StepIntended):
            key = change.step.key(change.plan.incident)
            transition.effects[:] = [effect for effect in transition.effects if effect.id != key]
        elif isinstance(change, Audited) and change.entry.stage is Stage.BEGUN:
            transition.effects[:] = [effect for effect in transition.effects if not isinstance(effect, AUDITED)]

    def _begin(self, effect: Effect) -> None:
        if self._stopping:
            return
        if isinstance(effect, StartTimer):
            running = self._timers.pop(effect.id, None)
            if running is not None:
                running.cancel()
            self._timers[effect.id] = asyncio.create_task(self._wait(effect.id, effect.due), name=f"timer {effect.id}")
            return
        task = asyncio.create_task(self._do(effect))
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        if isinstance(effect, DeliverNotice):
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

    async def _wait(self, timer: str, due: datetime) -> None:
        try:
            now, before = self._clock.now(), None
            while before != now < due:  # ``SteadyClock`` may go slower than sleep; one that stands still ends the wait
                await asyncio.sleep(max((due - now).total_seconds(), _LEAST_WAIT_S))
                now, before = self._clock.now(), now
            if self._timers.get(timer) is asyncio.current_task():
                del self._timers[timer]
            self.handle(TimerDue(self._clock.now(), timer, self.seconds()))
        except Exception:  # the daemon goes on with the next event
            self._telemetry.bugs.inc()
            self._log.bug(timer)

    async def _do(self, effect: Effect) -> None:
        try:
            if self._may_act is not None:
                await self._may_act()
            event = await self.perform[type(effect)](effect)
            if event is not None:
                self.handle(event)
        except Exception as error:  # the daemon goes on; what waits for this effect gets an event
            self._telemetry.bugs.inc()
            self._log.bug(type(effect).__name__)
            await self._without_outcome(effect, error)

    async def _without_outcome(self, effect: Effect, error: Exception) -> None:
        """Complete an effect that raised an unexpected exception: its outcome or its answer is not known."""
        now = self._clock.now()
        if isinstance(effect, CarryOutStep):
            outcome = Outcome(effect.task.step, Result.NOT_KNOWN, now, f"internal error: {error!r:.200}")
            self.handle(EffectCompleted(now, effect.id, outcome=outcome))
        elif isinstance(effect, ObserveFleet):
            await asyncio.sleep(_BUG_PAUSE_S)
            self._begin(effect)
        elif isinstance(effect, DeliverNotice):
            self.handle(
                NoticeNotDelivered(now, effect.notice, effect.receiver, f"internal error: {error!r:.200}", True)
            )
        else:
            self.handle(EffectCompleted(now, effect.id))

    # --- for the actions ----------------------------------------------------------------------------------------------

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        """See ``sentinel.actions.means.Steps``."""
        return self.state.ledger.outcome(incident, step)

    async def progressed(self, task: Task, data: Mapping[str, Scalar]) -> None:
        """See ``sentinel.actions.means.Steps``."""
        now = self._clock.now()
        known = Outcome(task.step, Result.NOT_KNOWN, now, "", data)
        await self.handle(EffectProgressed(now, task.step.key(task.incident.id), known))

    def last_step(self, job: int, attempt: int) -> int | None:
        """See ``sentinel.actions.means.Progress``."""
        return self.state.cluster.last_step(job, attempt)

    def has_run(self, job: int, attempt: int) -> bool:
        """See ``sentinel.actions.means.Progress``."""
        return self.state.cluster.has_run(job, attempt)
