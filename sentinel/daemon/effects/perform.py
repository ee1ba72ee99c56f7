"""Performs the engine's effects: each function does one type of effect and returns the event of its completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sentinel.actions import ACTIONS, Means
from sentinel.actions.requeue import leave_held
from sentinel.alerts import as_sent
from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.daemon.effects.diagnostics import Diagnostics
from sentinel.daemon.effects.node_returns import NodeReturnEffects
from sentinel.daemon.effects.slurmd_probe import slurmd_answers
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals
from sentinel.daemon.runner import Perform
from sentinel.engine.events import (
    DrainReasonWritten,
    EffectCompleted,
    Event,
    NoticeDelivered,
    NoticeNotDelivered,
    SparesLent,
)
from sentinel.engine.transition import (
    AskHungJob,
    AskNodes,
    CarryOutStep,
    DeliverNotice,
    LendSpares,
    LookAtJob,
    ObserveFleet,
    OpenTicket,
    ProbeNode,
    QueryMetrics,
    ReadScores,
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
    WriteDrainReason,
)
from sentinel.engine.watch.events import JobObserved, NodeProbed
from sentinel.errors import Refused, RefusedForNow, SentinelError, Unavailable
from sentinel.model.records import OPTIONAL_STEPS, Outcome, Result, Task
from sentinel.ports import Clock, Sink, SlurmWriter, StandingSink


class Effects:
    def __init__(
        self,
        *,
        means: Means,
        fleets: FleetSnapshots,
        inquiry: NodeQuestions,
        diagnostics: Diagnostics,
        returns: NodeReturnEffects,
        writer: SlurmWriter,
        signals: PrometheusSignals | None,
        sinks: Mapping[str, Sink],
        clock: Clock,
    ) -> None:
        self._means = means
        self._fleets = fleets
        self._inquiry = inquiry
        self._diagnostics = diagnostics
        self._returns = returns
        self._writer = writer
        self._signals = signals
        self._sinks = sinks
        self._clock = clock

    @property
    def table(self) -> Mapping[type[Any], Perform]:
        return {
            CarryOutStep: self._step,
            ObserveFleet: self._fleet,
            AskNodes: self._ask,
            QueryMetrics: self._query,
            DeliverNotice: self._deliver,
            ProbeNode: self._probe,
            LookAtJob: self._look,
            AskHungJob: self._ask_job,
            RunDiagnostic: self._diagnostics.run,
            ReadScores: self._diagnostics.scores,
            WriteDrainReason: self._drain_reason,
            LendSpares: self._lend,
            RunSiteCommand: self._returns.command,
            ReturnNode: self._returns.put_back,
            OpenTicket: self._returns.ticket,
        }

    async def _step(self, effect: CarryOutStep) -> Event:
        """Carry out a step. Outcome ``NOT_KNOWN``: it may have happened; a retry reads Slurm first."""
        task = effect.task
        try:
            outcome = await self._carried_out(task)
        except Unavailable as error:
            outcome = Outcome(task.step, Result.NOT_KNOWN, self._clock.now(), error.message)
        return EffectCompleted(self._clock.now(), effect.id, outcome=outcome)  # when it ended, not when it began

    async def _carried_out(self, task: Task) -> Outcome:
        """Run the step's action. After an error other than a missing answer the job is held for a person.

        Raises:
            Unavailable: it is not known whether the action happened.
        """
        means = self._means
        try:
            before = means.ledger.outcome(task.incident.id, task.step)
            outcome = await ACTIONS[task.step.kind](task, means)
        except Unavailable:
            raise
        except RefusedForNow as error:
            outcome = means.refused_for_now(task, error.message, before)
        except SentinelError as error:
            outcome = means.failed(task, f"{error}")
        if outcome.result is Result.FAILED and task.step.kind not in OPTIONAL_STEPS:
            try:
                await leave_held(task, means)
            except RefusedForNow as error:  # it would stay deferred, for a month, and nobody would hold it
                return means.to_be_repeated(task, error.message)
            except Refused as error:
                return means.failed(task, f"{outcome.reason}; {error.message}", outcome.data)
            # A snapshot from before this may show the job not held.
            return dataclasses.replace(outcome, at=self._clock.now())
        return outcome

    async def _fleet(self, effect: ObserveFleet) -> Event:
        """Take a Slurm snapshot. Its content, or its failure, is reported as a separate event."""
        if effect.once:
            with suppress(Unavailable):
                await self._fleets.take(effect.max_age_s)
        else:
            await self._fleets.take_until_answered(effect.max_age_s)
        return EffectCompleted(self._clock.now(), effect.id)

    async def _ask(self, effect: AskNodes) -> Event:
        found = await self._inquiry.about(effect.incident)
        return EffectCompleted(self._clock.now(), effect.id, evidence=tuple(found))

    async def _query(self, effect: QueryMetrics) -> Event:
        found = await self._signals.about(effect.incident, effect.nodes) if self._signals is not None else []
        return EffectCompleted(self._clock.now(), effect.id, evidence=tuple(found))

    async def _probe(self, effect: ProbeNode) -> Event:
        try:
            refusal = await slurmd_answers(effect.node, effect.deadline_s)
        except Unavailable as error:
            return NodeProbed(self._clock.now(), effect.id, None, exhausted=error.message)
        return NodeProbed(self._clock.now(), effect.id, refusal)

    async def _look(self, effect: LookAtJob) -> Event:
        looks, found = await self._inquiry.looks(effect.job, effect.attempt, effect.nodes)
        return JobObserved(self._clock.now(), effect.id, looks, tuple(found))

    async def _ask_job(self, effect: AskHungJob) -> Event:
        found = await self._inquiry.ask_job(effect)
        return EffectCompleted(self._clock.now(), effect.id, evidence=tuple(found))

    async def _drain_reason(self, effect: WriteDrainReason) -> Event:
        result, reason = "written", ""
        try:
            write = self._writer.drain if effect.drain else self._writer.explain
            await write(effect.node, effect.reason)
        except Unavailable as error:
            result, reason = "unavailable", error.message
        except Refused as error:
            result, reason = "refused", error.message
        return DrainReasonWritten(self._clock.now(), effect.id, effect.node, result, reason)

    async def _lend(self, effect: LendSpares) -> Event:
        """Lend spare nodes and end loans. Users' access ends last: Slurm starts no job without access."""
        reasons = []
        writer = self._writer

        async def give(job: int, user: str) -> None:
            await writer.give_access(effect.reservation, user)
            await writer.update_job(job, reservation=effect.reservation)

        requests = [partial(give, job, user) for job, user in effect.give]
        requests += [partial(writer.end_loan, job, effect.reservation) for job in effect.over]
        requests += [partial(writer.end_access, effect.reservation, user) for user in effect.leave]
        for request in requests:
            try:
                await request()
            except SentinelError as error:
                reasons.append(error.message)
        return SparesLent(self._clock.now(), effect.id, "; ".join(reasons))

    async def _deliver(self, effect: DeliverNotice) -> Event:
        """Try once to deliver a message. The engine decides about retries."""
        now = self._clock.now
        try:
            sink = self._sinks[effect.receiver]
            if not effect.repeat:
                await sink.send(as_sent(effect.notice, effect.of, now()))
            elif isinstance(sink, StandingSink):
                await sink.repeat(effect.of, effect.notice.at)
        except SentinelError as error:
            return NoticeNotDelivered.because(error, effect.notice, effect.receiver, now())
        return NoticeDelivered(now(), effect.notice, effect.receiver)
