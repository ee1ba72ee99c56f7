"""Routes each event to its stage: ``handle(event) -> Transition``. The package's docstring states the invariants."""

from __future__ import annotations

from sentinel.engine import (
    backlog,
    delivery,
    drain_reasons,
    grouping,
    judging,
    loading,
    notices,
    recovery,
    unreadable_slurm,
)
from sentinel.engine.diagnostics import turns
from sentinel.engine.events import (
    ApprovalGiven,
    DiagnosticEnded,
    DrainReasonWritten,
    EffectCompleted,
    EffectProgressed,
    Event,
    EvidenceReceived,
    FleetObserved,
    FleetUnavailable,
    HistoryForgotten,
    IncidentCorrected,
    NodeReturnAnswered,
    NoticeDelivered,
    NoticeNotDelivered,
    OperatorCommand,
    ScoresRead,
    SlurmReported,
    SparesLent,
    Started,
    StoreAnswers,
    StoreOutageTold,
    TimerDue,
    TrendsRead,
)
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.node_return import switched_off
from sentinel.engine.node_return import turns as node_return
from sentinel.engine.reconcile import (
    approvals,
    confirming,
    held_jobs,
    jobs_on_bad_nodes,
    restarts,
    reused_ids,
    spares,
    waits,
)
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.engine.watch import job_ends, jobs, routing
from sentinel.engine.watch.events import (
    ConnectionLost,
    HeartbeatReceived,
    JobObserved,
    NodeHeard,
    NodeProbed,
    RequestDelayed,
    ResourceExhausted,
    WatchStarted,
)
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, SettingChanged, VerdictCorrected
from sentinel.wire import to_json

HOUSEKEEPING = "housekeeping"  # timer: closed incidents and old history are dropped from memory


class Engine:
    """Holds the state and applies events to it, one at a time."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._looks = PreliminaryVerdicts(state.rules)

    def handle(self, event: Event, out: Transition | None = None) -> Transition:
        """Apply ``event`` and return what follows. The caller saves the changes before it performs the effects.

        Args:
            out: collects what follows. After an exception it holds the part up to the failure: state and ``out`` change
                together, so the caller saves and performs that part and then calls ``abandon``.
        """
        out = out if out is not None else Transition()
        backlog.event(self.state, event.at)
        match event:
            case HeartbeatReceived() | NodeHeard():  # first: most events are these
                routing.receive(self.state, out, event)
            case Started():
                loading.carry_on(self.state, out, event.stored, event.at)
            case EvidenceReceived():
                grouping.receive(self.state, out, event)
                confirming.steps_printed(self.state, out, event.items, event.at)
            case FleetObserved():
                self._fleet_observed(event, out)
            case StoreAnswers():
                backlog.store_is_back(self.state, event.since, event.at)
            case FleetUnavailable():
                unreadable_slurm.snapshot_failed(self.state, out, event)
            case EffectCompleted() if event.outcome is not None:
                incident = self._incident_of(event.effect)
                if incident is not None:
                    recovery.step_ended(self.state, out, incident, event.outcome, event.at)
                    node_return.drained(self.state, out, incident, event.outcome)
            case EffectCompleted() if event.effect == waits.LOOK:
                waits.judge_next(self.state, out, event.at, self._looks)
            case EffectCompleted() if event.effect.startswith("confirm:"):
                confirming.looked(self.state, out, event.effect.removeprefix("confirm:"), event.at)
            case EffectCompleted():
                self.state.cluster.place_ranks(event.evidence)
                judging.answer_arrived(self.state, out, event.effect, event.evidence, event.at, self._looks)
                routing.effect_completed(self.state, out, event)
            case EffectProgressed():
                incident = self._incident_of(event.effect)
                if incident is not None:
                    recovery.step_progressed(self.state, out, incident, event.outcome)
            case NoticeDelivered():
                delivery.delivered(self.state, out, event)
            case NoticeNotDelivered():
                delivery.not_delivered(self.state, out, event)
            case TimerDue():
                self._timer(event, out)
            case OperatorCommand():
                self._command(event, out)
            case IncidentCorrected():
                self._corrected(event, out)
            case ApprovalGiven():
                approvals.answered(self.state, out, event)
            case TrendsRead():
                self.state.past.trends = event.trends
            case HistoryForgotten():
                self.state.forget_history(event.before, event.spared)
            case _:
                self._watching(event, out)
        grouping.regroup(self.state, out, event.at)
        return out

    def _watching(self, event: Event, out: Transition) -> None:
        """Events of watching, of diagnostics, of drains by Slurm's hooks, and of the store."""
        match event:
            case StoreOutageTold():
                delivery.outage_told(self.state, out, event)
            case SlurmReported():
                job_ends.reported(self.state, out, event)
            case ScoresRead():
                turns.scores_read(self.state, out, event)
            case DiagnosticEnded():
                if not node_return.tested(self.state, out, event):
                    turns.ended(self.state, out, event)
            case NodeReturnAnswered():
                node_return.answered(self.state, out, event)
            case SparesLent():
                spares.lent(self.state, out, event)
            case DrainReasonWritten():
                drain_reasons.written(self.state, out, event)
            case (
                ConnectionLost()
                | JobObserved()
                | NodeProbed()
                | RequestDelayed()
                | ResourceExhausted()
                | WatchStarted()
            ):
                routing.receive(self.state, out, event)

    def _fleet_observed(self, event: FleetObserved, out: Transition) -> None:
        reused_ids.compare(self.state, out, event.fleet, event.at)
        self.state.cluster.see_fleet(switched_off.with_drains_kept(self.state, event.fleet))
        loading.first_snapshot_taken(self.state)
        fleet = self.state.cluster.fleet or event.fleet
        self.state.index.refresh()
        unreadable_slurm.snapshot_taken(self.state, out, event.at)
        restarts.compare(self.state, out, fleet, event.at)
        spares.compare(self.state, out, fleet, event.at)
        confirming.snapshot_taken(self.state, out, event.at)
        held_jobs.snapshot_taken(self.state, out, fleet, event.at)
        waits.snapshot_taken(self.state, out, event.at, self._looks)
        jobs_on_bad_nodes.snapshot_taken(self.state, out, fleet, event.at, self._looks)
        node_return.snapshot_taken(self.state, out, fleet, event.at)

    def abandon(self, event: Event, out: Transition) -> None:
        """After an exception in ``handle``: a step is retried later, an incident is judged again when evidence arrives."""
        if isinstance(event, EvidenceReceived):
            for item in event.items:
                self.state.known.discard(item.id)
            return
        if isinstance(event, (TimerDue, JobObserved)):
            jobs.set_aside(self.state, event.at)
        name = (
            event.timer if isinstance(event, TimerDue) else event.effect if isinstance(event, EffectCompleted) else ""
        )
        stage, _, incident = name.partition(":")
        if (of_step := self._incident_of(name)) is not None:
            recovery.postpone(self.state, out, of_step, event.at, name)
        elif stage in ("retry", "confirm"):
            recovery.postpone(self.state, out, incident, event.at)
        elif stage in ("judge", "fleet", "ask", "metrics"):
            self.state.judging.pop(incident, None)

    def _incident_of(self, effect: str) -> str | None:
        """The incident whose plan contains the step with this effect id; None if there is none."""
        return self.state.ledger.incident_of(effect)

    def _timer(self, event: TimerDue, out: Transition) -> None:
        now = event.at
        name, _, incident = event.timer.partition(":")
        if name == "judge":
            judging.settle_timer_due(self.state, out, incident, now, self._looks)
        elif name == "retry":
            recovery.retry(self.state, out, incident, now)
        elif name == "tell":
            notices.notify(self.state, out, incident, now)
        elif name == "confirm":
            confirming.timer_due(self.state, out, incident)
        elif name == "wait":
            waits.look(self.state, out, (incident,))
        elif name == waits.NEXT:
            waits.next_due(self.state, out, now, self._looks)
        elif name == delivery.DIGEST:
            delivery.digest_due(self.state, out, incident, now)
        elif name == delivery.AGAIN:
            delivery.again(self.state, out, incident)
        elif name == HOUSEKEEPING:
            backlog.housekeeping(self.state, out, now)
            approvals.let_go(self.state, out, now)
            delivery.repeat_due(self.state, out, now)
            self.state.forget(now)
        elif name == turns.DIAGNOSTICS:
            turns.timer_due(self.state, out, now)
        elif name == drain_reasons.DRAIN_REASONS:
            drain_reasons.timer_due(self.state, out, now)
        else:
            routing.timer_due(self.state, out, event)

    def _corrected(self, event: IncidentCorrected, out: Transition) -> None:
        """The verdict, its plan and what was done stay; the history of failures counts the incident as the operator says."""
        row, made = event.row, event.correction
        incident = str(row["id"])
        self.state.past.corrected(row, to_json(made))
        out.save(VerdictCorrected(incident, made))
        out.save(Audited(AuditEntry(
            event.at, made.by, event.origin, "correct", Stage.DONE, f"incident {incident}", incident, made.note,
            before={"cause": made.was, "scope": made.was_scope}, after={"cause": made.cause, "scope": made.scope},
        )))  # fmt: skip
        out.say("corrected", incident=incident, by=made.by, was=made.was, cause=made.cause, scope=made.scope)

    def _command(self, event: OperatorCommand, out: Transition) -> None:
        """
        Raises:
            ValueError: the command does not exist. Callers offer only "pause" and "resume".
        """
        if event.command not in ("pause", "resume"):
            raise ValueError(f"no command {event.command!r}")
        before, self.state.paused = self.state.paused, event.command == "pause"
        out.save(SettingChanged(loading.PAUSED, self.state.paused))
        out.save(Audited(AuditEntry(
            event.at, event.by, event.origin, event.command, Stage.DONE, "cluster",
            before={"paused": before}, after={"paused": self.state.paused},
        )))  # fmt: skip
        out.say("paused" if self.state.paused else "resumed", by=event.by)
        if not self.state.paused:
            waits.ask_anew(self.state, out, self.state.answers, event.at)  # what was approved before may have lapsed
            recovery.resume(self.state, out, event.at)
            waits.resumed(self.state, out)
