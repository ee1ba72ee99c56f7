"""Evidence in, decisions out: groups evidence into incidents and judges each once its burst has settled."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from sentinel import incidents as room
from sentinel import pipeline
from sentinel.adapters.store import Store
from sentinel.classify.ageing import Counter
from sentinel.daemon import joining
from sentinel.daemon.ageing import counter_rows
from sentinel.daemon.belonging import apart, late, our_doing, told_only
from sentinel.daemon.failed_resume import failed_resume
from sentinel.daemon.failing import FirstLooks, failing_alike, failing_together
from sentinel.daemon.fleets import Fleets
from sentinel.daemon.holders import job_of, of_another_job
from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.last_words import words_may_come
from sentinel.daemon.live import Live
from sentinel.daemon.near import Near
from sentinel.daemon.numbers import Onsets
from sentinel.daemon.past import Past
from sentinel.daemon.placing import located
from sentinel.daemon.signals import Signals
from sentinel.daemon.slowdown import usual_step_s
from sentinel.daemon.under_way import with_plans
from sentinel.errors import Unavailable
from sentinel.evidence.prometheus import KIND as SIGNAL
from sentinel.evidence.timers import TIMERS
from sentinel.intent import intent_of
from sentinel.log import Log
from sentinel.model import (
    Evidence,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    Kind,
    Plan,
    Source,
    Verdict,
    Where,
    stable_id,
)
from sentinel.policy import Situation
from sentinel.ports import Clock
from sentinel.rules import Rules
from sentinel.settings import Settings
from sentinel.telemetry import Telemetry

_FRESH_S = 1.0  # a decision looks at a snapshot no older than this


class Judge:
    """Holds the open incidents. ``decided`` is called with each new plan."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        fleets: Fleets,
        inquiry: Inquiry,
        rules: Rules,
        settings: Settings,
        telemetry: Telemetry,
        clock: Clock,
        log: Log,
        decided: Callable[[Incident, Verdict, Plan, JobView | None], Awaitable[None]],
        signals: Signals | None = None,
        counters: Mapping[str, Counter] | None = None,
    ) -> None:
        self._signals = signals
        self._store = store
        self._live = live
        self._fleets = fleets
        self._inquiry = inquiry
        self._rules = rules
        self._settings = settings
        self._telemetry = telemetry
        self._clock = clock
        self._log = log
        self._decided = decided
        self._past = Past(store, counters)
        self._onsets = Onsets(live, store, settings.judgement)
        self._first_looks = FirstLooks(rules)
        self.incidents: dict[str, Incident] = {}  # open ones, candidates, and those closed a short while ago
        self.verdicts: dict[str, Verdict] = {}
        self.plans: dict[str, Plan] = {}
        self._judging: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._writing = threading.Lock()
        self._window = timedelta(seconds=settings.judgement.group_s)

    async def carry_on(self) -> None:
        """After a start: incidents that were not finished, and evidence that was acknowledged and not judged yet."""
        since = self._clock.now() - self._window
        unsettled = await asyncio.to_thread(self._remembered, since)
        try:
            await self._fleets.take()  # who runs where: evidence of one failure belongs together
        except Unavailable as error:
            self._log.warning("carrying-on-without-slurm", reason=error.message)
        near = Near(self.incidents, self._live.nodes_of)
        for item in await asyncio.to_thread(self._store.unclaimed, since):
            self._live.note(item)
            self._put(item, near)
        for incident in unsettled:
            verdict, plan = self.verdicts.get(incident.id), self.plans.get(incident.id)
            if verdict is not None and plan is not None:
                await self._decided(incident, verdict, plan, None)
            elif incident.id not in self._judging:
                self._judge_soon(incident.id)

    def _remembered(self, since: datetime) -> list[Incident]:
        """Takes up incidents that are open or were closed lately; returns those that a dead daemon left half done."""
        rows = self._store.incident_rows(limit=1000)
        unsettled = []
        for name in [r["id"] for r in rows if r["closed_at"] is None or r["closed_at"] >= since]:
            incident = self._store.incident(name)
            if incident is None or name in self.incidents:
                continue
            self.incidents[name] = incident
            verdict, plan = self._store.last_verdict(name), self._store.plan_of(name)
            if verdict is not None and plan is not None:
                self.verdicts[name], self.plans[name] = verdict, plan
            if incident.state in (IncidentState.OPEN, IncidentState.WATCHING) and incident.evidence:
                unsettled.append(incident)
        return unsettled

    # --- evidence in --------------------------------------------------------------------------------------------------

    async def observe(self, items: Sequence[Evidence]) -> None:
        """Store what is new and put it to the incident it belongs to. Returns when it is safe to acknowledge."""
        items = await self._onsets.told(items)
        steps = [item for item in items if item.kind in (Kind.STEP, TIMERS)]
        others = [item for item in items if item.kind not in (Kind.STEP, TIMERS, Kind.COUNTERS)]  # those are telemetry
        if rows := counter_rows(items):
            await asyncio.to_thread(self._store.save_counters, rows)
        fresh = await asyncio.to_thread(self._store.append, others)
        for item in (*steps, *fresh):
            self._telemetry.evidence.labels(source=item.source).inc()
            if item.kind == Kind.UNREADABLE:
                self._telemetry.unreadable.inc()
            self._live.note(item)
        near = Near(self.incidents, self._live.nodes_of)
        for item in fresh:
            self._put(item, near)

    def _put(self, item: Evidence, near: Near) -> None:
        now = self._clock.now()
        around = [i for i in near.of(item) if not apart(i, self.plans.get(i.id), item, self._live)]
        nodes = {i.id: self._live.nodes_of(i.job, i.attempt) for i in around if i.job is not None}
        found = room.find(around, item, nodes, self._window) or next(
            (i for i in around if late(i, self.plans.get(i.id), item, self._live, self._window)), None
        )
        if found is not None:
            if our_doing(self.plans.get(found.id), item):
                return  # kept in the store; the job ended because we ended it
            self.incidents[found.id] = grown = room.attach(found, [item], now)
            if grown.nodes != found.nodes or grown.job != found.job:
                near.add(grown)
            self._judge_soon(found.id)
            return
        if not room.opens(item) or room.known_worse(item, [i for i in around if i.id in self.plans]):
            return
        incident = self._open(item, near, now)
        self.incidents[incident.id] = incident
        near.add(incident)
        self._log.info(
            "incident-candidate", incident=incident.id, kind=item.kind, node=item.where.node, job=incident.job
        )
        self._judge_soon(incident.id)

    def _open(self, item: Evidence, near: Near, now: datetime) -> Incident:
        job, attempt = item.where.job, item.where.attempt
        if job is None and (view := job_of(item, self._live)) is not None:
            job, attempt = view.id, view.restarts
        if job is not None and attempt is None:
            attempt = self._live.newest_attempt(job)
        incident = room.new(item, job=job, attempt=attempt, now=now)
        if room.tells(item):
            return incident
        nodes = (*incident.nodes, *self._live.nodes_of(job, attempt))
        judged = [i for i in near.about(job, nodes) if i.id in self.plans and not told_only(i, self.plans[i.id])]
        told = {e.id for i in judged for e in i.evidence}  # another failure's
        since = min(now, item.at) if item.kind == Kind.NUMBERS else now  # what came before they went bad
        numbers = self._onsets.standing(job, attempt, now) if room.ends(item) else []
        recent = self._live.recent(job, attempt, nodes, since - self._window, told)
        return room.attach(incident, [*(e for e in recent if not of_another_job(job, e, self._live)), *numbers], now)

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge_soon(self, incident: str) -> None:
        """Judge once the burst has settled; while a judgement runs, one more is queued and no second."""
        if incident in self._judging:
            self._again.add(incident)
        else:
            self._judging[incident] = asyncio.create_task(self._judge(incident))

    async def _judge(self, incident: str) -> None:
        try:
            while True:
                await asyncio.sleep(self._settings.judgement.settle_s)
                self._again.discard(incident)
                await self._judge_once(incident)
                if incident not in self._again:
                    return
        except Exception as error:  # a loop of a root: the daemon goes on, the bug is seen
            self._telemetry.bugs.inc()
            self._log.error("bug", where="judge", incident=incident, error=repr(error))
        finally:
            self._judging.pop(incident, None)

    async def _judge_once(self, incident_id: str) -> None:
        over = self.incidents.get(incident_id)
        if over is not None and over.state is IncidentState.CLOSED:
            await asyncio.to_thread(self._store.save_incident, over)  # what explains it may come late: where it is kept
            return
        fleet = await self._fleets.insist(_FRESH_S)
        incident = self.incidents.get(incident_id)
        if incident is None or incident.state is IncidentState.CLOSED:
            return
        incident = self._joined(incident, fleet)
        asked: list[Evidence] = []
        if incident_id not in self.plans:
            resumed = partial(failed_resume, incident, self._live, self._store, self._clock.now())
            told = await asyncio.gather(self._inquiry.about(incident), self._signalled(incident))
            asked = [*(item for items in told for item in items), *await asyncio.to_thread(resumed)]
        stored = await asyncio.to_thread(self._store.append, asked) if asked else []
        now = self._clock.now()
        if incident_id not in self.incidents:
            return  # became part of another one meanwhile
        incident = located(room.attach(self.incidents[incident_id], stored, now), self._live)
        self.incidents[incident_id] = incident
        history = await asyncio.to_thread(self._past.history, now, without=incident_id)
        look = partial(self._first_looks, now=now)
        alike = failing_alike(incident, self.incidents, self.verdicts, list(self._judging), look)
        nodes = self._live.nodes_of(incident.job, incident.attempt)
        history = dataclasses.replace(history, failures=(*history.failures, *alike), nodes=nodes)
        situation = await self._situation(incident, fleet, now)  # from its end to self.plans no await
        decision = pipeline.decide(
            incident, situation, history=history, rules=self._rules, settings=self._settings, now=now
        )
        wait = words_may_come(incident, self._live, self._settings.judgement.log_settle_s, now)
        if incident_id not in self.plans and not decision.verdict.drain and wait:
            self._again.add(incident_id)
            return
        if incident_id not in self.plans and not pipeline.matters(incident, decision.verdict, self._rules):
            self._log.info("evidence-noted", incident=incident_id, cause=decision.verdict.cause)
            return
        first = incident_id not in self.plans
        await self._keep(incident, decision.verdict, decision.plan, situation.job, now)
        if first:
            await self._take_along(incident, decision.verdict, self.plans[incident_id], fleet, now)

    def _joined(self, incident: Incident, fleet: Fleet) -> Incident:
        """With its job, and with what turns out to be the same failure."""
        incident = joining.with_job(incident, self._live, fleet)
        if incident.id not in self.plans:
            others = list(self.incidents.values())
            for other in joining.same_failure(incident, others, self.plans, self._live, fleet, self._window):
                incident = room.attach(incident, other.evidence, self._clock.now())
                del self.incidents[other.id]
                self._log.info("incident-joined", incident=incident.id, joined=other.id)
        self.incidents[incident.id] = incident
        return incident

    async def _take_along(self, incident: Incident, verdict: Verdict, plan: Plan, fleet: Fleet, now: datetime) -> None:
        """The other jobs of the nodes that go out are recovered as well."""
        known, opt_in = list(self.incidents.values()), self._settings.recovery.opt_in
        for new in joining.taken_along(incident, verdict, plan, fleet, known, opt_in=opt_in, now=now):
            self.incidents[new.id] = new
            situation = await self._situation(new, fleet, now)
            own = pipeline.plan_for_job(verdict, new, situation, settings=self._settings, now=now)
            self._log.info("job-taken-along", incident=new.id, of=incident.id, job=new.job)
            await self._keep(new, verdict, own, situation.job, now)

    async def _signalled(self, incident: Incident) -> list[Evidence]:
        """What Prometheus knows of storage, switches and power, where there is one."""
        if self._signals is None or room.only_tells(incident) or any(i.kind == SIGNAL for i in incident.evidence):
            return []
        nodes = {*incident.nodes, *self._live.nodes_of(incident.job, incident.attempt)}
        return await self._signals.about(incident, sorted(nodes))

    async def _keep(self, incident: Incident, verdict: Verdict, plan: Plan, job: JobView | None, now: datetime) -> None:
        first = incident.id not in self.plans
        plan = pipeline.extend(self.plans.get(incident.id), plan)
        previous = self.verdicts.get(incident.id)
        if not first and plan == self.plans[incident.id] and previous is not None and previous.cause is verdict.cause:
            await asyncio.to_thread(self._write, incident)
            return
        self.verdicts[incident.id] = verdict
        self.plans[incident.id] = plan
        await asyncio.to_thread(self._save, incident, verdict, plan, job, now)
        self._log.info(
            "verdict", incident=incident.id, cause=verdict.cause, scope=verdict.scope,
            confidence=f"{verdict.confidence:.2f}", drain=",".join(verdict.drain), suspect=",".join(verdict.suspect),
            restart=verdict.restart, refusal=plan.refusal, steps=",".join(f"{s.kind}:{s.node or s.job}" for s in plan.steps),
        )  # fmt: skip
        if first:
            self._telemetry.incidents.labels(cause=verdict.cause).inc()
            seen = max((item.seen_at for item in incident.evidence if room.opens(item)), default=now)
            self._telemetry.decision_s.observe(max(0.0, (now - seen).total_seconds()))
            if plan.refusal:
                self._telemetry.refusals.labels(reason=plan.refusal).inc()
        await self._decided(incident, verdict, plan, job)

    def _write(self, incident: Incident, user: str | None = None) -> None:
        """As it is now: a judgement that began before it was closed has it open still. Safe from any thread."""
        with self._writing:
            self._store.save_incident(self.incidents.get(incident.id, incident), user=user)

    def _save(self, incident: Incident, verdict: Verdict, plan: Plan, job: JobView | None, now: datetime) -> None:
        self._write(incident, job.user if job else None)
        self._store.save_verdict(incident.id, verdict, now)
        self._store.save_plan(plan)
        self._past.changed(incident.id)
        seen = self._live.attempts.get((incident.job or -1, incident.attempt or 0))
        if seen is not None:  # where it ran and how far it got must outlive us: the recovery needs it
            self._store.save_attempt(
                seen.view, first_step=seen.first_step, last_step=seen.last_step, step_time_s=usual_step_s(seen)
            )

    async def look_back(self) -> None:
        """Now and then: which parts age."""
        await asyncio.to_thread(self._past.look_at_counters, self._clock.now())

    def close(self, incident_id: str, state: IncidentState, outcome: str) -> None:
        """Change the state of an incident; closed ones are kept a while for their late consequences."""
        now = self._clock.now()
        incident = self.incidents[incident_id]
        closed_at = now if state is IncidentState.CLOSED else None
        incident = dataclasses.replace(incident, state=state, closed_at=closed_at, outcome=outcome or incident.outcome)
        with self._writing:
            self.incidents[incident_id] = incident
            self._store.save_incident(incident)
        self._past.changed(incident.id)
        self._telemetry.open_incidents.set(
            sum(1 for i in self.incidents.values() if i.id in self.plans and i.state is not IncidentState.CLOSED)
        )

    def forget(self) -> None:
        """Drop candidates nobody asked for, and incidents closed longer ago than evidence is grouped."""
        now = self._clock.now()
        for incident in list(self.incidents.values()):
            last = incident.closed_at if incident.closed_at is not None else incident.updated_at
            kept = incident.id in self.plans and incident.state is not IncidentState.CLOSED
            if not kept and incident.id not in self._judging and now - last > self._window:
                del self.incidents[incident.id]
                self.plans.pop(incident.id, None)
                self.verdicts.pop(incident.id, None)

    # --- what policy looks at -----------------------------------------------------------------------------------------

    async def _situation(self, incident: Incident, fleet: Fleet, now: datetime) -> Situation:
        job = fleet.jobs.get(incident.job) if incident.job is not None else None
        drains, restarts, paused = await asyncio.to_thread(self._past.recall, incident.job, now)
        slow = await asyncio.to_thread(self._past.slow_nodes, incident.job, incident.attempt)
        fleet, hour = with_plans(fleet, self.plans.values(), drains, now)
        look = partial(self._first_looks, now=now)
        failing = failing_together(self.incidents, self.verdicts, self._judging, look, self._settings.limits, now)
        reached = None
        if incident.job is not None and incident.attempt is not None:
            reached = self._live.last_step(incident.job, incident.attempt)
        return Situation(
            fleet=fleet,
            intent=intent_of(job.comment if job else ""),
            job=job,
            last_step=reached,
            drains=tuple(hour),
            failing_nodes=failing,
            restarts=tuple(restarts),
            paused=paused,
            opt_in=self._settings.recovery.opt_in,
            onset_step=self._onsets.began(incident.job, incident.attempt),
            slow_nodes=tuple(slow),
        )


def job_ended(job: JobView, now: datetime, *, nodes: Sequence[str]) -> Evidence:
    """Slurm's word that an attempt ended; the id is the same from an event and from reconciliation."""
    ended = job.ended_at or now
    return Evidence(
        id=stable_id("job_ended", job.id, job.restarts, job.state),
        at=ended,
        seen_at=now,
        source=Source.SLURM,
        kind=Kind.JOB_ENDED,
        where=Where(job=job.id, attempt=job.restarts),
        text=f"job {job.id} ended as {job.state}, exit code {job.exit_code}, signal {job.exit_signal}",
        data={"state": job.state, "exit_code": job.exit_code, "signal": job.exit_signal, "nodes": ",".join(nodes)},
    )
