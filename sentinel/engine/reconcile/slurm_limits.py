"""Tells which restarted jobs Slurm does not start by a limit that does not end by itself.

A partition's or an account's limits may be changed while a job runs; requeued, it waits for as long as nobody changes them
back, or the job. A limit on what a user has running ends with those jobs, as the queue does.
"""

from __future__ import annotations

import re

from sentinel.engine.state import State
from sentinel.model.records import Incident, Result, StepKind

# Slurm's reasons (22.05 to 26.05): of this one job, of the account or QOS that it names, and of minutes that are used up.
_FOR_GOOD = re.compile(
    r"PartitionTimeLimit|Invalid(?:Account|QOS)|(?:QOS|Account)NotAllowed"
    r"|(?:QOS|Assoc)Max\w+Per(?:Job|Node)(?:Limit)?|(?:QOS|Assoc)Grp(?!\w*Run)\w*Minutes(?:Limit)?"
)


def waits_by(state: State, incident: Incident) -> str:
    """By which limit the job that this incident let go is not started, and what can be done, in words; empty: by none."""
    plan, fleet = state.plans.get(incident.id), state.cluster.fleet
    released = state.ledger.of_plan(plan, StepKind.RELEASE) if plan is not None else None
    if plan is None or fleet is None or released is None or released.result is not Result.DONE:
        return ""
    confirmed = state.ledger.of_plan(plan, StepKind.CONFIRM)
    job = fleet.jobs.get(released.step.job) if released.step.job is not None else None
    if job is None or confirmed is not None or fleet.at <= released.at or job.state != "pending":
        return ""
    if job.restarts <= (released.step.attempt or 0) or not _FOR_GOOD.fullmatch(job.reason):
        return ""
    return (
        f"Slurm does not start it, and that does not end by itself; its reason is {job.reason}. Change what the job asks "
        f"for (scontrol update JobId={job.spec}), or ask the operators"
    )
