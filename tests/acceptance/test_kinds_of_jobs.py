"""Jobs of every kind on a node that loses a GPU: restarted where Slurm can, and told what is so where it cannot."""

from __future__ import annotations

import pytest
from other_jobs import comment, from_a_terminal, script, standin, state_of, waiting_on
from timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def lose_gpu(story: Story, node: str) -> None:
    story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("srun", "sleep", "600"), id="srun"),
        pytest.param(("salloc", "--no-shell"), id="salloc"),
    ],
)
@pytest.mark.parametrize("opted_in", [True, False], ids=["opted in", "not opted in"])
def test_an_interactive_job_is_left_to_its_user_who_hears_why(story: Story, words: tuple[str, ...], opted_in: bool):
    asked = [f"--comment={comment(story, 'terminal')}"] if opted_in else []
    with from_a_terminal(story, "terminal", words[0], *asked, *words[1:]) as job:
        lose_gpu(story, job.nodes[1])
        (told,) = story.expect(drains=[job.nodes[1]], messages=[{"job": job.id, "stage": "handled"}])
        why = "is interactive (salloc or srun)" if opted_in else "did not ask to be restarted"
        assert "still runs and is not restarted" in told["owner_text"] and why in told["owner_text"]
        assert job.state() == "RUNNING"


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
    second = until(lambda: task(1), "the next task to take its turn")
    until(lambda: first.restarts() == 1 and first.state() == "PENDING", lambda: first.shown())
    story.lab.slurm("scancel", str(second.id))
    story.lab.slurm("scancel", f"{array}_2")
    until(lambda: first.state() == "RUNNING", lambda: f"the restarted task to run: {first.shown()}")
    until(
        lambda: len(Job.starts(first)) == 0 and "resumed from step" in story.read(log), lambda: story.read(log)[-2000:]
    )
    first.forges = True  # its log has another name than those of other jobs
    until(story.quiet, "the incident to close")
    story.accept_what_became_of(first)
    assert first.restarts() == 1
    assert list(story.corrections().values()) == [["restarting", "running again"]]
    story.expect(drains=[first.nodes[0]])


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
    told_before = story.sentinel("doctor", code=None).stdout
    assert f"{waiting['afternotok']} (afternotok:{job.id})" in told_before
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
