"""Faults that come together, and nodes without a job."""

from __future__ import annotations

import pytest
from timeline import Story, until

pytestmark = pytest.mark.slurm


def lose_gpu(story: Story, *nodes: str) -> None:
    for node in nodes:
        story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")


@pytest.mark.deep
def test_two_nodes_of_one_job_at_once(story: Story):
    job = story.job(3)
    lose_gpu(story, job.nodes[0], job.nodes[2])
    (told,) = story.expect(drains=[job.nodes[0], job.nodes[2]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert not {job.nodes[0], job.nodes[2]} & set(job.nodes_now())
    assert set(told["nodes"]) == {job.nodes[0], job.nodes[2]}


@pytest.mark.deep
def test_a_node_without_a_job(story: Story):
    lose_gpu(story, "n5")
    (told,) = story.expect(drains=["n5"], messages=["gpu_fallen_off_bus"])
    assert told["job"] is None


@pytest.mark.deep
def test_a_second_node_crashes_while_its_job_is_being_requeued(story: Story):
    """Slurm waits minutes for the epilog of a node that is gone; the job must not."""
    job = story.job(3)
    bad, lost = job.nodes[2], job.nodes[1]
    lose_gpu(story, bad)
    story.wait_daemon_log("kind=drain ")
    story.inject("node-crash", "--node", lost)
    until(lambda: {bad, lost} <= story.drained_now(), story.daemon_log)
    until(lambda: job.restarts() == 1 and job.steps_again(), lambda: f"{job.shown()}\n{story.daemon_log()[-3000:]}")
    assert not {bad, lost} & set(job.nodes_now())
    told = [{"drained": [name]} for name in (bad, lost)] if len(story.messages()) == 2 else [{"job": job.id}]
    story.expect(drains=[bad, lost], restarts=[job], messages=told)
