"""Finds jobs that run on this node although no prolog reported them, e.g. those that slurmd remembers from before a crash.

The daemon says of which jobs it misses a word; whose they are and where their logs lie is asked of slurmctld, never of the
daemon. A child does that (``sentinel.agent.probes.ask_slurm``), and writes the job file that the prolog did not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.probe_programs import ASK_SLURM
from sentinel.agent.settings import AgentSettings
from sentinel.log import Log

log = Log()

NAME = "unreported-job"
MOST = 64  # jobs of one answer that are looked at; a node runs fewer
MOST_ID = 2**32  # of a job


class UnreportedJobs:
    """Asks Slurm about one such job after the other.

    Args:
        attempts: the attempts of the jobs that are known to run here.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        attempts: Callable[[], Mapping[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._run_dir = settings.run_dir
        self._slurm = settings.slurm
        self._every_s = settings.jobs.unreported_s
        self._children = children
        self._program = program
        self._attempts = attempts
        self._clock = clock
        self._asked_s: dict[tuple[int, int], float] = {}  # job, attempt -> when slurmctld was asked last

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Take the jobs that the daemon misses from its answer to a heartbeat."""
        missed = _pairs(answer.get("unreported"))
        if not missed or not self._every_s or not self._slurm.squeue:
            return
        known, now_s = self._attempts(), self._clock()
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if now_s - at_s < self._every_s}
        for job, attempt in missed:
            if (job, attempt) not in self._asked_s and known.get(job, -1) < attempt:
                self._ask(job, attempt, now_s)
                return  # the others at the next heartbeats

    def _ask(self, job: int, attempt: int, now_s: float) -> None:
        slurm, said = self._slurm, list[dict[str, Any]]()

        def ended(ending: Ending) -> None:
            told = said[-1] if said else {}
            reason = "late" if ending.silent else told.get("error", ending.stderr[-300:])
            log.info("job-unreported", job=job, attempt=attempt, found=told.get("job_file"), error=reason)

        deadline_s = 3 * slurm.deadline_s + 1.0  # up to three questions
        program = self._program(
            NAME,
            ASK_SLURM,
            {
                "job": job,
                "node": self._node,
                "run_dir": self._run_dir,
                "squeue": slurm.squeue,
                "conf": slurm.conf,
                "deadline_s": slurm.deadline_s,
            },
            silent_s=deadline_s,
            total_s=deadline_s,
            on_message=said.append,
            on_end=ended,
        )
        if self._children.start(program):
            self._asked_s[job, attempt] = now_s


def _pairs(value: object) -> list[tuple[int, int]]:
    """Job and attempt of each entry that has them."""
    entries = value[:MOST] if isinstance(value, list) else []
    return [
        (entry[0], entry[1])
        for entry in entries
        if isinstance(entry, list)
        and len(entry) == 2
        and all(type(number) is int and 0 <= number < MOST_ID for number in entry)
    ]
