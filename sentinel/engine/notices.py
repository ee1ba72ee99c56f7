"""Sends notices: one for each incident and receiver, a second one when it ended otherwise than that said, and a single
one for a cause that many incidents share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.alerts import Stage, compose
from sentinel.alerts.text import plain
from sentinel.engine.state import State
from sentinel.engine.transition import DeliverNotice, Transition
from sentinel.model.changes import NoticeChanged, SettingChanged
from sentinel.model.records import Incident, JobView, Notice, Outcome, Plan, Result, Scope, StepKind, Verdict

# Stored settings, by refusal: the incident whose notice reported that breaker (nodes, hangs), and when the last one joined.
BREAKERS_TOLD = {"breaker": "breaker_told", "hang-breaker": "hang_breaker_told"}
SHARED_TOLD = "shared_told"  # stored setting, by cause: the incident whose notice reported it, and those that joined
USERS_TOLD = "users_told"  # stored setting, by user and cause ("ada user_code"): when notices were sent, the newest
_SHARED_WINDOW = timedelta(minutes=10)  # since the last of them: further jobs with this shared cause get no own notice
_JOBS_TOLD = 20  # jobs with a notice of their own in one breaker event: beyond it nobody reads them
_ENDS = frozenset({Stage.RUNNING, Stage.HELD, Stage.FAILED, Stage.CANCELLED, Stage.HANDLED})
_USERS = 2000  # users and causes of which notices are counted
_JOINED = 2000  # joined incidents kept per shared cause


def notify(state: State, out: Transition, incident_id: str, now: datetime, job: JobView | None = None) -> None:
    """Send the incident's notice to every receiver, once, unless another incident's notice covers it.

    Args:
        job: the job in Slurm's newest snapshot; None: the job as last seen.
    """
    incident, verdict, plan = (table.get(incident_id) for table in (state.incidents, state.verdicts, state.plans))
    if incident_id in state.told or incident is None or verdict is None or plan is None:
        return
    assert isinstance(incident, Incident) and isinstance(verdict, Verdict) and isinstance(plan, Plan)
    if plan.refusal in BREAKERS_TOLD and incident_id in state.joined:
        return
    if plan.refusal in BREAKERS_TOLD and _known_breaker(state, out, plan.refusal, incident, now):
        state.joined.add(incident_id)  # what is done about it once the breaker lets go is told of
        out.say("notice-joined", incident=incident_id, reading="the breaker that is open was told of")
        return
    outcomes = state.ledger.outcomes(incident_id, plan.steps)
    if _known_fault(state, out, incident, verdict, plan, outcomes, now):
        out.say("notice-joined", incident=incident_id, reading=f"people know of the shared {verdict.cause}")
        return  # checked again at the end of the plan: a step that failed is still reported
    state.told.add(incident_id)
    job = job or _last_seen(state, incident)
    left = _left_for_user(state, out, verdict, job, now)
    if left == 0:
        out.say(
            "notice-left-out", incident=incident_id, reading=f"enough was told of {verdict.cause} in this user's jobs"
        )
        return
    notice = _composed(state, incident, verdict, plan, outcomes, job, now)
    if left == 1 and job is not None:
        hours = f"{state.settings.alerts.per_user_s / 3600:g} h"
        more = f"sentinel incidents --user {plain(job.user)} --cause {verdict.cause}"
        words = f"Within {hours} no more notices are sent of {verdict.cause} in jobs of this user; {more} lists them."
        notice = replace(notice, body=f"{notice.body}\n{words}")
    state.stages[incident_id] = str(notice.data["stage"])
    send(state, out, notice)


def correct(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """Tell what became of an incident whose people were told something else: what they heard is not so any more."""
    incident, verdict, plan = (table.get(incident_id) for table in (state.incidents, state.verdicts, state.plans))
    before = state.stages.get(incident_id)
    if before is None or incident is None or verdict is None or plan is None:
        return
    assert isinstance(incident, Incident) and isinstance(verdict, Verdict) and isinstance(plan, Plan)
    outcomes = state.ledger.outcomes(incident_id, plan.steps)
    notice = _composed(state, incident, verdict, plan, outcomes, None, now, follows=before)
    stage = str(notice.data["stage"])
    if stage == before or stage not in _ENDS:
        return
    if stage == Stage.HANDLED and not any(outcome.result is Result.DONE for outcome in outcomes):
        return  # what was waited for is not wanted any more
    state.stages[incident_id] = stage
    send(state, out, notice)


def send(state: State, out: Transition, notice: Notice) -> None:
    """Queue the notice for every receiver."""
    for receiver in state.receivers:
        out.save(NoticeChanged(notice, receiver, delivered=False))
        out.do(deliver(notice, receiver))


def deliver(notice: Notice, receiver: str) -> DeliverNotice:
    return DeliverNotice(f"notice:{notice.id}:{receiver}", notice, receiver)


def _composed(
    state: State,
    incident: Incident,
    verdict: Verdict,
    plan: Plan,
    outcomes: Sequence[Outcome],
    job: JobView | None,
    now: datetime,
    follows: str | None = None,
) -> Notice:
    job = job or _last_seen(state, incident)
    seen = state.cluster.attempts.get(_attempt(incident))
    reached = seen.last_step if seen is not None else None
    waiting = state.cluster.dependents.get(incident.job or -1, {})
    return compose(
        incident, verdict, plan, outcomes, job=job, last_step=reached, now=now, follows=follows, dependents=waiting
    )  # fmt: skip


def _attempt(incident: Incident) -> tuple[int, int]:
    return (incident.job or -1, incident.attempt if incident.attempt is not None else -1)


def _last_seen(state: State, incident: Incident) -> JobView | None:
    seen = state.cluster.attempts.get(_attempt(incident))
    return seen.view if seen is not None else None


def _left_for_user(state: State, out: Transition, verdict: Verdict, job: JobView | None, now: datetime) -> int | None:
    """How many notices, this one included, may still be sent of this cause in the user's jobs; None: any number.

    A notice of a drained node is always sent.
    """
    if job is None or not job.user or verdict.drain:
        return None
    settings, key = state.settings.alerts, f"{job.user} {verdict.cause}"
    since = (now - timedelta(seconds=settings.per_user_s)).isoformat()
    kept = {name: fresh for name, times in state.users_told.items() if (fresh := [at for at in times if at > since])}
    sent = kept.get(key, [])
    left = settings.per_user - len(sent)
    if left <= 0:
        return 0
    state.users_told = {**dict(list(kept.items())[-_USERS:]), key: [*sent, now.isoformat()]}
    out.save(SettingChanged(USERS_TOLD, state.users_told))
    return left


def _known_breaker(state: State, out: Transition, refusal: str, incident: Incident, now: datetime) -> bool:
    """Whether the breaker that refused this incident's plan needs no further notice for it.

    It counts as the same breaker event while the next incident comes within the breaker's window: of its nodes one notice
    tells, and each job has a notice of its own, since its people wait for it. Stored, so that a restarted daemon does not
    notify again.
    """
    kept, limits = state.breakers_told.get(refusal), state.settings.limits
    window = timedelta(seconds=limits.breaker_window_s if refusal == "breaker" else limits.hung_window_s)
    same = kept is not None and now - datetime.fromisoformat(kept["at"]) <= window
    first = kept["incident"] if kept is not None and same else incident.id
    jobs = list(kept.get("jobs", ())) if kept is not None and same else []
    own = incident.job is not None and incident.job not in jobs and len(jobs) < _JOBS_TOLD
    jobs += [incident.job] if own else []
    state.breakers_told[refusal] = {"incident": first, "at": now.isoformat(), "jobs": jobs}
    out.save(SettingChanged(BREAKERS_TOLD[refusal], state.breakers_told[refusal]))
    return bool(first != incident.id) and not own


def _known_fault(
    state: State,
    out: Transition,
    incident: Incident,
    verdict: Verdict,
    plan: Plan,
    outcomes: Sequence[Outcome],
    now: datetime,
) -> bool:
    """Whether people were already notified of the shared fault of this job, and the job restarts without their help.

    A job that does not restart, and an incident that drains a node, always get a notice of their own.
    """
    if verdict.scope is not Scope.CLUSTER or verdict.drain or plan.refusal or plan.observe_only:
        return False
    goes_on = incident.job is None or any(step.kind is StepKind.RELEASE for step in plan.steps)
    if not goes_on or any(outcome.result is Result.FAILED or outcome.data.get("held") for outcome in outcomes):
        return False
    fault = state.shared_told.get(str(verdict.cause))
    if fault is not None and incident.id in (fault["incident"], *fault["joined"]):
        return bool(incident.id != fault["incident"])
    if fault is None or now - datetime.fromisoformat(fault["at"]) > _SHARED_WINDOW:
        fault = {"incident": incident.id, "joined": []}
    else:
        fault = {**fault, "joined": [*fault["joined"][1 - _JOINED :], incident.id]}
    state.shared_told = {**state.shared_told, str(verdict.cause): {**fault, "at": now.isoformat()}}
    out.save(SettingChanged(SHARED_TOLD, state.shared_told))
    return bool(incident.id != fault["incident"])
