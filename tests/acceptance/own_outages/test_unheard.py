"""The daemon is cut off from a share of the agents under twenty healthy jobs, again and again: it does nothing at all."""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
from collections.abc import Iterator

import pytest
from lab.submit import Request, submit
from stories.timeline import Job, Story, until

pytestmark = pytest.mark.slurm

NODES, GPUS, JOBS = 10, 4, 20
STEPS = 100_000  # more than there is time for; saves would only keep the machine busy
LAB = ("--nodes", str(NODES), "--gpus", str(GPUS), "--isolated")
SHARES = {"one": 1, "third": math.ceil(NODES / 3), "all": NODES}
MISSED_S = 8.0  # well above the 3 s without a heartbeat after which this lab's daemon calls a node silent
AFTER_S = 15.0  # longer than a hang needs to be called one
# Whatever is asked of slurmctld that changes a node or a job leaves one of these in its log.
CHANGED = re.compile(r".*(?:update_node|update_job|_job_update|requeue|job_hold|_slurm_rpc_kill|_job_signal).*", re.I)


@pytest.fixture
def story(stages) -> Iterator[Story]:
    if os.geteuid() != 0:
        pytest.skip("optional: only root can lose the packets of one port")
    with Story(stages.lab(*LAB)) as story:
        yield story
    stages.drop(*LAB)


def twenty_jobs(story: Story) -> list[Job]:
    """Of two nodes and one GPU on each: every GPU of the lab is at work, and half of the jobs reach across a cut."""
    jobs = []
    for number in range(JOBS):
        words = ("--oversubscribe", "--gres=gpu:1")
        request = Request(
            2, run=f"unheard{number}", steps=STEPS, step_time_s=1.0, local_every=STEPS, global_every=STEPS, standin=True,
            sbatch=words,
        )  # fmt: skip
        jobs.append(Job(story.lab, submit(story.paths, request), request.run))
    for job in jobs:
        story.adopt(job, saved=False)
    for job in jobs:
        job.wait_step(10)
    until(lambda: all(step >= 10 for step in steps_known(story, jobs)), lambda: f"{steps_known(story, jobs)}")
    return jobs


def steps_known(story: Story, jobs: list[Job]) -> list[int]:
    """The last step of each job that the daemon has heard of; -1 for none."""
    seen = story.view("jobs") or {"attempts": []}
    steps = {row["job"]: row["last_step"] for row in seen["attempts"]}
    return [steps.get(job.id) or -1 for job in jobs]


def agents(story: Story) -> dict[str, str]:
    seen = story.view("nodes") or {"nodes": []}
    return {row["node"]: row["agent"] for row in seen["nodes"]}


def heard(story: Story) -> set[str] | None:
    """None: the daemon does not answer."""
    seen = agents(story)
    return {node for node, state in seen.items() if state == "heard"} if seen else None


def audit(story: Story) -> list[str]:
    """All that was changed anywhere; what the store itself forgets of its history after ten minutes is no action."""
    entries = [json.loads(line) for line in story.sentinel("audit", "--json").stdout.splitlines()]
    return [entry["digest"] for entry in entries if entry["action"] != "history_forgotten"]


def cut(story: Story, nodes: list[str], for_s: float) -> None:
    """The daemon hears nothing of these for so long at least; their slurmd answers, and their jobs train."""
    began_s = time.monotonic()
    for node in nodes:
        story.inject("agent-cut", "--node", node)
    time.sleep(max(0.0, began_s + for_s - time.monotonic()))
    if for_s > MISSED_S:
        # On a busy machine the last of them has not been cut off for long, and another may just be late.
        rest = set(story.paths.names) - set(nodes)
        until(lambda: heard(story) == rest, lambda: f"no others than {sorted(rest)} to be heard: {agents(story)}")
    story.inject("agent-cut", "--undo")


def unheard(story: Story, seed: int, longest_s: float) -> None:
    """Cut shares off for times between 1 s and ``longest_s``, all orders of magnitude alike, with pauses between them."""
    drawn = random.Random(seed)
    jobs = twenty_jobs(story)
    before = audit(story)
    for share, count in SHARES.items():
        nodes = drawn.sample(story.paths.names, count)
        for_s = math.exp(drawn.uniform(0.0, math.log(longest_s)))
        print(f"seed {seed}: {share} ({','.join(sorted(nodes))}) for {for_s:.1f} s", flush=True)
        cut(story, nodes, for_s)
        time.sleep(math.exp(drawn.uniform(0.0, math.log(AFTER_S))))
    reached = [job.step for job in jobs]
    story.wait_agents()

    def caught_up() -> bool:
        return all(known >= step for known, step in zip(steps_known(story, jobs), reached, strict=True))

    until(caught_up, lambda: f"what the agents kept to come in: {reached}, known {steps_known(story, jobs)}")
    time.sleep(AFTER_S)
    story.expect()
    assert [line for line in story.controller_log().splitlines() if CHANGED.match(line)] == []
    assert audit(story) == before
    for job, step in zip(jobs, reached, strict=True):
        job.wait_step(step + 10)
        assert (job.state(), job.restarts(), job.nodes_now(), len(job.starts())) == ("RUNNING", 0, job.nodes, 1)


def test_a_share_of_the_agents_is_not_heard_for_seconds(story: Story):
    unheard(story, 5, 25.0)


@pytest.mark.deep
@pytest.mark.parametrize("seed", [5, 12])
def test_a_share_of_the_agents_is_not_heard_for_minutes(story: Story, seed: int):
    unheard(story, seed, 600.0)
