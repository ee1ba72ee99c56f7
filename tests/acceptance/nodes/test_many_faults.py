"""Faults that come together, and nodes without a job."""

from __future__ import annotations

import pytest
from stories.timeline import Story

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
