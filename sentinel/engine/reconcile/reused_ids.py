"""Parts with jobs whose ids Slurm has given to other ones: after ``MaxJobId``, or once the folder of its state was lost.

Nearly all that is known of a job is kept by its id. Before a snapshot is looked at, whatever is kept by the id of a job that
is gone is taken from it: the new job has no incident, no restart, no list of ours and no attempt. Of the plans for the old
one, what concerns nodes goes on.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from sentinel.detect.job_end import without_record
from sentinel.detect.joined_saves import KEPT as SAVES_KEPT
from sentinel.detect.numbers.bad_numbers_onset import BAD_NUMBERS_KEPT
from sentinel.detect.used_ids import USED_IDS_KEPT, begins_after
from sentinel.engine import notices, recovery
from sentinel.engine.ledger import Ledger, LedgerRow
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.engine.watch.restored_attempts import view_of
from sentinel.model.changes import AttemptSeen, PlanFinished, PlanMade, SettingChanged
from sentinel.model.identity import JobsOfOneId, is_another
from sentinel.model.records import NODE_STEPS, Fleet, Incident, IncidentState, JobView, Plan
from sentinel.model.stored import Stored
from sentinel.model.vocabulary import END_NOT_SEEN

_OF_NODES = tuple(f"{kind} " for kind in NODE_STEPS)  # how what waits begins that concerns a node
_GONE = "Slurm no longer knows job {job}: its id is another job's by now"


def compare(state: State, out: Transition, fleet: Fleet, now: datetime) -> None:
    """Part with the jobs whose ids are other jobs' in this snapshot, which the cluster view has not taken yet."""
    views, others = fleet.jobs, set()
    for (job, _), seen in state.cluster.attempts.items():
        if (view := views.get(job)) is not None and is_another(seen.view, view):
            others.add(job)
    unseen = views.keys() - {job for job, _ in state.cluster.attempts}  # the view may have forgotten what it knew
    for known in (state.ledger.jobs(), _opened(state), state.onsets.jobs(), state.past.since(unseen)):
        others |= {job for job in known.keys() & unseen if _is_younger(state, views[job], known[job])}
    for job in sorted(others):
        out.say("job-id-reused", job=job, user=views[job].user)
        _leave(state, out, job, views[job], fleet.at, now)
    if others and (kept := state.onsets.unsaved()) is not None:
        out.save(SettingChanged(BAD_NUMBERS_KEPT, kept))
    if (used := state.used_ids.unsaved()) is not None:
        out.save(SettingChanged(USED_IDS_KEPT, used))
    if others and (sizes := state.joined_saves.unsaved()) is not None:
        out.save(SettingChanged(SAVES_KEPT, sizes))


def _opened(state: State) -> dict[int, datetime]:
    """By job: when the first of its incidents was opened."""
    found: dict[int, datetime] = {}
    for incident in state.incidents.values():
        if incident.job is not None:
            found[incident.job] = min(found.get(incident.job, incident.opened_at), incident.opened_at)
    return found


def _is_younger(state: State, view: JobView, at: datetime) -> bool:
    """Whether the job was submitted after this, by the daemon's clock."""
    since = begins_after(view, state.cluster.own_clock_ahead_s())
    return since is not None and at < since


def _leave(state: State, out: Transition, job: int, view: JobView, seen_at: datetime, now: datetime) -> None:
    """Everything so far was of the job that had the id before. ``seen_at``: when Slurm was seen to have given it away."""
    about = [one for one in state.index.about(job, ()) if one.job == job]
    for incident in about:
        _end(state, out, incident, _GONE.format(job=job), now)
    keys = [key for key in state.cluster.attempts if key[0] == job]
    for seen in [state.cluster.attempts.pop(key) for key in keys]:
        if seen.view.started_at is not None and seen.view.ended_at is None:  # of its end no more is known than this
            over_at = view.submitted_at or now
            seen.view = without_record(seen.view, "unknown", over_at, state.cluster.looked_at, seen_at)
        if seen.view.started_at is not None:
            out.save(AttemptSeen(seen.view, seen.first_step, seen.last_step, seen.usual_step_s()))
    state.cluster.dependents.pop(job, None)
    state.watch.job_ends.told.pop(job, None)
    state.watch.was_on_nodes.difference_update(keys)
    state.began_before = state.began_before.difference(keys) if state.began_before is not None else None
    state.ledger.leave(job)
    state.past.leave(job)
    state.onsets.leave(job)
    state.joined_saves.leave(job)
    state.cluster.listings.leave(job)
    state.used_ids.note(view, state.cluster.own_clock_ahead_s())


def _end(state: State, out: Transition, incident: Incident, words: str, now: datetime) -> None:
    """End what was planned for the job. The incident is of its nodes alone from now on."""
    name, before = incident.id, state.plans.get(incident.id)
    if before is not None:
        plan = state.plans[name] = _of_nodes(before)
        known = state.recoveries.get(name)
        if known is not None and known.under_way is not None and known.under_way.job is not None:
            known.under_way = None
        over = recovery.next_step(state, plan) is None and not plan.waits
        if over and incident.state is not IncidentState.CLOSED:
            state.recoveries.pop(name, None)
            recovery.come_to_rest(state, out, name, IncidentState.CLOSED, words, now)
            notices.notify(state, out, name, now)
            out.say("job-gone", incident=name, job=incident.job, reason=words)
        # Of a plan that is over, the store keeps what was planned for the job: for people.
        out.save(PlanMade(plan) if name in state.open_plans else PlanFinished(plan.id))
    state.index.remove(state.incidents[name])
    state.put(dataclasses.replace(state.incidents[name], job=None, attempt=None))
    if name in state.recoveries:
        recovery.advance(state, out, name, now)


def _of_nodes(plan: Plan) -> Plan:
    """The plan without what it wants of the job."""
    steps = tuple(step for step in plan.steps if step.job is None)
    waits = tuple(wait for wait in plan.waits if any(what.startswith(_OF_NODES) for what in wait.what))
    return dataclasses.replace(plan, steps=steps, waits=waits)


# --- after a start ---------------------------------------------------------------------------------------------------


def without_former(stored: Stored) -> tuple[Ledger, Stored]:
    """The ledger, and what a start found in the store without the jobs whose ids are other jobs' by now."""
    attempts = (*stored.attempts, *stored.recent_attempts)
    jobs = JobsOfOneId({(row["job"], row["attempt"], row["started_at"]): row for row in attempts}.values())
    rows = [
        LedgerRow(row.incident, row.step, row.intended_at, row.outcome, jobs.is_former(row.step.job, row.intended_at))
        for row in stored.steps
    ]

    former = {one.id for one in stored.incidents if jobs.is_former(one.job, one.opened_at)}
    return Ledger(rows), dataclasses.replace(
        stored,
        incidents=tuple(
            dataclasses.replace(one, job=None, attempt=None) if one.id in former else one for one in stored.incidents
        ),
        plans={name: _of_nodes(plan) if name in former else plan for name, plan in stored.plans.items()},
        steps=tuple(step for step, row in zip(stored.steps, rows, strict=True) if not row.gone),
        judged=tuple(
            {**row, "job": None, "attempt": None} if jobs.is_former(row["job"], row["opened_at"]) else row
            for row in stored.judged
        ),
        attempts=tuple(row for row in stored.attempts if not jobs.is_former(row["job"], row["started_at"])),
        recent_attempts=tuple(
            row for row in stored.recent_attempts if not jobs.is_former(row["job"], row["started_at"])
        ),
    )


def started(state: State, out: Transition, stored: Stored, now: datetime) -> None:
    """End the plans and attempts of jobs that were found gone in the store: the daemon before this one had not come to it,
    or was of an earlier release.

    Args:
        stored: as a start found it.
    """
    jobs = JobsOfOneId(stored.recent_attempts)
    for row in stored.recent_attempts:
        if row["ended_at"] is None and jobs.is_former(row["job"], row["started_at"]):
            over = dataclasses.replace(view_of(row), state=END_NOT_SEEN, ended_at=row["started_at"])
            out.save(AttemptSeen(over, row["first_step"], row["last_step"], row["step_time_s"]))
    for incident in stored.incidents:
        known = state.incidents.get(incident.id)
        if incident.job is not None and known is not None and known.job is None:
            _end(state, out, known, _GONE.format(job=incident.job), now)
