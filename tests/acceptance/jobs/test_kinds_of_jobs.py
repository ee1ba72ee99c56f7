"""Jobs of every kind on a node that loses a GPU: restarted where Slurm can, and told what is so where it cannot."""

from __future__ import annotations

import re

import pytest
from stories.other_jobs import comment, from_a_terminal, require_reservations, script, standin, state_of, waiting_on
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def lose_gpu(story: Story, node: str) -> None:
    story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")


def test_interactive_jobs_are_left_to_their_users_who_hear_why(story: Story):
    asked = f"--comment={comment(story, 'asked')}"
    with from_a_terminal(story, "asked", "srun", asked, "sleep", "600") as srun:
        with from_a_terminal(story, "other", "salloc", "--no-shell") as salloc:
            victims = [srun.nodes[1], salloc.nodes[1]]
            for victim in victims:
                lose_gpu(story, victim)
            messages = [{"job": job.id, "stage": "handled"} for job in (srun, salloc)]
            told = {
                message["job"]: message["owner_text"] for message in story.expect(drains=victims, messages=messages)
            }
            assert "still runs and is not restarted" in told[srun.id] and "salloc or srun" in told[srun.id]
            assert "still runs and is not restarted" in told[salloc.id] and "did not ask" in told[salloc.id]
            assert {srun.state(), salloc.state()} == {"RUNNING"}


def test_a_job_without_a_comment_goes_on_and_its_owner_hears_of_it(story: Story):
    job = story.job(2, "--", "--comment=for project 7")
    lose_gpu(story, job.nodes[1])
    (told,) = story.expect(drains=[job.nodes[1]], messages=[{"job": job.id, "stage": "handled"}])
    assert "still runs and is not restarted" in told["owner_text"]
    assert "for project 7" in job.shown() and job.restarts() == 0


def test_a_job_submitted_with_no_requeue_is_restarted_and_its_owner_hears_that_it_was_changed(story: Story):
    job = story.job(2, "--", "--no-requeue")
    lose_gpu(story, job.nodes[1])
    (told,) = story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert "was submitted with --no-requeue" in told["owner_text"]


def test_a_fault_before_the_first_checkpoint_starts_the_job_anew(story: Story):
    run = "young"
    words = ["--nodes", "2", "--run", run, "--standin", "--steps", "100000", "--step-time", "0.1"]
    job = Job(story.lab, story.lab.submit(*words, "--local-every", "50000", "--global-every", "90000"), run)
    story.adopt(job, saved=False)
    job.wait_step(10)
    lose_gpu(story, job.nodes[0])
    (told,) = story.expect(drains=[job.nodes[0]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.starts() == [(None, ""), (None, "")]
    assert "without a checkpoint to resume from" in told["owner_text"] and told["resumed_step"] is None


def test_one_task_of_a_throttled_array_is_restarted_and_waits_for_its_turn(story: Story):
    run = "array"
    body = f"exec srun --kill-on-bad-exit=1 {standin(story, run)}-$SLURM_ARRAY_TASK_ID"
    array = script(story, run, body, "--array=0-2%1", f"--output={story.paths.shared}/%x-%A_%a.out", nodes=1)

    def task(number: int) -> Job | None:
        words = ("squeue", "-h", "-r", "-j", f"{array}_{number}", "-o", "%A|%T")
        shown = story.lab.slurm(*words).strip().partition("|")
        return Job(story.lab, int(shown[0]), run) if shown[2] == "RUNNING" else None

    first = until(lambda: task(0), "the first task to run")
    first.nodes = first.nodes_now()
    story.jobs.append(first)
    log = story.paths.shared / f"{run}-{array}_0.out"
    until(lambda: "saved step" in story.read(log), lambda: f"a checkpoint:\n{story.read(log)}")
    lose_gpu(story, first.nodes[0])
    until(lambda: task(1), "the next task to take its turn")
    begun = story.paths.shared / f"{run}-{array}_1.out"
    until(lambda: "| loss" in story.read(begun), "it to train")
    until(lambda: first.restarts() == 1 and first.state() == "PENDING", lambda: first.shown())
    # By its place in the array: Slurm 22.05 does not find the task by its own id once another one was requeued.
    story.lab.slurm("scancel", f"{array}_1", f"{array}_2")
    until(lambda: first.state() == "RUNNING", lambda: f"the restarted task to run: {first.shown()}")
    until(lambda: "resumed from step" in story.read(log), lambda: story.read(log)[-2000:])
    until(story.quiet, "the incident to close")
    story.accept_what_became_of(first)
    assert first.restarts() == 1
    assert list(story.corrections().values()) == [["restarting", "running again"]]
    story.lab.slurm("scancel", f"{array}_0")
    until(lambda: task(0) is None, "the restarted task to end")
    story.jobs.remove(first)
    story.expect(drains=[first.nodes[0]])


@pytest.mark.parametrize("asks", ["--constraint=big", "--nodelist=n1,n2", "--reservation=theirs"])
def test_a_job_that_only_some_nodes_can_run_waits_for_the_repaired_one(fresh: Story, asks: str):
    """There are other nodes in its partition, and Slurm would never start it with one of its own in its list."""
    story = fresh
    story.lab.slurm("scontrol", "update", "NodeName=n1,n2", "Features=big")
    words = "ReservationName=theirs StartTime=now Duration=60 Users=root,nobody Nodes=n1,n2".split()
    if asks.endswith("=theirs"):
        require_reservations()
        story.lab.slurm("scontrol", "create", "reservation", *words)
    job = story.job(2, "--", asks)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    until(lambda: victim in story.drained_now() and job.restarts() == 1, lambda: f"{job.shown()}")
    until(lambda: re.search(r"Reason=(?:ReqNodeNotAvail|Resources|Reservation)", job.shown()), job.shown)
    story.lab.run("inject", "xid", "--undo")
    story.reboot([victim])
    story.sentinel("release", victim, "--yes")
    story.expect(drains=[victim], returns=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.nodes_now() == ["n1", "n2"]
    if asks.endswith("=theirs"):
        story.cancel(job)
        story.lab.slurm("scontrol", "delete", "ReservationName=theirs")


def test_tasks_of_an_array_that_fail_at_once_are_judged_by_their_own_logs(story: Story):
    """No process of theirs is left by the time at which their logs are looked for."""
    run = "sweep"
    body = """case $SLURM_ARRAY_TASK_ID in
    0) echo "ModuleNotFoundError: No module named 'apex'"; exit 1 ;;
    1) echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."; exit 1 ;;
    esac"""
    array = script(story, run, body, "--array=0-3", f"--output={story.paths.shared}/%x-%A_%a.out", nodes=1)
    until(story.messages, "a message")
    until(
        lambda: len(story.messages()) == 2 and story.quiet(),
        lambda: f"{story.messages()}\n{story.daemon_log()[-3000:]}",
    )
    held = [Job(story.lab, message["job"], run) for message in story.messages()]
    story.jobs += held
    causes = {"software_env": 0, "app_oom_gpu": 1}
    story.expect(held=held, messages=list(causes))
    for message in story.messages():
        log = story.read(story.paths.shared / f"{run}-{array}_{causes[message['cause']]}.out")
        assert f"sentinel: job {message['job']} attempt 0 begins" in log
    story.lab.slurm("scancel", str(array))  # by the array's id: 22.05 does not find a task that was requeued by its own
    story.jobs = [job for job in story.jobs if job not in held]
    story.expect(free=held)


def test_a_job_of_several_steps_is_restarted_as_one(story: Story):
    run = "steps"
    before = (
        "srun hostname\nsrun false || echo 'the preparation failed, going on'\nsrun --overlap -N1 -n1 sleep 1000 &\n"
    )
    job = Job(story.lab, script(story, run, f"{before}exec srun --overlap {standin(story, run)}"), run)
    story.adopt(job)
    lose_gpu(story, job.nodes[1])
    story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.log.count("the preparation failed, going on") == 2 and job.resumed()[0] is not None


def test_jobs_that_wait_for_one_that_fails_are_named(story: Story):
    job = story.job(1)
    waiting = waiting_on(story, job, ("afterok", "afternotok", "afterany"))
    danger = f"{waiting['afternotok']} (afternotok:{job.id})"
    until(lambda: danger in story.sentinel("doctor", "--json", code=None).stdout, "doctor to name it")
    story.inject("crash", "--job", str(job.id), "--rank", "0")
    (told,) = story.expect(held=[job], messages=["user_code"])
    gone = f"{waiting['afternotok']} (afternotok), {waiting['afterany']} (afterany)"
    assert f"it let go {gone} and will never start {waiting['afterok']} (afterok)" in told["owner_text"]
    assert state_of(story, waiting["afterok"]) == ("PENDING", "DependencyNeverSatisfied")


def test_jobs_that_wait_for_one_that_is_requeued_while_it_runs_go_on_waiting(story: Story):
    job = story.job(2)
    waiting = waiting_on(story, job, ("afterok", "afternotok", "afterany"))
    lose_gpu(story, job.nodes[1])
    (told,) = story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert {state_of(story, number) for number in waiting.values()} == {("PENDING", "Dependency")}
    assert "let go" not in told["owner_text"] and "never start" not in told["owner_text"]


def test_a_job_that_requeues_itself_before_its_time_limit_is_none_of_ours(story: Story):
    """``--signal``: its script saves, and asks Slurm for its next attempt."""
    run = "limit"
    body = "trap 'echo requeues itself; scontrol requeue $SLURM_JOB_ID; sleep 600' USR1\n"
    body += 'for step in $(seq 6000); do echo "step $step | loss 1.0 | step time 0.2 s"; sleep 0.2; done'
    job = Job(story.lab, script(story, run, body, "--time=1", "--signal=B:USR1@50", nodes=1), run)
    story.jobs.append(job)
    until(lambda: job.restarts() == 1 and job.state() == "PENDING", lambda: f"{job.shown()}\n{job.log[-500:]}")
    story.settle(5)
    story.accept_what_became_of(job)
    assert story.messages() == [] and "requeues itself" in job.log
    story.cancel(job)
    story.expect()
