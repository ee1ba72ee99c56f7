"""Finds the resume point that another job of the same user has left behind: it goes on in the folder while this one waits.

Links of one run name one folder: tasks of an array of which one runs at a time, jobs of one name. Where one is stopped the
next takes its turn, and saves. While it does so, the newest checkpoint at the start of the one that waits is not known yet:
that one resumes as its script does. Once nobody is at work there, a checkpoint is chosen anew.
"""

from __future__ import annotations

import dataclasses

from sentinel.detect.own_host import of_own_clock
from sentinel.engine.state import State
from sentinel.model.intent import intent_of
from sentinel.model.records import Fleet, JobView, Outcome, Plan, StepKind
from sentinel.model.vocabulary import GOES_ON
from sentinel.policy import components_with

_AT_WORK = frozenset({"running", "suspended", "completing"})


def is_passed(state: State, plan: Plan, chosen: Outcome, job: JobView, fleet: Fleet) -> bool:
    """Whether what was chosen for the waiting job is to be chosen again, or taken away."""
    if _has_onset(state, plan):
        return False  # what comes after its bad numbers must not be taken, whoever saved it
    others = [other for part in (job, *components_with(fleet, job.id)) for other in _of_its_run(part, fleet)]
    at_work = any(other.state in _AT_WORK for other in others)
    again = chosen.step.tries < state.settings.recovery.resume_choices
    if chosen.step.data.get(GOES_ON):
        return not at_work and again
    if not chosen.data.get("path"):
        return False  # its script resumes as it does
    ahead_s = state.cluster.own_clock_ahead_s()
    ends = [of_own_clock(other.ended_at, ahead_s) for other in others if other.nodes and other.ended_at is not None]
    return at_work or (any(end > chosen.at for end in ends) and again)


def marked(state: State, plan: Plan, fleet: Fleet) -> Plan:
    """The plan whose next choice of a checkpoint is left to the job's script where another job goes on in its folder."""
    steps = []
    for step in plan.steps:
        data = {key: value for key, value in step.data.items() if key != GOES_ON}
        job = fleet.jobs.get(step.job) if step.kind is StepKind.CHOOSE_CHECKPOINT and step.job is not None else None
        parts = (job, *components_with(fleet, job.id)) if job is not None and not _has_onset(state, plan) else ()
        others = [other.id for part in parts for other in _of_its_run(part, fleet) if other.state in _AT_WORK]
        steps.append(dataclasses.replace(step, data={**data, GOES_ON: min(others)} if others else data))
    return dataclasses.replace(plan, steps=tuple(steps))


def _has_onset(state: State, plan: Plan) -> bool:
    verdict = state.verdicts.get(plan.incident)
    return verdict is not None and verdict.onset_step is not None


def _of_its_run(job: JobView, fleet: Fleet) -> list[JobView]:
    """Other jobs of its user that name one of its shared folders, or, where it has none, of its local ones: what lies in a
    folder that both name is one run's."""
    own = _folders(job)
    return [
        other
        for other in fleet.jobs.values()
        if other.id != job.id and other.user == job.user and (other.het is None or other.het != job.het)
        if not own.isdisjoint(_folders(other))
    ]


def _folders(job: JobView) -> frozenset[str]:
    intent = intent_of(job.comment, job.id)
    return frozenset(root.rstrip("/") for root in intent.global_roots or intent.local_roots)
