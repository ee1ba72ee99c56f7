"""Loads the engine's state from the store, and resumes interrupted deliveries, plans and judgements after a start."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sentinel.alerts import thread_from, unreadable_state
from sentinel.config.alerts import JOB_LOG
from sentinel.config.rules import Rules
from sentinel.config.settings import Settings
from sentinel.correlate.incidents import opens
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.joined_saves import KEPT as SAVES_KEPT
from sentinel.detect.joined_saves import JoinedSaves
from sentinel.detect.numbers.bad_numbers_onset import BAD_NUMBERS_KEPT, OnsetTracker
from sentinel.detect.used_ids import USED_IDS_KEPT, UsedIds
from sentinel.engine import backlog, delivery, grouping, judging, notices, recovery
from sentinel.engine.diagnostics.due_tests import read
from sentinel.engine.diagnostics.state import KEPT
from sentinel.engine.events import EvidenceReceived
from sentinel.engine.node_return import put_back
from sentinel.engine.node_return import state as node_return
from sentinel.engine.reconcile import approvals, node_proof, past_restarts, reused_ids, waits
from sentinel.engine.state import KnownEvidence, State
from sentinel.engine.transition import Transition
from sentinel.engine.unreadable_slurm import BLIND
from sentinel.engine.watch import first_step, restored_attempts
from sentinel.engine.watch.nodes import AGENTS_KEPT, heard_before
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, IncidentChanged, NoticeChanged, NoticeDropped, SettingChanged
from sentinel.model.records import RESTARTS, Cause, Delivery, IncidentState, Result, StepKind
from sentinel.model.stored import Stored
from sentinel.policy import PastRestart
from sentinel.wire import time_from

PAUSED = "paused"  # setting
UNREADABLE = "unreadable"  # setting: records that could not be read at a start, by id, for whoever repairs the state
_KEPT = 200  # of these with their JSON; of others the id: one is enough to know what happened


def state_of(
    stored: Stored,
    cluster: ClusterView,
    *,
    rules: Rules,
    settings: Settings,
    receivers: Collection[str] = (),
    metrics: bool = False,
) -> State:
    """The state of a daemon that had never stopped, as far as the store has it.

    Args:
        receivers: names of the receivers of notices.
        metrics: whether a Prometheus is configured.
    """
    ledger, stored = reused_ids.without_former(stored)
    state = State(
        rules=rules,
        settings=settings,
        cluster=cluster,
        onsets=OnsetTracker(cluster, settings.judgement, stored.settings.get(BAD_NUMBERS_KEPT)),
        receivers=tuple(receivers),
        metrics=metrics,
        ledger=ledger,
        known=KnownEvidence(stored.evidence_ids),
        told={incident: thread_from(thread) for incident, thread in stored.told.items()},
        paused=bool(stored.settings.get(PAUSED, False)),
        breakers_told={
            refusal: told for refusal, name in notices.BREAKERS_TOLD.items() if (told := stored.settings.get(name))
        },
        shared_told=stored.settings.get(notices.SHARED_TOLD) or {},
        users_told=stored.settings.get(notices.USERS_TOLD) or {},
        open_plans=set(stored.open_plans),
        breaker_passed=set(stored.settings.get(waits.BREAKER_PASSED) or ()),
        grouped_before=frozenset(item.id for incident in stored.incidents for item in incident.evidence),
    )
    for incident in stored.incidents:
        state.put(incident)
        verdict, plan = stored.verdicts.get(incident.id), stored.plans.get(incident.id)
        if verdict is not None and plan is not None:
            state.verdicts[incident.id], state.plans[incident.id] = verdict, plan
    answers = approvals.stored_answers(stored.settings.get(approvals.ANSWERS))
    state.answers = {name: given for name, given in answers.items() if name in state.incidents}
    _nodes(state, stored)
    state.open_plans &= state.plans.keys()  # a plan or verdict that cannot be read: its incident is judged again
    state.joined_saves = JoinedSaves(cluster, stored.settings.get(SAVES_KEPT))
    state.used_ids = UsedIds(stored.settings.get(USED_IDS_KEPT))
    cluster.known_until = backlog.last_alive(stored, state.window)
    restored_attempts.restore(cluster, stored.recent_attempts)
    for row in stored.steps:
        if row.outcome is None:
            continue
        known = cluster.attempts.get((row.step.job or -1, past_restarts.begun_with(row.step)))
        released = row.step.kind is StepKind.RELEASE and row.outcome.result is Result.DONE and not row.outcome.reason
        if known is not None and (row.step.kind is StepKind.START_RUN or (released and row.step.tries)):
            known.run_since = max(known.run_since or row.outcome.at, row.outcome.at)
    if told := stored.settings.get(BLIND):
        state.blind_told = time_from(told)
    _past(state, stored)
    return state


def _nodes(state: State, stored: Stored) -> None:
    """What was said and done about nodes."""
    state.watch.agents_before = heard_before(stored.settings.get(AGENTS_KEPT))
    state.watch.first_steps = first_step.stored(stored.settings.get(first_step.FIRST_STEPS))
    state.watch.agents_kept = frozenset(state.watch.agents_before)
    state.called_bad, state.called_good = node_proof.agents_called(stored.settings.get(node_proof.AGENTS_CALLED))
    state.seen_drained = node_proof.times_of_drains(stored.settings.get(node_proof.DRAINS_SEEN))
    state.seen_in_service = node_proof.times_of_drains(stored.settings.get(node_proof.IN_SERVICE_SEEN))
    state.diagnostics.known = read(stored.settings.get(KEPT))
    state.returns.known = node_return.read(stored.settings.get(node_return.KEPT))
    state.put_back = put_back.read(stored.settings.get(put_back.KEPT))


def first_snapshot_taken(state: State) -> None:
    """Note what had begun before: by what was seen, since Slurm's times are those of another clock."""
    if state.began_before is None and state.cluster.fleet is not None:
        state.began_before = frozenset(state.cluster.attempts)


def carry_on(state: State, out: Transition, stored: Stored, now: datetime) -> None:
    """Resume what was under way when the previous daemon ended."""
    state.watching_since = now
    state.began_before = None
    first_snapshot_taken(state)
    _observe_if_incomplete(state, out, stored, now)
    backlog.started(state, stored, now)
    restored_attempts.restore_rhythms(state.cluster, now)
    delivery.carry_on(state, out, _handed_on(state, out, stored, now), now)
    reused_ids.started(state, out, stored, now)
    waits.compare_modes(state, out, stored, now)
    for name in sorted(state.open_plans & state.incidents.keys()):
        incident = state.incidents[name]
        if incident.state is IncidentState.CLOSED:
            reopened = IncidentState.OPEN if state.plans[name].to_do else IncidentState.WAITING
            state.put(dataclasses.replace(incident, state=reopened, closed_at=None))
            out.save(IncidentChanged(state.incidents[name]))
        if state.plans[name].to_do:
            out.say("plan-carried-on", incident=name, steps=len(state.plans[name].steps))
            recovery.start(state, out, name, now)
    waits.started(state, out, now)
    grouping.receive(state, out, EvidenceReceived(now, stored.unclaimed, saved=True))
    for incident in stored.incidents:
        if incident.state not in (IncidentState.OPEN, IncidentState.WATCHING) or not incident.evidence:
            continue
        current = state.incidents.get(incident.id)
        if incident.id in state.open_plans or current is None or current.state is IncidentState.CLOSED:
            continue
        if incident.id in state.plans:
            recovery.carry_out_plan(state, out, incident.id, now)
        elif any(map(opens, incident.evidence)):
            judging.judge_soon(state, out, incident.id, now)


def _handed_on(state: State, out: Transition, stored: Stored, now: datetime) -> Stored:
    """With the receivers that the settings name now: what one that they do not name any more has not taken is for those
    which never heard of its thread. A plain webhook's name is made of its address: with a new token it has another."""
    waiting = {(notice.id, receiver): (notice, receiver) for notice, receiver in stored.undelivered}
    for notice, gone in stored.undelivered:
        if gone in state.receivers or gone == JOB_LOG:
            continue
        heirs = [
            name
            for name in delivery.receivers(state, notice)
            if name != JOB_LOG
            and name not in stored.heard_of.get(notice.thread, ())
            and delivery.is_news(state.channel(name), notice, now)
        ]
        for name in heirs:
            # Its addresses may be those of the former one, or of two: whoever took it does not get it again.
            other = waiting.get((notice.id, name), (notice, name))[0].delivery
            took = tuple(dict.fromkeys([*other.took, *notice.delivery.took]))
            unsure = max(other.unsure, notice.delivery.unsure)
            fresh = dataclasses.replace(notice, delivery=Delivery(took=took, unsure=unsure))
            waiting[notice.id, name] = (fresh, name)
            out.save(NoticeChanged(fresh, name, delivered=False))
        if heirs:
            del waiting[notice.id, gone]
            out.save(NoticeDropped(notice.id, gone))
            out.say("notice-handed-on", notice=notice.id, before=gone, receiver=", ".join(heirs))
    return dataclasses.replace(stored, undelivered=tuple(waiting.values()))


def _observe_if_incomplete(state: State, out: Transition, stored: Stored, now: datetime) -> None:
    """Pause if records could not be read that no daemon before this has said: what is decided without them may be wrong.

    Once an operator has resumed, the same records pause nothing at the next start.
    """
    kept: dict[str, Any] = dict(stored.settings.get(UNREADABLE) or {})
    new = {record.id: record for record in stored.unreadable if record.id not in kept}
    if not new:
        return
    for name, record in new.items():
        whole = {"kind": record.kind, "why": record.why, "record": record.record} if len(kept) < _KEPT else None
        kept[name] = whole
    out.save(SettingChanged(UNREADABLE, kept))
    why = f"{len(new)} stored records cannot be read"
    before, state.paused = state.paused, True
    out.save(SettingChanged(PAUSED, True))
    out.save(Audited(AuditEntry(
        now, "sentinel", "", "pause", Stage.DONE, "cluster", why=why,
        before={"paused": before}, after={"paused": True},
    )))  # fmt: skip
    out.say("state-unreadable", records=len(new), fix="look at sentinel incidents, then sentinel resume", warning=True)
    notices.send(state, out, unreadable_state({name: f"{one.kind}: {one.why}" for name, one in new.items()}, now))


def _past(state: State, stored: Stored) -> None:
    state.left_stopped = past_restarts.stored_left(stored.settings.get(past_restarts.LEFT_STOPPED))
    had = {(row["job"], row["attempt"]): row for row in stored.attempts}
    causes = {row["id"]: row for row in stored.judged}
    for judged in stored.judged:
        nodes = (had.get((judged["job"], judged["attempt"])) or {}).get("nodes", ())
        state.past.loaded(judged, nodes)
    for name, verdict in stored.verdicts.items():
        about = causes.get(name)
        if about is not None and about["job"] is not None and about["attempt"] is not None:
            state.past.suspected(about["job"], about["attempt"], name, verdict)
    chosen = {
        (row.incident, row.step.job, row.step.attempt): row.outcome.data.get("step")
        for row in stored.steps
        if row.step.kind is StepKind.CHOOSE_CHECKPOINT and row.outcome is not None
    }
    counted = set()
    for row in stored.steps:
        done = row.outcome is not None and row.outcome.result is Result.DONE
        key = (row.incident, row.step.job, row.step.attempt)
        if row.step.kind not in RESTARTS or not done or row.step.job is None or key in counted:
            continue
        counted.add(key)
        why: Mapping[str, Any] = causes.get(row.incident, {})
        again = row.step.kind is StepKind.START_RUN  # what is stored of the attempt is of the run after it
        stored_step = None if again else (had.get((row.step.job, row.step.attempt or 0)) or {}).get("last_step")
        seen = [step for step in (stored_step, row.step.data.get("reached")) if isinstance(step, int)]
        got = [step for step in (max(seen, default=None), why.get("onset_step")) if step is not None]
        step = chosen.get(key)
        restart = PastRestart(
            row.intended_at,
            Cause(why.get("cause") or Cause.UNKNOWN),
            min(got, default=None),
            step if isinstance(step, int) else None,
            row.step.data.get("observed") is not False,
        )
        state.past.restarted(row.step.job, restart)
