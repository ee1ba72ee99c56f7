"""Sends notices: one thread for each incident, and a single one for a cause that many incidents share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta

from sentinel.alerts import STANDS, IncidentFacts, Stage, Thread, compose, for_log, next_stage, stage_of, with_next
from sentinel.alerts.text import plain
from sentinel.alerts.threads import REQUESTS
from sentinel.engine import delivery
from sentinel.engine.reconcile import exclusions, slurm_limits
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import NoticeChanged, SettingChanged
from sentinel.model.records import (
    RESTARTS,
    Incident,
    JobView,
    Notice,
    Outcome,
    Plan,
    Result,
    Scope,
    Step,
    Verdict,
)

# Stored settings, by refusal: the incident whose notice reported that breaker (nodes, hangs), and when the last one joined.
BREAKERS_TOLD = {"breaker": "breaker_told", "hang-breaker": "hang_breaker_told"}
SHARED_TOLD = "shared_told"  # stored setting, by cause: the incident whose notice reported it, and those that joined
USERS_TOLD = "users_told"  # stored setting, by user and cause ("ada user_code"): when notices were sent, the newest
_SHARED_WINDOW = timedelta(minutes=10)  # since the last of them: further jobs with this shared cause get no own notice
_JOBS_TOLD = 20  # jobs with a notice of their own in one breaker event: beyond it nobody reads them
_USERS = 2000  # users and causes of which notices are counted
_MOST_JOINED = 2000  # joined incidents kept per shared cause


def notify(
    state: State, out: Transition, incident_id: str, now: datetime, job: JobView | None = None, *, further: bool = False
) -> None:
    """Send the next message of the incident's thread, if its stage is another than people know.

    Where another incident's thread tells of the same (``joined``), only the job's owner is told.

    Args:
        job: the job in Slurm's newest snapshot; None: the job as last seen.
        further: only a request for an approval, or what became of one, beside a stage that people know: the rest is told
            once it is so.
    """
    incident, verdict, plan = (table.get(incident_id) for table in (state.incidents, state.verdicts, state.plans))
    if incident is None or verdict is None or plan is None:
        return
    assert isinstance(incident, Incident) and isinstance(verdict, Verdict) and isinstance(plan, Plan)
    thread = state.told.get(incident_id)
    facts = _facts(state, incident, verdict, plan, state.ledger.outcomes(incident_id, plan.steps), job)
    stage = next_stage(thread, facts)
    if stage is None or incident_id in state.left_out:
        return
    if further and (thread is None or stage not in REQUESTS.values() or stage is stage_of(facts)):
        return
    left = _left_for_user(state, out, facts, now) if thread is None else None
    if left == 0:
        state.left_out.add(incident_id)
        reading = f"enough was told of {verdict.cause} in this user's jobs"
        out.say("notice-left-out", incident=incident_id, reading=reading)
        return
    facts = dataclasses.replace(facts, resolved=stage is Stage.RESOLVED, told=stage)
    joined = _joined(state, out, facts, stage, thread, now)
    told = with_next(thread, facts, stage, joined)
    state.told[incident_id] = told
    notice = compose(facts, told, now)
    send(state, out, notice if left != 1 else _said_to_be_the_last(state, facts, notice))


def with_job_log_line(state: State, incident_id: str, step: Step) -> Step:
    """The step that writes the resume point, with the line that TaskProlog prints into the job's log."""
    incident, verdict, plan = state.incidents[incident_id], state.verdicts[incident_id], state.plans[incident_id]
    facts = _facts(state, incident, verdict, plan, state.ledger.outcomes(incident_id, plan.steps), None)
    words = for_log(dataclasses.replace(facts, limited=""))  # it is printed once the job starts
    return dataclasses.replace(step, data={**step.data, "message": words}) if words else step


def _said_to_be_the_last(state: State, facts: IncidentFacts, notice: Notice) -> Notice:
    """The notice, saying in each of its texts that no more are sent of this cause in the user's jobs."""
    assert facts.job is not None, "counted by user"
    hours, cause = f"{state.settings.alerts.per_user_s / 3600:g} h", facts.verdict.cause
    more = f"sentinel incidents --user {plain(facts.job.user)} --cause {cause}"
    words = f"Within {hours} no more notices are sent of {cause} in jobs of this user; {more} lists them."
    texts = {key: f"{notice.data[key]}{gap}{words}" for key, gap in (("owner_text", " "), ("operator_text", "\n"))}
    before = notice.data.get(STANDS)
    stands = [*(before if isinstance(before, list) else ()), words]
    return dataclasses.replace(notice, body=f"{notice.body}\n{words}", data={**notice.data, **texts, STANDS: stands})


def send(state: State, out: Transition, notice: Notice) -> None:
    """Queue the notice for every receiver that it is for."""
    for receiver in delivery.receivers(state, notice):
        out.save(NoticeChanged(notice, receiver, delivered=False))
        delivery.begin(state, out, notice, receiver)


def _joined(
    state: State, out: Transition, facts: IncidentFacts, stage: Stage, thread: Thread | None, now: datetime
) -> str:
    """The incident whose thread tells people of this one; empty: it has its own. What failed always has."""
    incident, plan = facts.incident, facts.plan
    assert plan is not None, "asked for incidents with a plan"
    of_breaker = thread is not None and thread.stages[-1] == Stage.WAITING  # a shared fault joins only what goes on
    let_go = of_breaker and plan.refusal not in BREAKERS_TOLD and stage is not Stage.RESOLVED
    if thread is not None and (not thread.joined or let_go or stage in (Stage.FAILED, Stage.HELD, Stage.ASKED)):
        return ""  # what is done about it now is news of its own
    if thread is not None:
        return thread.joined
    if stage in (Stage.RESTARTING, Stage.RUNNING, Stage.RESOLVED) and (first := _joined_before(state, facts)):
        return first
    if plan.refusal in BREAKERS_TOLD and (first := _known_breaker(state, out, plan.refusal, incident, now)):
        out.say("notice-joined", incident=incident.id, reading="the breaker that is open was told of")
        return first
    if first := _known_fault(state, out, facts, now):
        out.say("notice-joined", incident=incident.id, reading=f"people know of the shared {facts.verdict.cause}")
    return first


def _facts(
    state: State,
    incident: Incident,
    verdict: Verdict,
    plan: Plan,
    outcomes: Sequence[Outcome],
    job: JobView | None,
) -> IncidentFacts:
    """What the engine knows of the incident: nothing of it is asked for now."""
    seen = state.cluster.attempts.get((incident.job or -1, incident.attempt if incident.attempt is not None else -1))
    if job is None and seen is not None:
        job = seen.view
    again = state.cluster.attempts.get((incident.job or -1, (incident.attempt or 0) + 1))
    fleet = state.cluster.fleet
    had = seen.nodes if seen is not None else ()
    gpus = [fleet.nodes[name].gpus for name in had if name in fleet.nodes] if fleet is not None else []
    known = [number for number in gpus if number is not None]
    return IncidentFacts(
        incident,
        verdict,
        plan,
        outcomes,
        job,
        last_step=seen.last_step if seen is not None else None,
        step_time_s=seen.usual_step_s() if seen is not None else None,
        gpus=sum(known) if known and len(known) == len(had) else None,
        nodes_now=again.nodes if again is not None else (),
        cluster=state.settings.cluster,
        dependents=state.cluster.dependents.get(incident.job or -1, {}),
        limited=slurm_limits.waits_by(state, incident),
        waits_for=exclusions.waits_for(state, incident, job) if job is not None else "",
        job_now=fleet.jobs.get(incident.job or -1) if fleet is not None else None,
    )


def _left_for_user(state: State, out: Transition, facts: IncidentFacts, now: datetime) -> int | None:
    """How many incidents, this one included, may still be told of this cause in the user's jobs; None: any number.

    A drained node is always told of.
    """
    job, verdict = facts.job, facts.verdict
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


def _known_breaker(state: State, out: Transition, refusal: str, incident: Incident, now: datetime) -> str:
    """The incident whose notice told of the breaker that refused this incident's plan; empty: it needs one of its own.

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
    return str(first) if first != incident.id and not own else ""


def _joined_before(state: State, facts: IncidentFacts) -> str:
    """The incident whose notice tells of this one by what an earlier daemon kept: a thread of which nothing was sent to
    anybody is not in the store."""
    fault = state.shared_told.get(str(facts.verdict.cause))
    return str(fault["incident"]) if fault is not None and facts.incident.id in fault["joined"] else ""


def _known_fault(state: State, out: Transition, facts: IncidentFacts, now: datetime) -> str:
    """The incident whose notice told people of the shared fault of this job, if the job restarts without their help.

    Empty otherwise: a job that does not restart, and an incident that drains a node, always get a notice of their own.
    """
    incident, verdict, plan, outcomes = facts.incident, facts.verdict, facts.plan, facts.outcomes
    if verdict.scope is not Scope.CLUSTER or verdict.drain or plan is None or plan.refusal or plan.observe_only:
        return ""
    goes_on = incident.job is None or any(step.kind in RESTARTS for step in plan.steps)
    if not goes_on or any(outcome.result is Result.FAILED or outcome.data.get("held") for outcome in outcomes):
        return ""
    if first := _joined_before(state, facts):
        return first
    fault = state.shared_told.get(str(verdict.cause))
    if fault is not None and incident.id == fault["incident"]:
        return ""
    if fault is None or now - datetime.fromisoformat(fault["at"]) > _SHARED_WINDOW:
        fault = {"incident": incident.id, "joined": []}
    else:
        fault = {**fault, "joined": [*fault["joined"][1 - _MOST_JOINED :], incident.id]}
    state.shared_told = {**state.shared_told, str(verdict.cause): {**fault, "at": now.isoformat()}}
    out.save(SettingChanged(SHARED_TOLD, state.shared_told))
    return str(fault["incident"]) if incident.id != fault["incident"] else ""
