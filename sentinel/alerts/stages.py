"""How far an incident has come, of what is known of it when people are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.model.approvals import APPROVAL, LAPSED, OF_JOBS, asked, open_names
from sentinel.model.records import (
    OPTIONAL_STEPS,
    RESTARTS,
    Incident,
    JobView,
    Outcome,
    Plan,
    Result,
    Scope,
    StepKind,
    Verdict,
)
from sentinel.model.vocabulary import QUEUED


class Stage(StrEnum):
    """The stage of an incident that a message reports."""

    RESTARTING = "restarting"  # requeued or released, and not yet seen to gain steps
    RUNNING = "running again"
    HELD = "held"  # a person must change something first
    FAILED = "failed"  # what was to be done could not be done
    WAITING = "waiting"  # what is wanted is not allowed now
    ASKED = "asked"  # a person must approve what is wanted
    LAPSED = "lapsed"  # nobody did in time
    REFUSED = "refused"  # a person said no
    CANCELLED = "cancelled"  # by its user, while it was to be restarted
    HANDLED = "handled"  # nothing to restart: a node was drained, or nothing is to be done
    RESOLVED = "resolved"  # what was held, failed or waited needs nobody any more


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """What is known of an incident when people are told. What is None is not known and is not said."""

    incident: Incident
    verdict: Verdict
    plan: Plan | None = None
    outcomes: Sequence[Outcome] = ()
    job: JobView | None = None  # as the attempt was last seen
    last_step: int | None = None  # that the failed attempt reached
    step_time_s: float | None = None
    gpus: int | None = None  # of the job
    nodes_now: tuple[str, ...] = ()  # on which the job runs again
    cluster: str = ""
    dependents: Mapping[int, str] = field(default_factory=dict)  # jobs that waited for its end, and how
    waits_for: str = ""  # the nodes of its user's own list that a requeued job waits for, in words
    limited: str = (
        ""  # the limit by which Slurm does not start the requeued job, where it does not end by itself, in words
    )
    resolved: bool = False  # the incident is closed, and people were told that it was not
    job_now: JobView | None = None  # as the newest snapshot shows it, perhaps in a later attempt
    told: Stage | None = None  # the stage that the message is about; None: the one that follows from the rest

    def spec_of(self, job: int | None) -> str:
        """How people must name the incident's job, or a component of it, to scontrol; its id where the job is not known."""
        return self.job.spec if self.job is not None and self.job.id == job else f"{job}"


def stage_of(facts: IncidentFacts) -> Stage:
    """How far the incident has come; what is asked of people goes before what is done without them, unless the job's
    people wait for that."""
    stage = reached(facts)
    waits = asked(facts.plan) if facts.plan is not None else ()
    if facts.told is not None:
        return facts.told
    if not waits or stage in (Stage.RESOLVED, Stage.CANCELLED, Stage.HELD, Stage.FAILED):
        return stage
    kinds = {wait.kind for wait in waits}
    if stage is Stage.RESTARTING or (stage is Stage.RUNNING and APPROVAL in kinds):
        return stage  # its message says what else is asked
    return Stage.ASKED if APPROVAL in kinds else Stage.LAPSED if LAPSED in kinds else Stage.REFUSED


def reached(facts: IncidentFacts) -> Stage:
    """How far the incident has come, whatever people are asked for."""
    plan, outcomes = facts.plan, facts.outcomes
    if facts.resolved:
        return Stage.RESOLVED
    if plan is None or (not plan.steps and not plan.refusal and not plan.waits):
        return Stage.HANDLED
    if plan.refusal or plan.observe_only:
        return Stage.WAITING
    if any(o.data.get("cancelled") for o in outcomes):
        return Stage.CANCELLED
    if any(o.data.get("goes_on") or o.data.get("on_purpose") for o in outcomes):
        return Stage.HANDLED
    if any((o.step.kind is StepKind.HOLD and is_done(o)) or o.data.get("held") for o in outcomes):
        return Stage.HELD
    failed = [o for o in outcomes if o.result is Result.FAILED and o.step.kind not in OPTIONAL_STEPS]
    if any(not o.data.get("recovered_by") for o in failed):  # that another incident restarts the job is no failure
        return Stage.FAILED
    if any(o.step.kind is StepKind.CONFIRM and is_done(o) for o in outcomes):
        return Stage.RUNNING
    if facts.limited:
        return Stage.WAITING
    kinds = {step.kind for step in plan.steps}
    return Stage.RESTARTING if kinds & {StepKind.RELEASE, StepKind.REQUEUE_HOLD, StepKind.START_RUN} else Stage.HANDLED


def only_observed(facts: IncidentFacts) -> bool:
    """Whether what is observed and not done would restart no job: then none waits for it.

    A restart that has a reason of its own to wait, as too few nodes, is no step of the plan.
    """
    plan, job = facts.plan, facts.incident.job
    if plan is None or not plan.observe_only or any(step.kind in RESTARTS for step in plan.steps):
        return False
    wanted = {OF_JOBS[kind].format(job) for kind in (StepKind.REQUEUE_HOLD, StepKind.STOP_RUN)}
    return wanted.isdisjoint(open_names(plan.waits))


def queued(facts: IncidentFacts) -> str:
    """What the restarted job was expected to wait for in the queue, in words; empty: for its turn alone."""
    steps = facts.plan.steps if facts.plan is not None else ()
    return next((str(step.data[QUEUED]) for step in steps if QUEUED in step.data), "")


def is_for_operators(verdict: Verdict) -> bool:
    """Whether the advice is about machines or what they share: no job's owner can reboot a node."""
    return verdict.scope in (Scope.GPU, Scope.LINK, Scope.NODE, Scope.CLUSTER)


def is_done(outcome: Outcome) -> bool:
    return outcome.result is Result.DONE
