"""Several jobs on one node, each with GPUs of its own: what happens to one GPU happens to the job that holds it."""

from __future__ import annotations

import re

import pytest
from stories.lab_nodes import set_aside
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def sharing(story: Story, nodes: str, *arguments: str) -> Job:
    """A training job with one GPU on each of these nodes, which leaves the others to others."""
    asked = nodes.split(",")
    others = ",".join(name for name in story.paths.names if name not in asked)
    with set_aside(story, others):  # it does not ask for these nodes by name: it is to run elsewhere later
        return story.job(len(asked), "--", "--oversubscribe", "--gres=gpu:1", *arguments)


def gpu_of(story: Story, job: Job, node: str) -> int:
    """Of that job on that node, as Slurm says; Sentinel must know it, too."""
    details = story.lab.slurm("scontrol", "show", "job", "-d", str(job.id))
    held = {
        name: int(index)
        for names, index in re.findall(r"Nodes=(\S+) .*GRES=gpu(?::\w+)?:1\(IDX:(\d+)\)", details)
        for name in story.lab.slurm("scontrol", "show", "hostnames", names).split()
    }
    until(lambda: holders(story, node).get(str(job.id)) == [held[node]], lambda: f"{held} and {holders(story, node)}")
    return held[node]


def holders(story: Story, node: str) -> dict[str, list[int]]:
    seen = story.view("nodes") or {"nodes": []}
    return next((dict(row["holders"]) for row in seen["nodes"] if row["node"] == node), {})


def goes_on(job: Job) -> None:
    """It trains, where it was and undisturbed."""
    job.wait_step(job.step + 10)
    assert (job.state(), job.restarts(), job.nodes_now(), len(job.starts())) == ("RUNNING", 0, job.nodes, 1)


def test_a_contained_error_restarts_the_job_that_holds_the_gpu_and_no_larger_one(fresh: Story):
    story = fresh
    large, small = sharing(story, "n1,n2"), sharing(story, "n1")
    gpu = gpu_of(story, small, "n1")
    assert gpu != gpu_of(story, large, "n1")
    story.inject("xid", "--node", "n1", "--gpu", str(gpu), "--xid", "94")
    (told,) = story.expect(restarts=[small], messages=[{"cause": "gpu_memory_ecc", "job": small.id}])
    assert told["gpus"] == [f"n1:{gpu}"]
    assert small.nodes_now() != ["n1"]
    goes_on(large)


def test_errors_under_two_jobs_of_one_node_are_two_failures(fresh: Story):
    story = fresh
    jobs = [sharing(story, "n2"), sharing(story, "n2")]
    gpus = [gpu_of(story, job, "n2") for job in jobs]
    for gpu in gpus:
        story.inject("xid", "--node", "n2", "--gpu", str(gpu), "--xid", "94")
    wanted = [{"cause": "gpu_memory_ecc", "job": job.id} for job in jobs]
    told = {message["job"]: message["gpus"] for message in story.expect(restarts=jobs, messages=wanted)}
    assert told == {job.id: [f"n2:{gpu}"] for job, gpu in zip(jobs, gpus, strict=True)}


def test_a_lost_gpu_takes_its_node_out_and_the_other_jobs_finish_there(fresh: Story):
    """The larger one, too: it is none of its GPUs."""
    story = fresh
    spared, hit = sharing(story, "n1,n2"), sharing(story, "n1")
    gpu = gpu_of(story, hit, "n1")
    gpu_of(story, spared, "n1")
    story.inject("xid", "--node", "n1", "--gpu", str(gpu), "--xid", "79")
    messages = [{"cause": "gpu_fallen_off_bus", "job": hit.id, "gpus": [f"n1:{gpu}"]}]
    story.expect(drains=["n1"], restarts=[hit], messages=messages)
    assert "n1" not in hit.nodes_now()
    goes_on(spared)


def test_a_job_that_did_not_ask_for_it_is_left_to_finish_on_the_drained_node(fresh: Story):
    story = fresh
    silent, hit = sharing(story, "n1", "--comment=mine alone"), sharing(story, "n1")
    gpu = gpu_of(story, hit, "n1")
    gpu_of(story, silent, "n1")
    story.inject("xid", "--node", "n1", "--gpu", str(gpu), "--xid", "79")
    story.expect(drains=["n1"], restarts=[hit], messages=[{"cause": "gpu_fallen_off_bus", "job": hit.id}])
    assert "n1" not in hit.nodes_now()
    goes_on(silent)
