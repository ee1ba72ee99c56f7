"""Nodes that fall silent: the node is gone, or only its network, or only our agent on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

ISOLATED = ("--nodes", "4", "--gpus", "2", "--isolated")


@pytest.fixture(scope="module", autouse=True)
def only_here(stages) -> Iterator[None]:
    yield
    stages.drop(*ISOLATED)


@pytest.fixture
def apart(stages) -> Iterator[Story]:
    """A story in a lab whose nodes have networks of their own."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    with Story(stages.lab(*ISOLATED)) as story:
        yield story


@pytest.mark.parametrize("place", [0, 1])
def test_a_node_is_cut_off_although_no_process_died(apart: Story, place: int):
    job = apart.job(2)
    victim = job.nodes[place]
    apart.inject("node-cut", "--node", victim)
    (told,) = apart.expect(drains=[victim], restarts=[job], messages=["node_failure"])
    assert told["nodes"] == [victim]
    assert victim not in job.nodes_now()
    assert job.resumed()[0] is not None


def test_a_node_loses_its_power(apart: Story):
    """Without a process that could say good-bye; its peers hear nothing."""
    job = apart.job(2)
    victim = job.nodes[1]
    apart.inject("node-crash", "--node", victim)
    apart.expect(drains=[victim], restarts=[job], messages=["node_failure"])


def test_an_idle_node_is_cut_off_and_comes_back(apart: Story):
    apart.inject("node-cut", "--node", "n4")
    (told,) = apart.expect(drains=["n4"], messages=["node_failure"])
    assert told["job"] is None


def test_an_agent_alone_dies(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.stop_agent(victim)

    def missed() -> bool:
        seen = story.view("nodes", node=victim)
        return seen is not None and seen["nodes"][0]["agent"] != "heard"

    until(missed, "the daemon to miss the agent")
    time.sleep(5)
    seen = job.step
    job.wait_step(seen + 20)
    story.expect()
    story.start_agent(victim)
    story.wait_agents()
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


def test_what_a_node_saw_while_its_agent_was_dead_counts_afterwards(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.stop_agent(victim)
    story.inject("xid", "--node", victim, "--gpu", "3", "--xid", "79")
    time.sleep(2)
    story.start_agent(victim)
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


def test_all_agents_fall_silent(story: Story):
    """More likely it is we who are cut off."""
    job = story.job(2)
    for name in story.paths.names:
        story.stop_agent(name)
    time.sleep(10)
    seen = job.step
    job.wait_step(seen + 10)
    story.expect()
    story.call_lab(f"[services.start_agent(lab, name) for name in {story.paths.names!r}]")
    story.wait_agents()
    story.expect()
