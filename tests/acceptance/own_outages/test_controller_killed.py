"""slurmctld killed with -9 during a recovery: it has forgotten the last seconds of what it had done. The same end."""

from __future__ import annotations

import re
import time

import pytest
from lab import processes
from stories.timeline import PATIENCE_S, Story, until
from stories.witnesses import wait_jobs_saved

pytestmark = pytest.mark.slurm

MOMENTS = [
    pytest.param("kind=drain ", id="drained", marks=pytest.mark.deep),
    # It may have saved the requeue, and not that the job is deferred.
    pytest.param("kind=requeue_hold ", id="requeued", marks=pytest.mark.deep),
    pytest.param("kind=write_resume ", id="resume point written", marks=pytest.mark.deep),
    pytest.param("kind=exclude ", id="excluded", marks=pytest.mark.deep),
    pytest.param("kind=release ", id="released", marks=pytest.mark.deep),
]


def kill_controller(story: Story) -> None:
    found = processes.known(story.paths, "slurmctld")
    assert found is not None and found.send(9)
    until(lambda: not found.alive, "the killed slurmctld to be gone")


def found_twice(story: Story) -> set[str]:
    """Nodes that slurmctld took out itself: it had forgotten that the job began there, and began it again."""
    return set(re.findall(r"Duplicate jobid on nodes (\w+), set to state DRAIN", story.controller_log()))


def start_controller(story: Story) -> None:
    story.call_lab("from lab import slurm; slurm.start_controller(lab)")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_is_restarted_all_the_same(story: Story, moment: str):
    job = story.job(2)
    wait_jobs_saved(story)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.wait_daemon_log(moment)
    kill_controller(story)
    time.sleep(1)
    start_controller(story)

    def restarted() -> bool:
        again = job.restarts() == 1 + len(found_twice(story)) and job.state() == "RUNNING"
        return again and victim not in job.nodes_now() and job.steps_again()

    until(
        restarted, lambda: f"{job.shown()}\n{story.daemon_log()[-3000:]}", 2 * PATIENCE_S
    )  # Slurm pauses for 3 minutes
    until(story.quiet, "the incident to close")
    # What was lost is done again: a drain may be in slurmctld's log twice, an attempt without processes in no log.
    assert set(story.drains()) == {victim} == story.drained_now()
    assert [sorted(stages) for stages in story.corrections().values()] == [["restarting", "running again"]]
    assert len(story.messages()) == 1
    job.forges = True  # slurmctld may have forgotten an attempt, and started it again under the same number
    drains = list(story.drains().elements())
    again = found_twice(story)
    story.expect(drains=drains, restarts=[job] * (1 + len(again)), messages=["gpu_fallen_off_bus"])
    for node in again:
        story.lab.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
