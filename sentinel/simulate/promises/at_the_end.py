"""Promises about how a history ends: by then everything had time to come to rest."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.engine.node_return.put_back import SAVED
from sentinel.engine.reconcile.approvals import ANSWERS, stored_answers
from sentinel.model.approvals import APPROVAL, plan_words
from sentinel.model.records import OURS, Incident, IncidentState, Plan, Result, StepKind
from sentinel.model.vocabulary import DRAIN_REFUSED, UNREAD_NODE
from sentinel.policy.shares import at_most
from sentinel.simulate.observer import Observer
from sentinel.simulate.slurm.records import SimulatedJob

_BUDGETS = frozenset({"drain-budget", "last-healthy"})
_OVER = frozenset({"paused", "observe"})  # reasons that no longer hold when this is asked
_FAILED = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY"})
_DEFERRED_S = 86_400.0  # a job that is to start later than this has been put off by Sentinel
_TOLD_S = 0.5  # from the end of its epilogs to the daemon's report of it
_ASKED_S = 30.0  # from when Slurm is to be asked again to its answer
_JUDGED_S = 5.0  # from a snapshot to the drain that it allows
_LOOKS_S = 15.0  # from the end of a gap to the first answer of Slurm: the longest pause between two tries
JOINED = frozenset({"breaker", "hang-breaker"})  # refusals of which one notice tells for many incidents
# Of a job that was left running: why one is not restarted that failed after all, they do not say.
_RUNS = ("is not stopped", "still runs", "makes steps again")


def nothing_lost(seen: Observer) -> Iterator[str]:
    """A node that broke is out of service in the end, or people know why it is not."""
    if not seen.acting():
        return
    store = seen.world.store
    for name, (since_s, what) in sorted(seen.convicted.items()):
        node = seen.world.slurm.nodes[name]
        put_back = seen.back_since(name) >= since_s
        if node.out or put_back or _slurmctld_forgot_what_people_drained(seen, name):
            continue
        judged = [incident for incident, verdict in store.verdicts.items() if name in verdict.drain]
        refusals = {word for incident in judged if incident in store.plans for word in reasons(store.plans[incident])}
        if not judged:
            about = [i.id for i in store.incidents.values() if name in i.nodes and i.id in store.plans]
            where = f"; its evidence came to incident {about[0]} after that one's plan was made" if about else ""
            yield f"{name} broke ({what}), and is in service; no verdict names it{where}"
        elif not refusals - _OVER and not any("Not drained" in plan_words(store.plans[i]) for i in judged):
            yield f"{name} broke ({what}), was judged broken, and is in service"
        elif refusals - _OVER == {UNREAD_NODE} and name not in seen.world.slurm.unreadable:
            yield f"{name} broke ({what}), its record could not be read, and is read again; it is still in service"
        elif refusals - _OVER == {DRAIN_REFUSED} and _is_overdue(
            seen, [store.plans[i] for i in judged if i in store.plans]
        ):
            yield f"{name} broke ({what}), its drain was refused, and Slurm was not asked again"
        elif refusals & _BUDGETS and has_room(seen, name) and not _just_put_back(seen):
            yield f"{name} broke ({what}), was not drained for want of budget; the budget allows it now, and it is still up"


def _is_overdue(seen: Observer, plans: list[Plan]) -> bool:
    """Whether a refused drain should have been asked for again by now."""
    due = [wait.until for plan in plans for wait in plan.waits if wait.kind == DRAIN_REFUSED and wait.until is not None]
    return bool(due) and (seen.world.now(seen.world.own_off_s) - max(due)).total_seconds() > _ASKED_S


def _slurmctld_forgot_what_people_drained(seen: Observer, node: str) -> bool:
    """Whether people drained it, slurmctld was killed before it had saved that, and nothing broke there since: nothing was
    left for Sentinel to do, and what people asked of slurmctld is not asked again (docs/limits.md)."""
    drained_s = seen.drained_by_people.get(node)
    if drained_s is None:
        return False
    died = [at_s for at_s in seen.slurmctld_died if 0.0 <= at_s - drained_s <= SAVED.total_seconds()]
    return bool(died) and all(at_s <= min(died) for at_s, _ in seen.broken[node])


def reasons(plan: Plan) -> set[str]:
    """Why something that the plan wants is not done."""
    return {*({plan.refusal} if plan.refusal else ()), *(wait.kind for wait in plan.waits)}


def _just_put_back(seen: Observer) -> bool:
    """Whether a node was put back so lately that no snapshot has shown it."""
    back_s = max((*seen.resumed.values(), *seen.returned.values()), default=-1.0)
    return back_s >= 0.0 and seen.world.now_s - back_s <= seen.world.settings.slurm.reconcile_s + _JUDGED_S


def has_room(seen: Observer, node: str) -> bool:
    """Whether the limits would allow to drain the node now."""
    limits, nodes, now_s = seen.world.settings.limits, seen.world.slurm.nodes, seen.world.now_s
    ours = seen.ours()
    hour = [
        drain for drain in seen.drains if now_s - drain.at_s <= 3600.0
    ]  # also of one node that was put back between
    if len(ours) >= limits.drain_count or len(hour) >= limits.drain_per_hour:
        return False
    place = nodes[node].topology
    if place and sum(nodes[name].topology == place for name in ours) >= limits.drain_per_switch:
        return False
    for partition in nodes[node].partitions:
        members = [other for other in nodes.values() if partition in other.partitions]
        out = [name for name in ours if partition in nodes[name].partitions]
        left = [other for other in members if not other.out and other.name != node]
        if len(out) >= max(1, at_most(limits.drain_fraction, len(members))) or len(left) < limits.keep_healthy:
            return False
    return True


def brought_back(seen: Observer) -> Iterator[str]:
    """A job that asked for it and failed is restarted or held, or people know why neither was done."""
    store = seen.world.store
    for job, (attempt, state, ended_s) in sorted(seen.ended.items()):
        now = seen.world.slurm.jobs.get(job)
        spec = seen.world.spec_of(job)
        gone = now is None or (now.restarts == attempt and now.over)
        if not (gone and state in _FAILED and spec.opted_in and seen.acting()) or job in seen.cancelled:
            continue
        if _forgotten_unseen(seen, job, ended_s):
            continue
        about = [i.id for i in store.incidents.values() if i.job == job and i.id in store.plans]
        if not any(_answered(seen, incident, job, attempt) for incident in about):
            yield f"job {job} failed in attempt {attempt}, and nobody restarts it, holds it, or says why not"


def _forgotten_unseen(seen: Observer, job: int, ended_s: float) -> bool:
    """Whether Slurm had forgotten the job (MinJobAge) before a daemon could look: it was away, or without store or Slurm.

    An end counts from when it is final: a node that boots keeps its jobs completing until it is back or set down.
    """
    final_s = seen.world.final_s(job)
    ended_s = max(ended_s + seen.world.slurm.times.epilog_s, final_s if final_s is not None else 0.0)
    blind_until_s = ended_s + _TOLD_S
    for since_s, until_s in sorted(seen.world.away):
        if since_s <= blind_until_s:
            blind_until_s = max(blind_until_s, until_s + _LOOKS_S)
    return blind_until_s >= ended_s + (seen.world.slurm.times.min_job_age_s or 0.0)


def _answered(seen: Observer, incident: str, job: int, attempt: int) -> bool:
    """Whether the incident's plan did something about this attempt, or people were told why it did not."""
    plan = seen.world.store.plans[incident]
    of_job = [step for step in plan.steps if step.job is not None and step.kind is not StepKind.GIVE_BACK]
    mine = [step for step in of_job if step.attempt == attempt]
    if reasons(plan) - _OVER or f"no longer knows job {job}" in plan_words(plan):
        return True
    if any(words in plan_words(plan) for words in _RUNS):
        return False
    return (bool(mine) and not plan.observe_only and not plan.waits) or bool(plan.explanation and not plan.steps)


def leaves_bad_nodes(seen: Observer) -> Iterator[str]:
    """A job does not go on on a node that is convicted, or people know why it does."""
    if not seen.acting():
        return
    store = seen.world.store
    for job in seen.world.slurm.jobs.values():
        asked = seen.world.spec_of(job.id).opted_in and job.id not in {*seen.cancelled, *seen.held, *seen.touched}
        if job.state != "RUNNING" or job.ghost or not asked:
            continue
        about = [store.plans[i.id] for i in store.incidents.values() if i.job == job.id and i.id in store.plans]
        if any(plan_words(plan) for plan in about):
            continue
        for node in job.on:
            since_s = seen.convicted.get(node, (None, ""))[0]
            if since_s is None or seen.back_since(node) >= since_s:
                continue
            by = [incident for incident, verdict in store.verdicts.items() if node in verdict.drain]
            if by and not any(reasons(store.plans[incident]) - _OVER for incident in by):
                yield f"job {job.id} goes on on {node}, which incident {by[0]} convicts"


def holds_stay(seen: Observer) -> Iterator[str]:
    """A job that its user cancelled stays so, and one that a person holds does not start."""
    for job in seen.world.slurm.jobs.values():
        if job.id in seen.cancelled and not job.over:
            yield f"job {job.id} was cancelled by its user, and is {job.state}"
        began = [a for a in seen.attempts if a.job == job.id and a.attempt == job.restarts]
        since = seen.held.get(job.id)
        if since is not None and job.state == "PENDING" and not job.held:
            yield f"job {job.id} was held by a person, and the hold is gone"
        if since is not None and job.state == "RUNNING" and began and seen.world.began_s(job.id, job.restarts) > since:
            yield f"job {job.id} was held by a person, and attempt {job.restarts} began"


def approved_is_done(seen: Observer) -> Iterator[str]:
    """What a person has approved is not asked again while the approval holds."""
    store, now = seen.world.store, seen.world.own_now()
    for incident, answers in sorted(stored_answers(store.settings.get(ANSWERS)).items()):
        plan, verdict = store.plans.get(incident), store.verdicts.get(incident)
        asked = (
            {name for wait in plan.waits if wait.kind == APPROVAL for name in wait.what} if plan is not None else set()
        )
        newest = {name: answer for answer in answers for name in answer.what}
        for name, answer in sorted(newest.items()):
            holds = answer.approved and (now - answer.at).total_seconds() <= seen.world.history.setup.approval_s
            if name in asked and holds and verdict is not None and verdict.cause is answer.cause:
                yield f"{name} of incident {incident} was approved, and is asked for again"


def told(seen: Observer) -> Iterator[str]:
    """Whatever Sentinel did or refused to do, people were told of it."""
    store = seen.world.store
    causes = {store.verdicts[i].cause for i in seen.notices if i in store.verdicts}
    for incident, plan in sorted(store.plans.items()):
        did = [s for s in store.steps.values() if s.incident == incident and s.outcome is not None]
        acted = any(s.outcome is not None and s.outcome.result is Result.DONE for s in did)
        if incident in seen.notices or not (reasons(plan) or acted):
            continue
        if (reasons(plan) and JOINED & seen.refusals) or store.verdicts[incident].cause in causes:
            continue  # one notice told of a breaker that it waited for first, or of a cause that many share
        why = ", ".join(sorted(reasons(plan))) or "acted"
        yield f"incident {incident} ({store.verdicts[incident].cause}) was never told: {why}"


def told_to_the_end(seen: Observer) -> Iterator[str]:
    """Of a job that was told to be restarting people hear what became of it."""
    store = seen.world.store
    for incident, heard in sorted(seen.notices.items()):
        plan = store.plans.get(incident)
        if heard[max(heard)].data.get("stage") == "restarting" and plan is not None and plan.id in store.finished:
            yield f"incident {incident} is over, and people heard last that its job is being restarted"


def comes_to_rest(seen: Observer) -> Iterator[str]:
    """In the end every job runs, has ended, or waits for a reason that people can see; no plan is left half done."""
    for job in seen.world.slurm.jobs.values():
        why = _unsettled(seen, job)
        if why:
            yield f"job {job.id} (attempt {job.restarts}): {why}"
    if seen.world.paused or seen.world.crossings.slurm != "up":
        return
    for incident, plan in sorted(seen.world.store.plans.items()):
        state = seen.world.store.incidents[incident].state
        waits = plan.waits or state is IncidentState.WATCHING  # for a condition, or for the job's turn in the queue
        if plan.to_do and not waits and plan.id not in seen.world.store.finished:
            yield f"the plan of incident {incident} ({state}) is not finished"


def _unsettled(seen: Observer, job: SimulatedJob) -> str:
    """What is wrong with the state in which a job is left; empty if nothing."""
    world = seen.world
    if job.over:
        return "still completing" if job.completing else ""
    if job.state == "RUNNING":
        return _stuck(seen, job)
    if job.completing:
        return "still completing"
    if job.held:
        ours = job.admin_comment.startswith(OURS) and "held" in job.admin_comment
        known = job.id in seen.held or ours or any(i.job == job.id for i in _waiting(seen))
        known = known or world.paused  # in the middle of its restart
        return "" if known else "held, and nobody said why"
    if job.after_ok is not None:
        return ""
    if job.eligible - world.slurm.time_s() > _DEFERRED_S:
        return "" if world.paused else "put off for a month by Sentinel, and nobody goes on with it"
    if job.bad:
        # Bad nodes in service whose drain waits for somebody are kept from it all the same.
        asked = {what for plan in world.store.plans.values() for wait in plan.waits for what in wait.what}
        mine = set(job.excluded) - set(world.spec_of(job.id).excluded)
        mine = {name for name in mine if world.slurm.nodes[name].out or f"drain {name}" not in asked}
        return f"can never start (BadConstraints): {','.join(sorted(mine))} excluded by Sentinel" if mine else ""
    return ""


def _waiting(seen: Observer) -> list[Incident]:
    return [i for i in seen.world.store.incidents.values() if i.state is IncidentState.HELD]


def _stuck(seen: Observer, job: SimulatedJob) -> str:
    program = seen.world.programs.newest.get(job.id)
    if program is None or not program.runs or program.attempt != job.restarts:
        return "listed as running, and no process is there" if seen.acting() else ""
    if program.hung_at is None or not seen.acting():
        return ""
    if seen.world.spec_of(job.id).opted_in and not any(job.id == i.job for i in seen.world.store.incidents.values()):
        return "hangs, and no incident is about it"
    return ""
