"""Lets a drain that Slurm refused wait, to be asked for again: what slurmctld said no to may be over in a minute.

The job's restart does not wait for it. Policy is asked each time, so that the limits of then hold.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.model.records import NODE_STEPS, Outcome, Plan, Result, Step, Wait
from sentinel.model.vocabulary import DRAIN_REFUSED, REFUSED_BEFORE

_AGAIN = timedelta(minutes=1)  # the first pause; each next one is twice as long
_MOST_DOUBLED = 5  # up to 32 minutes: a refusal that lasts is a person's to look at


def is_refused(outcome: Outcome | None) -> bool:
    """Whether slurmctld refused the drain of a node that it knows and has in service."""
    if outcome is None or outcome.step.kind not in NODE_STEPS:
        return False
    return outcome.result is Result.FAILED and outcome.data.get(REFUSED_BEFORE) is True


def waiting(plan: Plan, outcome: Outcome, now: datetime) -> Plan:
    """The plan in which the refused step is no longer to do, but waits."""
    step = outcome.step
    steps = tuple(one for one in plan.steps if (one.kind, one.node) != (step.kind, step.node))
    words = f"{outcome.reason.rstrip('.')}. Slurm is asked again, after a minute at first."
    again = now + _AGAIN * 2 ** min(step.tries, _MOST_DOUBLED)
    wait = Wait(DRAIN_REFUSED, now, words, (f"{step.kind} {step.node}",), again)
    before = [one for one in plan.waits if one.kind == DRAIN_REFUSED]
    if before:
        wait = dataclasses.replace(wait, since=before[0].since, what=tuple(dict.fromkeys(before[0].what + wait.what)))
    waits = (*(one for one in plan.waits if one.kind != DRAIN_REFUSED), wait)
    return dataclasses.replace(plan, steps=steps, waits=waits, refusal=plan.refusal if steps else DRAIN_REFUSED)


def next_try(step: Step) -> Step:
    return dataclasses.replace(step, tries=step.tries + 1, data={**step.data, REFUSED_BEFORE: True})
