"""Losses that stay no numbers in a real job that goes on: told while it runs, restarted where a site asks for it."""

from __future__ import annotations

import importlib.util
import re

import pytest
from stories.timeline import Job, Story, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
    pytest.mark.deep,
]

_BAD = re.compile(r"step (\d+) \| loss nan")
# Not about silence: a machine that is busy for a while hangs no job here.
TELL = {
    "[judgement]\n": "[judgement]\nstall_floor_s = 120.0\n",
    "[recovery]\n": '[recovery]\nbad_numbers = "tell"\n',
}
RESTART = {'bad_numbers = "tell"': 'bad_numbers = "restart"'}


def onset(job: Job) -> int:
    """The first step whose loss was none, as the job printed it."""
    until(lambda: _BAD.search(job.log) is not None, lambda: f"bad numbers in job {job.id}:\n{job.log[-2000:]}")
    found = _BAD.search(job.log)
    assert found is not None
    return int(found[1])


def training(story: Story) -> Job:
    """With shared checkpoints only, of which five are kept: a hundred steps apart, some are from before the onset whenever
    one looks."""
    rarely = ("--global-every", "100", "--local-every", "100000")
    job = story.job(2, *rarely, saved=False, pace=0.15, torch=True)
    until(lambda: job.saved("global"), lambda: f"a checkpoint of job {job.id}:\n{job.log[-2000:]}")
    return job


def test_bad_numbers_are_told_while_the_job_runs_and_restarted_from_before_them_where_asked_for(fresh: Story):
    story = fresh
    story.restart_daemon(TELL)
    left, ended = training(story), training(story)
    story.inject("nan", "--job", str(left.id), "--rank", "1")
    (told,) = story.expect(messages=["numerical_nan"])
    began = onset(left)
    assert f"Numbers went bad at step {began}." in told["text"] and told["job"] == left.id
    left.wait_step(left.step + 5)  # it goes on
    assert left.state() == "RUNNING" and left.restarts() == 0

    story.restart_daemon(RESTART)  # nobody is told again of what was told
    story.inject("nan", "--job", str(ended.id), "--rank", "0")
    (told,) = story.expect(restarts=[ended], messages=[{"cause": "numerical_nan", "job": ended.id}])
    began, (resumed, _) = onset(ended), ended.resumed()
    assert f"Numbers went bad at step {began}." in told["text"]
    assert resumed is not None and resumed < began and resumed in ended.saved("global")
    ended.wait_step(began + 5)
    again = ended.log[ended.log.rindex("resumed from step") :]
    assert _BAD.search(again) is None and left.state() == "RUNNING" and left.restarts() == 0
    story.cancel(left)
