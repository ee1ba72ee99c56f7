"""Adds to each transition the audit's entries of what it changes outside: in Slurm, in files of jobs, on nodes.

It reads the effects themselves, so that none begins without its entry, which is saved first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.engine.events import (
    DiagnosticEnded,
    DrainReasonWritten,
    Event,
    HistoryForgotten,
    NodeReturnAnswered,
    SparesLent,
)
from sentinel.engine.state import State
from sentinel.engine.transition import (
    CarryOutStep,
    Effect,
    LendSpares,
    OpenTicket,
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
    Transition,
    WriteDrainReason,
)
from sentinel.model.approvals import job_names
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, StepEnded
from sentinel.model.records import Outcome, Result, Step, StepKind, Task

SENTINEL = "sentinel"
_READS_ONLY = frozenset({StepKind.CONFIRM})  # a choice may end with a hold
AUDITED = (
    CarryOutStep,
    RunDiagnostic,
    WriteDrainReason,
    LendSpares,
    RunSiteCommand,
    ReturnNode,
    OpenTicket,
)  # effects that change something outside
_MOST_UNDER_WAY = 10_000
_ANSWERED = {"done": Stage.DONE, "refused": Stage.REFUSED, "unavailable": Stage.NOT_KNOWN}
_STAGES = {Result.DONE: Stage.DONE, Result.FAILED: Stage.FAILED}


def _approved(task: Task, state: State) -> str:
    """Who allowed the step, where a person was asked for it."""
    step, cause = task.step, task.verdict.cause
    named = {f"{step.kind} {step.node}"} if step.job is None else job_names(step.job)
    given = state.answers.get(task.incident.id, ())
    answers = [answer for answer in given if answer.cause is cause and named & set(answer.what)]
    return f", approved by {answers[-1].by}" if answers and answers[-1].approved else ""


class AuditTrail:
    """
    Args:
        origin: this host.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._returning: dict[str, str] = {}  # effects that test and return drained nodes: what each does
        self._under_way: dict[str, None] = {}  # changes with an entry: one that is tried again gets no other one

    def note(self, event: Event, out: Transition, state: State) -> None:
        """Append the entries of what ``event`` led to."""
        for effect in out.effects:
            self._begun(effect, event, out, state)
        for change in tuple(out.changes):
            if isinstance(change, StepEnded):
                self._ended(change.incident, change.outcome, out)
        match event:
            case DiagnosticEnded():
                if self._under_way.pop(event.effect, self) is None:
                    stage = Stage.FAILED if event.result == "unknown" else Stage.DONE
                    after = {"result": event.result, "reason": event.reason}
                    self._add(out, event, "diagnose", stage, f"node {event.node}", after=after)
            case DrainReasonWritten() if event.result != "unavailable":
                stage = Stage.DONE if event.result == "written" else Stage.REFUSED
                for key in [key for key in self._under_way if key.startswith(f"reason:{event.node}:")]:
                    del self._under_way[key]
                    self._add(out, event, "drain_reason", stage, f"node {event.node}", why=event.reason)
            case SparesLent():
                stage = Stage.NOT_KNOWN if event.reason else Stage.DONE
                if self._under_way.pop(event.effect, self) is None:
                    self._add(out, event, "spares", stage, "reservation", why=event.reason)
            case NodeReturnAnswered():
                action = self._returning.pop(event.effect, None)
                if action is not None and self._under_way.pop(event.effect, self) is None:
                    stage = _ANSWERED.get(event.result, Stage.FAILED)
                    self._add(out, event, action, stage, f"node {event.node}", why=event.reason)
            case HistoryForgotten():
                after = {"kept_since": event.before.isoformat()}
                self._add(out, event, "history_forgotten", Stage.DONE, "store", after=after)

    def _begun(self, effect: Effect, event: Event, out: Transition, state: State) -> None:
        if isinstance(effect, CarryOutStep):
            step, task = effect.task.step, effect.task
            if step.kind in _READS_ONLY or not self._is_first(effect.id):
                return
            judged = f"{task.verdict.cause}, {task.verdict.confidence:.0%} sure{_approved(task, state)}"
            why = f"{judged}: {task.plan.explanation}" if task.plan.explanation else judged
            entry = AuditEntry(
                event.at, SENTINEL, self.origin, step.kind, Stage.BEGUN, target_of(step), task.incident.id, why,
                before_of(step, state), {"wanted": dict(step.data)},
            )  # fmt: skip
            out.save(Audited(entry))
        elif isinstance(effect, RunDiagnostic) and self._is_first(effect.id):
            after = {"wanted": {"level": effect.level}}
            self._add(out, event, "diagnose", Stage.BEGUN, f"node {effect.node}", after=after)
        elif isinstance(effect, LendSpares) and self._is_first(effect.id):
            wanted = {
                "jobs": [job for job, _ in effect.give],
                "over": list(effect.over),
                "users_out": list(effect.leave),
            }
            target = f"reservation {effect.reservation}"
            self._add(out, event, "spares", Stage.BEGUN, target, after={"wanted": wanted})
        elif isinstance(effect, RunSiteCommand | ReturnNode | OpenTicket) and self._is_first(effect.id):
            self._return_begun(effect, event, out, state)
        elif isinstance(effect, WriteDrainReason) and self._is_first(f"reason:{effect.node}:{effect.reason}"):
            before, wanted = node_before(state, effect.node), {"wanted": {"reason": effect.reason}}
            target = f"node {effect.node}"
            self._add(out, event, "drain_reason", Stage.BEGUN, target, before=before, after=wanted)

    def _return_begun(
        self, effect: RunSiteCommand | ReturnNode | OpenTicket, event: Event, out: Transition, state: State
    ) -> None:
        record = state.returns.known.get(effect.node)
        wanted: dict[str, Any]
        why = f"{record.cause} of incident {record.incident}" if record is not None else ""
        if isinstance(effect, RunSiteCommand):
            action, wanted = effect.action, {"command": list(effect.arguments)}
        elif isinstance(effect, ReturnNode):
            action, wanted = "return", {"drained": False}
        else:
            action, wanted = "ticket", dict(effect.data)
        self._returning[effect.id] = action
        before = node_before(state, effect.node)
        self._add(
            out, event, action, Stage.BEGUN, f"node {effect.node}", why=why, before=before, after={"wanted": wanted}
        )

    def _ended(self, incident: str, outcome: Outcome, out: Transition) -> None:
        step = outcome.step
        if outcome.result is Result.NOT_KNOWN or step.kind in _READS_ONLY:
            return  # tried again, after a look at Slurm
        self._under_way.pop(step.key(incident), None)
        after = {"reason": outcome.reason, **outcome.data}
        stage, target = _STAGES[outcome.result], target_of(step)
        entry = AuditEntry(outcome.at, SENTINEL, self.origin, step.kind, stage, target, incident, "", {}, after)
        out.save(Audited(entry))

    def _add(
        self,
        out: Transition,
        event: Event,
        action: str,
        stage: Stage,
        target: str,
        *,
        why: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        entry = AuditEntry(
            event.at, SENTINEL, self.origin, action, stage, target, why=why, before=before or {}, after=after or {}
        )
        out.save(Audited(entry))

    def _is_first(self, key: str) -> bool:
        if key in self._under_way:
            return False
        if len(self._under_way) >= _MOST_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]
        self._under_way[key] = None
        return True


def target_of(step: Step) -> str:
    return f"node {step.node}" if step.node is not None else f"job {step.job}"


def before_of(step: Step, state: State) -> dict[str, Any]:
    """The step's node or job in the newest snapshot of Slurm; empty if it is not known."""
    if step.node is not None:
        return node_before(state, step.node)
    fleet = state.cluster.fleet
    job = fleet.jobs.get(step.job or -1) if fleet is not None else None
    if job is None:
        return {}
    return {
        "state": job.state, "user": job.user, "restarts": job.restarts, "held": job.held, "excluded": list(job.excluded),
        "nodes": list(job.nodes),
    }  # fmt: skip


def node_before(state: State, name: str) -> dict[str, Any]:
    fleet = state.cluster.fleet
    node = fleet.nodes.get(name) if fleet is not None else None
    return {} if node is None else {"state": node.state, "flags": sorted(node.flags), "reason": node.reason}
