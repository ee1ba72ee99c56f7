"""What a job's user does with it while it is being restarted wins."""

from __future__ import annotations

import pytest
from stories.other_jobs import script, standin
from stories.timeline import Job, Story, until

pytestmark = pytest.mark.slurm

# None between the daemon's look at a job and its request to requeue it: there Slurm brings a cancelled job back.
MOMENTS = [
    pytest.param("incident-candidate", id="not yet judged"),
    pytest.param("kind=requeue_hold ", id="requeued"),
    pytest.param("kind=choose_checkpoint ", id="checkpoint chosen", marks=pytest.mark.deep),
    pytest.param("kind=release ", id="released", marks=pytest.mark.deep),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_that_its_user_cancels_does_not_come_back(story: Story, moment: str):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    with story.daemon_stopped_at(moment):
        story.lab.slurm("scancel", str(job.id))
    story.jobs.remove(job)  # how often it was restarted until then is not the matter
    until(lambda: job.state() == "CANCELLED", lambda: f"the job to be cancelled: {job.shown()}")
    story.expect(drains=[victim], messages=[{"cause": "gpu_fallen_off_bus", "job": job.id}])
    story.settle(2)
    assert job.state() == "CANCELLED"
    assert moment == "kind=release " or len(job.starts()) == 1


def test_a_job_that_its_user_holds_while_it_is_restarted_stays_held(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    with story.daemon_stopped_at("kind=requeue_hold "):
        story.lab.slurm("scontrol", "uhold", str(job.id))
    story.expect(drains=[victim], held=[job], messages=[{"cause": "gpu_fallen_off_bus", "job": job.id}])
    assert len(job.starts()) == 1
    story.lab.slurm("scontrol", "release", str(job.id))
    until(lambda: len(job.starts()) == 2 and job.steps_again(), lambda: f"the released job to train: {job.shown()}")
    story.expect(free=[job])
    assert job.resumed()[0] in job.saved(job.resumed()[1])  # the resume point was written all the same
    assert victim not in job.nodes_now()


@pytest.mark.deep
def test_a_job_whose_user_gives_it_a_start_time_while_it_is_restarted_waits_for_that(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    with story.daemon_stopped_at("kind=requeue_hold "):
        story.lab.slurm("scontrol", "update", f"jobid={job.id}", "starttime=now+3days")
    story.wait_daemon_log("kind=release ")
    assert job.state() == "PENDING" and len(job.starts()) == 1, job.shown()
    story.lab.slurm("scontrol", "update", f"jobid={job.id}", "starttime=now")
    until(lambda: len(job.starts()) == 2 and job.steps_again(), lambda: f"the job to train: {job.shown()}")
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": "gpu_fallen_off_bus", "job": job.id}])
    assert victim not in job.nodes_now()


@pytest.mark.deep
def test_a_restarted_job_that_is_requeued_before_its_first_step_has_its_resume_point_the_next_time(story: Story):
    """By its user here; Slurm does the same where a prolog fails or a node dies at the start."""
    run = "again"
    body = f"""[ "${{SLURM_RESTART_COUNT:-0}}" != 1 ] || sleep 300
    env | grep SENTINEL_RESUME_STEP
    exec srun --kill-on-bad-exit=1 {standin(story, run)}"""
    job = Job(story.lab, script(story, run, body), run)
    story.adopt(job)
    victim = job.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    until(lambda: job.restarts() == 1 and job.state() == "RUNNING", job.shown)
    story.lab.slurm("scontrol", "requeue", str(job.id))
    story.wait_daemon_log("done-again .*steps=write_resume")
    until(lambda: story.daemon_log().count("kind=write_resume target=") == 2, story.daemon_log)
    story.lab.slurm("scontrol", "update", f"jobid={job.id}", "starttime=now")
    until(lambda: len(job.starts()) == 2 and job.steps_again(), job.shown)
    step, _ = job.resumed()
    assert f"SENTINEL_RESUME_STEP={step}" in job.log, job.log[-2000:]
    story.expect(drains=[victim], restarts=[job, job], messages=[{"cause": "gpu_fallen_off_bus", "job": job.id}])
