"""A job that lost a node starts again on a node kept in a reservation, which its user's other jobs may be kept out of."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from stories.other_jobs import require_reservations
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]
NOBODY = 65534  # as whom a lab of root's runs its jobs
SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "job_submit.lua"
JOB = ("--output=/dev/null", "--wrap=true")


@pytest.fixture(autouse=True)
def a_user_who_is_let_in(fresh: Story) -> None:
    require_reservations()


def asked(story: Story, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of Slurm's as the jobs' user."""
    env = {**os.environ, "SLURM_CONF": str(story.lab.dir / "etc" / "slurm.conf")}
    return subprocess.run(
        command, env=env, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def kept(story: Story) -> tuple[str, str]:
    """Nodes and users of the reservation."""
    said = story.lab.slurm("scontrol", "show", "reservation", "spares")
    return tuple(re.search(rf"{key}=(\S+)", said)[1] for key in ("Nodes", "Users"))  # type: ignore[return-value, index]


def test_it_starts_on_the_spare_node_and_a_repaired_one_takes_its_place(fresh: Story):
    story = fresh
    words = "StartTime=now Duration=UNLIMITED NodeCnt=1 Users=root Flags=FLEX,REPLACE,IGNORE_JOBS PartitionName=gpu"
    story.lab.slurm("scontrol", "create", "reservation", "ReservationName=spares", *words.split())
    story.restart_daemon({"[recovery]\n": '[recovery]\nspares = "spares"\n'})
    spare, _ = kept(story)
    job = story.job(3)
    victim = job.nodes[1]
    assert spare not in job.nodes
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert sorted(job.nodes_now()) == sorted({*job.nodes, spare} - {victim})
    until(lambda: kept(story)[1] == "root", lambda: f"the loan to end: {kept(story)}")
    until(lambda: "Reservation=" not in job.shown(), lambda: job.shown())
    assert "it may start on the 1 node of reservation spares, too" in story.sentinel("why", str(job.id)).stdout
    story.inject("xid", "--node", victim, "--gpu", "0", "--undo")
    story.sentinel("release", victim, "--yes")
    story.expect(returns=[victim])
    until(lambda: kept(story)[0] == victim, lambda: f"{victim} to be kept: {kept(story)}")
    story.settle(3)
    story.cancel(job)
    story.lab.slurm("scontrol", "delete", "ReservationName=spares")


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user is needed")
def test_no_user_asks_for_the_reservation_where_the_site_installs_the_submit_script(fresh: Story):
    lab = fresh.lab
    words = (
        "StartTime=now Duration=UNLIMITED NodeCnt=1 Users=root,nobody Flags=FLEX,REPLACE,IGNORE_JOBS PartitionName=gpu"
    )
    lab.slurm("scontrol", "create", "reservation", "ReservationName=spares", *words.split())
    assert asked(fresh, "sbatch", "--reservation=spares", *JOB).returncode == 0  # as Slurm is: it is the user's, too
    etc = lab.dir / "etc"
    (etc / "job_submit.lua").write_text(SCRIPT.read_text())
    slurm_conf = etc / "slurm.conf"
    slurm_conf.write_text(slurm_conf.read_text() + "JobSubmitPlugins=lua\n")
    lab.slurm("scontrol", "reconfigure")
    until(
        lambda: "= lua" in lab.slurm("scontrol", "show", "config").partition("JobSubmitPlugins")[2][:40], "the script"
    )
    for names in ("spares", "other,spares"):
        refused = asked(fresh, "sbatch", f"--reservation={names}", *JOB)
        assert refused.returncode != 0 and "Only Sentinel puts jobs into reservation spares" in refused.stderr
    job = asked(fresh, "sbatch", "--hold", "--parsable", *JOB).stdout.strip()
    assert asked(fresh, "scontrol", "update", f"JobId={job}", "ReservationName=spares").returncode != 0
    lab.slurm("scontrol", "update", f"JobId={job}", "ReservationName=spares")  # as the daemon does
    assert asked(fresh, "scontrol", "update", f"JobId={job}", "Comment=mine").returncode == 0
    assert "Reservation=spares" in lab.slurm("scontrol", "show", "job", job)
    lab.slurm("scancel", "--user=nobody")
    until(lambda: not lab.slurm("squeue", "-h", "--user=nobody").strip(), "the jobs to end")
    lab.slurm("scontrol", "delete", "ReservationName=spares")
