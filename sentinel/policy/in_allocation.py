"""Restarts a job inside its allocation: its launcher starts a new step on the good nodes that the job holds already.

For jobs that hold more nodes than they train on, and say so in their comment. Nothing waits in the queue and no node is set
up anew. What the job cannot do there (too few good nodes left, its first node bad, its script over) a requeue does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sentinel.model.records import Fleet, Incident, JobView, Kind, Scalar, Step, StepKind, Verdict
from sentinel.policy.situation import Situation


@dataclass(frozen=True, slots=True)
class NextRun:
    """The nodes of a job's next step, in the order of its allocation, and those that it gives back."""

    nodes: tuple[str, ...]
    given_up: tuple[str, ...]
    spares: int  # good nodes that are left over


def next_run(job: JobView, fleet: Fleet, count: int, *, bad: Collection[str], suspect: Sequence[str]) -> NextRun | str:
    """The next run on ``count`` nodes, or why there is none.

    The first node stays: the job's script runs there, and rank 0 is found by its name. Suspects are taken only where too
    few others are left.

    Args:
        bad: nodes with a proven fault; ``suspect``: under suspicion, the most likely first.
    """
    good = [n for n in job.nodes if n not in bad and (view := fleet.nodes.get(n)) is not None and view.usable]
    if job.batch_host not in good or job.batch_host in suspect:
        return f"its script runs on {job.batch_host or 'a node that is not known'}"
    doubted = [name for name in reversed(list(dict.fromkeys(suspect))) if name in good]
    chosen = [*(name for name in good if name not in doubted), *doubted][:count]
    if len(chosen) < count:
        return f"{len(good)} good {'node is' if len(good) == 1 else 'nodes are'} left of the {count} that it trains on"
    back = [name for name in job.nodes if name in bad or (name in doubted and name not in chosen)]
    return NextRun(
        tuple(name for name in job.nodes if name in chosen), tuple(back), len(set(good) - set(back)) - len(chosen)
    )


def why_not(job: JobView, incident: Incident, situation: Situation) -> str:
    """Why the job cannot be restarted in its allocation, whatever its nodes; empty if it can."""
    if situation.allocation_failed:
        return "its launcher did not start there"
    if job.state != "running" or any(item.kind == Kind.JOB_ENDED for item in incident.evidence):
        return "its script is over"
    if job.het is not None:
        return "it is heterogeneous"
    return "its user holds it" if job.hold_kept else ""


def without_spares(
    job: JobView, verdict: Verdict, incident: Incident, situation: Situation, attempt: int
) -> tuple[tuple[Step, ...], str]:
    """The step that gives bad and suspect nodes back on which nothing of the job runs, and what to say of it; none where it
    is not so.

    The job goes on: no budget of its restarts is asked, and nothing holds it.
    """
    bad = _bad(verdict, situation) | {name for name in verdict.suspect if name not in situation.good_nodes}
    names = ",".join(name for name in job.nodes if name in bad)
    stopped = any(item.kind in (Kind.JOB_ENDED, Kind.STALL, Kind.NUMBERS) for item in incident.evidence)
    if not names or stopped or job.state != "running" or not situation.run_nodes or bad & {*situation.run_nodes}:
        return (), ""
    step = Step(StepKind.GIVE_BACK, job=job.id, attempt=attempt, data={"given_up": names})
    return (step,), f"Job {job.id} goes on: it held {names} as a spare, and gives it back."


def _bad(verdict: Verdict, situation: Situation) -> set[str]:
    return {name for name in verdict.drain if name not in situation.good_nodes}


def in_allocation(
    job: JobView,
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    suspect: Sequence[str],
    attempt: int,
    ground: dict[str, Scalar],
) -> tuple[tuple[Step, ...], str]:
    """The steps of a restart in the allocation, and what to say of it; no steps: the job is to be requeued.

    Args:
        suspect: nodes that the next attempt should not have, beside the convicted ones.
    """
    count = situation.intent.in_allocation
    if count is None:
        return (), ""
    found = why_not(job, incident, situation) or next_run(
        job, situation.fleet, count, bad=_bad(verdict, situation), suspect=suspect
    )
    if isinstance(found, str):
        return (), f"Job {job.id} is requeued, not restarted in its allocation: {found}."
    left = f"{found.spares} of its spare nodes {'is' if found.spares == 1 else 'are'} left"
    back = f" It gives {', '.join(found.given_up)} back." if found.given_up else ""
    words = (
        f"Job {job.id} is restarted in its allocation, on {','.join(found.nodes)}: no requeue, no wait in the queue, {left}."
        f"{back}"
    )
    reached: dict[str, Scalar] = {"reached": situation.last_step, "observed": situation.observed}
    kinds: tuple[tuple[StepKind, dict[str, Scalar]], ...] = (
        (StepKind.STOP_RUN, ground),
        (StepKind.CHOOSE_CHECKPOINT, {"onset_step": verdict.onset_step}),
        (StepKind.QUARANTINE, {}),
        (StepKind.START_RUN, reached),
        (StepKind.CONFIRM, {"in_allocation": True}),
    )
    return tuple(Step(kind, job=job.id, attempt=attempt, data=data) for kind, data in kinds), words
