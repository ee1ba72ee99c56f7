"""A running job whose newest checkpoint goes bad is told before it needs it, and nothing else happens to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stories.timeline import Story, until

pytestmark = pytest.mark.slurm
_EVERY_S = 2.0


@pytest.fixture
def watched(fresh: Story) -> Iterator[Story]:
    """A lab whose agents look at saves every other second."""
    for node in ("n1", "n2", "n3", "n4"):
        path = fresh.lab.dir / "nodes" / node / "sentinel.toml"
        path.write_text(path.read_text() + f"\n[jobs]\nsaves_s = {_EVERY_S}\n")
        fresh.stop_agent(node)
        fresh.start_agent(node)
    fresh.wait_agents()
    yield fresh


@pytest.mark.deep
def test_a_checkpoint_that_goes_bad_under_a_running_job(watched: Story):
    story = watched
    # Saves are far apart: the one that goes bad stays the newest until the node fails.
    job = story.job(2, "--global-every", "150", "--local-every", "50", saved=False)
    until(lambda: job.saved("global"), "a checkpoint in the shared folder")
    (spoilt,) = story.inject("corrupt-checkpoint", "--tier", "global", "--how", "truncate", "--run", job.run)
    (told,) = story.expect(messages=["checkpoint_corrupt"])
    assert told["job"] == job.id
    assert f"step-{spoilt['step']}" in told["text"]
    step = job.step
    story.settle(5 * _EVERY_S)  # told once, however often it is looked at
    assert job.state() == "RUNNING"
    assert job.restarts() == 0
    assert job.step > step
    story.inject("xid", "--node", job.nodes[1], "--gpu", "0", "--xid", "79")
    story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.resumed() != (spoilt["step"], "global")
