"""The paragraph that a job's owner finds in the job's own log: what happened, where, what to do. Pure.

TaskProlog prints it at a restart; at a hold, a refusal or a failure the agent appends it as the job's user. The agent reads
that log, too. So nothing in it may be taken for a failure or for progress of an attempt, which a test holds for every cause:
some causes have other words here, and the step that it goes on from is the number of a checkpoint.
"""

from __future__ import annotations

from sentinel.alerts.stages import IncidentFacts, Stage, is_done, is_for_operators, stage_of
from sentinel.alerts.text import culprit_words, held_by_others, listed, plain
from sentinel.model.orders import MOST_LOG_TEXT
from sentinel.model.records import Cause, StepKind
from sentinel.model.vocabulary import CAUSE_WORDS
from sentinel.text import names

# What the usual words of these causes would be read as: a program's or the kernel's own line.
_OTHERWISE = {
    Cause.GPU_NVLINK: "the link between its GPUs failed",
    Cause.DISK_FULL: "nothing more could be written to a disk",
}
APPENDED = frozenset({Stage.HELD, Stage.FAILED, Stage.WAITING})  # no attempt begins that could print it


def for_log(facts: IncidentFacts) -> str:
    """One printable line of at most ``MOST_LOG_TEXT`` characters; empty without a job, or where the log is told nothing."""
    number, attempt = facts.incident.job, facts.incident.attempt
    if number is None or attempt is None:
        return ""
    culprits, stage = facts.verdict.culprits, stage_of(facts)
    where = plain(culprit_words(culprits.nodes, culprits.gpus), 120)
    cause = _OTHERWISE.get(facts.verdict.cause, CAUSE_WORDS[facts.verdict.cause])
    place = f" ({where})" if where else ""
    if stage in APPENDED:
        parts = [f"attempt {attempt}: {cause}{place}", _left(facts, stage, number)]
    else:
        parts = [f"attempt {attempt} was ended: {cause}{place}", *_lost(facts), _from_where(facts)]
        if excluded := _excluded(facts, number):
            parts.append(f"{listed(excluded)} left out")
        parts.append("nothing to do")
    return plain(f"sentinel: {'; '.join(parts)}. Why: sentinel why {number}", MOST_LOG_TEXT)


def _excluded(facts: IncidentFacts, job: int) -> list[str]:
    """The nodes that the job does not get again: not all that are at fault, where it needs one of them."""
    steps = facts.plan.steps if facts.plan is not None else ()
    kept_out = [step for step in steps if step.kind is StepKind.EXCLUDE and step.job == job]
    return [name for step in kept_out for name in names(step.data.get("nodes"))]


def appended(facts: IncidentFacts) -> str:
    """What is appended to the log at this stage; empty where nothing is, as in observe mode."""
    observed = facts.plan is not None and facts.plan.observe_only
    return for_log(facts) if stage_of(facts) in APPENDED and not observed else ""


def _left(facts: IncidentFacts, stage: Stage, number: int) -> str:
    if stage is Stage.HELD and held_by_others(facts.outcomes):
        spec = facts.spec_of(number)
        return f"somebody holds the job, not Sentinel; whoever held it lets it start: scontrol release {spec}"
    if stage is Stage.HELD:
        after = (
            "the operators are told; to let it start" if is_for_operators(facts.verdict) else "mend what is wrong, then"
        )
        return f"the job is held and keeps its id; {after}: scontrol release {facts.spec_of(number)}"
    if stage is Stage.FAILED:
        return "it could not be put back to work; submit it again, or ask the operators"
    if facts.limited:
        return f"it waits in the queue; {plain(facts.limited)}"
    refusal = facts.plan.refusal if facts.plan is not None else ""
    return f"the restart waits{f' ({plain(refusal, 40)})' if refusal else ''}; nothing to do, the operators are told"


def _lost(facts: IncidentFacts) -> list[str]:
    """The time of the repeated work; step numbers are left out, as they would be read as progress."""
    resumed = next((o.data.get("step") for o in facts.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT), None)
    if facts.last_step is None or facts.step_time_s is None or not isinstance(resumed, int):
        return []
    seconds = max(0, facts.last_step - resumed) * facts.step_time_s
    return [f"{seconds:.0f} s of work lost" if seconds < 120 else f"{seconds / 60:.0f} min of work lost"]


def _from_where(facts: IncidentFacts) -> str:
    """The checkpoint without its path, whose numbers would be read as steps."""
    done = (o.data for o in facts.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT and is_done(o))
    chosen = next((data for data in done if data.get("path")), None)
    if chosen is None:
        return "the script resumes by its own rule"
    step, tier = chosen.get("step"), chosen.get("tier")
    return (
        f"it goes on from checkpoint {step} ({tier})" if step is not None else "it goes on from its newest checkpoint"
    )
