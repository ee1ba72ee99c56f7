"""A training job of a story: what its log and Slurm say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from stories.witnesses import until

STEP = re.compile(r"^step (\d+) \| loss (\S+) ", re.MULTILINE)
START = re.compile(r"^(?:resumed from step (\d+) \((\w+)\) (\S+)|(starting from scratch))$", re.MULTILINE)
SAVED = re.compile(r"^saved step (\d+) \((local|global)\)$", re.MULTILINE)
# Several in one text when a job's name imitates them; Slurm's own come last.
_JOB_STATE = re.compile(r"^   JobState=(\S+) Reason=(\S+) ", re.MULTILINE)
_FAILED = re.compile(r"ExitCode=[1-9]")
_RESTARTS = re.compile(r"^   Requeue=\d+ Restarts=(\d+) ", re.MULTILINE)


@dataclass(eq=False)
class Job:
    """A training job of a story. ``nodes`` are those of its first attempt."""

    lab: Any
    id: int
    run: str
    nodes: list[str] = field(default_factory=list)
    forges: bool = False  # it prints lines like those of a start

    @property
    def log(self) -> str:
        path = self.lab.dir / "shared" / f"{self.run}-{self.id}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def step(self) -> int:
        found = STEP.findall(self.log)
        return int(found[-1][0]) if found else 0

    def nodes_now(self) -> list[str]:
        said = self.lab.slurm("squeue", "-h", "-j", str(self.id), "-t", "all", "-o", "%N").strip()
        return self.lab.slurm("scontrol", "show", "hostnames", said).split() if said else []

    def shown(self) -> str:
        return str(self.lab.slurm("scontrol", "show", "job", str(self.id)))

    def state(self) -> str:
        return _JOB_STATE.findall(self.shown())[-1][0]

    def failed_by_itself(self) -> bool:
        """Whether its script has ended with an error, and only epilogs run: Slurm keeps no trace of a cancel after that."""
        shown = self.shown()
        return _JOB_STATE.findall(shown)[-1][0] == "COMPLETING" and _FAILED.search(shown) is not None

    def held(self) -> bool:
        state, reason = _JOB_STATE.findall(self.shown())[-1]
        # Slurm's words for it differ: JobHeldUser, JobHeldAdmin, job_requeued_in_held_state.
        return state == "PENDING" and "held" in reason.lower()

    def restarts(self) -> int:
        return int(_RESTARTS.findall(self.shown())[-1])

    def starts(self) -> list[tuple[int | None, str]]:
        """Of each attempt that began to train: the step it resumed from and the tier; (None, "") from scratch."""
        return [(int(step) if step else None, tier) for step, tier, _, _ in START.findall(self.log)]

    def resumed(self) -> tuple[int | None, str]:
        return self.starts()[-1]

    def resumed_path(self) -> str:
        return str(START.findall(self.log)[-1][2])

    def reached(self) -> int:
        """The last step before the newest attempt."""
        marks = list(START.finditer(self.log))
        head = self.log[: marks[-1].start()]
        return int(STEP.findall(head)[-1][0]) if STEP.findall(head) else 0

    def steps_again(self) -> bool:
        """Whether the newest attempt has printed a step."""
        marks = list(START.finditer(self.log))
        return bool(marks) and STEP.search(self.log, marks[-1].start()) is not None

    def saved(self, tier: str) -> list[int]:
        return [int(step) for step, where in SAVED.findall(self.log) if where == tier]

    def wait_step(self, step: int) -> None:
        until(lambda: self.step >= step, lambda: f"step {step} of job {self.id}:\n{self.log[-2000:]}")

    def wait_log(self, text: str, after: int = 0) -> None:
        until(lambda: text in self.log[after:], lambda: f"{text!r} in the log of job {self.id}:\n{self.log[-2000:]}")
