"""The paragraph that a job's owner finds in the job's own log: what happened, where, what to do. Pure.

TaskProlog prints it at a restart; at a hold, a refusal or a failure the agent appends it as the job's user. The agent reads
that log, too. So it names the cause by its id and has no number that a step could be: nothing in it may be taken for a
failure or for progress of an attempt, which a test holds for every cause.
"""

from __future__ import annotations

from sentinel.alerts.audiences import Stage, Story, stage_of
from sentinel.alerts.text import plain
from sentinel.model.orders import MOST_LOG_TEXT
from sentinel.model.records import Cause, Result, StepKind

_OTHERWISE = {Cause.CHECKPOINT_CORRUPT: "a damaged save"}  # its id is half of what programs print without a checkpoint
APPENDED = frozenset({Stage.HELD, Stage.FAILED, Stage.WAITING})  # no attempt begins that could print it


def for_log(story: Story) -> str:
    """One printable line of at most ``MOST_LOG_TEXT`` characters; empty without a job, or where the log is told nothing."""
    number, attempt = story.incident.job, story.incident.attempt
    if number is None or attempt is None:
        return ""
    culprits, stage = story.verdict.culprits, stage_of(story)
    where = plain(", ".join((culprits.gpus or culprits.nodes)[:4]), 120)
    cause = _OTHERWISE.get(story.verdict.cause, str(story.verdict.cause))
    place = f" ({where})" if where else ""
    if stage in APPENDED:
        parts = [f"attempt {attempt}: {cause}{place}", _left(story, stage, number)]
    else:
        parts = [f"attempt {attempt} was ended by {cause}{place}", *_lost(story), _from_where(story)]
        if culprits.nodes:
            parts.append(f"{plain(', '.join(culprits.nodes[:4]), 120)} left out")
        parts.append("nothing to do")
    return plain(f"sentinel: {'; '.join(parts)}. Why: sentinel why {number}", MOST_LOG_TEXT)


def appended(story: Story) -> str:
    """What is appended to the log at this stage; empty where nothing is, as in observe mode."""
    observed = story.plan is not None and story.plan.observe_only
    return for_log(story) if stage_of(story) in APPENDED and not observed else ""


def _left(story: Story, stage: Stage, number: int) -> str:
    if stage is Stage.HELD:
        return f"the job is held and keeps its id; mend what is wrong, then: scontrol release {number}"
    if stage is Stage.FAILED:
        return "it could not be put back to work; submit it again, or ask the operators"
    refusal = story.plan.refusal if story.plan is not None else ""
    return f"the restart waits{f' ({plain(refusal, 40)})' if refusal else ''}; nothing to do, the operators are told"


def _lost(story: Story) -> list[str]:
    """The time of the work that is made again: its steps would be read as progress."""
    resumed = next((o.data.get("step") for o in story.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT), None)
    if story.last_step is None or story.step_time_s is None or not isinstance(resumed, int):
        return []
    seconds = max(0, story.last_step - resumed) * story.step_time_s
    return [f"{seconds:.0f} s of work lost" if seconds < 120 else f"{seconds / 60:.0f} min of work lost"]


def _from_where(story: Story) -> str:
    """Without the path: names of checkpoints hold numbers that would be read as steps."""
    chosen = [o for o in story.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT and o.result is Result.DONE]
    if not any(o.data.get("path") for o in chosen):
        return "the script resumes by its own rule"
    return "what it resumes from is in SENTINEL_RESUME_PATH"
