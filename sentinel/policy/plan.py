"""Makes the plan for a verdict: what may be done now, and what waits for which condition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sentinel.config.settings import Limits, Modes
from sentinel.model.records import NODE_STEPS, Incident, Plan, Step, StepKind, Verdict, Wait, stable_id
from sentinel.policy.drains import drains
from sentinel.policy.restarts import job_steps
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
    """The plan for ``verdict``; it never has both steps and a refusal."""

    def plan(steps: Sequence[Step], waits: Sequence[Wait], words: Sequence[str], *, observe: bool = False) -> Plan:
        refused = waits[0] if waits and not steps else None
        said = [refused.explanation] if refused else [text for text in words if text]
        if not refused:
            said += [f"Waits ({w.kind}): {w.explanation}" for w in waits if w.kind not in ("observe", "paused")]
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
    out = drains(verdict, incident, situation, limits, act_confidence, now)
    job = job_steps(verdict, incident, situation, out.steps, limits, act_confidence, bad_numbers, now)
    wanted = [*out.steps, *job.steps]
    waits = [wait for wait in (out.wait, job.wait) if wait is not None]
    words = [out.words, job.words]
    if situation.paused and wanted:
        paused = Wait("paused", now, "Paused by an operator.", _names(wanted))
        return plan(wanted, [paused, *waits], [paused.explanation, *words], observe=True)
    allowed = [step for step in wanted if _mode(step, situation, modes) == "act"]
    skipped = [step for step in wanted if step not in allowed]
    if skipped:
        named = ", ".join(f"{s.kind} {s.node or s.job}" for s in skipped)
        said = f"Observed only: {named}." if allowed else "Observe mode: nothing is done."
        observed = Wait("observe", now, said, _names(skipped))
        if not allowed:
            return plan(wanted, [observed, *waits], [said, *words], observe=True)
        waits.append(observed)
        words.append(said)
    return plan(allowed, waits, words)


def _breaker(verdict: Verdict, situation: Situation, limits: Limits, now: datetime) -> Wait | None:
    """The wait of a plan that would take nodes out while many fail together."""
    convicted = {name for name in verdict.drain if name not in situation.good_nodes}
    failing = situation.failing_nodes | convicted
    if not convicted or len(failing) < limits.breaker_nodes or situation.breaker_passed:
        return None
    words = (
        f"{len(failing)} nodes failed within {limits.breaker_window_s:g} s: more likely one shared cause than so many "
        "broken nodes. Nothing is drained or restarted until fewer of them are bad, or a person has looked: "
        "sentinel resume."
    )
    what = tuple(f"drain {name}" for name in sorted(convicted))
    return Wait("breaker", now, words, what, now + timedelta(seconds=limits.breaker_window_s))


def _names(steps: Sequence[Step]) -> tuple[str, ...]:
    """What the steps do, in the words of a listing: a restart is one thing."""
    named = []
    for step in steps:
        if step.kind in NODE_STEPS:
            named.append(f"{step.kind} {step.node}")
        elif step.kind is StepKind.REQUEUE_HOLD:
            named.append(f"restart {step.job}")
        elif step.kind is StepKind.HOLD:
            named.append(f"hold {step.job}")
    return tuple(named)


def _mode(step: Step, situation: Situation, modes: Modes) -> str:
    if step.node is not None and step.node in situation.fleet.nodes:
        partitions = situation.fleet.nodes[step.node].partitions
    else:
        partitions = (situation.job.partition,) if situation.job is not None else ()
    mode = modes.of(partitions)
    return mode.drain if step.kind in NODE_STEPS else mode.restart
