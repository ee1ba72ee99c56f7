"""Adds new evidence to its incident, opens a new incident for it, or keeps it for an incident opened later."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

from sentinel.correlate import incidents
from sentinel.correlate.attempt_times import SLACK, attempt_at, by_slurms_clock, ran
from sentinel.correlate.gpu_owners import job_of, of_another_job
from sentinel.correlate.membership import (
    is_late_news,
    is_news_of_waiting,
    is_our_doing,
    is_tolerated_bad_numbers,
    is_unrelated,
)
from sentinel.detect.counters import counter_rows
from sentinel.detect.joined_saves import KEPT as SAVES_KEPT
from sentinel.detect.joined_saves import LISTING
from sentinel.detect.numbers.bad_numbers_onset import BAD_NUMBERS_KEPT
from sentinel.engine import backlog, judging
from sentinel.engine.events import EvidenceReceived
from sentinel.engine.reconcile import in_allocation, node_proof
from sentinel.engine.reconcile.situations import left_alone
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.evidence.logs.timers import TIMERS
from sentinel.model.approvals import open_names
from sentinel.model.changes import CountersRead, EvidenceAdded, SettingChanged
from sentinel.model.records import NODE_STEPS, Cause, Evidence, Incident, IncidentState, Kind, Source

_PROGRESS = frozenset({Kind.STEP, TIMERS})  # too many to store: only findings derived from them are stored
TELEMETRY = frozenset({*_PROGRESS, Kind.COUNTERS})
_OF_NODES = tuple(f"{kind} " for kind in NODE_STEPS)  # how what waits begins that concerns a node
_OF_MACHINES = frozenset({Source.KERNEL, Source.DCGM, Source.NVML, Source.AMD_SMI, Source.DIAGNOSTIC})


def receive(state: State, out: Transition, event: EvidenceReceived) -> None:
    """Save new evidence, note it in the cluster view, and add it to its incident."""
    items = _of_todays_jobs(state, out, event)
    if any(item.kind == LISTING for item in items):
        items = _with_joined_saves(state, out, items, event.at)
    fresh = [i for i in items if i.kind in TELEMETRY or state.known.add(i.id) or event.saved]
    if not event.saved:
        fresh = _with_onsets(state, out, fresh)
        _save(state, out, fresh, event.at)
    for item in fresh:
        if item.kind != Kind.COUNTERS:
            state.cluster.note(item)
    for item in fresh:
        if item.kind not in TELEMETRY:
            _put(state, out, item, event.at)


def _of_todays_jobs(state: State, out: Transition, event: EvidenceReceived) -> Sequence[Evidence]:
    """Without what is of jobs whose ids other ones have by now: that is saved only. What a machine has stays the machine's.

    What an earlier daemon saved has its own id already.
    """
    kept: list[Evidence] = []
    former: list[Evidence] = []
    for item in event.items:
        if not state.used_ids.is_of_former(item):
            kept.append(item if event.saved else state.used_ids.own(item))
        elif item.where.node is not None and item.source in _OF_MACHINES:
            kept.append(dataclasses.replace(item, where=dataclasses.replace(item.where, job=None, attempt=None)))
        elif not event.saved:
            former.append(item)
    news = [item for item in former if item.kind not in TELEMETRY and state.known.add(item.id)]
    if news:
        _save(state, out, news, event.at)
    return kept


def regroup(state: State, out: Transition, now: datetime) -> None:
    """Group anew what a judgement took out of an incident, see ``judging``."""
    while state.regrouped:
        _put(state, out, state.regrouped.pop(0), now)


def _with_onsets(state: State, out: Transition, items: Sequence[Evidence]) -> list[Evidence]:
    """Add to bad-number evidence the step at which the numbers went bad, and findings from the loss values."""
    given = {item.id for item in items}
    found = state.onsets.with_findings(items)
    told = [item if item.id in given else state.used_ids.own(item) for item in found]
    if (kept := state.onsets.unsaved()) is not None:
        out.save(SettingChanged(BAD_NUMBERS_KEPT, kept))
    return [item for item in told if item.id in given or state.known.add(item.id)]


def _with_joined_saves(state: State, out: Transition, items: Sequence[Evidence], now: datetime) -> list[Evidence]:
    """Replace the nodes' listings of shards by the findings that follow from all of them together."""
    given = {item.id for item in items}
    found = [i if i.id in given else state.used_ids.own(i) for i in state.joined_saves.take(items, now)]
    for listing in state.joined_saves.unreadable:
        out.say("listing-unreadable", warning=True, node=listing.node, job=listing.job, reason=listing.reason)
    if (kept := state.joined_saves.unsaved()) is not None:
        out.save(SettingChanged(SAVES_KEPT, kept))
    return found


def _save(state: State, out: Transition, items: Sequence[Evidence], now: datetime) -> None:
    if rows := counter_rows(items):
        out.save(CountersRead(tuple(rows)))
    if kept := tuple(item for item in items if item.kind not in TELEMETRY):
        out.save(EvidenceAdded(kept))
        backlog.received(state, out, kept, now)


def _put(state: State, out: Transition, item: Evidence, now: datetime) -> None:
    if item.source is Source.DIAGNOSTIC and state.returns.under_test(item.where.node):
        return  # saved only: the node is out of service, and what its test found is told once, when it needs repair
    around = [
        i
        for i in state.index.of(item)
        if not is_unrelated(i, state.plans.get(i.id), item, state.cluster)
        and not node_proof.is_of_returned_node(state, state.plans.get(i.id), item)
        and not in_allocation.is_another_failure(state, i, item)
        and not _came_after_it_left_its_job_alone(state, i, item)
        and not _came_after_its_job_went_on(state, i, item)
    ]
    nodes = {i.id: state.cluster.nodes_of(i.job, i.attempt) for i in around if i.job is not None}
    found = incidents.find(around, item, nodes, state.window) or next(
        (
            i
            for i in around
            if is_late_news(i, state.plans.get(i.id), state.verdicts.get(i.id), item, state.cluster, state.window)
            or is_news_of_waiting(i, state.verdicts.get(i.id), item)
        ),
        None,
    )
    if found is not None:
        if is_our_doing(state.plans.get(found.id), item):
            return  # saved only: the job ended because Sentinel ended it
        state.put(incidents.attach(found, [item], now))
        judging.judge_soon(state, out, found.id, now)
        state.judging[found.id].news.add(item.id)
        return
    if not incidents.opens(item) or incidents.has_known_failure(item, [i for i in around if i.id in state.plans]):
        return
    incident = _opened(state, item, now)
    if (own := state.incidents.get(incident.id)) is not None:
        state.put(incidents.attach(own, [item], now))  # it had opened this one, which it would replace
        return
    state.put(incident)
    out.say("incident-candidate", incident=incident.id, kind=item.kind, node=item.where.node, job=incident.job)
    judging.judge_soon(state, out, incident.id, now)


def _came_after_it_left_its_job_alone(state: State, incident: Incident, item: Evidence) -> bool:
    """Whether the job was to be stopped for this incident and went on, and this is of later: another failure of the same
    attempt. A hang is later where it is seen later: its time is that of the last step."""
    if incident.closed_at is None or not left_alone(state, incident):
        return False
    return (item.seen_at if item.kind == Kind.STALL else item.at) > incident.closed_at


def _came_after_its_job_went_on(state: State, incident: Incident, item: Evidence) -> bool:
    """Whether the job was never to be stopped for this incident, and made steps for longer than the evidence of one failure
    takes to come, and this is of the job then: another failure. So also while a drain by signs that may pass waits."""
    plan, verdict = state.plans.get(incident.id), state.verdicts.get(incident.id)
    if plan is None or verdict is None or None in (incident.job, item.where.job):
        return False
    of_nodes = all(name.startswith(_OF_NODES) for name in open_names(plan.waits))
    drains = incident.state is IncidentState.WAITING and {*verdict.drain} <= {*verdict.may_pass} and of_nodes
    if incident.state is not IncidentState.CLOSED and not drains:
        return False
    if any(step.job is not None for step in plan.steps) or not state.stepped_after(incident, state.window):
        return False
    return item.at > max((known.at for known in incident.evidence), default=incident.opened_at) + state.window


def _opened(state: State, item: Evidence, now: datetime) -> Incident:
    """A new incident, with the recent evidence about its job and nodes."""
    job, attempt = item.where.job, item.where.attempt
    if job is None and (view := job_of(item, state.cluster)) is not None:
        job, attempt = view.id, attempt_at(view, by_slurms_clock(item, state.cluster), state.cluster)
    if job is not None and attempt is None:
        attempt = state.cluster.newest_attempt(job)
    incident = incidents.new(item, job=job, attempt=attempt, now=now)
    if incidents.is_advisory(item):
        return incident
    nodes = (*incident.nodes, *state.cluster.nodes_of(job, attempt))
    judged = [
        i
        for i in state.index.about(job, nodes)
        if i.id in state.plans and not is_tolerated_bad_numbers(i, state.plans[i.id])
    ]
    taken = {e.id for i in judged for e in i.evidence}  # belongs to another failure
    # Look back from when the numbers went bad, and after a time without us from when it happened.
    late = state.absence is not None and state.absence.counts(now, state.window)
    since = min(now, item.at) if item.kind == Kind.NUMBERS or late else now
    told = state.onsets.findings(job, attempt, now) if incidents.ends(item) else []
    numbers = [state.used_ids.own(found) for found in told]
    recent = state.cluster.recent(job, attempt, nodes, since - state.window, taken)
    began, _ = ran(job, attempt, None, state.cluster)
    own = [
        e for e in recent if not of_another_job(job, e, state.cluster) and not _of_an_earlier_program(state, e, began)
    ]
    return incidents.attach(incident, [*own, *numbers], now)


def _of_an_earlier_program(state: State, item: Evidence, began: datetime | None) -> bool:
    """Whether a program caused it, by its Xid, before the attempt began: it says nothing of the attempt's own."""
    if began is None or item.where.job is not None or by_slurms_clock(item, state.cluster) >= began - SLACK:
        return False
    xid = state.rules.xid_of(item)
    return xid is not None and xid.cause is Cause.USER_CODE
