"""Decides whether and how the job of an incident is restarted or held."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.config.settings import Limits
from sentinel.model.jobs.chains import CHAIN, MOST_LINKS, begun_instead
from sentinel.model.records import (
    INTERRUPTIONS,
    OURS,
    Incident,
    JobView,
    Kind,
    Restart,
    Scalar,
    Scope,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.model.vocabulary import QUEUED
from sentinel.planning.restart_size import restart_size
from sentinel.policy.drains import nodes_under, switches
from sentinel.policy.ended import ended_for_good, ended_on_purpose, stays_over
from sentinel.policy.exclusions import BESIDE, IN_TURN, Exclusions, bad_and_suspect, excluded, nodes_wanted
from sentinel.policy.in_allocation import in_allocation, without_spares
from sentinel.policy.progress import breaks_nodes, failed_in_turn, no_progress, still_held
from sentinel.policy.required_nodes import own_list, without_required
from sentinel.policy.running_jobs import concerns_numbers, ground_of_stop, has_gone_on, may_go_on
from sentinel.policy.situation import (
    NO_NODE,
    Situation,
    by_any_user,
    components_of,
    from_open_engine,
    is_startable,
    lent,
    may_be_in_service,
    nodes_text,
    of_shared_storage,
)
from sentinel.policy.stops import too_many_stops


@dataclass(frozen=True, slots=True)
class JobSteps:
    steps: tuple[Step, ...] = ()
    wait: Wait | None = None
    words: str = ""


def job_steps(
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    drained: Sequence[Step],
    limits: Limits,
    act_confidence: float,
    bad_numbers: str,
    now: datetime,
) -> JobSteps:
    """The steps that restart or hold the job, or why they wait.

    Args:
        drained: steps of the same plan that take nodes out of service.
    """
    job = situation.job
    if incident.job is None:
        return JobSteps()
    if verdict.restart is Restart.NONE:
        return JobSteps(words=stays_over(job, verdict, incident, situation.last_save))
    if job is None:
        return JobSteps(words=f"Slurm no longer knows job {incident.job}: it cannot be restarted.")
    words = _why_not(job, verdict, incident, situation, limits, act_confidence, bad_numbers)
    if words:
        return JobSteps(words=words)
    found = _restart(job, verdict, incident, situation, drained, limits, act_confidence, bad_numbers, now)
    stop = next((step for step in found.steps if step.kind in INTERRUPTIONS), None)
    if stop is not None and (wait := too_many_stops(stop, situation, limits, now)) is not None:
        return JobSteps((), wait, found.words)
    return found


def _why_not(
    job: JobView,
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    limits: Limits,
    act_confidence: float,
    bad_numbers: str,
) -> str:
    """Why the job is left as it is, or empty."""
    if situation.opt_in and not situation.intent.restart:
        problem = situation.intent.problem
        return f"Job {job.id} did not ask to be restarted{': ' + problem if problem else ''}."
    if job.batch is False:
        return (
            f"Job {job.id} is interactive (salloc or srun), and Slurm requeues batch jobs only: start it again by hand."
        )
    if job.requeue is False and not situation.intent.restart:
        return f"Job {job.id} was submitted with --no-requeue: it is not restarted."
    attempt = incident.attempt if incident.attempt is not None else job.restarts
    exit_held = job.exit_held and job.restarts == attempt + 1  # by Slurm, for this very failure
    exit_held = exit_held or _held_by(incident, job, attempt)
    stopped_by_us = exit_held or (situation.left_stopped and job.restarts == attempt + 1)
    if job.restarts > attempt and not stopped_by_us:
        return f"Job {job.id} was requeued already (attempt {job.restarts})."
    if job.state == "cancelled":
        return f"Job {job.id} was cancelled."
    # Whatever was wrong before: that it is over is the site's rule, or was asked for.
    if words := ended_on_purpose(job, verdict, situation.last_save) or ended_for_good(job):
        return words
    if situation.recovered_by:
        return f"Job {job.id} is taken care of already, by incident {situation.recovered_by}."
    if job.state == "pending" and job.held and not stopped_by_us:
        return f"Job {job.id} is held already, not by this incident: whoever holds it releases it."
    if has_gone_on(job, verdict, incident, situation):
        return f"Job {job.id} makes steps again: it is left alone."
    stopped = any(item.kind in (Kind.JOB_ENDED, Kind.STALL) for item in incident.evidence)
    numbers = concerns_numbers(verdict, incident, act_confidence)
    if numbers and (situation.intent.bad_numbers or bad_numbers) == "tell":
        return f'Job {job.id} goes on and is not stopped for it: bad_numbers is "tell".'
    if stopped or verdict.drain or numbers:
        return ""
    if verdict.scope is Scope.APPLICATION:
        return f"Job {job.id} still runs."  # a program that goes on after an error is not ours to stop
    if of_shared_storage(verdict):  # a new start would wait for it as well
        return (
            f"Job {job.id} is not stopped: when the storage answers again it goes on. If it hangs, its silence shows."
        )
    if from_open_engine(verdict):
        return f"Job {job.id} is not stopped: only DCGM says it, into whose host engine any user of the node may write."
    if by_any_user(verdict):
        return f"Job {job.id} is not stopped: what its node's log says, any user of the node may have caused."
    if verdict.confidence < (least := max(act_confidence, limits.stop_confidence)):
        unsure = f"{verdict.confidence:.2f} sure, {least:.2f} is asked for"
        return f"Job {job.id} is not stopped: {unsure}."
    return ""


def _held_by(incident: Incident, job: JobView, attempt: int) -> bool:
    """Whether this very incident holds the job: a verdict that explains it may let it go."""
    ours = job.admin_comment.startswith(f"{OURS}{incident.id} ")
    return ours and job.state == "pending" and job.held and job.restarts == attempt + 1


def _restart(
    job: JobView,
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    drained: Sequence[Step],
    limits: Limits,
    act_confidence: float,
    bad_numbers: str,
    now: datetime,
) -> JobSteps:
    attempt = incident.attempt if incident.attempt is not None else job.restarts
    spares, words = without_spares(job, verdict, incident, situation, attempt)
    if spares:
        return JobSteps(spares, None, words)
    if words := may_go_on(job, verdict, incident, situation, act_confidence):
        return JobSteps(words=words)
    ground = ground_of_stop(verdict, incident)
    data = {"reason": verdict.advice or str(verdict.cause), **ground, **_counted(situation)}
    hold = Step(StepKind.HOLD, job=job.id, attempt=attempt, data=data)
    asked = situation.intent.bad_numbers or bad_numbers
    requeue = _made_requeueable(job)
    if (before := still_held(hold, situation)) is not None:
        return JobSteps((before,), None, f"{before.data.get('why', '')} {requeue}".strip())
    least = max(act_confidence, limits.stop_confidence)
    tries = verdict.restart is Restart.HOLD and _may_retry(verdict, situation, least)
    bad = asked == "hold" and concerns_numbers(verdict, incident, act_confidence)
    if (verdict.restart is Restart.HOLD and not tries) or bad:
        return JobSteps((hold,), None, requeue)
    stop = begun_instead(job, (situation.fleet.jobs[link] for link in situation.chain if link in situation.fleet.jobs))
    stop = stop or breaks_nodes(verdict, job, situation, limits, now) or no_progress(verdict, situation, limits)
    if stop:
        hold = dataclasses.replace(hold, data={**hold.data, "why": stop})
        return JobSteps((hold,), None, f"{stop} {requeue}".strip())
    suspects = _bad_and_suspect(verdict, situation)[1]
    without, beside, switch = _exclusions(verdict, job, situation, drained)
    here, words = in_allocation(job, verdict, incident, situation, suspects, attempt, ground)
    if here:
        return JobSteps(here, None, f"{words} {_requeued_instead(job, without)}")
    requeue = f"{words} {requeue}".strip()
    if late := _too_late(job, situation, now):
        return JobSteps(words=f"{words} {late}".strip())
    smaller, costs = _smaller(job, without, situation)
    if without.left < without.needed and not smaller and _may_begin_on(verdict, situation, drained, without):
        words = (
            f"Job {job.id} needs {nodes_text(without.needed)}, and {without.left} usable ones would be left without "
            f"{', '.join(_may_begin_on(verdict, situation, drained, without))}. {costs}".rstrip()
        )
        return JobSteps((), Wait(NO_NODE, now, words, (f"restart {job.id}",)), requeue)
    spared = queued = ""
    if without.spared:
        words = f"Not excluded, since job {job.id} needs {nodes_text(without.needed)} and "
        spared = f"{words}{without.left - len(without.spared)} would be left: {', '.join(without.spared)}."
    if without.left < without.needed:
        queued = "" if smaller else _queued(job, without, situation)
        spared = f"{queued} {costs}".strip()
    steps = _requeue(job, verdict, situation, without, beside, attempt, ground, queued)
    listed = own_list(job, situation, suspects, drained, without.nodes)
    said = (requeue, switch, spared, listed, lent(job, verdict, situation))
    return JobSteps(steps, None, " ".join(text for text in said if text))


def _counted(situation: Situation) -> dict[str, Scalar]:
    """Step data: what the attempt is known to have reached, for what is counted later."""
    return {"reached": situation.last_step, "observed": situation.observed}


def _too_late(job: JobView, situation: Situation, now: datetime) -> str:
    """Why a job with a deadline is not requeued; empty if it may be. Slurm would end it before it starts again, and what it
    could do in the time that it has would be lost."""
    until = min((part.start_by for part in (job, *components_of(situation)) if part.start_by is not None), default=None)
    if until is None or now + timedelta(seconds=situation.restart_takes_s) <= until:
        return ""
    late = "its deadline is too near for a restart: with its time limit Slurm would have to start it"
    done = "stopped" if job.state in ("running", "suspended") else "restarted"
    return f"Job {job.id} is not {done}: {late} by {until:%Y-%m-%d %H:%M} UTC, or with a shorter one later."


def _requeued_instead(job: JobView, without: Exclusions) -> str:
    """What a requeue would cost a job that is restarted in its allocation."""
    fewer = "" if without.left >= without.needed else ": it would start with fewer spare nodes"
    return (
        f"A requeue would give up {nodes_text(len(job.nodes))} and wait in the queue for {without.needed}, with "
        f"{without.left} usable{fewer}."
    )


def _queued(job: JobView, without: Exclusions, situation: Situation) -> str:
    """What a job waits for in the queue."""
    if not without.kept_out:
        return f"Job {job.id} needs {nodes_text(without.needed)} and {without.left} are usable: it waits in the queue."
    hours = f"{(situation.wait_s or 0.0) / 3600:.3g} h"
    return (
        f"Job {job.id} failed in turn on nodes that cannot all be left out, and gained no step. It waits in the queue for "
        f"another node, or a passed test of {', '.join(without.kept_out)}, at most {hours} (recovery.wait_s): it needs "
        f"{nodes_text(without.needed)}, {without.left} would be left."
    )


def _requeue(
    job: JobView,
    verdict: Verdict,
    situation: Situation,
    without: Exclusions,
    beside: Sequence[str],
    attempt: int,
    ground: Mapping[str, Scalar],
    queued: str,
) -> tuple[Step, ...]:
    reached = _counted(situation) | ({QUEUED: queued} if queued else {})
    reached |= {CHAIN: ",".join(map(str, situation.chain[:MOST_LINKS]))} if situation.chain else {}
    # The components of a heterogeneous job start together, each from a resume point of its own.
    resumes = [
        Step(kind, job=part, attempt=attempt, data=values)
        for part in (job.id, *(other.id for other in components_of(situation)))
        for kind, values in (
            (StepKind.CHOOSE_CHECKPOINT, {"onset_step": verdict.onset_step}),
            (StepKind.QUARANTINE, {}),
            (StepKind.WRITE_RESUME, {}),
        )
    ]
    kept_out: dict[str, Scalar] = {IN_TURN: ",".join(without.in_turn)} if without.in_turn else {}
    kept_out |= {BESIDE: ",".join(beside)} if beside else {}
    kinds: list[tuple[StepKind, dict[str, Scalar]]] = [
        (StepKind.EXCLUDE, {"nodes": ",".join(without.nodes), **kept_out}),
        (StepKind.RELEASE, reached),
        (StepKind.CONFIRM, {}),
    ]
    steps = [Step(kind, job=job.id, attempt=attempt, data=values) for kind, values in kinds]
    stop_first = Step(StepKind.REQUEUE_HOLD, job=job.id, attempt=attempt, data=ground)
    return (stop_first, *resumes, *steps)


def _smaller(job: JobView, without: Exclusions, situation: Situation) -> tuple[bool, str]:
    """Whether an elastic job starts on fewer nodes instead of waiting, and what both cost, in words."""
    least, most = nodes_wanted(job)
    if least == most or without.left >= most:
        return False, ""
    if situation.intent.in_allocation is not None and without.left >= least:
        words = f"Job {job.id} starts on {without.left} of {nodes_text(most)}: it trains on {least}"
        return True, f"{words}, the others are its spares."
    found = restart_size(without.left, least, most, situation.wait_s, situation.smaller_for_s)
    waiting = "waiting for another node has no known end: it was expected by now"
    if situation.wait_s is not None:
        waiting = f"waiting for another node {found.waiting_s / 3600:.1f} ({situation.wait_s / 3600:.3g} h)"
    costs = (
        f"On {without.left} of {most} nodes it loses {found.smaller_s / 3600:.1f} node-hours until its next restart "
        f"({situation.smaller_for_s / 3600:g} h), {waiting}."
    )
    if found.nodes < most:
        return True, f"Job {job.id} starts smaller. {costs}"
    words = f"It runs on {least} or more." if without.left < least else ""
    return False, f"{words or costs} Waiting it is."


def _made_requeueable(job: JobView) -> str:
    if job.requeue is not False:
        return ""
    return f"Job {job.id} was submitted with --no-requeue; its comment asks for a restart, so it is made requeueable."


def _may_retry(verdict: Verdict, situation: Situation, stop_confidence: float) -> bool:
    """Whether a job that would be held for its program's error is retried: its user asked for it, or the verdict is unsure.

    Not for an attempt that gained no step, nor for one whose beginning was missed: the error would come again.
    """
    if situation.last_step is None or not situation.observed:
        return False
    resumed = situation.restarts[-1].resumed_step if situation.restarts else None
    gained = situation.last_step > (resumed or 0)
    return gained and (situation.intent.retry_errors or verdict.confidence < stop_confidence)


def _exclusions(
    verdict: Verdict, job: JobView, situation: Situation, drained: Sequence[Step]
) -> tuple[Exclusions, tuple[str, ...], str]:
    """What a restart excludes; of that the nodes beside those that failed the job in turn, and why, in words."""
    in_turn = failed_in_turn(verdict, situation)
    bad, suspect = _bad_and_suspect(verdict, situation)
    beside, words = _under_one_switch(in_turn, situation)
    leaving = {step.node for step in drained if step.node is not None}
    bad, suspect = without_required(bad, [*beside, *suspect], situation.required, situation.fleet, leaving)
    found = excluded(
        job,
        situation.fleet,
        bad=bad,
        suspect=suspect,
        leaving=leaving,
        added_by_us=situation.added_by_us,
        in_turn=in_turn if situation.wait_s is not None else (),
    )
    left_out = tuple(name for name in beside if name in found.nodes)
    return found, left_out, words if left_out else ""


def _under_one_switch(in_turn: Sequence[str], situation: Situation) -> tuple[tuple[str, ...], str]:
    """The other nodes under the switch that nodes which failed the job in turn share: the switch is the likelier cause, and
    each of them would be next."""
    for switch, together in switches(in_turn, situation.fleet).items():
        if len(together) > 1:
            beside = (node.name for node in nodes_under(switch, situation.fleet))
            named = " and ".join(together)
            words = f"The job failed in turn on {named} under switch {switch}: nodes beside them are left out."
            return tuple(sorted(name for name in beside if name not in together)), words
    return (), ""


def _bad_and_suspect(verdict: Verdict, situation: Situation) -> tuple[list[str], list[str]]:
    return bad_and_suspect(
        verdict,
        good=situation.good_nodes | situation.put_back,
        convicted=situation.convicted_nodes,
        bad_elsewhere=situation.bad_nodes,
        slow=situation.slow_nodes,
        excluded_by_us=situation.excluded_by_us,
        on_probation=situation.on_probation,
    )


def _may_begin_on(verdict: Verdict, situation: Situation, drained: Sequence[Step], without: Exclusions) -> list[str]:
    """Convicted nodes that Slurm still gives work to, or may, and that this plan does not take out. In a maintenance
    reservation it gives none before that ends, and then only to a job that does not exclude them."""
    other = {step.node for step in drained} | situation.good_nodes | situation.put_back
    nodes = situation.fleet.nodes
    left = [n for n in verdict.drain if n not in other and may_be_in_service(n, situation.fleet)]
    return [n for n in left if n not in nodes or is_startable(nodes[n]) or n not in without.nodes]
