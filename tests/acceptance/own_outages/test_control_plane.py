"""slurmctld does not answer, or munged is gone: not known. Nothing is drained or released; afterwards the loop goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from stories.timeline import Story, until

pytestmark = pytest.mark.slurm


def frozen_for(story: Story, seconds: float) -> None:
    """slurmctld stays stopped for a while; Sentinel says so, and has changed nothing when it goes on."""
    changes = len(story.changes())
    until(lambda: (story.view("status") or {}).get("slurm", {}).get("answers") is False, "Sentinel to notice")
    time.sleep(seconds)
    shown = story.sentinel("status").stdout
    assert "Slurm:  not known" in shown
    assert len(story.changes()) == changes
    story.lab.run("inject", "controller-frozen", "--undo")


def test_a_gpu_is_lost_while_the_controller_is_frozen(story: Story):
    job = story.job(2)
    victim = job.nodes[0]
    story.inject("controller-frozen")
    story.inject("xid", "--node", victim, "--gpu", "2", "--xid", "79")
    frozen_for(story, 3)
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


@pytest.mark.deep
@pytest.mark.parametrize("moment", ["kind=drain ", "kind=requeue_hold ", "kind=release "])
def test_the_controller_freezes_in_the_middle_of_a_recovery(story: Story, moment: str):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.wait_daemon_log(moment)
    story.inject("controller-frozen")
    frozen_for(story, 1)
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


@pytest.mark.deep
def test_a_node_is_lost_while_the_controller_is_frozen(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("controller-frozen")
    story.inject("node-crash", "--node", victim)
    frozen_for(story, 3)
    story.expect(drains=[victim], restarts=[job], messages=["node_failure"])


def test_a_frozen_controller_alone_changes_nothing(story: Story):
    job = story.job(2)
    story.inject("controller-frozen")
    frozen_for(story, 15)  # longer than a hang needs to be called one
    seen = job.step
    job.wait_step(seen + 20)
    story.expect()


@pytest.mark.deep
def test_the_daemon_is_killed_while_the_controller_is_frozen(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.wait_daemon_log("kind=drain ")
    story.inject("controller-frozen")
    story.kill_daemon()
    story.start_daemon()
    time.sleep(2)
    story.lab.run("inject", "controller-frozen", "--undo")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


@pytest.mark.deep
def test_munge_is_gone(story: Story):
    """Nobody can prove who he is: agents, commands and Slurm's own daemons are refused."""
    job = story.job(2)
    victim = job.nodes[0]
    story.stop_munged()
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    time.sleep(8)  # longer than a node may be silent
    changed = story.changes()
    story.sentinel("status", code=3)
    story.start_munged()
    assert changed == []
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])


def test_munge_is_gone_for_a_while_and_nothing_is_broken(story: Story):
    job = story.job(2)
    story.stop_munged()
    time.sleep(8)
    story.start_munged()
    seen = job.step
    job.wait_step(seen + 20)
    story.wait_agents()
    story.expect()


def of_the_lab(story: Story) -> list[int]:
    """Ids of all processes of Slurm, Sentinel and the jobs."""
    marks = (str(story.lab.dir).encode(), b"slurmstepd", b"lab.training.standin")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it ended meanwhile
            continue
        if any(mark in command for mark in marks) and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def send(processes: list[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


@pytest.mark.deep
def test_everything_freezes_for_a_while_and_nothing_is_broken(story: Story):
    """As a virtual machine that is moved, or a suspended laptop: all silence is Sentinel's own."""
    job = story.job(2)
    frozen = of_the_lab(story)
    send(frozen, signal.SIGSTOP)
    try:
        time.sleep(30)
    finally:
        send(frozen, signal.SIGCONT)
    seen = job.step
    job.wait_step(seen + 50)
    story.wait_agents()
    story.settle(15)
    story.expect()
