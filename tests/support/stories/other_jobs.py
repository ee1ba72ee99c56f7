"""Jobs of a lab that ``lab submit`` does not make: from a terminal, in several steps, with a script of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from lab import slurm
from lab.account import NOBODY, account

from stories.job import Job
from stories.timeline import Story, until


def comment(story: Story, run: str, **more: Any) -> str:
    """What a researcher tells Sentinel, as ``lab submit`` writes it."""
    folders = {"global": [str(story.paths.shared / run)], "local": [str(story.paths.node("%N") / "nvme" / run)]}
    return json.dumps({"sentinel": {"restart": True, **folders, **more}})


def standin(story: Story, run: str) -> str:
    """The stand-in's command line, for a step of the job."""
    pace = "--steps 100000 --step-time 0.1 --local-every 5 --global-every 10"
    folders = f"--global-dir {story.paths.shared / run} --local-dir {story.paths.node('%N') / 'nvme' / run}"
    return f"$LAB_PYTHON -m lab.training.standin --run {run} {pace} {folders}"


def environment(story: Story) -> dict[str, str]:
    runs_as = account(sys.executable)
    return {
        "PYTHONPATH": ":".join((str(story.paths.lib), *runs_as.packages)),
        "LAB_PYTHON": runs_as.python,
        "HOME": str(story.paths.shared),
        "LAB_CONTROL": str(story.paths.control),
        "LAB_GPUS": str(story.paths.node("%N") / "gpus.json"),
        "MASTER_ADDR": "127.0.0.1",
    }


def script(story: Story, run: str, body: str, *arguments: str, nodes: int = 2) -> int:
    """The id of a job whose batch script is ``body``; ``arguments`` are sbatch's."""
    exports = "\n".join(f'export {name}="{value}"' for name, value in environment(story).items())
    path = story.paths.shared / f"{run}.sh"
    port = "export MASTER_PORT=$((12000 + SLURM_JOB_ID % 16000))"
    path.write_text(f"#!/bin/bash\n{exports}\n{port}\n{body}\n", encoding="utf-8")
    own = [f"--nodes={nodes}", "--ntasks-per-node=1", "--gres=gpu:1", "--exclusive", f"--job-name={run}"]
    own += [
        "--requeue",
        "--open-mode=append",
        f"--output={story.paths.shared}/%x-%j.out",
        f"--chdir={story.paths.shared}",
    ]
    own += [f"--comment={comment(story, run)}"]
    return int(story.lab.slurm("sbatch", "--parsable", *own, *arguments, str(path)).split(";")[0])


@contextmanager
def from_a_terminal(story: Story, run: str, *words: str) -> Iterator[Job]:
    """salloc or srun, run by a user for as long as the block lasts; the job when it runs."""
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with (story.paths.shared / f"{run}.txt").open("wb") as shown:
        process = subprocess.Popen(
            [words[0], "--nodes=2", "--gres=gpu:1", "--exclusive", f"--job-name={run}", *words[1:]],
            env={**story.lab.environment(), **environment(story)},
            cwd=story.paths.shared,
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **as_user,
        )
    try:
        number = until(
            lambda: story.lab.slurm("squeue", "-h", "-n", run, "-t", "running", "-o", "%A").split(), "the job"
        )
        job = Job(story.lab, int(number[0]), run)
        story.jobs.append(job)
        job.nodes = job.nodes_now()
        yield job
        story.cancel(job)
    finally:
        process.kill()
        process.wait()


def waiting_on(story: Story, job: Job, kinds: Sequence[str]) -> dict[str, int]:
    """Jobs that wait for the end of that one, by the kind of their dependency."""
    found = {}
    for kind in kinds:
        words = [
            "--parsable",
            f"--dependency={kind}:{job.id}",
            "--output=/dev/null",
            f"--job-name={kind}",
            "--wrap=sleep 600",
        ]
        found[kind] = int(story.lab.slurm("sbatch", *words))
    return found


def state_of(story: Story, job: int) -> tuple[str, str]:
    """State and reason, by squeue."""
    state, _, reason = (
        story.lab.slurm("squeue", "-h", "-j", str(job), "-t", "all", "-o", "%T|%r").strip().partition("|")
    )
    return state, reason


def require_reservations() -> None:
    """Skip where Slurm lets the lab's jobs into no reservation: those of root's lab are nobody's."""
    if os.geteuid() == 0 and slurm.release() >= (25, 11):
        pytest.skip("optional: jobs of root's lab are nobody's, whom Slurm from 25.11 on lets into no reservation")
