"""A maintenance reservation on a real Slurm: what breaks there is left to people, until the reservation is over."""

from __future__ import annotations

import time

import pytest
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def test_a_node_that_breaks_in_a_maintenance_reservation_is_drained_when_it_is_over(story: Story):
    job = story.job(1)
    node = next(name for name in reversed(story.paths.names) if name not in job.nodes)
    words = ("reservationname=ticket7", "starttime=now", "duration=60", "users=root", "flags=maint,ignore_jobs")
    story.lab.slurm("scontrol", "create", "reservation", *words, f"nodes={node}")
    try:
        until(lambda: "maint" in story.lab.slurm("sinfo", "-h", "-n", node, "-o", "%T"), "the reservation to begin")
        story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")
        until(lambda: story.view("incidents")["incidents"], lambda: f"an incident:\n{story.daemon_log()[-2000:]}")
        time.sleep(15.0)  # what waits is judged anew every ten seconds
        assert not story.drains(), "people work on it"
        (row,) = story.view("incidents")["incidents"]
        assert row["state"] == "waiting" and "maintenance" in story.sentinel("why", row["id"]).stdout
    finally:
        story.lab.slurm("scontrol", "delete", "reservationname=ticket7")
    story.expect(drains=[node], messages=[{"cause": "gpu_fallen_off_bus"}])
    assert job.state() == "RUNNING" and job.restarts() == 0
