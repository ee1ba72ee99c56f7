"""Faults of programs and of what they read: held or restarted by the book, never a drained node."""

from __future__ import annotations

import json
import shutil

import pytest
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def test_an_exception_on_all_ranks_is_told_once(story: Story):
    job = story.job(4)
    story.inject("crash", "--job", str(job.id), "--all")
    (told,) = story.expect(held=[job], messages=["user_code"])
    assert told["scope"] == "application"
    assert told["job"] == job.id
    line = (
        f"sentinel: attempt 0: the program failed by itself; the job is held and keeps its id; mend what is wrong, "
        f"then: scontrol release {job.id}"
    )
    until(lambda: job.log.count(line) == 1, lambda: f"the job's own log to say it:\n{job.log[-800:]}")
    shown = story.lab.slurm("squeue", "--noheader", "--jobs", str(job.id), "-O", "admin_comment:80")
    assert "user_code held" in shown


def test_an_exception_again_after_the_user_released_the_job(story: Story):
    job = story.job(2)
    story.inject("crash", "--job", str(job.id), "--rank", "1")
    (first,) = story.expect(held=[job], messages=["user_code"])
    story.lab.slurm("scontrol", "release", str(job.id))
    until(
        lambda: len(job.starts()) == 2 and job.steps_again(), lambda: f"the released job to train:\n{job.log[-2000:]}"
    )
    story.inject("crash", "--job", str(job.id), "--rank", "1")
    (second,) = story.expect(held=[job], messages=["user_code"])
    assert first["incident"] != second["incident"]
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert "is held and keeps its id" in second["text"]


@pytest.mark.parametrize(("how", "cause"), [("gpu", "app_oom_gpu"), ("host", "app_oom_host")])
def test_out_of_memory_holds_the_job(story: Story, how: str, cause: str):
    job = story.job(2)
    story.inject("oom", "--job", str(job.id), "--rank", "1", "--how", how)
    story.expect(held=[job], messages=[cause])


def test_a_slow_rank_alone_is_left_in_peace(story: Story):
    job = story.job(2)
    story.inject("slow", "--job", str(job.id), "--rank", "1", "--extra", "0.5")
    seen = job.step
    job.wait_step(seen + 30)
    story.expect()


@pytest.mark.parametrize("how", ["truncate", "flip", "zero", "torn"])
def test_what_is_damaged_is_never_resumed_from(story: Story, how: str):
    """The newest checkpoint of a tier is spoilt, of another tier under each of two jobs; then hardware fails."""
    jobs = {tier: story.job(2) for tier in ("local", "global")}
    spoilt = {}
    for tier, job in jobs.items():
        # No further save between the damage and the fault: the spoilt one stays the newest.
        stop(story, job)
        (spoilt[tier],) = story.inject("corrupt-checkpoint", "--tier", tier, "--how", how, "--run", job.run)
        story.inject("xid", "--node", job.nodes[1], "--gpu", "0", "--xid", "79")
    story.expect(
        drains=[job.nodes[1] for job in jobs.values()],
        restarts=jobs.values(),
        messages=[{"cause": "gpu_fallen_off_bus", "job": job.id} for job in jobs.values()],
    )
    for tier, job in jobs.items():
        step, where = job.resumed()
        assert (step, where) != (spoilt[tier]["step"], tier), "resumed from what was spoilt"
        assert step is not None and step in job.saved(where)
    assert jobs["global"].resumed()[0] < spoilt["global"]["step"]


def stop(story: Story, job: Job) -> None:
    """Stop a rank and wait until no step is printed any more."""
    story.inject("hang", "--job", str(job.id), "--rank", "1")
    seen = [-1]

    def still() -> bool:
        seen.append(job.step)
        return len(seen) > 4 and len(set(seen[-4:])) == 1  # over a second, or the machine is busy

    until(still, "the job to stand still")


def test_all_checkpoints_of_the_run_are_gone(story: Story):
    """Nothing to resume from is an answer too: from the start, and it is said."""
    job = story.job(2)
    victim = job.nodes[0]
    stop(story, job)
    shutil.rmtree(story.paths.shared / job.run)
    for name in job.nodes:
        shutil.rmtree(story.paths.node(name) / "nvme" / job.run)
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    (told,) = story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.resumed() == (None, "")
    assert told["resumed_step"] is None
    assert json.loads(story.sentinel("why", told["incident"], "--json").stdout)["steps"]


def test_a_full_disk_holds_the_job(story: Story):
    job = story.job(2)
    story.inject("disk-full", "--node", job.nodes[1])
    (told,) = story.expect(held=[job], messages=["disk_full"])
    assert told["drained"] == []
