"""A job that asked for Slurm's expedited requeue fails by itself: Slurm holds it, and it is restarted as any other."""

from __future__ import annotations

import pytest
from lab import slurm
from stories.timeline import Story

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def test_a_job_that_a_lost_gpu_ended_is_not_left_held(fresh: Story):
    if slurm.release() < (25, 11):
        pytest.skip("optional: Slurm has it from 25.11 on")
    story = fresh
    with story.paths.slurm_conf.open("a", encoding="utf-8") as conf:
        conf.write("SlurmctldParameters=enable_expedited_requeue\n")
    story.lab.slurm("scontrol", "reconfigure")
    job = story.job(2, "--gpu-faults-kill", "--", "--requeue=expedite")
    story.inject("xid", "--node", job.nodes[1], "--gpu", "0", "--xid", "79")
    story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.nodes[1] not in job.nodes_now() and job.resumed()[0] is not None
