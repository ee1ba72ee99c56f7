"""The line that a restarted job finds in its own log: what happened, from where it goes on, what to do. Pure.

The agent reads that log. So the line names the cause by its id and has no number that a step could be: nothing in it may be
taken for a failure or for progress of the new attempt, which a test holds for every cause.
"""

from __future__ import annotations

from sentinel.alerts.audiences import Story
from sentinel.alerts.text import plain
from sentinel.model.records import Cause, Result, StepKind

_OTHERWISE = {Cause.CHECKPOINT_CORRUPT: "a damaged save"}  # its id is half of what programs print without a checkpoint


def for_log(story: Story) -> str:
    """One printable line of at most 400 characters; empty without a job."""
    number, attempt = story.incident.job, story.incident.attempt
    if number is None or attempt is None:
        return ""
    culprits = story.verdict.culprits
    where = plain(", ".join((culprits.gpus or culprits.nodes)[:4]), 120)
    cause = _OTHERWISE.get(story.verdict.cause, str(story.verdict.cause))
    parts = [
        f"attempt {attempt} was ended by {cause}{f' ({where})' if where else ''}",
        _from_where(story),
    ]
    if culprits.nodes:
        parts.append(f"{plain(', '.join(culprits.nodes[:4]), 120)} left out")
    return plain(f"sentinel: {'; '.join(parts)}; nothing to do. Why: sentinel why {number}", 400)


def _from_where(story: Story) -> str:
    """Without the path: names of checkpoints hold numbers that would be read as steps."""
    chosen = [o for o in story.outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT and o.result is Result.DONE]
    if not any(o.data.get("path") for o in chosen):
        return "the script resumes by its own rule"
    return "what it resumes from is in SENTINEL_RESUME_PATH"
