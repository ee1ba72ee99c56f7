"""A job comes back to a node whose slurmd remembers it from before a crash, and so runs no prolog for it."""

from __future__ import annotations

import shutil
import signal

import pytest
from lab import processes
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def test_it_is_followed_again(fresh: Story):
    story = fresh
    node = story.paths.names[0]
    job = story.job(1, "--", f"--nodelist={node}")
    run = story.lab.dir / "nodes" / node / "run"
    story.inject("node-crash", "--node", node)
    until(lambda: job.state() == "PENDING", lambda: f"job {job.id} to wait: {job.shown()}")
    shutil.rmtree(run)  # on a node /run is in memory
    # slurmctld repeats the end of the job to the node for a minute, which slurmd would take for its own; not after a start.
    controller = processes.known(story.paths, "slurmctld")
    assert controller is not None
    controller.send(signal.SIGTERM)
    until(lambda: not controller.alive, "slurmctld to be gone")
    story.call_lab("from lab import slurm; slurm.start_controller(lab)")
    story.lab.run("inject", "node-crash", "--undo")
    story.wait_agents()
    story.sentinel("release", node, "--yes")
    until(lambda: job.state() == "RUNNING", lambda: f"job {job.id} to run again: {job.shown()}")
    assert not (run / "jobs" / f"{job.id}.json").exists(), "slurmd ran the prolog: it did not remember the job"
    until(lambda: (run / "jobs" / f"{job.id}.json").exists(), "the agent to find the job")
    story.expect(drains=[node], returns=[node], restarts=[job], messages=["node_failure"])
