"""The daemon killed with -9 in the middle of a recovery and started again: the same end, and nothing twice."""

from __future__ import annotations

import time

import pytest
from stories.timeline import Story

pytestmark = pytest.mark.slurm

# After which line of its log it is killed, and how long it stays away.
MOMENTS = [
    pytest.param("incident-candidate", 0, id="not yet judged", marks=pytest.mark.deep),
    pytest.param(" verdict ", 2, id="before the drain", marks=pytest.mark.deep),
    pytest.param("kind=drain ", 0, id="drained"),
    pytest.param("event name=job_ended", 5, id="the job ends", marks=pytest.mark.deep),
    pytest.param("kind=requeue_hold ", 0, id="while the checkpoint is chosen"),
    pytest.param("kind=choose_checkpoint ", 1, id="checkpoint chosen", marks=pytest.mark.deep),
    pytest.param("kind=exclude ", 2, id="before the release"),
    pytest.param("kind=release ", 0, id="right after the release"),
    pytest.param("kind=release ", 4, id="released, away for long", marks=pytest.mark.deep),
    pytest.param("kind=confirm ", 1, id="proof seen", marks=pytest.mark.deep),
]


@pytest.mark.parametrize(("moment", "away_s"), MOMENTS)
def test_a_lost_gpu(story: Story, moment: str, away_s: float):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    story.wait_daemon_log(moment)
    story.kill_daemon()
    time.sleep(away_s)
    story.start_daemon()
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.resumed()[0] in job.saved(job.resumed()[1])


@pytest.mark.deep
def test_a_lost_gpu_while_the_daemon_is_away(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.kill_daemon()
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    time.sleep(3)
    story.start_daemon()
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


def test_killed_after_every_step_of_one_recovery(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "3", "--xid", "79")
    for step in ("drain", "requeue_hold", "choose_checkpoint", "write_resume", "exclude", "release"):
        story.wait_daemon_log(f"kind={step} ")
        story.kill_daemon()
        story.start_daemon()
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


@pytest.mark.deep
def test_a_lost_node(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("node-crash", "--node", victim)
    story.wait_daemon_log("node-unreachable")
    story.kill_daemon()
    story.start_daemon()
    story.expect(drains=[victim], restarts=[job], messages=["node_failure"])


@pytest.mark.deep
@pytest.mark.parametrize(("moment", "away_s"), [("job-stalled", 0), ("kind=requeue_hold ", 1)])
def test_a_hung_rank(story: Story, moment: str, away_s: float):
    job = story.job(2)
    story.inject("hang", "--job", str(job.id), "--rank", "1")
    story.wait_daemon_log(moment)
    story.kill_daemon()
    time.sleep(away_s)
    story.start_daemon()
    story.expect(restarts=[job], messages=["nccl_hang_unknown"])


@pytest.mark.parametrize("moment", [pytest.param("event name=job_ended", marks=pytest.mark.deep), " verdict "])
def test_an_exception(story: Story, moment: str):
    job = story.job(2)
    story.inject("crash", "--job", str(job.id), "--rank", "1")
    story.wait_daemon_log(moment)
    story.kill_daemon()
    story.start_daemon()
    story.expect(held=[job], messages=["user_code"])


@pytest.mark.deep
def test_an_exception_while_the_daemon_is_away(story: Story):
    job = story.job(2)
    story.kill_daemon()
    story.inject("crash", "--job", str(job.id), "--rank", "0")
    job.wait_log("Traceback")
    time.sleep(4)
    story.start_daemon()
    story.expect(held=[job], messages=["user_code"])
