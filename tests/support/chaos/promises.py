"""What must hold at the end of a random story, by the words of Slurm, of the jobs' logs and of the webhook receiver.

``broken`` gives one line for each promise that does not hold (yet): a story ends well when there is none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from stories import watched_logs
from stories.job import START, STEP
from stories.timeline import Story
from stories.witnesses import OURS, our_drains

from chaos.jobs import Witnessed, nodes_of
from chaos.performance import Facts

_ALLOCATED = re.compile(r"(?:Allocate JobId=(\d+)\S* NodeList=|Started JobId=(\d+)\S* in \S+ on )(\S+)")
# Causes that blame a program, its settings or its saves.
_OF_PROGRAMS = frozenset(
    "user_code user_config software_env app_oom_gpu app_oom_host dataloader numerical_nan checkpoint_corrupt".split()
)
# Drained by a slurmctld that was killed after it had begun a job there, and begins it again.
DUPLICATE = "Duplicate jobid"
_OUT = ("drain", "down", "drng")
_SAVED = re.compile(r"^(?:resumed from step (\d+) \((\w+)\) (\S+)|saved step (\d+) \((\w+)\))$", re.MULTILINE)

_DRAIN_SAVED = timedelta(seconds=30)  # by then slurmctld has surely saved a drain (docs/limits.md)
_OF_NODES = re.compile(
    r"^\[(\S{19,23})\] (slurmctld version \S+ started|update_node: node \S+ state set to |_slurm_rpc_update_node for \S+: )"
    r"(\S+)?",
    re.MULTILINE,
)
_IN_SERVICE = ("IDLE", "MIXED", "ALLOCATED")  # 26.05 names what a node returns to; 22.05 says IDLE, whatever runs on it


@dataclass(frozen=True)
class Seen:
    """One look at everything."""

    nodes: dict[str, tuple[str, str]]  # state, reason
    steps: dict[int, tuple[int, int]]  # of each job: starts, and the last step


def look(story: Story, facts: Facts) -> Seen:
    rows = (line.split("|", 2) for line in story.lab.slurm("sinfo", "-h", "-N", "-o", "%N|%T|%E").splitlines())
    nodes = {name: (state, reason.strip()) for name, state, reason in rows}
    return Seen(nodes, {job.id: (len(job.starts()), job.step) for job in facts.jobs})


def broken(story: Story, facts: Facts, before: Seen, now: Seen) -> list[str]:
    """``before``: a look some seconds earlier, to see which jobs gain steps."""
    return [
        *_nodes(story, facts, now),
        *(line for job in facts.jobs for line in promise_of_job(story, facts, job, before, now)),
        *(line for job in facts.jobs for line in _resumes(job)),
        *_untouched(story, facts),
        *_messages(story, facts),
        *blamed(story, facts),
        *watched_logs.wrong_lines([story.lab.dir], {}),
    ]


def _nodes(story: Story, facts: Facts, now: Seen) -> Iterator[str]:
    for name in sorted(set(our_drains(story.changes())) - facts.ever_faulty):
        yield f"healthy node {name} was drained"
    for name, (state, reason) in now.nodes.items():
        out = state.startswith(_OUT)
        theirs = facts.drained_by_user.get(name)
        if name in facts.faulty and not out:
            yield f"faulty node {name} is in service: {state}"
        if theirs is not None and (reason != theirs or not out):
            yield f"{name} was drained by a person as {theirs!r}, now it is {state} {reason!r}"
        if name in facts.returned_by_user and out and reason.startswith(OURS) and not _slurm_drained(story, name):
            if not returned_before_saved(story.controller_log(), name):
                yield f"{name} was returned by a person and is drained again: {reason!r}"
        by_slurm = facts.controller_forgot and reason == DUPLICATE
        if out and theirs is None and name not in facts.ever_faulty and not by_slurm:
            yield f"healthy node {name} is out of service: {state} {reason!r}"


def _slurm_drained(story: Story, node: str) -> bool:
    """Whether the prolog refused a job since the node's return, so that Slurm itself drained it: its GPU is still gone."""
    returns = re.split(rf"update_node: node {node} state set to (?:{'|'.join(_IN_SERVICE)})\b", story.controller_log())
    return f"drain_nodes: node {node} state set to DRAIN" in returns[-1]


def returned_before_saved(log: str, node: str) -> bool:
    """Whether a person put the node back less than 30 s after its drain, with slurmctld started before the next drain.

    It is drained once more then (docs/limits.md): slurmctld may have lost the first drain. Before the node has registered
    with a slurmctld just started, 22.05 calls the return invalid and carries it out all the same.
    """
    drained = returned = None
    started = False
    for said, what, state in _OF_NODES.findall(log):
        at = datetime.fromisoformat(said)
        if what.startswith("slurmctld version"):
            started = True
        elif what == f"_slurm_rpc_update_node for {node}: ":
            returned = at if state == "Invalid" else returned
        elif node not in what.split():
            continue
        elif state in _IN_SERVICE:
            returned = at
        elif returned is None or drained is None or not started:
            drained, returned, started = at, None, False
        else:
            return returned - drained < _DRAIN_SAVED
    return False


def promise_of_job(story: Story, facts: Facts, job: Witnessed, before: Seen, now: Seen) -> Iterator[str]:
    """It runs on, has ended, or is held with a stated reason."""
    state, name = job.state(), f"job {job.id} ({job.asked.kind})"
    if job.cancelled:
        if state not in ("CANCELLED", "COMPLETED", "FAILED"):
            yield f"{name} was cancelled by its user and is {state}: {job.shown()}"
        return
    if job.held_perhaps and job.held():
        return  # where that hold was lost, it is a job as any other
    if job.held_at is not None and not job.held_perhaps and state not in ("COMPLETED", "FAILED", "CANCELLED"):
        if not job.held() and (state != "RUNNING" or job.restarts() != job.held_at):
            yield f"{name} was held by its user and is {state} after {job.restarts()} restarts, then {job.held_at}"
        return
    if state == "COMPLETED":
        if "done: " not in job.log:
            yield f"{name} is COMPLETED, but not done"
    elif state == "RUNNING":
        idle = facts.ever_faulty & set(nodes_of(job)) if not job.asks else set()  # left to its user
        if now.steps[job.id] <= before.steps[job.id] and not idle and not _left_alone(story, job):
            yield f"{name} runs and gains no step: {now.steps[job.id]}; {job.log[-300:]}"
    elif state == "PENDING" and job.held():
        if "held" not in _last_stages(story, job) and not _left_alone(story, job):
            yield f"{name} is held, and nobody was told why: {_last_stages(story, job)}"
    elif state == "PENDING":
        if not (job.requeued_by_user and "Reason=BeginTime" in job.shown()):
            yield f"{name} waits: {job.shown()}"
    elif job.asks or not job.faults:
        yield f"{name} is {state}"


def _left_alone(story: Story, job: Witnessed) -> bool:
    """Its user heard that it is left as it is, and why."""
    return bool({"handled", "failed", "waiting"} & _last_stages(story, job))


def _last_stages(story: Story, job: Witnessed) -> set[str]:
    """The last that was said in each incident of the job."""
    last: dict[str, tuple[object, str]] = {}
    for message in story.received():
        if isinstance(message, dict) and message.get("incident"):
            last[message["incident"]] = (message.get("job"), str(message.get("stage")))
    return {stage for number, stage in last.values() if number in (job.id, *job.others)}


def _resumes(job: Witnessed) -> Iterator[str]:
    """From a save that was made and not damaged, with the same losses as before; from scratch only without any."""
    starts = list(START.finditer(job.log))
    if not job.forges and len(starts) > job.restarts() + 1:
        yield f"job {job.id} started {len(starts)} times, Slurm counts {job.restarts()} restarts"
    saved: set[tuple[str, str]] = set()
    for mark in _SAVED.finditer(job.log):
        step, tier, path, kept, kept_in = mark.groups()
        if kept is not None:
            saved.add((kept, kept_in))
        elif (step, tier) not in saved and _last_step(job.log[: mark.start()]) != step:  # it may die before it says so
            yield f"job {job.id} resumed from step {step} ({tier}), which it had never saved: {path}"
    for one, following in itertools.pairwise(job.losses()):
        if job.bad_numbers or job.asked.kind in ("het", "elastic"):
            break  # another number of ranks, other losses
        differ = [step for step in set(one) & set(following) if one[step] != following[step]]
        if differ:
            yield f"job {job.id} computes something else at step {min(differ)} than before"
    for mark in starts[1:]:
        if mark[4] and job.asked.kind != "het" and ("global" in {tier for _, tier in _before(job, mark.start())}):
            yield f"job {job.id} began from scratch although it had saved"


def _last_step(log: str) -> str:
    steps = STEP.findall(log)
    return str(steps[-1][0]) if steps else ""


def _before(job: Witnessed, end: int) -> list[tuple[str, str]]:
    damaged = set(job.damaged)
    found = [(mark[4], mark[5]) for mark in _SAVED.finditer(job.log[:end]) if mark[4] is not None]
    return [(step, tier) for step, tier in found if f"{tier}:{step}" not in damaged]


def _untouched(story: Story, facts: Facts) -> Iterator[str]:
    """A job that nothing happened to, on nodes that nothing happened to, runs as it did."""
    if facts.controller_forgot:
        return
    everywhere = _allocations(story)
    for job in facts.jobs:
        numbers = {job.id, *job.others}
        where = set().union(*(nodes for number, nodes in everywhere.items() if number in numbers))
        if job.faults or job.cancelled or where & facts.touched:
            continue
        if job.restarts() or len(job.starts()) != 1:
            yield f"healthy job {job.id} was restarted {job.restarts()} times, started {len(job.starts())} times"


def _allocations(story: Story) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for one, other, nodes in _ALLOCATED.findall(story.controller_log()):
        found.setdefault(int(one or other), set()).update(expanded(nodes))
    return found


def expanded(nodes: str) -> set[str]:
    """``n[1-3,5]`` as Slurm writes it."""
    inside = re.fullmatch(r"(\w+)\[(.*)\]", nodes)
    if inside is None:
        return {nodes}
    names = set()
    for part in inside[2].split(","):
        first, _, last = part.partition("-")
        names |= {f"{inside[1]}{number}" for number in range(int(first), int(last or first) + 1)}
    return names


def blamed(story: Story, facts: Facts) -> Iterator[str]:
    """No program is blamed for what happened to nodes, to Slurm or to ourselves."""
    for message in story.received():
        cause = message.get("cause") if isinstance(message, dict) else None
        job = next((job for job in facts.jobs if cause and message.get("job") in (job.id, *job.others)), None)
        if job is None or cause not in _OF_PROGRAMS or job.program_fails:
            continue
        if cause != "checkpoint_corrupt" or not job.damaged:
            yield f"job {job.id} was blamed ({cause}), and nothing was done to its program"


def _messages(story: Story, facts: Facts) -> Iterator[str]:
    """One thread an incident, told to its end; not more incidents than faults."""
    threads: dict[str, list[dict[str, object]]] = {}
    for message in story.received():
        if isinstance(message, dict):
            threads.setdefault(str(message.get("incident")), []).append(message)
    for incident, told in threads.items():
        numbers, stages = [m.get("message") for m in told], [m.get("stage") for m in told]
        if numbers != list(range(1, len(told) + 1)):
            yield f"incident {incident} was told as {numbers}"
        if any(one == following for one, following in itertools.pairwise(stages)):
            yield f"incident {incident} was told the same twice: {stages}"
        if stages[-1] == "restarting":
            yield f"incident {incident} was never told to its end: {stages}"
    for job in facts.jobs:
        of_job = [incident for incident, told in threads.items() if told[-1].get("job") in (job.id, *job.others)]
        if len(of_job) > job.faults + facts.node_faults:
            yield f"{job.faults} faults and {facts.node_faults} of nodes, and {len(of_job)} incidents of job {job.id}"
    alone = [incident for incident, told in threads.items() if told[-1].get("job") is None]
    if len(alone) > facts.node_faults:
        yield f"{facts.node_faults} faults of nodes, and {len(alone)} incidents without a job"
