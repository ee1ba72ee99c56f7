"""Why a job is left as it is although its incident wants it stopped: what broke is over, or was of another attempt."""

from __future__ import annotations

from sentinel.actions.drain import answers_again
from sentinel.actions.means import Means
from sentinel.model.hostlist import fold
from sentinel.model.launching import run_of
from sentinel.model.records import ANSWERS_AGAIN, NODE_STEPS, JobView, Kind, Result, Step, StepKind, Task
from sentinel.model.vocabulary import ABSENCE

# What says that the job itself has stopped or gone wrong, or that Slurm may have taken a lost node from it (--no-kill).
_NOT_OF_A_NODE_ALONE = ABSENCE | {Kind.JOB_ENDED, Kind.STALL, Kind.NUMBERS}


async def goes_on(task: Task, means: Means, job: JobView) -> str:
    """Why a job is left running: it steps again, or the nodes that were gone are there. Empty if it must be stopped."""
    if job.state != "running" or job.restarts != task.attempt:
        return ""
    if words := await _nodes_answer_again(task, means, job) or await _gave_back(task, means, job):
        return words
    after = task.step.data.get("silent_after")
    if not isinstance(after, int):
        return ""
    reached = means.progress.last_step(task.job, task.attempt)
    if reached is None or reached <= after:
        return ""
    before = f"was silent after {after}" if after >= 0 else "had made none"
    return f"job {task.job} makes steps again (step {reached}, it {before}): it is left alone"


async def _nodes_answer_again(task: Task, means: Means, job: JobView) -> str:
    out = [step for step in task.plan.steps if step.kind in NODE_STEPS]
    outcomes = [means.ledger.outcome(task.incident.id, step) for step in out]
    names = [str(step.node) for step in out] or [name for name in task.verdict.drain if name in job.nodes]
    if not names or not all(found and found.data.get(ANSWERS_AGAIN) for found in outcomes):
        return ""
    stalled_at = [item.data.get("step") for item in task.incident.evidence if item.kind == Kind.STALL]
    reached = means.progress.last_step(job.id, task.attempt)
    if any(
        reached is None or (step is not None and (not isinstance(step, int) or reached <= step)) for step in stalled_at
    ):
        return ""  # it hangs since, and was reported once: nobody would look at it again
    # The drain waits, or is another incident's: then nobody has looked whether the node is there.
    if not out and not all([await _is_there_again(name, task, means) for name in names]):
        return ""
    verb = "answers" if len(names) == 1 else "answer"
    return f"job {job.id} runs, and {', '.join(names)} {verb} again: it is left alone"


async def _gave_back(task: Task, means: Means, job: JobView) -> str:
    """Whether the job has given the nodes that broke back (scontrol update NodeList=...), after the snapshot of the plan.

    Not where we did that for a restart in its allocation, which failed.
    """
    if means.ledger.outcome(task.incident.id, Step(StepKind.START_RUN, job=task.job, attempt=task.attempt)) is not None:
        return ""
    broke = {*task.verdict.drain, *task.verdict.suspect}
    if not broke or broke & {*job.nodes} or not job.nodes or job.het is not None:  # components have nodes of their own
        return ""
    if any(item.kind in _NOT_OF_A_NODE_ALONE for item in task.incident.evidence):
        return ""
    nodes = [await means.reader.node(name) for name in sorted(broke)]
    if any(node is None or node.state == "down" for node in nodes):
        return ""
    anew = job.started_at is not None and job.started_at > task.incident.opened_at  # slurmctld had lost its start
    went_on = f"begun anew without {fold(broke)}" if anew else f"given {fold(broke)} back and runs without"
    return f"job {job.id} has {went_on}: it is left alone"


async def _is_there_again(name: str, task: Task, means: Means) -> bool:
    gone = any(item.kind in ABSENCE and item.where.node == name for item in task.incident.evidence)
    if not gone or name in task.verdict.broken:
        return False
    node = await means.reader.node(name)
    return node is not None and not node.drained and node.state != "down" and await answers_again(node, task, means)


async def began_after_all(task: Task, means: Means) -> str:
    """Why a job is not stopped: its restart in the allocation, given up as too late, has begun. Empty otherwise."""
    ordered = means.ledger.outcome(task.incident.id, Step(StepKind.START_RUN, job=task.job, attempt=task.attempt))
    if ordered is None or ordered.result is not Result.FAILED or ordered.data.get("run") is None:
        return ""
    if all(run_of(name) != ordered.data["run"] for name in (await means.reader.steps(task.job)).values()):
        return ""
    return f"the launcher of job {task.job} has started run {ordered.data['run']} after all: it is left alone"


def was_done(task: Task, job: JobView) -> bool:
    """Whether the job had finished before the fault, e.g. the node failed while the epilogs ran.

    If the fault came first, exit status 0 proves nothing: a script may exit with 0 although its program was killed.
    """
    if job.state != "completed" or job.restarts != task.attempt or job.ended_at is None:
        return False
    ended_at = job.ended_at
    return all(
        item.data.get("state") == "completed" if item.kind == Kind.JOB_ENDED else item.at >= ended_at
        for item in task.incident.evidence
    )


def runs_without_broken_nodes(task: Task, means: Means, job: JobView) -> bool:
    """Whether the attempt was forgotten, and runs again without the nodes that broke under it."""
    before = means.ledger.outcome(task.incident.id, task.step)
    broke = {*task.verdict.drain, *task.verdict.suspect}
    forgotten = before is not None and bool(before.data.get("forgotten"))
    return forgotten and job.state == "running" and bool(broke) and not broke & {*job.nodes}
