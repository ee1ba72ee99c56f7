"""The daemon hears nothing for a while; nodes and jobs are healthy: nobody is restarted, and hangs are found afterwards."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest
from stories.timeline import Story, processes, until

pytestmark = pytest.mark.slurm

DEAF_S = 25.0  # twice the silence after which a job may be called hung
GOES_ON = 60  # steps of a tenth of a second each


@contextlib.contextmanager
def stopped(story: Story, *names: str) -> Iterator[None]:
    """These processes of the lab stand still; what they would have read and sent waits for them."""
    found = [processes.known(story.paths, name) for name in names]
    for process in found:
        assert process is not None and process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in found:
            assert process is not None
            process.send(signal.SIGCONT)


def untouched(story: Story, *jobs) -> None:
    """They have gone on, and go on after all was heard again; nobody was told of anything."""
    for job in jobs:
        job.wait_step(job.step + GOES_ON)
    story.wait_agents()
    until(
        lambda: "silence-judged" in story.daemon_log().rpartition("silence-not-judged")[2], "silence to be judged again"
    )
    time.sleep(15)  # longer than a hang needs to be called one
    story.expect()


def test_agents_that_are_not_heard_for_a_while(story: Story):
    """Of all nodes: the third of three jobs is a true hang, but only when they are heard again."""
    jobs = [story.job(2), story.job(2), story.job(3)]
    with stopped(story, *(f"agent-{name}" for name in story.paths.names)):
        time.sleep(DEAF_S)
    untouched(story, *jobs)
    story.inject("hang", "--job", str(jobs[2].id), "--rank", "1")
    (told,) = story.expect(restarts=[jobs[2]], messages=["nccl_hang_unknown"])
    assert told["job"] == jobs[2].id


@pytest.mark.deep
def test_agents_of_one_job_that_are_not_heard_for_a_while(story: Story):
    jobs = [story.job(2), story.job(2)]
    with stopped(story, *(f"agent-{name}" for name in jobs[0].nodes)):
        time.sleep(DEAF_S)
    for job in jobs:
        job.wait_step(job.step + GOES_ON)
    story.wait_agents()
    time.sleep(15)
    story.expect()


@pytest.mark.deep
def test_a_daemon_that_stands_still_for_a_while(story: Story):
    jobs = [story.job(2), story.job(2), story.job(3)]
    with stopped(story, "daemon"):
        time.sleep(DEAF_S)
    untouched(story, *jobs)


@pytest.mark.deep
def test_munged_is_away_for_a_while(story: Story):
    """No request can be signed or trusted, neither ours nor Slurm's."""
    jobs = [story.job(2), story.job(2), story.job(3)]
    story.stop_munged()
    try:
        time.sleep(DEAF_S)
    finally:
        story.start_munged()
    untouched(story, *jobs)
