"""Proof that a restart helped: the next attempt runs and gains a step."""

from __future__ import annotations

from sentinel.actions.means import Means, Task
from sentinel.model import Outcome, Scalar

_ASK_SLURM_S = 2.0  # while nothing is heard of the job


async def confirm(task: Task, means: Means) -> Outcome:
    """Done when the next attempt printed a step (or runs on to the deadline without any step lines to read)."""
    began = means.clock.now()
    following = task.attempt + 1
    running_at: str | None = None
    while True:
        first = means.progress.first_step(task.job, following)
        if first is not None:
            data: dict[str, Scalar] = {"first_step": first, "stepping_at": means.clock.now().isoformat()}
            return means.done(task, f"gains steps again from step {first}", {**data, "running_at": running_at})
        job = await means.reader.job(task.job)
        if job is None:
            return means.failed(task, f"Slurm no longer knows job {task.job}")
        if job.restarts >= following and job.state == "running" and job.started_at is not None:
            running_at = job.started_at.isoformat()
        elif job.restarts == following and job.state == "completed":
            return means.done(task, "ran to its end; no step line was seen", {"running_at": running_at})
        elif job.restarts > following or job.state not in ("pending", "running", "completing", "configuring"):
            return means.failed(task, f"attempt {following} ended as {job.state} before it gained a step")
        if (means.clock.now() - began).total_seconds() > means.confirm_s:
            if running_at is not None:
                return means.done(task, "runs; no step line was seen", {"running_at": running_at})
            return means.failed(task, f"still {job.state} ({job.reason}) after {means.confirm_s:g} s")
        await means.progress.changed(task.job, _ASK_SLURM_S)
