"""The order of the rooms: evidence → incidents → classify → policy → actions → alerts.

The only file that knows it. The daemon drives it live; replay and simulation drive the same functions. What happens when a
GPU fails is ``decide`` and then ``sentinel.actions.carry_out``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime

from sentinel import policy
from sentinel.classify import History, classify
from sentinel.incidents import numbers_only, only_tells, opens
from sentinel.model import Cause, Evidence, Incident, Kind, Plan, Restart, Scope, Verdict
from sentinel.policy import NODE_STEPS, Situation
from sentinel.rules import Rules
from sentinel.settings import Settings


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    plan: Plan


def decide(
    incident: Incident, situation: Situation, *, history: History, rules: Rules, settings: Settings, now: datetime
) -> Decision:
    """Judge an incident and say what may be done about it. Pure."""
    verdict = classify(incident, history=history, rules=rules, now=now)
    if only_tells(incident):
        # Its job goes on; a node that holds it up is tested, and left out when the job is restarted.
        slow = any(item.kind == Kind.SLOW for item in incident.evidence)
        suspect = (*verdict.drain, *verdict.suspect) if slow else ()
        verdict = dataclasses.replace(verdict, drain=(), suspect=suspect, restart=Restart.NONE, onset_step=None)
    elif verdict.onset_step is None and verdict.restart is not Restart.NONE:
        # Whatever ends a job whose numbers are bad: it must begin before they were.
        verdict = dataclasses.replace(verdict, onset_step=situation.onset_step)
    return Decision(verdict, _plan(verdict, incident, situation, settings, now))


def _plan(verdict: Verdict, incident: Incident, situation: Situation, settings: Settings, now: datetime) -> Plan:
    return policy.decide(
        verdict,
        incident,
        situation,
        limits=settings.limits,
        modes=settings.modes,
        act_confidence=settings.judgement.act_confidence,
        bad_numbers=settings.recovery.bad_numbers,
        now=now,
    )


def plan_for_job(
    verdict: Verdict, incident: Incident, situation: Situation, *, settings: Settings, now: datetime
) -> Plan:
    """What may be done for one more job of nodes that another incident takes out: that one's verdict, this job's budget."""
    plan = _plan(verdict, incident, situation, settings, now)
    return dataclasses.replace(plan, steps=tuple(step for step in plan.steps if step.kind not in NODE_STEPS))


def matters(incident: Incident, verdict: Verdict, rules: Rules) -> bool:
    """Whether people should hear of it. An Xid that means nothing, under a job that goes on, does not."""
    # A job that its user cancelled, or that reached its time limit, is no failure: whoever did that knows.
    stopped = any(
        item.kind == Kind.STALL or (item.kind == Kind.JOB_ENDED and opens(item)) for item in incident.evidence
    )
    reasons = [item for item in incident.evidence if opens(item)]
    harmless = {item.text for item in reasons if _harmless(item, rules)}  # other rules may read the same line
    if reasons and not stopped and not verdict.drain and all(item.text in harmless for item in reasons):
        return False
    if verdict.drain or verdict.suspect or only_tells(incident) or numbers_only(incident):
        return True
    if stopped:
        return True
    return verdict.scope is Scope.CLUSTER and verdict.cause is not Cause.UNKNOWN and verdict.restart is not Restart.NONE


def _harmless(evidence: Evidence, rules: Rules) -> bool:
    """An Xid after which NVIDIA asks for nothing, e.g. a memory row that the GPU replaced by itself."""
    number = evidence.data.get("xid")
    entry = rules.xids.get(number) if evidence.kind == Kind.XID and isinstance(number, int) else None
    return entry is not None and entry.immediate == "ignore"


def extend(before: Plan | None, after: Plan) -> Plan:
    """The newer plan of an incident whose older one may be half done.

    Steps of the job, once planned, stay as they are (they may be under way); nodes that the newer verdict convicts are
    added. A refusal stops what has not begun only when nothing was planned before.
    """
    if before is None or before.refusal or before.observe_only or not before.steps:
        return after
    if after.refusal or after.observe_only:
        return before
    has_job = any(step.kind not in NODE_STEPS for step in before.steps)
    kept = {step.key(before.incident) for step in before.steps}
    added = [step for step in after.steps if step.key(after.incident) not in kept]
    nodes = [step for step in added if step.kind in NODE_STEPS]
    job = [] if has_job else [step for step in added if step.kind not in NODE_STEPS]
    old_nodes = [step for step in before.steps if step.kind in NODE_STEPS]
    old_job = [step for step in before.steps if step.kind not in NODE_STEPS]
    return dataclasses.replace(before, steps=(*old_nodes, *nodes, *old_job, *job))
