"""Operators and users who do something to nodes and jobs while Sentinel restarts a job: what they did stands."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

import pytest
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

GPU = "gpu_fallen_off_bus"


def lose_gpu(story: Story, node: str) -> None:
    story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")


def resume(story: Story, *nodes: str) -> None:
    story.lab.slurm("scontrol", "update", f"nodename={','.join(nodes)}", "state=resume")


def reason_of(story: Story, node: str) -> str:
    return story.lab.slurm("sinfo", "-h", "-n", node, "-o", "%E").strip()


def test_a_node_that_an_operator_returns_during_the_recovery_stays_returned(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    lose_gpu(story, victim)
    story.wait_daemon_log(f'kind=drain target={victim} result=done reason=""')  # and not the earlier one's return
    resume(story, victim)
    story.expect(drains=[victim], returns=[victim], restarts=[job], messages=[GPU])
    assert victim not in job.nodes_now()  # its agent still calls it bad: this job does not get it
    story.settle(15)
    story.expect()


def test_nodes_that_an_operator_drains_during_the_recovery_are_theirs(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    theirs = [name for name in story.paths.names if name not in job.nodes][:3]
    lose_gpu(story, victim)
    story.wait_daemon_log("kind=requeue_hold ")
    story.lab.slurm("scontrol", "update", f"nodename={','.join(theirs)}", "state=drain", "reason=ticket 7")
    try:
        story.expect(drains=[victim], restarts=[job], messages=[GPU])
        assert not {victim, *theirs} & set(job.nodes_now())
        assert {reason_of(story, name) for name in theirs} == {"ticket 7"}
    finally:
        resume(story, *theirs)
    story.expect(returns=theirs)


def test_a_bad_node_that_an_operator_drained_before_keeps_their_reason(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.lab.slurm("scontrol", "update", f"nodename={victim}", "state=drain", "reason=ticket 7")
    lose_gpu(story, victim)
    try:
        story.expect(restarts=[job], messages=[GPU])
        assert victim not in job.nodes_now() and reason_of(story, victim) == "ticket 7"
    finally:
        resume(story, victim)
    story.expect(returns=[victim])


def test_a_hold_on_the_running_job_outlives_its_restart(story: Story):
    job = story.job(2)
    story.lab.slurm("scontrol", "hold", str(job.id))
    lose_gpu(story, job.nodes[1])
    story.expect(drains=[job.nodes[1]], held=[job], messages=[GPU])
    told = story.received()[-1]  # on a busy machine the second: the first says that it is being restarted
    assert (told["stage"], told["severity"]) == ("held", "warning")
    assert "whoever held it releases it" in told["owner_text"]
    submitted, eligible = re.findall(r"(?:SubmitTime|EligibleTime)=(\S+)", job.shown())
    waits = datetime.fromisoformat(eligible) - datetime.fromisoformat(submitted)
    assert waits < timedelta(seconds=120), "Slurm lets a requeued job wait for 121 s"
    story.lab.slurm("scontrol", "release", str(job.id))
    until(lambda: len(job.starts()) == 2 and job.steps_again(), lambda: f"the released job to train: {job.shown()}")
    story.expect(free=[job])
    assert job.nodes[1] not in job.nodes_now() and job.resumed()[0] is not None


def test_a_fault_under_a_job_that_is_just_being_cancelled_brings_nothing_back(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.lab.slurm("scancel", str(job.id))
    lose_gpu(story, victim)
    story.jobs.remove(job)
    until(lambda: job.state() == "CANCELLED", lambda: job.shown())
    story.expect(drains=[victim], messages=[{"cause": GPU}])
    assert job.state() == "CANCELLED" and len(job.starts()) == 1


def test_a_job_whose_every_start_fails_is_held_after_two_tries(story: Story):
    run = "loops"
    words = "echo starting; sleep 1; echo 'NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited'; exit 1"
    asked = ["--requeue", "--gres=gpu:1", "--open-mode=append", f"--job-name={run}", f"--wrap={words}"]
    asked += [f"--output={story.paths.shared}/%x-%j.out", '--comment={"sentinel": {"restart": true}}']
    job = Job(story.lab, int(story.lab.slurm("sbatch", "--parsable", *asked)), run)
    story.jobs.append(job)
    until(lambda: job.held() and story.quiet(), lambda: f"{job.shown()}\n{story.daemon_log()[-2000:]}")
    assert job.restarts() == 3  # a hold is a requeue, too
    stages = list(story.corrections().values())
    assert stages == [["restarting", "resolved"], ["restarting", "resolved"], ["held"]]
    story.accept_what_became_of(job)
    story.expect()


def test_a_first_pause_of_a_healthy_job_is_no_hang(story: Story):
    """One rank takes 45 s for one step, as in an evaluation or a slow fetch: the job has not shown that before."""
    job = story.job(2)
    job.wait_step(60)
    story.inject("slow", "--job", str(job.id), "--rank", "1", "--extra", "45")
    time.sleep(2)
    story.lab.run("inject", "slow", "--undo")
    seen = job.step
    job.wait_step(seen + 30)
    story.expect()


def test_a_node_that_its_agent_calls_bad_is_not_given_to_a_restarted_job(story: Story):
    """Although an operator returned it, and whatever incident it was bad in."""
    job = story.job(2)
    next_free = min(set(story.paths.names) - set(job.nodes))
    lose_gpu(story, next_free)
    story.expect(drains=[next_free], messages=[{"job": None, "drained": [next_free]}])
    resume(story, next_free)
    story.expect(returns=[next_free])
    lose_gpu(story, job.nodes[1])
    story.expect(drains=[job.nodes[1]], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert next_free not in job.nodes_now()
