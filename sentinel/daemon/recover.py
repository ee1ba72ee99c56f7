"""Carries plans out, one task for each incident, and tells people once the decisive step is done."""

from __future__ import annotations

import asyncio
import dataclasses

from sentinel.actions import Means, Task
from sentinel.actions.carry_out import carry_out, next_step
from sentinel.adapters.store import Store
from sentinel.daemon.judge import Judge
from sentinel.daemon.tell import Tell
from sentinel.errors import SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model import (
    Incident,
    IncidentState,
    JobView,
    Outcome,
    Plan,
    Result,
    StepKind,
    Verdict,
)
from sentinel.telemetry import Telemetry

_STORE_PAUSE_S = 1.0

# After these people are told what they want to know: where the job goes on, or that it waits for them.
_DECISIVE = frozenset({StepKind.RELEASE, StepKind.HOLD})


class Recover:
    def __init__(
        self, *, store: Store, means: Means, tell: Tell, telemetry: Telemetry, log: Log, tell_within_s: float
    ) -> None:
        self._store = store
        self._means = means
        self._tell = tell
        self._telemetry = telemetry
        self._log = log
        self._tell_within_s = tell_within_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self.judge: Judge | None = None  # set once both exist; each needs the other

    @property
    def _judge(self) -> Judge:
        assert self.judge is not None, "run.py wires the judge before evidence comes in"
        return self.judge

    async def decided(self, incident: Incident, verdict: Verdict, plan: Plan, job: JobView | None) -> None:
        """A new or longer plan of ``incident``."""
        if plan.refusal or plan.observe_only or not plan.steps:
            held = bool(plan.refusal)
            await self._tell.about(incident, verdict, plan, job)
            self._judge.close(incident.id, IncidentState.HELD if held else IncidentState.CLOSED, plan.explanation)
            return
        self.start(incident.id)

    def start(self, incident: str) -> None:
        """Carry on with the plan of ``incident``; a task under way picks longer plans up by itself."""
        running = self._tasks.get(incident)
        if running is None or running.done():
            self._tasks[incident] = asyncio.create_task(self._run(incident))
            self._timers[incident] = asyncio.create_task(self._tell_later(incident))

    async def stop(self) -> None:
        for task in (*self._tasks.values(), *self._timers.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._timers.values(), return_exceptions=True)

    def _next(self, incident_id: str) -> Task | None:
        incident = self._judge.incidents.get(incident_id)
        plan = self._judge.plans.get(incident_id)
        verdict = self._judge.verdicts.get(incident_id)
        if incident is None or plan is None or verdict is None or self._store.get("paused", False):
            return None
        step = next_step(plan, lambda s: self._store.outcome(incident_id, s))
        return Task(incident, verdict, plan, step) if step is not None else None

    async def _run(self, incident_id: str) -> None:
        try:
            while True:
                try:
                    last = await carry_out(lambda: self._next(incident_id), self._means, self._report)
                    await self._finish(incident_id, last)
                    return
                except Unavailable as error:  # the store; what Slurm does not answer is carry_out's to try again
                    self._log.warning("store-unavailable", incident=incident_id, reason=error.message)
                    await asyncio.sleep(_STORE_PAUSE_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._telemetry.bugs.inc()
            self._log.error("bug", where="recover", incident=incident_id, error=repr(error))

    def _report(self, plan: Plan, outcome: Outcome, error: SentinelError | None) -> None:
        step = outcome.step
        self._telemetry.steps.labels(kind=step.kind, result=outcome.result).inc()
        write = self._log.info if outcome.result is Result.DONE else self._log.warning
        write(
            "step",
            incident=plan.incident,
            kind=step.kind,
            target=step.node or step.job,
            result=outcome.result,
            reason=outcome.reason,
        )
        if step.kind is StepKind.RELEASE and outcome.result is Result.DONE:
            self._judge.close(plan.incident, IncidentState.WATCHING, "restarted")
        if step.kind in _DECISIVE and outcome.result is not Result.NOT_KNOWN:
            self._tell_soon(plan.incident)

    def _tell_soon(self, incident: str) -> None:
        timer = self._timers.pop(incident, None)
        if timer is not None:
            timer.cancel()
        self._timers[incident] = asyncio.create_task(self._tell_now(incident))

    async def _tell_later(self, incident: str) -> None:
        await asyncio.sleep(self._tell_within_s)
        await self._tell_now(incident)

    async def _tell_now(self, incident_id: str) -> None:
        incident, plan = self._judge.incidents.get(incident_id), self._judge.plans.get(incident_id)
        verdict = self._judge.verdicts.get(incident_id)
        if incident is not None and plan is not None and verdict is not None:
            await self._tell.about(incident, verdict, plan, None)

    async def _finish(self, incident_id: str, last: Outcome | None) -> None:
        incident = self._judge.incidents.get(incident_id)
        plan = self._judge.plans.get(incident_id)
        if incident is None or plan is None or self._next(incident_id) is not None:
            return
        if self._store.get("paused", False):
            return  # the plan stays open; resuming carries it on
        last = last or self._last_outcome(plan)
        # Whoever must be told is written down first: a closed incident is not looked at again after a start.
        await self._tell_now(incident_id)
        outcome = last.reason if last is not None else ""
        state = IncidentState.CLOSED
        if last is not None and (last.result is Result.FAILED or last.step.kind is StepKind.HOLD):
            state = IncidentState.CLOSED if last.data.get("cancelled") else IncidentState.HELD
        if last is not None and last.step.kind is StepKind.CONFIRM and last.result is Result.DONE:
            took = (last.at - plan.at).total_seconds()
            self._telemetry.restart_s.observe(max(0.0, took))
        self._judge.close(incident_id, state, outcome)
        await asyncio.to_thread(self._store.finish_plan, plan)
        self._log.info("incident-finished", incident=incident_id, state=state, outcome=outcome)

    def _last_outcome(self, plan: Plan) -> Outcome | None:
        """What ended a plan whose steps were all carried out by a daemon that is gone."""
        found = [self._store.outcome(plan.incident, step) for step in plan.steps]
        return next((outcome for outcome in reversed(found) if outcome is not None), None)

    def carry_on(self) -> None:
        """After a start: plans that were under way go on where the ledger says."""
        for plan in self._store.open_plans():
            incident = self._store.incident(plan.incident)
            verdict = self._store.last_verdict(plan.incident)
            if incident is None or verdict is None:
                continue
            if incident.state is IncidentState.CLOSED:
                incident = dataclasses.replace(incident, state=IncidentState.OPEN, closed_at=None)
            self._judge.incidents[incident.id] = incident
            self._judge.verdicts[incident.id] = verdict
            self._judge.plans[incident.id] = plan
            self._log.info("plan-carried-on", incident=incident.id, steps=len(plan.steps))
            self.start(incident.id)
