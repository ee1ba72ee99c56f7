"""A job with spare nodes of its own goes on in its allocation when a node breaks: no requeue, the same id and place."""

from __future__ import annotations

import pytest
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def runs(story: Story, job: Job) -> dict[str, str]:
    """The launcher's steps that Slurm has now, by name, with their nodes."""
    said = story.lab.slurm("squeue", "--steps", "--noheader", f"--jobs={job.id}", "--format=%j|%N").splitlines()
    return {name: nodes for name, _, nodes in (line.partition("|") for line in said) if name != "batch"}


def goes_on(story: Story, job: Job, run: int) -> None:
    until(lambda: f"sentinel-run-{run}" in runs(story, job), lambda: f"run {run}: {runs(story, job)}")
    until(lambda: len(job.starts()) == run + 1 and job.steps_again(), lambda: f"steps again: {job.shown()}")


@pytest.mark.parametrize("fault", ["xid", "node-crash"])
def test_it_trains_on_without_the_node_that_breaks(fresh: Story, fault: str):
    story = fresh
    job = story.job(2, "--spares", "1")
    first, victim, spare = job.nodes
    more = ("--gpu", "0", "--xid", "79") if fault == "xid" else ()
    story.inject(fault, "--node", victim, *more)
    goes_on(story, job, 1)
    story.expect(drains=[victim], messages=[{"job": job.id}])
    assert job.nodes_now() == [first, spare] and "Restarts=0" in job.shown()
    assert job.resumed()[0] in job.saved(job.resumed()[1])
    said = story.sentinel("why", str(job.id)).stdout
    assert "is restarted in its allocation" in said and "start the next job step" in said


def test_requeued_where_too_few_nodes_are_left_for_its_spare_it_starts_without_it(fresh: Story):
    """Slurm keeps the tasks of a job that had begun, and their CPUs, and would never start it on fewer nodes."""
    story = fresh
    job = story.job(2, "--spares", "1")
    nodes = set(job.nodes)
    first, second = job.nodes[1:]
    story.inject("xid", "--node", first, "--gpu", "0", "--xid", "79")
    goes_on(story, job, 1)
    story.expect(drains=[first], messages=[{"job": job.id}])
    story.inject("xid", "--node", second, "--gpu", "0", "--xid", "79")
    story.expect(drains=[second], restarts=[job], messages=[{"job": job.id}])
    assert sorted(job.nodes_now()) == sorted({*story.paths.names} - {first, second}) and nodes - {first, second}
