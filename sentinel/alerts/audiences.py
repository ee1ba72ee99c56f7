"""Writes what an incident's job owner needs to know, and what operators need to know. Pure; user text is made plain.

Nothing is announced before it is so: a job *is being restarted* until it was seen to gain steps, then it *runs again*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sentinel.alerts.stages import (
    IncidentFacts,
    Stage,
    is_done,
    is_for_operators,
    only_observed,
    queued,
    reached,
    stage_of,
)
from sentinel.alerts.text import counted, culprit_words, held_by_others, listed, plain, unranked
from sentinel.model.approvals import OF_JOBS, asked, job_names, open_names, plan_words
from sentinel.model.records import (
    LEFT_IN_SERVICE,
    NODE_STEPS,
    OPTIONAL_STEPS,
    Cause,
    Incident,
    IncidentState,
    Kind,
    Outcome,
    Plan,
    Restart,
    Result,
    Scalar,
    Scope,
    Source,
    StepKind,
    Verdict,
)
from sentinel.model.vocabulary import BY_SCRIPT, CAUSE_WORDS, DRAIN_REFUSED, ENDED_BY_SLURM, how_sure

_ENDS = ".!?…"  # of a sentence
_STARTED = "was started again"
_SURE = 0.95  # from here on a percentage tells nobody anything
_GROUNDS = 3  # lines of evidence for operators
_LEAST_GPU_HOURS = 0.05  # less would be shown as 0.0


def for_owner(facts: IncidentFacts) -> str:
    """For the job's owner: the job's state, what it lost, what broke, what to do. One paragraph."""
    job = facts.job
    number = facts.incident.job
    if number is None:
        return ""
    name = f" ({plain(job.name, 60)})" if job is not None and job.name else ""
    sentences = [
        f"Job {number}{name} {_how_it_is(facts)}.",
        *_lost(facts),
        *_made_requeueable(facts),
        *chain_words(facts),
    ]
    sentences += [f"{_what_broke(facts)}.", *_program_said(facts.verdict), _to_do(facts)]
    return " ".join([*sentences, f"More: sentinel why {number}"])


def for_operators(facts: IncidentFacts) -> str:
    """For those who run the cluster: where, what, what was seen, what was done, what to do. Some lines."""
    verdict, job = facts.verdict, facts.job
    where = [f"cluster {plain(facts.cluster, 60)}"] if facts.cluster else []
    where += [f"partition {plain(job.partition, 60)}"] if job is not None and job.partition else []
    if facts.incident.job is not None:
        named = f" ({plain(job.name, 60)}) of {plain(job.user, 40)}" if job is not None else ""
        where.append(f"job {facts.incident.job}{named}")
    lines = [f"{severity_of(facts).upper()}: {_what_broke(facts)}{_how_sure(verdict)}."]
    if where:
        lines.append(f"Where: {', '.join(where)}.")
    lines += _parts(facts)
    lines += [f"Seen: {text}" for text in _seen(verdict)]
    lines.append(f"State: {stage_of(facts)}{_why_so(facts, stage_of(facts))}.")
    lines += _done(facts)
    if _waits(facts):
        lines.append(f"Waits: {plain(facts.waits_for)}")
    if verdict.advice:
        lines.append(f"Advice: {plain(verdict.advice)}")
    return "\n".join([*lines, f"More: sentinel why {facts.incident.id}"])


def _done(facts: IncidentFacts) -> list[str]:
    """What was done to machines, and from where the job runs again."""
    drained = drained_nodes(facts.outcomes)
    parts = [f"drained {listed(drained)}"] if drained else []
    step, stage = _chosen(facts).get("step"), stage_of(facts)
    if stage is Stage.RUNNING:
        begin = f" from step {step}" if step is not None else ""
        nodes = f" on {listed(facts.nodes_now)}" if facts.nodes_now else ""
        parts.append(f"restarted the job{begin}{nodes}")
    failed = [o for o in facts.outcomes if o.result is Result.FAILED and o.step.kind in NODE_STEPS]
    lines = [f"Failed: {o.step.kind} {o.step.node}: {plain(o.reason)}." for o in failed]
    lines += refused_drains(facts.plan)
    return [*([f"Done: {'; '.join(parts)}."] if parts else []), *lines]


def refused_drains(plan: Plan | None) -> list[str]:
    """A line for drains that Slurm refused and that wait to be asked for again."""
    waits = [wait for wait in plan.waits if wait.kind == DRAIN_REFUSED] if plan is not None else []
    return [f"Failed: {', '.join(wait.what)}: {plain(wait.explanation)}" for wait in waits]


def drained_nodes(outcomes: Sequence[Outcome]) -> list[str]:
    """The nodes that were taken out of service."""
    done = [outcome for outcome in outcomes if outcome.step.kind in NODE_STEPS and is_done(outcome)]
    return [str(outcome.step.node) for outcome in done if not outcome.data.get(LEFT_IN_SERVICE)]


def severity_of(facts: IncidentFacts) -> str:
    """critical: a person is needed now; warning: a machine was taken out or is suspect; info: nothing to do."""
    stage, verdict = stage_of(facts), facts.verdict
    if stage is Stage.RESOLVED:
        return "info"
    if stage is Stage.FAILED and _began(facts):
        return "warning"  # it was restarted; an attempt that fails has an incident of its own
    if stage is Stage.FAILED or verdict.scope is Scope.CLUSTER or refused_drains(facts.plan):
        return "critical"
    if stage is Stage.WAITING and facts.plan is not None and not facts.plan.observe_only:
        return "warning" if facts.limited else "critical"  # which its owner can end
    if stage is Stage.ASKED and _asked_for_job(facts):
        return "critical"
    if stage is Stage.ASKED:
        return "warning"
    return "warning" if verdict.drain or verdict.suspect or verdict.drain_recommended else "info"


# --- the job -------------------------------------------------------------------------------------------------------------


def _how_it_is(facts: IncidentFacts) -> str:
    stage, step = stage_of(facts), _chosen(facts).get("step")
    if stage in (Stage.ASKED, Stage.LAPSED, Stage.REFUSED):
        if _asked_for_job(facts):
            return f"{_as_answered(facts, stage)}{_why_so(facts, stage)}"
        stage = reached(facts)  # what is asked leaves the job alone
        stage = Stage.HANDLED if stage is Stage.WAITING else stage
    begin = f" from step {step}" if step is not None else ""
    choice = next((o for o in facts.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT and is_done(o)), None)
    if not begin and choice is not None:
        by_script = choice.data.get(BY_SCRIPT)
        begin = ", from where its own script resumes" if by_script else ", without a checkpoint to resume from"
    if stage is Stage.RUNNING:
        nodes = f" on {listed(facts.nodes_now)}" if facts.nodes_now else ""
        return f"runs again{begin}{nodes}"
    holder = " by somebody else" if held_by_others(facts.outcomes) else ""
    return {
        Stage.RESTARTING: f"is being restarted{begin}",
        Stage.HELD: f"is held{holder} and keeps its id{_why_so(facts, stage)}",
        Stage.FAILED: f"{'was restarted' if _began(facts) else 'could not be restarted'}{_why_so(facts, stage)}",
        Stage.CANCELLED: "was cancelled, and stays so",
        Stage.WAITING: f"{_not_done(facts)}{_why_so(facts, stage)}",
        Stage.HANDLED: _left_alone(facts),
        Stage.RESOLVED: f"needs nobody any more{_why_so(facts, stage)}",
    }[stage]


def _asked_for_job(facts: IncidentFacts) -> bool:
    return facts.incident.job is not None and not job_names(facts.incident.job).isdisjoint(_open(facts))


def _as_answered(facts: IncidentFacts, stage: Stage) -> str:
    """What becomes of a job by people's answer: it is restarted, or only held so that it keeps its id."""
    begun = {kind for kind, words in OF_JOBS.items() if words.format(facts.incident.job) in _open(facts)}
    done = "held" if begun == {StepKind.HOLD} else "restarted"
    so = f"is {done} when an operator approves it" if stage is Stage.ASKED else f"is not {done}"
    return so if done == "restarted" else f"{_is_now(facts)}, and {so}"


def _open(facts: IncidentFacts) -> tuple[str, ...]:
    """What people are asked for and have not allowed."""
    return open_names(asked(facts.plan)) if facts.plan is not None else ()


def _not_done(facts: IncidentFacts) -> str:
    if facts.limited:
        return "waits in the queue"
    if not only_observed(facts) or facts.plan is None:
        return "is not restarted now"
    return f"{_is_now(facts)}{' and is not held' if any(s.kind is StepKind.HOLD for s in facts.plan.steps) else ''}"


def _left_alone(facts: IncidentFacts) -> str:
    if any(o.data.get("done_before") for o in facts.outcomes):
        return "was done before this happened, and stays so"
    if words := next((o.reason for o in facts.outcomes if o.data.get("on_purpose")), ""):
        return f"is over and is not restarted: {plain(words)}"
    if (facts.verdict.restart is Restart.NONE and not _has_ended(facts)) or _goes_on(facts):
        return "goes on"
    why = plain(plan_words(facts.plan)).rstrip(".") if facts.plan is not None and not _acted_for_job(facts.plan) else ""
    now = _is_now(facts)
    but = ", not by Sentinel" if now == _STARTED else " and is not restarted"
    return f"{now}{f'{but}: ' if why else ''}{why}"


def _is_now(facts: IncidentFacts) -> str:
    """The state of a job for which nothing was done."""
    now = facts.job_now or facts.job
    requeued = now is not None and now.restarts > (facts.incident.attempt or 0)  # by somebody else: preempted, for one
    if now is not None and requeued and now.state in ("running", "configuring"):
        return _STARTED
    # Slurm calls it completing while the epilogs of the attempt before run.
    if now is not None and (now.state == "pending" or (requeued and now.state == "completing")):
        return "is held" if now.held or now.hold_kept else "waits in the queue"
    if facts.job is not None and facts.job.state in ENDED_BY_SLURM:
        return "is over"
    if not _has_ended(facts):
        return "still runs"
    return "has ended" if facts.verdict.restart is Restart.NONE else "has failed"


def _has_ended(facts: IncidentFacts) -> bool:
    return any(item.kind == Kind.JOB_ENDED for item in facts.incident.evidence)


def _acted_for_job(plan: Plan) -> bool:
    return any(step.job is not None for step in plan.steps)


def _lost(facts: IncidentFacts) -> list[str]:
    """Steps that are repeated and what they cost, as far as it is known."""
    resumed = _chosen(facts).get("step")
    if (
        facts.last_step is None
        or not isinstance(resumed, int)
        or stage_of(facts) not in (Stage.RUNNING, Stage.RESTARTING)
    ):
        return []
    steps = max(0, facts.last_step - resumed)
    if not steps:
        return ["No step is lost."]
    parts = []
    if facts.step_time_s is not None:
        seconds = steps * facts.step_time_s
        parts.append(f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
        gpu_hours = seconds * (facts.gpus or 0) / 3600
        if gpu_hours >= _LEAST_GPU_HOURS:
            parts.append(f"{gpu_hours:.1f} GPU-hours")
    cost = f" ({', '.join(parts)})" if parts else ""
    return [f"{steps} {'step is' if steps == 1 else 'steps are'} made again{cost}."]


def _made_requeueable(facts: IncidentFacts) -> list[str]:
    job, stage = facts.job, stage_of(facts)
    if job is None or job.requeue is not False or stage not in (Stage.RUNNING, Stage.RESTARTING, Stage.HELD):
        return []
    return ["It was submitted with --no-requeue; its comment asks for a restart, so it was made requeueable."]


def chain_words(facts: IncidentFacts) -> list[str]:
    """What Slurm did with the jobs that waited for the end of one that failed by itself; it takes that back for nobody."""
    if not failed_by_itself(facts.incident) or stage_of(facts) not in (Stage.RUNNING, Stage.RESTARTING, Stage.HELD):
        return []
    kept = any(item.data.get("exit_held") for item in facts.incident.evidence if item.kind == Kind.JOB_ENDED)
    fired = ("afternotok",) if kept else ("afternotok", "afterany")  # RequeueExitHold saves the others
    never = [job for job, kind in sorted(facts.dependents.items()) if kind == "afterok" and not kept]
    gone = [f"{job} ({kind})" for job, kind in sorted(facts.dependents.items()) if kind in fired]
    parts = [f"let go {listed(gone)}"] if gone else []
    parts += [f"will never start {listed(list(map(str, never)))} (afterok)"] if never else []
    return [f"Slurm took its failure for its end: it {' and '.join(parts)}."] if parts else []


def failed_by_itself(incident: Incident) -> bool:
    """Whether the attempt came to an end that is final for its dependents, however the job goes on."""
    ends = (item.data.get("state") for item in incident.evidence if item.kind == Kind.JOB_ENDED)
    return any(state in ("failed", "out_of_memory", "timeout", "boot_fail", "deadline") for state in ends)


def to_do_for_owner(facts: IncidentFacts) -> str:
    """What the job's owner does, or who does it, where the verdict's advice is for operators; else empty.

    An incident that is over needs nobody any more, unless it was over at once since nothing was done for the job.
    """
    over = facts.incident.state is IncidentState.CLOSED and reached(facts) is not Stage.HANDLED
    return _to_do(replace(facts, resolved=over)) if is_for_operators(facts.verdict) else ""


def _to_do(facts: IncidentFacts) -> str:
    stage = stage_of(facts)
    if _waits(facts):
        return plain(facts.waits_for)
    if stage is Stage.ASKED:
        return "The operators are asked."
    if stage is Stage.WAITING and facts.limited:
        return ""  # said with what it waits for
    if stage is Stage.HELD and held_by_others(facts.outcomes):
        return f"Whoever held it lets it start: scontrol release {facts.spec_of(facts.incident.job)}."
    if stage is Stage.HELD:
        release = f"scontrol release {facts.spec_of(facts.incident.job)}."
        if is_for_operators(facts.verdict):
            return f"The operators are told. To let it start: {release}"
        advice = f"{plain(facts.verdict.advice)} " if facts.verdict.advice else ""
        return f"To do: {advice}Then: {release}"
    if stage in (Stage.RUNNING, Stage.RESTARTING, Stage.CANCELLED, Stage.RESOLVED) or _goes_on(facts):
        waits = queued(facts) if stage is Stage.RESTARTING else ""
        return f"{plain(waits)} Nothing to do.".lstrip()
    if is_for_operators(facts.verdict) or not facts.verdict.advice:
        return "The operators are told."
    return f"To do: {plain(facts.verdict.advice)}"


def _waits(facts: IncidentFacts) -> bool:
    """Whether the requeued job waits for nodes of its user's own list."""
    return bool(facts.waits_for) and reached(facts) is Stage.RESTARTING


def _why_so(facts: IncidentFacts, stage: Stage) -> str:
    """Why the job failed or waits at this stage, after a colon; empty if not known."""
    if facts.resolved:
        return f": {plain(facts.incident.outcome).rstrip('.')}" if facts.incident.outcome else ""
    failed = [o for o in facts.outcomes if o.result is Result.FAILED and o.step.kind not in OPTIONAL_STEPS]
    if failed:
        return f": {plain(failed[0].reason).rstrip('.')}" if failed[0].reason else ""
    if facts.limited and stage is Stage.WAITING:
        return f": {plain(facts.limited)}"
    if facts.plan is not None and stage in (Stage.WAITING, Stage.ASKED, Stage.LAPSED, Stage.REFUSED):
        waits = dict.fromkeys(plain(wait.explanation).rstrip(".") for wait in facts.plan.waits)
        why = "; ".join(waits) or plain(facts.plan.explanation).rstrip(".")
        return f": {why}" if why else ""
    held = next((o.step.data.get("why") for o in facts.outcomes if o.step.kind is StepKind.HOLD), None)
    return f": {plain(str(held)).rstrip('.')}" if held else ""  # held by a limit, not for what the verdict says


# --- what broke ----------------------------------------------------------------------------------------------------------


def _what_broke(facts: IncidentFacts) -> str:
    culprits = facts.verdict.culprits
    hung = facts.verdict.cause is Cause.NCCL_HANG_UNKNOWN  # there a rank says more than its node
    where = culprit_words(culprits.nodes, culprits.gpus, culprits.ranks if hung else ())
    words = CAUSE_WORDS[facts.verdict.cause]
    return f"{words[0].upper()}{words[1:]}{f' ({where})' if where else ''}"


def _how_sure(verdict: Verdict) -> str:
    sure = how_sure(verdict.confidence, verdict.drain_confidence)
    return f"; {sure}" if sure and verdict.confidence < _SURE else ""


def _parts(facts: IncidentFacts) -> list[str]:
    """GPUs at fault by what is written on them: who pulls one needs that, not its index."""
    evidence = [ground.evidence for ground in facts.verdict.grounds] + list(facts.incident.evidence)
    uuids = list(dict.fromkeys(item.where.gpu_uuid for item in evidence if item.where.gpu_uuid))
    serials = list(dict.fromkeys(str(item.data["serial"]) for item in evidence if item.data.get("serial")))
    if not facts.verdict.culprits.gpus:
        return []
    lines = [f"Serial number: {listed(serials)}."] if serials else []
    return lines + ([f"UUID: {listed(uuids)}."] if uuids else [])


def _seen(verdict: Verdict) -> list[str]:
    """The strongest evidence, each line once."""
    return counted([ground.evidence.text or ground.evidence.kind for ground in verdict.grounds])[:_GROUNDS]


def _program_said(verdict: Verdict) -> list[str]:
    """The first word of the owner's own program that decided, where the fault is in it."""
    if verdict.scope is not Scope.APPLICATION:
        return []
    said = (
        ground.evidence.text
        for ground in verdict.grounds
        if ground.evidence.source in (Source.JOB_LOG, Source.ERROR_FILE)
    )
    shown = [plain(unranked(text), 160) for text in said if text][:1]
    return [f"It says: {text}{'' if text[-1:] in _ENDS else '.'}" for text in shown]


def _chosen(facts: IncidentFacts) -> Mapping[str, Scalar]:
    found = (o.data for o in facts.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT and is_done(o))
    return next((data for data in found if data.get("path")), {})


def _began(facts: IncidentFacts) -> bool:
    """Whether the job was let go, so that only what it then did can have failed."""
    return any(o.step.kind is StepKind.CONFIRM for o in facts.outcomes)


def _goes_on(facts: IncidentFacts) -> bool:
    return any(o.data.get("goes_on") for o in facts.outcomes)
