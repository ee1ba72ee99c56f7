"""A node under suspicion is tested as soon as it is idle: what passes is cleared, what fails is taken out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from stories.lab_nodes import checkup, diagnosable, script_diagnostic, set_aside, wait_checkup
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

BROKEN_MEMORY = {"test": "memory", "gpu": 1, "code": 52, "severity": 2, "category": 10, "text": "memory test failed"}


@pytest.fixture
def tested(fresh: Story) -> Iterator[Story]:
    with diagnosable(fresh):
        yield fresh


def suspected(story: Story) -> tuple[Job, str]:
    """A job that was restarted without a node whose memory had a contained error, and that node."""
    job = story.job(2)
    node = job.nodes[1]
    story.inject("xid", "--node", node, "--gpu", "0", "--xid", "94")
    (told,) = story.expect(restarts=[job], messages=["gpu_memory_ecc"])
    assert told["suspect"] == [node]
    assert node not in job.nodes_now()
    return job, node


def orders(story: Story, node: str, what: str = "ordered") -> list[str]:
    return re.findall(rf"diagnostic-{what} node={node} .*", story.daemon_log())


def test_a_suspect_that_passes_is_cleared_and_gets_work_again(tested: Story):
    story = tested
    job, node = suspected(story)
    wait_checkup(story, node, lambda seen: "passed" in seen and "suspect" not in seen)
    assert "level=2 result=pass" in orders(story, node, "answered")[-1]
    assert [other for other in story.paths.names if other != node and orders(story, other)] == []
    story.cancel(job)
    after = len(orders(story, node))
    later = story.job(1, "--", f"--nodelist={node}", saved=False)
    later.wait_step(5)
    story.expect()
    assert len(orders(story, node)) == after, "it was cleared"
    assert "Passed a diagnostic" in story.sentinel("nodes", node).stdout


def test_a_suspect_that_fails_is_drained_once_and_comes_back_by_a_pass(tested: Story):
    story = tested
    slurm = story.lab.slurm
    job = story.job(2)
    node = job.nodes[1]
    script_diagnostic(story, node, errors=[BROKEN_MEMORY])
    with set_aside(story, node):  # not tested before the job's own failure is over
        story.inject("xid", "--node", node, "--gpu", "0", "--xid", "94")
        story.expect(restarts=[job], messages=["gpu_memory_ecc"])
        wait_checkup(story, node, lambda seen: "suspect" in seen)
        assert orders(story, node) == []
    (told,) = story.expect(drains=[node], messages=[{"cause": "gpu_memory_ecc", "nodes": [node], "job": None}])
    assert told["gpus"] == [f"{node}:1"]
    reason = slurm("sinfo", "-h", "-n", node, "-o", "%E")
    assert reason.startswith(f"sentinel:{told['incident']} gpu_memory_ecc {node}:1")
    story.settle(5)
    assert len(orders(story, node, "answered")) == 1, "asked again after it had failed"
    assert "suspect" in checkup(story, node)
    # Repaired, returned by a person, and believed once it has passed.
    story.lab.run("inject", "xid", "--undo")
    story.sentinel("release", node, "--yes")
    story.expect(returns=[node])
    wait_checkup(story, node, lambda seen: "passed" in seen and "suspect" not in seen)
    assert "result=pass" in orders(story, node, "answered")[-1]


def test_a_suspect_that_fails_while_its_job_is_on_its_way_again_is_drained_at_once(tested: Story):
    """Not after the job has gained a step: that may take minutes. People hear of the restart and of the drain."""
    story = tested
    job = story.job(2)
    node = job.nodes[1]
    script_diagnostic(story, node, errors=[BROKEN_MEMORY])
    story.inject("xid", "--node", node, "--gpu", "0", "--xid", "94")
    messages = [{"job": job.id, "suspect": [node]}, {"job": None, "nodes": [node], "drained": [node]}]
    story.expect(drains=[node], restarts=[job], messages=messages)
    assert sum("result=fail" in line for line in orders(story, node, "answered")) == 1


def test_a_job_goes_before_the_diagnostic_of_a_suspect(tested: Story):
    story = tested
    job = story.job(2)
    node = job.nodes[0]
    script_diagnostic(story, node, sleep_s=3600)
    story.inject("xid", "--node", node, "--gpu", "1", "--xid", "94")
    story.expect(restarts=[job], messages=["gpu_memory_ecc"])
    lock = story.lab.dir / "nodes" / node / "gpus.json.diag"
    until(lock.exists, lambda: f"the diagnostic to run:\n{story.daemon_log()[-3000:]}")
    later = story.job(1, "--", f"--nodelist={node}", saved=False)
    until(lambda: not lock.exists(), "the diagnostic to be stopped in the host engine")
    later.wait_step(5)
    until(lambda: "a job goes before it" in "".join(orders(story, node, "answered")), story.daemon_log)
    assert "suspect" in checkup(story, node)
    script_diagnostic(story, node)
    story.cancel(later)
    wait_checkup(story, node, lambda seen: "suspect" not in seen)
    story.expect()
