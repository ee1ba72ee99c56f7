"""Compares each restarted job with every snapshot until it is confirmed, and does again what slurmctld lost.

slurmctld saves its state some seconds late. Killed and started again it may have forgotten a requeue (the job runs again,
with its old restart count and no processes), the start time of a released job, a hold or a drain that it had acknowledged.
Nothing else turns a job's restart count back, and nobody but Sentinel defers a job by a month: those are done again. A node
that is in service again may have been returned by a person: there the action asks when slurmctld was started. And a hold of
ours that outlived its purpose is taken off, and a job sent to the nodes of its own saves that other jobs took meanwhile gets
another checkpoint. So does one whose run another job has gone on with meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import datetime, timedelta

from sentinel.engine import recovery
from sentinel.engine.node_return.put_back import SAVED
from sentinel.engine.reconcile import confirming, exclusions, node_proof, passed_resume_points, past_restarts
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import PlanMade
from sentinel.model.records import (
    LOST_WITHIN,
    NODE_STEPS,
    OPTIONAL_STEPS,
    OURS,
    STOPS,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    Outcome,
    Plan,
    Result,
    StepKind,
)
from sentinel.model.vocabulary import ANYWHERE, FOR_ATTEMPT, HELD_BY_SLURM, LOST_BEFORE, SEEN_DRAINED
from sentinel.policy import components_with
from sentinel.text import names

_DEFERRED = timedelta(days=1)  # eligible later than this: deferred by Sentinel, which defers by 30 days
_BY_A_MONTH = timedelta(days=29)  # what is left of these 30 days where they are not old: no person's own start time
_MOST_RESUME_POINTS = 20  # for one restart: attempts that never get as far as a first step are for people to look at
_MOST_TRIES = 3  # of a step that failed, to have its job held: Slurm may refuse that
_RESTART = frozenset(
    {
        StepKind.REQUEUE_HOLD,
        StepKind.CHOOSE_CHECKPOINT,
        StepKind.QUARANTINE,
        StepKind.WRITE_RESUME,
        StepKind.EXCLUDE,
        StepKind.RELEASE,
        StepKind.CONFIRM,
        StepKind.HOLD,
    }
)
_RELEASE = frozenset({StepKind.RELEASE, StepKind.CONFIRM})
_CHOICE = frozenset({StepKind.CHOOSE_CHECKPOINT, StepKind.WRITE_RESUME, StepKind.EXCLUDE})
_STARTED_BY = timedelta(seconds=60)  # after its release Slurm has looked at a job, and the epilogs of others are over


def compare(state: State, out: Transition, fleet: Fleet, now: datetime) -> None:
    """Compare what was done with what the snapshot shows."""
    node_proof.see_drains(state, out, fleet)
    for name in sorted(state.plans.keys() & state.incidents.keys() & state.verdicts.keys()):
        plan, incident = state.plans[name], state.incidents[name]
        if not any(step.kind in NODE_STEPS or step.job in fleet.jobs for step in plan.to_do):
            continue  # neither its job nor a drain of it is there any more
        known = state.recoveries.get(name)
        if not plan.to_do or state.paused:
            continue
        drains = _lost_drains(state, plan, fleet, now)
        lost = frozenset(drains.values())
        if known is None or not recovery.is_busy(known):  # the step under way changes the job; a drain is another thing
            lost |= _lost_of_job(state, plan, fleet, now) | _left_holds(state, plan, fleet)
            lost |= _outdated_exclusions(state, out, incident, plan, fleet, now) | _taken_nodes(state, plan, fleet)
            lost |= _outdated_resume_point(state, plan, fleet) | _passed_resume_point(state, plan, fleet)
            lost |= _let_go_by_a_person(state, incident, plan, fleet)
        if lost:
            out.say("done-again", incident=name, steps=",".join(sorted(lost)), warning=True)
            _do_again(state, out, incident, lost, drains.keys(), fleet, now)


def _do_again(
    state: State,
    out: Transition,
    incident: Incident,
    lost: frozenset[StepKind],
    nodes: Collection[str],
    fleet: Fleet,
    now: datetime,
) -> None:
    plan = _with_drains_seen(state, exclusions.again(state.plans[incident.id], lost, nodes), lost, nodes, fleet, now)
    if StepKind.CHOOSE_CHECKPOINT in lost:
        plan = passed_resume_points.marked(state, _with_choice_anywhere(state, plan, fleet), fleet)
    state.plans[incident.id] = plan
    state.open_plans.add(incident.id)
    out.save(PlanMade(plan))
    known = state.recoveries.get(incident.id)
    if known is not None and not recovery.is_busy(known):
        known.under_way = None
    if lost & _RESTART and incident.state is not IncidentState.WATCHING:
        recovery.close(state, out, incident.id, IncidentState.OPEN, "", now)
    recovery.start(state, out, incident.id, now)


def _with_choice_anywhere(state: State, plan: Plan, fleet: Fleet) -> Plan:
    """The plan whose next choice of a checkpoint needs no certain nodes, where Slurm never starts the job on these."""
    steps = []
    for step in plan.steps:
        job = fleet.jobs.get(step.job) if step.kind is StepKind.CHOOSE_CHECKPOINT and step.job is not None else None
        never = job is not None and exclusions.never_starts(state, job)
        steps.append(dataclasses.replace(step, data={**step.data, ANYWHERE: True}) if never else step)
    return dataclasses.replace(plan, steps=tuple(steps))


def _with_drains_seen(
    state: State, plan: Plan, lost: frozenset[StepKind], nodes: Collection[str], fleet: Fleet, now: datetime
) -> Plan:
    """The plan whose lost drains say (ISO 8601) until when snapshots showed them, and after which time a start of slurmctld
    lost nothing: their nodes were in service by then, for a while, or what it lost would have included a later drain.

    A node found in service just now says nothing of that kind: slurmctld may be started again before it is asked.
    """
    steps = []
    for step in plan.steps:
        data = dict(step.data)
        if step.kind in NODE_STEPS & lost and step.node in nodes:
            before = dataclasses.replace(step, tries=max(step.tries - 1, 0))
            key, done = before.key(plan.incident), state.ledger.outcome(plan.incident, before)
            seen, back = state.seen_drained.get(key), state.seen_in_service.get(key)
            if seen is not None:
                data[SEEN_DRAINED] = seen.isoformat()
            until = [back] if back is not None and now - back > SAVED else []
            until += node_proof.later_drains_kept(state, fleet, done.at) if done is not None else []
            if until:
                data[LOST_BEFORE] = min(until).isoformat()
        steps.append(dataclasses.replace(step, data=data))
    return dataclasses.replace(plan, steps=tuple(steps))


def _lost_drains(state: State, plan: Plan, fleet: Fleet, now: datetime) -> dict[str, StepKind]:
    """Nodes that are in service again although nobody put them back, with the kind of our step."""
    lost: dict[str, StepKind] = {}
    for step in plan.to_do:
        outcome = state.ledger.outcome(plan.incident, step) if step.kind in NODE_STEPS else None
        if outcome is None or not _may_be_lost(outcome, fleet, now) or outcome.reason or step.node is None:
            continue
        node, seen = fleet.nodes.get(step.node), state.cluster.nodes.get(step.node)
        key = step.key(plan.incident)
        released = seen is not None and seen.released_at is not None and seen.released_at > outcome.at
        returned = state.returns.proves(step.node, outcome.at) is True
        released = released or returned or state.put_back.is_over(step.node, outcome.at)
        if node is not None and not node.drained and not released and not state.was_saved(key, outcome):
            lost[step.node] = step.kind
    return lost


def _outdated_exclusions(
    state: State, out: Transition, incident: Incident, plan: Plan, fleet: Fleet, now: datetime
) -> frozenset[StepKind]:
    """The exclusion of nodes, if the released job waits with a list or a size of ours that is another one by now.

    However long ago that was: Slurm keeps the list when it requeues the job itself.
    """
    release = state.ledger.done(plan, frozenset({StepKind.RELEASE}))
    job = fleet.jobs.get(release.step.job) if release is not None and release.step.job is not None else None
    if release is None or job is None or job.state != "pending" or fleet.at <= release.at:
        return frozenset()
    if job.restarts <= (release.step.attempt or 0) or _is_anothers(state, release, fleet):
        return frozenset()
    if words := exclusions.resized(state, incident, job, fleet, now):
        explanation = f"{plan.explanation} {words}".strip()
        state.plans[incident.id] = dataclasses.replace(plan, explanation=explanation)
        out.say("size-reconsidered", incident=incident.id, job=job.id, reading=words)
        return frozenset({StepKind.EXCLUDE})
    if not exclusions.outdated(state, incident, job, fleet):
        return frozenset()
    return frozenset({StepKind.EXCLUDE}) | (_RELEASE if exclusions.never_starts(state, job) else frozenset())


def _lost_of_job(state: State, plan: Plan, fleet: Fleet, now: datetime) -> frozenset[StepKind]:
    """Kinds of job steps that slurmctld lost."""
    stop = state.ledger.done(plan, STOPS)
    if stop is None or stop.step.job is None:
        return frozenset()
    job, attempt = fleet.jobs.get(stop.step.job), stop.step.attempt or 0
    if job is None or not _may_be_lost(stop, fleet, now):
        return frozenset()
    if job.restarts <= attempt and job.state not in ("cancelled", "pending"):
        return frozenset(step.kind for step in plan.to_do if step.kind in _RESTART)
    if stop.step.kind is StepKind.HOLD:
        return frozenset({StepKind.HOLD} if _lacks_reason(stop, job, fleet) else ())
    release = state.ledger.done(plan, frozenset({StepKind.RELEASE}))
    if (job.restarts != attempt + 1 and not past_restarts.is_counted_twice(state, stop, job)) or job.state != "pending":
        return frozenset()
    if release is None:
        return _lost_hold(state, plan, job, fleet, now) if stop.data.get("deferred") else frozenset()
    if fleet.at <= release.at or (exclusions.never_starts(state, job) and exclusions.has_ours(state, job)):
        return frozenset()
    # Where slurmctld forgot a later attempt, its incident may have stopped the job: then that lets it go.
    others = recovery.attempts_others_restart(state, plan.incident, job.id)
    if release.reason or any(stopped and later > attempt for later, stopped in others.items()):
        return frozenset()
    return _RELEASE if _is_deferred(job, now) or job.held else frozenset()  # held: the action asks whose hold it is


def _lost_hold(state: State, plan: Plan, job: JobView, fleet: Fleet, now: datetime) -> frozenset[StepKind]:
    """The step that failed and so left the job held, if it is deferred all the same: whoever releases it would wait for a
    month. Tried once more, the step succeeds, or leaves the job held again."""
    outcomes = state.ledger.outcomes(plan.incident, plan.to_do)
    failed = next((o for o in outcomes if o.result is Result.FAILED and o.step.kind not in OPTIONAL_STEPS), None)
    if failed is None or fleet.at <= failed.at or now - failed.at > LOST_WITHIN or failed.step.tries >= _MOST_TRIES:
        return frozenset()
    # Or held by our requeue still: slurmctld forgot the deferral that followed, and that its user had cancelled it.
    held = job.held and job.requeue_held and bool(failed.data.get("cancelled"))
    lost = held or (job.eligible_at is not None and job.eligible_at - now > _BY_A_MONTH)
    return frozenset({failed.step.kind} if lost else ())


def _lacks_reason(stop: Outcome, job: JobView, fleet: Fleet) -> bool:
    """Whether the job, or a component of it, is held by our requeue, and its comment does not say why. The action asks
    whether slurmctld was started."""
    ours = job.state == "pending" and job.restarts == (stop.step.attempt or 0) + 1
    if not ours or stop.reason or stop.data.get("user_hold"):
        return False
    return any(one.requeue_held and not _says_held(one.admin_comment) for one in (job, *components_with(fleet, job.id)))


def _says_held(comment: str) -> bool:
    return comment.startswith(OURS) and "held" in comment.split()


def _taken_nodes(state: State, plan: Plan, fleet: Fleet) -> frozenset[StepKind]:
    """The choice of a node-local checkpoint, if the released job waits for its nodes, and one is another job's by now or
    out of service. That could last for days; the next choice is of what can be had then.

    Or if Slurm says that it can never start: 22.05 never starts a job with a range of nodes, tasks per node and a node list
    shorter than the range. The next choice is of one that needs no certain nodes.
    """
    release, written = (state.ledger.done(plan, frozenset({kind})) for kind in (StepKind.RELEASE, StepKind.EXCLUDE))
    job = fleet.jobs.get(release.step.job) if release is not None and release.step.job is not None else None
    if release is None or written is None or job is None or fleet.at <= max(release.at, written.at):
        return frozenset()
    hosts = {*names(written.data.get("required"))}
    if job.state != "pending" or not hosts or {*job.required} != hosts or _is_anothers(state, release, fleet):
        return frozenset()
    if exclusions.never_starts(state, job):
        return _CHOICE | _RELEASE
    if job.held or fleet.at - max(release.at, written.at) < _STARTED_BY:
        return frozenset()
    taken = any(hosts & {*other.nodes} for other in fleet.jobs.values() if other.state == "running")
    out = any(node.drained or node.state == "down" for name in hosts if (node := fleet.nodes.get(name)) is not None)
    return _CHOICE if taken or out else frozenset()


def _outdated_resume_point(state: State, plan: Plan, fleet: Fleet) -> frozenset[StepKind]:
    """The resume point, if Slurm or a person requeued the released job before it made a step: TaskProlog gives it to that
    attempt alone for which it was written.

    That no step was seen proves nothing where nobody reads the job's steps, or nobody was there: the attempt must have been
    over soon, too, after its start or, where no snapshot showed that, after it was given the resume point.
    """
    if (waiting := _waits_with_resume_point(state, plan, fleet)) is None:
        return frozenset()
    release, written, job = waiting
    first = (release.step.attempt or 0) + 1
    if job.submitted_at is None or job.restarts in (first, written.data.get(FOR_ATTEMPT)):
        return frozenset()
    if job.restarts < first or written.step.tries >= _MOST_RESUME_POINTS:
        return frozenset()
    if any(confirming.first_step(state, job.id, attempt) is not None for attempt in range(first, job.restarts)):
        return frozenset()
    seen = state.cluster.attempts.get((job.id, job.restarts - 1))
    started = seen.view.started_at if seen is not None else None
    soon = timedelta(seconds=state.settings.recovery.confirm_s)
    over_soon = job.submitted_at - (started or max(release.at, written.at)) < soon
    return frozenset({StepKind.WRITE_RESUME}) if over_soon else frozenset()


def _passed_resume_point(state: State, plan: Plan, fleet: Fleet) -> frozenset[StepKind]:
    """The choice of a checkpoint, if another job of its user goes on, or has gone on, in the folder of the released job
    while this waits: it would train once more from where the run was, and write over what came since."""
    if (waiting := _waits_with_resume_point(state, plan, fleet)) is None:
        return frozenset()
    release, written, job = waiting
    if job.restarts not in ((release.step.attempt or 0) + 1, written.data.get(FOR_ATTEMPT)):
        return frozenset()
    chosen = state.ledger.done(plan, frozenset({StepKind.CHOOSE_CHECKPOINT}))
    if chosen is None or not passed_resume_points.is_passed(state, plan, chosen, job, fleet):
        return frozenset()
    excluded = state.ledger.done(plan, frozenset({StepKind.EXCLUDE}))
    required = excluded is not None and excluded.data.get("required")  # the nodes of the checkpoint that it gives up
    return _CHOICE if required else _CHOICE - {StepKind.EXCLUDE}


def _waits_with_resume_point(state: State, plan: Plan, fleet: Fleet) -> tuple[Outcome, Outcome, JobView] | None:
    """The release, the written resume point and the job, where this waits in the queue and this plan waits for its steps."""
    release, written = (
        state.ledger.done(plan, frozenset({kind})) for kind in (StepKind.RELEASE, StepKind.WRITE_RESUME)
    )
    job = fleet.jobs.get(release.step.job) if release is not None and release.step.job is not None else None
    if release is None or written is None or job is None or fleet.at <= max(release.at, written.at):
        return None
    confirm = next((step for step in plan.to_do if step.kind is StepKind.CONFIRM), None)
    if confirm is None or state.ledger.outcome(plan.incident, confirm) is not None:
        return None
    if job.state != "pending" or _is_anothers(state, release, fleet):
        return None
    return release, written, job


def _let_go_by_a_person(state: State, incident: Incident, plan: Plan, fleet: Fleet) -> frozenset[StepKind]:
    """The end of a restart that found its prepared job held by a person who has released it since: until it starts, the
    nodes that we excluded are ours to give back, or to keep it from."""
    step = next((step for step in plan.to_do if step.kind is StepKind.RELEASE), None)
    release = state.ledger.outcome(plan.incident, step) if step is not None else None
    if release is None or release.result is not Result.FAILED or incident.state is not IncidentState.HELD:
        return frozenset()
    job = fleet.jobs.get(release.step.job) if release.step.job is not None else None
    by_a_person = release.data.get("held") and not release.data.get(HELD_BY_SLURM)
    if job is None or not by_a_person or fleet.at <= release.at or _is_anothers(state, release, fleet):
        return frozenset()
    if job.state != "pending" or job.restarts != (release.step.attempt or 0) + 1 or _is_deferred(job, fleet.at):
        return frozenset()
    still_held = job.held and not exclusions.never_starts(state, job)  # Slurm takes the priority of what never starts
    return frozenset() if still_held else frozenset({StepKind.EXCLUDE}) | _RELEASE


def _is_anothers(state: State, release: Outcome, fleet: Fleet) -> bool:
    """Whether another incident stops the released job, or did, in a later attempt: what the next one begins with is that
    incident's to write, and a resume point of the earlier one would be for an attempt that is over."""
    parts = (release.step.job or -1, *(part.id for part in components_with(fleet, release.step.job or -1)))
    for name in {other.id for part in parts for other in state.index.about(part, ())} & state.plans.keys():
        for step in state.plans[name].to_do:
            if step.kind in STOPS and step.job in parts and (step.attempt or 0) > (release.step.attempt or 0):
                outcome = state.ledger.outcome(name, step)
                if outcome is None or outcome.result is not Result.FAILED:
                    return True
    return False


def _left_holds(state: State, plan: Plan, fleet: Fleet) -> frozenset[StepKind]:
    """The stop of a job that was cancelled in the middle of it and requeued by somebody since: our hold is still on it."""
    found = set()
    for step in plan.to_do:
        outcome = state.ledger.outcome(plan.incident, step) if step.kind in STOPS else None
        job = fleet.jobs.get(step.job) if step.job is not None else None
        if outcome is None or not outcome.data.get("left_hold") or job is None or fleet.at <= outcome.at:
            continue
        if job.state == "pending" and job.held and not job.admin_comment.startswith(OURS):
            found.add(step.kind)
    return frozenset(found)


def _may_be_lost(outcome: Outcome, fleet: Fleet, now: datetime) -> bool:
    """Whether the snapshot is newer than what was done, and that is not long ago."""
    return outcome.result is Result.DONE and fleet.at > outcome.at and now - outcome.at <= LOST_WITHIN


def _is_deferred(job: JobView, now: datetime) -> bool:
    return job.eligible_at is not None and job.eligible_at - now > _DEFERRED
