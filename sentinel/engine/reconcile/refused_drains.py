"""Lets a drain that Slurm refused wait, to be asked for again: what slurmctld said no to may be over in a minute.

The job's restart does not wait for it. Policy decides each time, so that the limits of then hold.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.engine.state import State
from sentinel.model.records import NODE_STEPS, Outcome, Plan, Result
from sentinel.model.vocabulary import DRAIN_REFUSED, REFUSED_BY_SLURM
from sentinel.policy import RefusedDrain, refused_wait

_AGAIN = timedelta(minutes=1)  # the first pause; each next one is twice as long
_MOST_DOUBLED = 5  # up to 32 minutes: a refusal that lasts is a person's to look at


def is_refused(outcome: Outcome) -> bool:
    """Whether Slurm refused, for an unknown reason, the drain of a node that it knows and has in service."""
    asked = outcome.step.kind in NODE_STEPS and outcome.result is Result.NOT_KNOWN
    return asked and outcome.data.get(REFUSED_BY_SLURM) is True


def waiting(state: State, plan: Plan, outcome: Outcome, now: datetime) -> Plan:
    """The plan in which the refused drain is no longer to do, but waits."""
    node, refused = outcome.step.node or "", state.refused_drains.setdefault(plan.incident, {})
    before = refused.get(node)
    times = before.times if before is not None else 0
    again_at = now + _AGAIN * 2 ** min(times, _MOST_DOUBLED)
    refused[node] = RefusedDrain(before.since if before is not None else now, again_at, outcome.reason, times + 1)
    steps = tuple(step for step in plan.steps if step.kind not in NODE_STEPS or step.node != node)
    planned = {step.node for step in steps}
    wait = refused_wait({name: seen for name, seen in refused.items() if now < seen.again_at and name not in planned})
    waits = (*(one for one in plan.waits if one.kind != DRAIN_REFUSED), wait)
    if not steps:
        return dataclasses.replace(plan, steps=(), waits=waits, refusal=DRAIN_REFUSED, explanation=wait.explanation)
    return dataclasses.replace(plan, steps=steps, waits=waits)
