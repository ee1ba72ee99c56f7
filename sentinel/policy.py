"""What may be done about a verdict.

In: verdict, incident, the situation (a snapshot of the fleet, what we did lately, what the job's user asked for), limits,
modes, now. Out: a ``Plan``: steps in order, or a refusal with its reason. Pure; performs nothing.

The order of steps is the order of safety: what is bad goes out first, the job is stopped and held, a checkpoint is chosen
and the resume point written, and only then is the job released. Cut after any step, the rest can be done later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.intent import NOTHING, Intent
from sentinel.model import (
    OURS,
    Cause,
    Fleet,
    Incident,
    JobView,
    Kind,
    Plan,
    Restart,
    Scalar,
    Scope,
    Step,
    StepKind,
    Verdict,
    stable_id,
)
from sentinel.settings import Limits, Mode, Modes

NODE_STEPS = frozenset({StepKind.DRAIN, StepKind.DOWN})
_GONE = frozenset({Kind.NODE_UNREACHABLE, Kind.NODE_DOWN})


@dataclass(frozen=True, slots=True)
class PastRestart:
    """One restart of this job by us."""

    at: datetime
    cause: Cause
    step_before: int | None  # last step the failed attempt had reached
    resumed_step: int | None


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything policy looks at, as it was at one moment."""

    fleet: Fleet
    intent: Intent = NOTHING
    job: JobView | None = None
    last_step: int | None = None  # that the failed attempt reached
    drains: tuple[datetime, ...] = ()  # of ours in the last hour
    failing_nodes: frozenset[str] = frozenset()  # convicted within the breaker's window, any incident
    restarts: tuple[PastRestart, ...] = ()  # of this job, oldest first
    paused: bool = False  # by an operator
    opt_in: bool = True
    onset_step: int | None = None  # at which the attempt's numbers went bad, if they stay so
    slow_nodes: tuple[str, ...] = ()  # that held up this attempt, as its people were told


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
    """The plan for ``verdict``: never both steps and a refusal."""

    def plan(steps: Sequence[Step] = (), refusal: str = "", explanation: str = "", observe: bool = False) -> Plan:
        return Plan(
            id=stable_id("plan", incident.id)[:10],
            incident=incident.id,
            at=now,
            steps=tuple(steps),
            refusal=refusal,
            explanation=explanation,
            observe_only=observe,
        )

    failing = situation.failing_nodes | set(verdict.drain)
    if len(failing) >= limits.breaker_nodes and verdict.drain:
        return plan(
            refusal="breaker",
            explanation=f"{len(failing)} nodes failed within {limits.breaker_window_s:g} s: more likely one shared cause "
            "than so many broken nodes. Nothing is drained or restarted until a person looks.",
        )
    drains, refusal, why_not = _drains(verdict, _lost(verdict, incident), situation, limits, act_confidence, now)
    if refusal:
        return plan(refusal=refusal, explanation=why_not)
    job_steps, job_words = _job_steps(verdict, incident, situation, limits, act_confidence, bad_numbers)
    words = [text for text in (why_not, job_words) if text]
    wanted = [*drains, *job_steps]
    if situation.paused:
        return plan(wanted, explanation=" ".join(["Paused by an operator.", *words]), observe=True)
    allowed = [step for step in wanted if _mode(step, situation, modes) == "act"]
    if wanted and not allowed:
        return plan(wanted, explanation=" ".join(["Observe mode: nothing is done.", *words]), observe=True)
    skipped = [step for step in wanted if step not in allowed]
    if skipped:
        words.append("Observed only: " + ", ".join(f"{s.kind} {s.node or s.job}" for s in skipped) + ".")
    return plan(allowed, explanation=" ".join(words))


def _mode(step: Step, situation: Situation, modes: Modes) -> str:
    if step.node is not None and step.node in situation.fleet.nodes:
        partitions = situation.fleet.nodes[step.node].partitions
    else:
        partitions = (situation.job.partition,) if situation.job is not None else ()
    chosen: list[Mode] = [modes.partitions[name] for name in partitions if name in modes.partitions]
    mode = chosen[0] if chosen else modes.default
    return mode.drain if step.kind in NODE_STEPS else mode.restart


def _lost(verdict: Verdict, incident: Incident) -> frozenset[str]:
    """Which of the nodes to drain are gone: Slurm must give them up. Of two nodes that fail together only one may be."""
    gone = {item.where.node for item in incident.evidence if item.kind in _GONE}
    lost = frozenset(name for name in verdict.drain if name in gone)
    if verdict.cause is Cause.NODE_FAILURE:
        return lost or frozenset(verdict.drain)
    led = {ground.evidence.where.node for ground in verdict.grounds if ground.evidence.kind not in _GONE}
    return lost - led  # a broken GPU whose node Slurm sets down as well is drained


def _drains(
    verdict: Verdict, lost: frozenset[str], situation: Situation, limits: Limits, act_confidence: float, now: datetime
) -> tuple[list[Step], str, str]:
    """Steps, refusal code, words."""
    fleet = situation.fleet
    unsettled = [name for name in verdict.drain if name in fleet.nodes and not fleet.nodes[name].drained]
    strangers = [name for name in verdict.drain if name not in fleet.nodes]
    words = f"Slurm does not know {', '.join(strangers)}." if strangers else ""
    gone = _already_out_and_gone(verdict, fleet, act_confidence)
    if not unsettled:
        return gone, "", words
    if verdict.confidence < act_confidence:
        return [], "", f"Not drained: {verdict.confidence:.2f} sure, {act_confidence:.2f} is asked for. {words}".strip()
    hour = [at for at in situation.drains if now - at <= timedelta(hours=1)]
    if len(hour) + len(unsettled) > limits.drain_per_hour:
        return [], "drain-budget", f"{len(hour)} drains in the last hour; {limits.drain_per_hour} are allowed."
    ours = [node for node in fleet.nodes.values() if node.drained and node.reason.startswith(OURS)]
    if len(ours) + len(unsettled) > limits.drain_count:
        return [], "drain-budget", f"{len(ours)} nodes are drained by Sentinel; {limits.drain_count} are allowed."
    for partition in sorted({p for name in unsettled for p in fleet.nodes[name].partitions}):
        refused = _partition_limit(partition, unsettled, fleet, limits)
        if refused:
            return [], *refused
    data: dict[str, Scalar] = {"cause": str(verdict.cause)}
    kinds = {name: StepKind.DOWN if name in lost else StepKind.DRAIN for name in unsettled}
    return [*gone, *(Step(kind, node=name, data=data) for name, kind in kinds.items())], "", words


def _already_out_and_gone(verdict: Verdict, fleet: Fleet, act_confidence: float) -> list[Step]:
    """A drained node that dies under its last job costs no budget, but Slurm must give it up, or the job waits for it."""
    if verdict.cause is not Cause.NODE_FAILURE or verdict.confidence < act_confidence:
        return []
    named = [fleet.nodes[name] for name in verdict.drain if name in fleet.nodes]
    out = [node.name for node in named if node.drained and node.state != "down"]
    return [Step(StepKind.DOWN, node=name, data={"cause": str(verdict.cause)}) for name in out]


def _partition_limit(partition: str, nodes: Sequence[str], fleet: Fleet, limits: Limits) -> tuple[str, str] | None:
    members = [node for node in fleet.nodes.values() if partition in node.partitions]
    ours = [node for node in members if node.drained and node.reason.startswith(OURS)]
    asked = sum(1 for node in members if node.name in nodes)
    # At least one: a share of a small partition would otherwise never allow the first.
    most = max(1, int(limits.drain_fraction * len(members)))
    if len(ours) + asked > most:
        return (
            "drain-budget",
            f"partition {partition}: {len(ours)} of {len(members)} nodes are drained by Sentinel; {most} are allowed.",
        )
    healthy = [node for node in members if node.usable and node.name not in nodes]
    if len(healthy) < limits.keep_healthy:
        return "last-healthy", f"partition {partition} would be left with {len(healthy)} usable nodes."
    return None


def _job_steps(
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    limits: Limits,
    act_confidence: float,
    bad_numbers: str,
) -> tuple[list[Step], str]:
    job = situation.job
    if job is None or incident.job is None or verdict.restart is Restart.NONE:
        return [], ""
    if situation.opt_in and not situation.intent.restart:
        problem = situation.intent.problem
        return [], f"Job {job.id} did not ask to be restarted{': ' + problem if problem else ''}."
    attempt = incident.attempt if incident.attempt is not None else job.restarts
    if job.restarts > attempt:
        return [], f"Job {job.id} was restarted already (attempt {job.restarts})."
    if job.state == "pending" and job.held:
        return [], f"Job {job.id} is held already, not by this incident: whoever holds it releases it."
    stopped = any(item.kind in (Kind.JOB_ENDED, Kind.STALL) for item in incident.evidence)
    unsure = verdict.scope is Scope.APPLICATION or verdict.confidence < act_confidence
    numbers = any(item.kind == Kind.NUMBERS for item in incident.evidence) and not stopped and not verdict.drain
    asked = situation.intent.bad_numbers or bad_numbers
    if numbers and asked == "tell":
        return [], f'Job {job.id} goes on and is not stopped for it: bad_numbers is "tell".'
    if not stopped and not verdict.drain and unsure and not numbers:
        return [], f"Job {job.id} still runs."  # a program that goes on after an error is not ours to stop
    hold = Step(StepKind.HOLD, job=job.id, attempt=attempt, data={"reason": verdict.advice or str(verdict.cause)})
    if verdict.restart is Restart.HOLD or (numbers and asked == "hold"):
        return [hold], ""
    stop = _no_progress(verdict, situation, limits)
    if stop:
        return [hold], stop
    excluded, words = _excluded(verdict, situation.slow_nodes, job, situation.fleet)
    data: dict[str, Scalar] = {"onset_step": verdict.onset_step}
    kinds: list[tuple[StepKind, dict[str, Scalar]]] = [
        (StepKind.REQUEUE_HOLD, {}),
        (StepKind.CHOOSE_CHECKPOINT, data),
        (StepKind.QUARANTINE, {}),
        (StepKind.WRITE_RESUME, {}),
        (StepKind.EXCLUDE, {"nodes": ",".join(excluded)}),
        (StepKind.RELEASE, {}),
        (StepKind.CONFIRM, {}),
    ]
    return [Step(kind, job=job.id, attempt=attempt, data=values) for kind, values in kinds], words


def _excluded(verdict: Verdict, slow: Sequence[str], job: JobView, fleet: Fleet) -> tuple[list[str], str]:
    """Nodes the job must not get again, those that held it up before among them. Suspects are spared where the job could not
    run without them: a node that is only suspected costs less than a job that waits for ever."""
    suspects = tuple(dict.fromkeys((*verdict.suspect, *(name for name in slow if name not in verdict.drain))))
    known = [name for name in (*verdict.drain, *suspects) if name in fleet.nodes]
    needed = job.node_count or len(job.nodes)
    barred = {*known, *job.excluded}
    left = [n for n in fleet.nodes.values() if n.usable and job.partition in n.partitions and n.name not in barred]
    if len(left) >= needed or not suspects:
        return known, ""
    words = f"Not excluded, since job {job.id} needs {needed} nodes and {len(left)} would be left: "
    return [name for name in verdict.drain if name in fleet.nodes], f"{words}{', '.join(suspects)}."


def _no_progress(verdict: Verdict, situation: Situation, limits: Limits) -> str:
    """Why the job must not be tried again, or empty (promise 4: a budget in steps gained, not in tries)."""
    past = situation.restarts
    most = min(limits.restarts_per_job, situation.intent.retries if situation.intent.retries is not None else 10**9)
    if len(past) >= most:
        return f"Restarted {len(past)} times, {most} are allowed: held."
    fruitless = 0
    reached = situation.last_step
    if verdict.onset_step is not None and reached is not None:
        reached = min(reached, verdict.onset_step)  # what came after bad numbers is nothing gained
    for restart in reversed(past):
        if restart.cause is not verdict.cause or _gained(restart, reached):
            break
        fruitless += 1
        reached = restart.step_before
    if fruitless >= limits.restarts_without_progress:
        return f"The same cause {fruitless + 1} times in a row without a step gained: held."
    return ""


def _gained(restart: PastRestart, reached: int | None) -> bool:
    """Whether the attempt after ``restart`` got further than the one before it; not known counts as no."""
    if reached is None:
        return False
    return restart.step_before is None or reached > restart.step_before
