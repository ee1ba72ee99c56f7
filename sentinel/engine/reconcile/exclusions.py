"""Keeps the exclusions that a restarted job carries the smallest useful set, while it waits in the queue.

A node that is proven good, or without which the job cannot start, is taken out of the list again; one that has become bad is
added. What a person changed in the list is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import datetime

from sentinel.engine.reconcile import node_proof, spares
from sentinel.engine.reconcile.situations import (
    exclusions_of_ours,
    required_before,
    required_by_user,
    requires_ours,
)
from sentinel.engine.state import State
from sentinel.model.intent import intent_of
from sentinel.model.records import (
    LEFT_IN_SERVICE,
    NODE_STEPS,
    Fleet,
    Incident,
    JobView,
    Outcome,
    Plan,
    Result,
    Scalar,
    Step,
    StepKind,
)
from sentinel.model.vocabulary import ASKED, NEVER_STARTS, NOT_IN_SLURM
from sentinel.planning.restart_size import remaining_wait_s, restart_size
from sentinel.policy import Exclusions, components_with, excluded, nodes_wanted, waits_for_required, without_required
from sentinel.policy.exclusions import BESIDE, IN_TURN, bad_and_suspect
from sentinel.text import names

_NEEDED = "needed"  # in the data of the step that excludes: see ``needed_to_start``


def bound(state: State, incident: Incident, step: Step, now: datetime) -> Step:
    """The step that excludes nodes, with the nodes as they are known now: others may have gone bad since the plan."""
    fleet = state.cluster.fleet
    job = state.cluster.job(fleet, step.job, step.attempt) if fleet is not None else None
    if fleet is None or job is None:
        return step
    added, _ = exclusions_of_ours(state, job.id)
    found = wanted(state, incident, job, fleet)
    data: dict[str, Scalar] = {"nodes": ",".join(found.nodes), "ours": ",".join(sorted(added))}
    lists = {name for part in (job, *components_with(fleet, job.id)) for name in part.excluded}
    if gone := sorted(name for name in lists if not fleet.may_have_node(name)):
        data[NOT_IN_SLURM] = ",".join(gone)
    if needed := needed_to_start(state, job):
        data[_NEEDED] = ",".join(sorted(needed))
    if asked := required_before(state, job):
        data[ASKED] = asked
    if (size := _size(state, job, found, _waited_s(state, incident, job, now))) is not None:
        data["size"] = ",".join(map(str, size))
    if state.settings.recovery.spares:
        data["user"], data["spares"] = job.user, spares.may_use(state, incident, job)
    return dataclasses.replace(step, data=data)


def _size(state: State, job: JobView, found: Exclusions, waited_s: float) -> tuple[int, int, int] | None:
    """Least and most nodes, and tasks (0: as they are), with which a job is to start; None: Slurm fits it in by itself.

    Slurm keeps a range of nodes over a requeue, but not where tasks per node are given: it has counted the tasks then.
    """
    (least, most), recovery = nodes_wanted(job), state.settings.recovery
    if intent_of(job.comment).in_allocation is not None and intent_of(job.comment).nodes is None and job.het is None:
        most = max(most, _widest(state, job))  # as submitted: a start without its spare nodes made it smaller
        nodes = min(found.left, most)
        if job.tasks_per_node is not None and any(_given_back(state, job, n) for n in range(job.restarts + 1)):
            nodes = max(nodes, least)  # Slurm counted those nodes off, and keeps the tasks and CPUs of all
            return nodes, most, nodes * job.tasks_per_node
        tasks = nodes * (job.tasks_per_node or 0)
        return (nodes, most, tasks) if nodes >= least and (nodes < most or job.node_count != most) else None
    most = min(most, _widest(state, job))
    if least >= most or job.tasks_per_node is None:
        return None
    wait_s = remaining_wait_s(recovery.wait_s, waited_s)
    nodes = restart_size(found.left, least, most, wait_s, recovery.smaller_for_s).nodes
    return nodes, most, nodes * job.tasks_per_node


def _waited_s(state: State, incident: Incident, job: JobView, now: datetime) -> float:
    """How long the job has waited in the queue since this incident let it go; 0 before that."""
    rows = [row for row in state.ledger.of_job(job.id, StepKind.RELEASE) if row.incident == incident.id]
    return (now - rows[0].intended_at).total_seconds() if rows else 0.0


def resized(state: State, incident: Incident, job: JobView, fleet: Fleet, now: datetime) -> str:
    """Why a job that waits with a size of ours is to start with another one by now; empty if it keeps its size."""
    rows = [row for row in state.ledger.of_job(job.id, StepKind.EXCLUDE) if row.incident == incident.id]
    written = str(rows[-1].step.data.get("size") or "") if rows else ""
    if not written:
        return ""
    waited_s = _waited_s(state, incident, job, now)
    size = _size(state, job, wanted(state, incident, job, fleet), waited_s)
    if size is None or written == ",".join(map(str, size)):
        return ""
    before, most = written.split(",")[0], size[1]
    late = f"Another node was expected within {state.settings.recovery.wait_s / 3600:.3g} h and did not come: job"
    words = late if waited_s >= state.settings.recovery.wait_s else "Other nodes are there by now: job"
    return f"{words} {job.id} starts on {size[0]} of {most} nodes, not on {before}."


def _widest(state: State, job: JobView) -> int:
    """The most nodes that Slurm ever gave the job by itself, as far as is known.

    The comment is written by its user, and what we write counts as an operator's: limits of partition and QOS do not hold
    for it.
    """
    attempts = ((number, state.cluster.attempts.get((job.id, number))) for number in range(job.restarts + 1))
    given = [len({*seen.nodes} | _given_back(state, job, number)) for number, seen in attempts if seen is not None]
    sizes = [row.step.data.get("size") for row in state.ledger.of_job(job.id, StepKind.EXCLUDE)]
    return max([*given, *(int(str(size).split(",")[1]) for size in sizes if size)], default=0)


def _given_back(state: State, job: JobView, attempt: int) -> set[str]:
    """The nodes that this attempt gave back while it went on."""
    rows = (row for kind in (StepKind.START_RUN, StepKind.GIVE_BACK) for row in state.ledger.of_job(job.id, kind))
    return {name for row in rows if row.step.attempt == attempt for name in names(row.step.data.get("given_up"))}


def wanted(state: State, incident: Incident, job: JobView, fleet: Fleet) -> Exclusions:
    """The nodes that this job must not get now."""
    plan = state.plans[incident.id]
    added, _ = exclusions_of_ours(state, job.id)
    taken_out = {step.node for step in plan.to_do if step.node is not None}
    leaving = taken_out - node_proof.returned(state, incident, taken_out)
    bad, suspect = _judged(state, incident, job.id)
    suspect = [*_of_step(plan, job.id, BESIDE), *suspect]
    needed = needed_to_start(state, job).union(required_by_user(state, job))
    bad, suspect = without_required(bad, suspect, needed, fleet, leaving)
    return excluded(
        job,
        fleet,
        bad=bad,
        suspect=suspect,
        leaving=leaving,
        added_by_us=added,
        in_turn=_in_turn(state, incident, job, fleet),
    )


def needed_to_start(state: State, job: JobView) -> frozenset[str]:
    """Nodes of ours in lists with which Slurm said that this attempt of the job can never start.

    Which nodes have what it asks for (features, node lists, reservations, GPUs) is Slurm's to know, and may change. Such a
    node is most often out of service, and the job starts once it is back; with the list Slurm would forget its priority.
    """
    rows = (row for row in state.ledger.of_job(job.id, StepKind.EXCLUDE) if row.step.attempt == job.restarts - 1)
    said = {name for row in rows for name in names(row.step.data.get(_NEEDED))}
    if never_starts(state, job) and not requires_ours(state, job):
        said |= exclusions_of_ours(state, job.id)[0] & {*job.excluded}
    return frozenset(said)


def never_starts(state: State, job: JobView) -> bool:
    """Whether Slurm says that the waiting job, or a component of it, can never start."""
    fleet = state.cluster.fleet
    parts = (job, *components_with(fleet, job.id)) if fleet is not None else (job,)
    return any(part.state == "pending" and part.reason == NEVER_STARTS for part in parts)


def has_ours(state: State, job: JobView) -> bool:
    """Whether nodes that Sentinel wrote stand in the job's lists."""
    return not exclusions_of_ours(state, job.id)[0].isdisjoint(job.excluded) or requires_ours(state, job)


def waits_for(state: State, incident: Incident, job: JobView) -> str:
    """Which nodes of its user's own list the requeued job waits for, in words; empty: none, or not known.

    A list that Sentinel wrote in its place, for a node-local checkpoint, is not the user's.
    """
    fleet, plan = state.cluster.fleet, state.plans.get(incident.id)
    if fleet is None or plan is None:
        return ""
    step = next((step for step in plan.to_do if step.kind is StepKind.EXCLUDE), None)
    written = state.ledger.outcome(incident.id, step) if step is not None else None
    if written is not None and written.data.get("required"):
        return ""
    drains = [step for step in plan.to_do if step.node is not None and step.kind in NODE_STEPS]
    outcomes = state.ledger.outcomes(incident.id, drains)
    # A snapshot may be older than they are.
    leaving = {one.step.node for one in outcomes if one.step.node and one.result is Result.DONE}
    leaving -= {one.step.node for one in outcomes if one.data.get(LEFT_IN_SERVICE)}
    leaving -= node_proof.returned(state, incident, leaving)
    now = fleet.jobs.get(job.id)
    if now is not None and (written is None or fleet.at > written.at):
        excluded: Collection[str] = exclusions_of_ours(state, job.id)[0].intersection(now.excluded)
    else:  # the snapshot is older than the list
        excluded = names(written.data.get("excluded")) if written is not None else ()
    return waits_for_required(job, fleet, required_by_user(state, job), leaving, excluded)


def _in_turn(state: State, incident: Incident, job: JobView, fleet: Fleet) -> tuple[str, ...]:
    """The suspects that the plan found to fail the job in turn, while it may still wait for another node."""
    if _waited_s(state, incident, job, fleet.at) >= state.settings.recovery.wait_s:
        return ()
    return _of_step(state.plans[incident.id], job.id, IN_TURN)


def _of_step(plan: Plan, job: int, what: str) -> tuple[str, ...]:
    """The nodes that the plan's step for this job's exclusions names under this key."""
    steps = (step for step in plan.to_do if step.kind is StepKind.EXCLUDE and step.job == job)
    return tuple(name for step in steps for name in names(step.data.get(what)))


def suspects(state: State, incident: Incident, step: Step) -> tuple[str, ...]:
    """Nodes that the job of this step should not have, beside the convicted ones; the most likely first."""
    return tuple(_judged(state, incident, step.job)[1]) if step.job is not None else ()


def _judged(state: State, incident: Incident, job: int) -> tuple[list[str], list[str]]:
    """The nodes that are bad for this job now, and the suspects."""
    verdict = state.verdicts[incident.id]
    _, kept = exclusions_of_ours(state, job)
    slow = state.past.slow_nodes(incident.job, incident.attempt)
    named = (*verdict.drain, *verdict.suspect, *slow)
    good = node_proof.proven_good(state, incident, named) | node_proof.returned(state, incident, verdict.drain)
    return bad_and_suspect(
        verdict,
        good=good,
        convicted=node_proof.convicted(state),
        bad_elsewhere=node_proof.bad_nodes(state),
        slow=slow,
        excluded_by_us=kept,
        on_probation=state.returns.on_probation(job),
    )


def outdated(state: State, incident: Incident, job: JobView, fleet: Fleet) -> bool:
    """Whether the waiting job's list is one that we wrote, and another one is wanted now. Where it is the one before the
    last, slurmctld may have forgotten the last, or a person changed it back: the action asks. Nodes that the job needs to
    start at all are taken out of any list."""
    plan = state.plans[incident.id]
    step = next((step for step in plan.to_do if step.kind is StepKind.EXCLUDE), None)
    if step is None:
        return False
    tries = (dataclasses.replace(step, tries=number) for number in range(step.tries + 1))
    *lists, last = (_excluded(state.ledger.outcome(incident.id, one)) for one in tries)
    listed = {*job.excluded}
    never = never_starts(state, job)
    if last is None or (listed not in (*lists, last) and not never):
        return False
    added, _ = exclusions_of_ours(state, job.id)
    found = set(wanted(state, incident, job, fleet).nodes)
    return bool((listed & added) - found) if never else listed != (listed - added) | found


def _excluded(outcome: Outcome | None) -> set[str] | None:
    """The list that a step wrote; None: it left the job's list as it was, or nothing is known of it."""
    return {*names(outcome.data["excluded"])} if outcome is not None and "excluded" in outcome.data else None


def more_are_bad(state: State, incident: Incident, now: datetime) -> bool:
    """Whether nodes have gone bad since the exclusions were written."""
    plan = state.plans[incident.id]
    step = next((step for step in plan.to_do if step.kind is StepKind.EXCLUDE), None)
    outcome = state.ledger.outcome(incident.id, step) if step is not None else None
    if step is None or outcome is None or "excluded" not in outcome.data:
        return False
    nodes = names(bound(state, incident, step, now).data.get("nodes"))
    return not set(nodes) <= set(names(outcome.data["excluded"]))


def again(plan: Plan, kinds: frozenset[StepKind], nodes: Collection[str] = ()) -> Plan:
    """The plan with its steps of these kinds to be done once more, under new ids in the ledger; those of nodes, of these."""
    steps = tuple(
        dataclasses.replace(step, tries=step.tries + 1)
        if step.kind in kinds and (step.kind not in NODE_STEPS or step.node in nodes)
        else step
        for step in plan.steps
    )
    return dataclasses.replace(plan, steps=steps)
