"""Decides whether an incident is worth a verdict, and how its newer plan extends one that may be partly carried out."""

from __future__ import annotations

import dataclasses

from sentinel.config.rules import Rules
from sentinel.correlate.incidents import is_advisory_incident, numbers_only, opens
from sentinel.engine.reconcile.in_allocation import GAVE_UP
from sentinel.model.approvals import ASKING, job_names
from sentinel.model.records import (
    NODE_STEPS,
    Cause,
    Evidence,
    Incident,
    Kind,
    Plan,
    Restart,
    Scope,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.policy.permissions import OBSERVED, observed_only
from sentinel.text import names

_REPLACED = NODE_STEPS | {StepKind.HOLD, StepKind.GIVE_BACK}  # a plan with nothing else may become one with a restart


def matters(incident: Incident, verdict: Verdict, rules: Rules) -> bool:
    """Whether the incident is worth a verdict and a notice. A harmless Xid under a job that keeps running is not."""
    # A job that its user cancelled, or that reached its time limit, is not a failure: its user knows.
    stopped = any(
        item.kind == Kind.STALL or (item.kind == Kind.JOB_ENDED and opens(item)) for item in incident.evidence
    )
    reasons = [item for item in incident.evidence if opens(item)]
    harmless = {item.text for item in reasons if _harmless(item, rules)}  # other rules may read the same line
    if reasons and not stopped and not verdict.drain and all(item.text in harmless for item in reasons):
        return False
    if verdict.drain or verdict.suspect or is_advisory_incident(incident) or numbers_only(incident):
        return True
    if stopped:
        return True
    return verdict.scope is Scope.CLUSTER and verdict.cause is not Cause.UNKNOWN and verdict.restart is not Restart.NONE


def _harmless(evidence: Evidence, rules: Rules) -> bool:
    """Whether this is an Xid for which NVIDIA asks no action, e.g. a memory row that the GPU remapped."""
    entry = rules.xid_of(evidence)
    return entry is not None and entry.immediate == "ignore"


def extend(before: Plan | None, after: Plan) -> Plan:
    """Merge the newer plan of an incident into an older one that may be partly carried out.

    Job steps, once planned, stay as they are (they may be under way), except that a job which is only held is restarted
    when the newer verdict asks for it; steps for nodes that the newer verdict convicts are added. A refusal in the newer
    plan replaces the older plan only if that one had nothing to carry out. A wait that goes on keeps the time of its
    beginning.
    """
    if before is None:
        return after
    after = dataclasses.replace(after, waits=tuple(_going_on(before, wait) for wait in after.waits))
    if not before.to_do:
        return before if dataclasses.replace(after, at=before.at) == before else after
    if any(wait.kind == GAVE_UP for wait in before.waits):
        return _requeued_instead(before, after)
    if _restarts(after) and {step.kind for step in before.steps} <= _REPLACED:
        before = dataclasses.replace(before, steps=tuple(s for s in before.steps if s.kind in NODE_STEPS))
    has_job = any(step.kind not in NODE_STEPS for step in before.steps)
    kept = {(step.kind, step.node, step.job, step.attempt) for step in before.steps}
    added = [step for step in after.to_do if (step.kind, step.node, step.job, step.attempt) not in kept]
    nodes = [step for step in added if step.kind in NODE_STEPS]
    job = [] if has_job else [step for step in added if step.kind not in NODE_STEPS]
    old_nodes = [step for step in before.steps if step.kind in NODE_STEPS]
    old_job = [step for step in before.steps if step.kind not in NODE_STEPS]
    back = _given_back_too(before, after) if has_job else []
    waits = tuple(wait for wait in after.waits if _concerns_more(wait, before))
    return dataclasses.replace(before, steps=(*old_nodes, *nodes, *back, *old_job, *job), waits=waits)


def _given_back_too(before: Plan, after: Plan) -> list[Step]:
    """The step that gives back spare nodes convicted since: the job goes on, and they are drained while it holds them."""
    earlier = [step for step in before.steps if step.kind is StepKind.GIVE_BACK]
    known = {name for step in earlier for name in _given_up(step)}
    return [
        dataclasses.replace(step, tries=len(earlier))
        for step in after.to_do
        if step.kind is StepKind.GIVE_BACK and _given_up(step) - known
    ]


def _given_up(step: Step) -> set[str]:
    return set(names(step.data.get("given_up")))


def _requeued_instead(before: Plan, after: Plan) -> Plan:
    """After a restart in the allocation that failed: the drains of the plan, and what is planned for the job now.

    What was done for the job before is done again, under new ids in the ledger.
    """
    done = {(step.kind, step.job): step.tries for step in before.steps if step.kind not in NODE_STEPS}
    kept = [step for step in before.steps if step.kind in NODE_STEPS]
    nodes = {(step.kind, step.node) for step in kept}
    new = [
        dataclasses.replace(step, tries=done[step.kind, step.job] + 1) if (step.kind, step.job) in done else step
        for step in after.to_do
        if (step.kind, step.node) not in nodes or step.kind not in NODE_STEPS
    ]
    steps = (*kept, *new) if kept or new else after.steps
    refusal, observe = ("", False) if kept or new else (after.refusal, after.observe_only)
    return dataclasses.replace(after, at=before.at, steps=steps, refusal=refusal, observe_only=observe)


def _restarts(plan: Plan) -> bool:
    return any(step.kind in (StepKind.REQUEUE_HOLD, StepKind.STOP_RUN) for step in plan.to_do)


def _going_on(before: Plan, wait: Wait) -> Wait:
    if wait.kind in ASKING:
        return wait  # policy knows since when people are asked for exactly this
    if wait.kind == OBSERVED and before.to_do:  # policy knows of no step that was done, and may say that nothing is
        wait = dataclasses.replace(wait, explanation=observed_only(wait.what))
    old = next((known for known in before.waits if known.kind == wait.kind), None)
    if old is None:
        return wait
    until = old.until or wait.until if wait.until is not None else None  # it may wait for something else by now
    return dataclasses.replace(wait, since=old.since, until=until)


def _concerns_more(wait: Wait, plan: Plan) -> bool:
    """Whether something waits that is not among the plan's steps."""
    nodes = {f"{kind} {step.node}" for step in plan.steps for kind in NODE_STEPS if step.node is not None}
    jobs = {name for step in plan.steps if step.job is not None for name in job_names(step.job)}
    return not set(wait.what) <= nodes | jobs
