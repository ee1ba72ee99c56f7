"""The jobs of a random story, as people submit them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from stories.job import START, STEP, Job
from stories.other_jobs import comment, script, standin
from stories.timeline import Story, until

from chaos.drawn import JobAsked

FORGOTTEN = "Invalid job id"


@dataclass(eq=False)
class Witnessed(Job):
    """A job, where its log lies, and what was done to it on purpose."""

    asked: JobAsked = field(default_factory=lambda: JobAsked("plain", 1))
    path: Path = Path("/nonexistent")
    others: tuple[int, ...] = ()  # further components of a heterogeneous job
    faults: int = 0  # that may make it be restarted or held
    damaged: list[str] = field(default_factory=list)  # checkpoints: their folders
    cancelled: bool = False
    held_at: int | None = None  # held by its user: after so many restarts, -1 when it was pending
    held_perhaps: bool = False  # ... when it had just been requeued: whose hold it is, nobody can tell
    requeued_by_user: bool = False
    bad_numbers: bool = False
    program_fails: bool = False  # something was done to its program, or to the disks that it writes to
    last_shown: str = ""

    @property
    def log(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""

    def shown(self) -> str:
        """What Slurm says, or said before it forgot the job: it forgets those that ended 300 s ago (MinJobAge)."""
        try:
            self.last_shown = super().shown()
        except AssertionError as error:
            if FORGOTTEN not in str(error) or not self.last_shown:
                raise
            self.forges = True  # it may have been restarted since
            ended = "COMPLETED" if "done: " in self.log else "CANCELLED" if self.cancelled else "FAILED"
            self.last_shown = re.sub(r"^   JobState=\S+", f"   JobState={ended}", self.last_shown, flags=re.MULTILINE)
        return self.last_shown

    @property
    def asks(self) -> bool:
        """Whether its user asked for restarts."""
        return self.asked.kind != "not ours"

    def losses(self) -> list[dict[int, str]]:
        """Of each attempt, what its log says of each step."""
        marks = [mark.start() for mark in START.finditer(self.log)]
        ends = [*marks[1:], None]
        pieces = [self.log[begin:end] for begin, end in zip(marks, ends, strict=True)]
        return [{int(step): loss for step, loss in STEP.findall(piece)} for piece in pieces]


def submit(story: Story, place: int, asked: JobAsked) -> Witnessed:
    """Returned when it runs and, where it saves, has saved to both tiers."""
    run = f"job{place}"
    number, others = _SUBMIT[asked.kind](story, run, asked)
    name = f"{run}-{number}_0.out" if asked.kind == "array" else f"{run}-{number}.out"
    job = Witnessed(story.lab, number, run, asked=asked, path=story.paths.shared / name, others=others)
    story.jobs.append(job)
    return job


def wait_running(story: Story, job: Witnessed) -> None:
    until(lambda: job.nodes_now() and STEP.search(job.log), lambda: f"job {job.id} to train: {job.shown()}\n{job.log}")
    job.nodes = nodes_of(job)
    job.shown()
    if job.asked.kind != "het":
        story.wait_saved(job)


def nodes_of(job: Witnessed) -> list[str]:
    """Where it runs now, all components; empty while it runs nowhere."""
    found: list[str] = []
    for number in (job.id, *job.others):
        try:
            said = job.lab.slurm("squeue", "-h", "-j", str(number), "-t", "running,completing,suspended", "-o", "%A %N")
        except AssertionError as error:
            if FORGOTTEN not in str(error):
                raise
            continue
        rows = [line.split(None, 1) for line in said.splitlines()]
        for row in rows:
            if len(row) == 2 and row[0] == str(number):
                found += job.lab.slurm("scontrol", "show", "hostnames", row[1]).split()
    return found


def _training(story: Story, run: str, asked: JobAsked, *sbatch: str) -> int:
    words = [
        "--nodes",
        str(asked.nodes),
        "--run",
        run,
        "--step-time",
        "0.2",
        "--local-every",
        "5",
        "--global-every",
        "10",
    ]
    return int(story.lab.submit(*words, "--steps", str(asked.steps), "--standin", "--", *sbatch))


def _plain(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    return _training(story, run, asked), ()


def _shared(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    return _training(story, run, asked, "--oversubscribe", "--gres=gpu:1"), ()


def _not_ours(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    return _training(story, run, asked, "--comment=for project 7"), ()


def _elastic(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    said = comment(story, run, nodes=[1, asked.nodes])
    return _training(story, run, asked, f"--nodes=1-{asked.nodes}", f"--comment={said}"), ()


def _array(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    """Its one task is a job under the array's number."""
    body = f"exec srun --kill-on-bad-exit=1 {standin(story, run)}"
    output = f"--output={story.paths.shared}/%x-%A_%a.out"
    return script(story, run, body, "--array=0-0", output, nodes=1), ()


def _het(story: Story, run: str, asked: JobAsked) -> tuple[int, tuple[int, ...]]:
    """Two components that print steps and save nothing."""
    body = "#!/bin/bash\necho starting from scratch\n"
    body += "srun --het-group=1 sleep 100000 &\n"
    body += 'for step in $(seq 100000); do echo "step $step | loss 1.0 | step time 0.2 s"; sleep 0.2; done\n'
    path = story.paths.shared / f"{run}.sh"
    path.write_text(body, encoding="utf-8")
    told = json.dumps({"sentinel": {"restart": True}})
    part = ["--nodes=1", "--gres=gpu:1", "--exclusive", "--requeue", f"--comment={told}", f"--job-name={run}"]
    log = ["--open-mode=append", f"--output={story.paths.shared}/%x-%j.out", f"--chdir={story.paths.shared}"]
    said = story.lab.slurm("sbatch", "--parsable", *part, *log, ":", *part, str(path))
    number = int(re.findall(r"\d+", said)[0])
    return number, (number + 1,)


_SUBMIT = {
    "plain": _plain, "shared": _shared, "array": _array, "het": _het, "elastic": _elastic, "not ours": _not_ours,
}  # fmt: skip
