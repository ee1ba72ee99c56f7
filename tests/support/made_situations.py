"""Situations for unit tests of the policy: a fleet, a job and its restarts, and the plan that is decided."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from made_records import AT, ended, fleet, incident, job

from sentinel import policy
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.intent import Intent
from sentinel.model.records import Cause, Incident, Plan, StepKind, Verdict
from sentinel.policy import PastRestart, Situation

ACT = Modes(default=Mode(drain="act", restart="act"))


WIDE = Limits(drain_fraction=1.0)


RESTART = [
    StepKind.REQUEUE_HOLD,
    StepKind.CHOOSE_CHECKPOINT,
    StepKind.QUARANTINE,
    StepKind.WRITE_RESUME,
    StepKind.EXCLUDE,
    StepKind.RELEASE,
    StepKind.CONFIRM,
]


def situation(**how: Any) -> Situation:
    return Situation(**{"fleet": fleet(10), "intent": Intent(restart=True), "job": job(), "last_step": 250, **how})


def decide(
    judged: Verdict,
    happened: Incident | None = None,
    *,
    limits: Limits = WIDE,
    modes: Modes = ACT,
    **how: Any,
) -> Plan:
    plan = policy.decide(
        judged,
        happened or incident(ended()),
        situation(**how),
        limits=limits,
        modes=modes,
        act_confidence=0.6,
        now=AT,
    )
    assert not (plan.steps and plan.refusal)  # never both
    return plan


def kinds(plan: Plan) -> list[StepKind]:
    return [step.kind for step in plan.steps]


def waiting(plan: Plan) -> str:
    """What the drain waits for."""
    return next((wait.kind for wait in plan.waits if any(name.startswith("drain") for name in wait.what)), "")


def drained(plan: Plan) -> list[str | None]:
    return [step.node for step in plan.steps if step.kind in policy.NODE_STEPS]


def past(step_before: int | None, cause: Cause = Cause.GPU_MEMORY_ECC, resumed: int | None = None) -> PastRestart:
    return PastRestart(AT - timedelta(hours=1), cause, step_before, resumed)
