"""Keeps account of restarts inside a job's allocation: which run follows, on which nodes, and what if one fails.

Slurm's restart count stays the same, so the attempt does: it begins anew in the cluster view, and what happens after that
is another failure.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.engine.reconcile import node_proof
from sentinel.engine.state import State
from sentinel.model.intent import intent_of
from sentinel.model.records import (
    INTERRUPTIONS,
    USER_SOURCES,
    Evidence,
    Incident,
    JobView,
    Outcome,
    Plan,
    Result,
    Scalar,
    Step,
    StepKind,
    Wait,
)
from sentinel.policy import next_run
from sentinel.text import names

GAVE_UP = "allocation-restart-failed"  # kind of the wait: the job is to be requeued instead
_OF_LAUNCHER = frozenset({StepKind.STOP_RUN, StepKind.START_RUN})
_BOUND = _OF_LAUNCHER | {StepKind.CHOOSE_CHECKPOINT}
_LATE_OUTPUT = timedelta(seconds=5)  # what a killed program printed last is read this long after the next run began


def is_planned(plan: Plan) -> bool:
    return any(step.kind is StepKind.START_RUN for step in plan.steps)


def stops_nothing(plan: Plan) -> bool:
    """Whether the job goes on, without spare nodes that are bad."""
    kinds = {step.kind for step in plan.steps}
    return StepKind.GIVE_BACK in kinds and not kinds & INTERRUPTIONS


def bound(state: State, incident: Incident, step: Step, suspects: tuple[str, ...]) -> Step:
    """A step of such a plan with the run and its nodes as they are known now: others may have gone bad since the plan."""
    fleet = state.cluster.fleet
    job = state.cluster.job(fleet, step.job, step.attempt) if fleet is not None else None
    if step.kind not in _BOUND:
        return step
    data: dict[str, Scalar] = {**step.data, "run": len(_earlier(state, step, incident.id)) + 1}
    if fleet is None or job is None:  # which runs are older is known all the same
        return dataclasses.replace(step, data=data)
    count = intent_of(job.comment).in_allocation or len(job.nodes)
    bad = set(state.verdicts[incident.id].drain)
    found = next_run(job, fleet, count, bad=bad, suspect=suspects)
    if isinstance(found, str):
        return dataclasses.replace(step, data={**data, "nodes": "", "why": found})
    data["nodes"] = ",".join(found.nodes)
    if step.kind in _OF_LAUNCHER:
        data["given_up"] = ",".join(found.given_up)
    if step.kind is StepKind.CHOOSE_CHECKPOINT:
        data["same"] = found.nodes == run_nodes(state, job.id, job.restarts, count)
    return dataclasses.replace(step, data=data)


def _earlier(state: State, step: Step, incident: str) -> list[Outcome]:
    """The runs of this attempt that other incidents started, in order."""
    rows = state.ledger.of_job(step.job or -1, StepKind.START_RUN)
    return [
        row.outcome
        for row in rows
        if row.step.attempt == step.attempt and row.incident != incident and row.outcome is not None
    ]


def run_nodes(state: State, job: int, attempt: int, count: int) -> tuple[str, ...]:
    """The nodes on which the launcher's present step runs: at first the first ones of the allocation."""
    runs = [row.outcome for row in state.ledger.of_job(job, StepKind.START_RUN) if row.step.attempt == attempt]
    named = names(runs[-1].data.get("nodes")) if runs and runs[-1] is not None else ()
    return tuple(named) or state.cluster.nodes_of(job, attempt)[:count]


def run_nodes_of(state: State, job: JobView) -> tuple[str, ...]:
    """The nodes on which a job with spare nodes trains; empty: on all of its nodes."""
    count = intent_of(job.comment).in_allocation
    return run_nodes(state, job.id, job.restarts, count) if count is not None else ()


def training_nodes(state: State, job: int, attempt: int) -> tuple[str, ...]:
    """The nodes on which the attempt works: without the spare ones that it only holds."""
    seen, nodes = state.cluster.attempts.get((job, attempt)), state.cluster.nodes_of(job, attempt)
    return (run_nodes_of(state, seen.view) if seen is not None else ()) or nodes


def began_at(state: State, incident: str) -> datetime | None:
    """When this incident's next run began; None if it did not."""
    plan = state.plans.get(incident)
    outcome = state.ledger.of_plan(plan, StepKind.START_RUN) if plan is not None else None
    return outcome.at if outcome is not None and outcome.result is Result.DONE else None


def is_another_failure(state: State, incident: Incident, item: Evidence) -> bool:
    """Whether this happened to the run that this incident's plan started, or to a job that only gave spare nodes back."""
    plan, at = state.plans.get(incident.id), began_at(state, incident.id)
    if plan is not None and stops_nothing(plan):
        return item.where.job is not None and item.where.job == incident.job
    late = _LATE_OUTPUT if item.source in USER_SOURCES else timedelta(0)
    if plan is None or at is None or node_proof.happened_at(state, item) <= at + late:
        return False
    outcome = state.ledger.of_plan(plan, StepKind.START_RUN)
    nodes = names(outcome.data.get("nodes")) if outcome is not None else []
    return item.where.job == incident.job if item.where.job is not None else item.where.node in nodes


def fails(plan: Plan, outcome: Outcome) -> bool:
    """Whether the restart in the allocation ended with this outcome, so that the job must be requeued."""
    over = any(outcome.data.get(word) for word in ("cancelled", "goes_on", "held"))
    return outcome.result is Result.FAILED and outcome.step.kind in _OF_LAUNCHER and is_planned(plan) and not over


def given_up(plan: Plan, outcome: Outcome, now: datetime) -> Plan:
    """The plan with the wait that has policy asked again: it plans a requeue."""
    words = f"Not restarted in its allocation: {outcome.reason}. It is requeued."
    return dataclasses.replace(plan, waits=(*plan.waits, Wait(GAVE_UP, now, words, (f"restart {outcome.step.job}",))))


def has_failed(state: State, incident: Incident) -> bool:
    """Whether this incident's restart in the allocation could not be done."""
    steps = (Step(kind, job=incident.job, attempt=incident.attempt) for kind in _OF_LAUNCHER)
    outcomes = (state.ledger.outcome(incident.id, step) for step in steps)
    return any(outcome is not None and outcome.result is Result.FAILED for outcome in outcomes)
