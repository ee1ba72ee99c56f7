"""Makes the plan for a verdict: what may be done now, and what waits for which condition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sentinel.config.settings import Limits, Modes
from sentinel.model.hostlist import fold
from sentinel.model.records import Incident, Plan, Step, Verdict, Wait, stable_id
from sentinel.policy.drains import drains, switches
from sentinel.policy.permissions import Permissions, names
from sentinel.policy.restarts import JobSteps, job_steps
from sentinel.policy.situation import Situation


def decide(
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    *,
    limits: Limits,
    modes: Modes,
    act_confidence: float,
    now: datetime,
    bad_numbers: str = "tell",
) -> Plan:
    """The plan for ``verdict``; it never has both steps and a refusal.

    Its explanation is of its steps, or of why there are none to do. What else waits says so itself, and is over before
    the plan is.
    """

    def plan(steps: Sequence[Step], waits: Sequence[Wait], words: Sequence[str], *, observe: bool = False) -> Plan:
        refused = waits[0] if waits and not steps else None
        said = [refused.explanation] if refused else [text for text in words if text]
        return Plan(
            id=stable_id("plan", incident.id)[:10],
            incident=incident.id,
            at=now,
            steps=tuple(steps),
            refusal=refused.kind if refused else "",
            explanation=" ".join(said),
            observe_only=observe,
            waits=tuple(waits),
        )

    if (breaker := _breaker(verdict, situation, limits, now)) is not None:
        return plan((), [breaker], ())
    out = drains(verdict, incident, situation, limits, act_confidence, modes.respect_maintenance, now)
    may = Permissions(incident, verdict.cause, situation, modes, now)

    def job_with(drained: Sequence[Step]) -> JobSteps:
        return job_steps(verdict, incident, situation, drained, limits, act_confidence, bad_numbers, now)

    job = job_with(out.steps)
    wanted = [*out.steps, *job.steps]
    if situation.paused and wanted:
        paused = Wait("paused", now, "Paused: an operator ends that with sentinel resume.", names(wanted))
        waits = [paused, *(wait for wait in (*out.waits, job.wait) if wait is not None)]
        return plan(wanted, waits, [paused.explanation, out.words, job.words], observe=True)
    drained, begun = may.allowed(out.steps), may.allowed(job.steps)
    skipped = [step for step in wanted if step not in drained and step not in begun]
    if begun and len(drained) < len(out.steps):
        # The restart is done before these drains, or without them: they are nodes that the job could get again.
        job = job_with(drained)
        begun = may.allowed(job.steps)
    nothing = not drained and not begun
    asked = may.waits(skipped, alone=nothing)
    waits = [wait for wait in (*out.waits, job.wait) if wait is not None]
    words = [out.words, job.words]
    if asked and nothing:
        return plan(wanted, [*asked, *waits], [*(wait.explanation for wait in asked), *words], observe=True)
    return plan([*drained, *begun], [*waits, *asked], words)


def _breaker(verdict: Verdict, situation: Situation, limits: Limits, now: datetime) -> Wait | None:
    """The wait of a plan that would take nodes out while many fail together."""
    convicted = {name for name in verdict.drain if name not in situation.good_nodes}
    failing = situation.failing_nodes | convicted
    if not convicted or len(failing) < limits.breaker_nodes or situation.breaker_passed:
        return None
    shared = [name for name, under in switches(failing, situation.fleet).items() if len(under) == len(failing)]
    words = (
        f"{len(failing)} nodes failed within {limits.breaker_window_s:g} s"
        f"{f', all under switch {shared[0]}' if shared else ''} ({fold(failing)}): more likely one shared cause "
        "than so many broken nodes. Nothing is drained or restarted until fewer of them are bad, or an operator has looked: "
        "sentinel resume."
    )
    what = tuple(f"drain {name}" for name in sorted(convicted))
    return Wait("breaker", now, words, what, now + timedelta(seconds=limits.breaker_window_s))
