"""A running job's saves: one that goes bad is told before it is needed, and another job's are not taken for its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from stories.other_jobs import script, standin
from stories.timeline import Job, Story, until

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


@pytest.mark.deep
def test_a_job_does_not_go_on_from_another_runs_checkpoint_below_a_folder_that_both_name(story: Story):
    above = story.paths.shared / "experiments"
    above.mkdir(exist_ok=True)
    above.chmod(0o777)
    told = "--comment=" + json.dumps({"sentinel": {"restart": True, "global": [str(above)]}})

    def begin(run: str, pace: str) -> Job:
        words = standin(story, run).replace(f"{story.paths.shared / run} ", f"{above / run} ")
        words = words.replace("--step-time 0.1", f"--step-time {pace}")
        job = Job(story.lab, script(story, run, f"exec srun --kill-on-bad-exit=1 {words}", told), run)
        story.adopt(job)
        return job

    ahead = begin("ahead", "0.1")
    ahead.wait_step(100)
    behind = begin("behind", "0.4")
    victim = behind.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    (message,) = story.expect(drains=[victim], restarts=[behind], messages=["gpu_fallen_off_bus"])
    assert behind.resumed()[0] in behind.saved(behind.resumed()[1])
    assert (
        f"job {ahead.id} names {above}, too, and which of the runs below is this job's is not known" in message["text"]
    )
    assert "from where its own script resumes" in message["owner_text"]
    assert ahead.restarts() == 0 and len(ahead.starts()) == 1
