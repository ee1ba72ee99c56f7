"""Finds jobs that run on this node although no prolog reported them, e.g. those that slurmd remembers from before a crash.

The daemon says of which jobs it misses a word; whose they are and where their logs lie is asked of slurmctld, never of the
daemon. A child does that (``sentinel.agent.probes.ask_slurm``), and writes the job file that the prolog did not. An epilog
takes it away. Where none does (no hooks are installed, or they have another ``run_dir``), the daemon says that the job is
over: only files that were written here go by that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.probe_programs import ASK_SLURM
from sentinel.agent.process.state_files import own_bytes
from sentinel.agent.settings import AgentSettings
from sentinel.log import Log
from sentinel.text import json_with_bytes

log = Log()

NAME = "unreported-job"
MOST = 64  # jobs of one answer that are looked at; a node runs fewer
MOST_ID = 2**32  # of a job
# Where an answer leads to nothing (the job is root's), the next question waits twice as long, at most this: the daemon
# goes on to miss the job for as long as it runs.
MOST_PAUSE_S = 3600.0


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
        self._run_dir = Path(settings.run_dir)
        self._slurm = settings.slurm
        self._every_s = settings.jobs.unreported_s
        self._children = children
        self._program = program
        self._attempts = attempts
        self._clock = clock
        self._lock = threading.Lock()
        self._missed: list[tuple[int, int]] = []  # of the daemon's last answer, not asked about yet
        # By job and attempt: when to ask again, and the pause then.
        self._asked: dict[tuple[int, int], tuple[float, float]] = {}

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Take from the daemon's answer to a heartbeat which jobs it misses, and which are over by Slurm's word."""
        for job, attempt in _pairs(answer.get("over")):
            self._take_away(job, attempt)
        missed = _pairs(answer.get("unreported"))
        if missed and self._every_s and self._slurm.squeue:
            now_s = self._clock()
            with self._lock:
                self._missed = missed
                self._asked = {key: asked for key, asked in self._asked.items() if asked[0] > now_s or key in missed}
            self._ask_next()

    def _ask_next(self) -> None:
        """Start a child for the next job, if there is one; the end of a child starts the next."""
        known, now_s = self._attempts(), self._clock()
        with self._lock:
            never = (now_s, self._every_s)
            due = (pair for pair in self._missed if known.get(pair[0], -1) < pair[1])
            pair = next((pair for pair in due if self._asked.get(pair, never)[0] <= now_s), None)
            if pair is None:
                self._missed = []
                return
            before = self._asked.get(pair, never)
            self._asked[pair] = (now_s + self._every_s, before[1])
        if not self._children.start(self._question(*pair)):
            with self._lock:
                self._asked[pair] = before

    def _question(self, job: int, attempt: int) -> Program:
        slurm, said = self._slurm, list[dict[str, Any]]()

        def ended(ending: Ending) -> None:
            told = said[-1] if said else {}
            reason = "late" if ending.silent else told.get("error", ending.stderr[-300:])
            log.info("job-unreported", job=job, attempt=attempt, found=told.get("job_file"), error=reason)
            if "job_file" in told:  # where Slurm does not answer the others wait for the daemon's next word
                self._answered((job, attempt))
                self._ask_next()

        deadline_s = 4 * slurm.deadline_s + 1.0  # up to four questions
        return self._program(
            NAME,
            ASK_SLURM,
            {
                "job": job,
                "node": self._node,
                "run_dir": str(self._run_dir),
                "squeue": slurm.squeue,
                "conf": slurm.conf,
                "deadline_s": slurm.deadline_s,
            },
            silent_s=deadline_s,
            total_s=deadline_s,
            on_message=said.append,
            on_end=ended,
        )

    def _answered(self, pair: tuple[int, int]) -> None:
        """Let the next question about this job wait; if it is followed by then, there is none."""
        with self._lock:
            pause_s = self._asked[pair][1] if pair in self._asked else self._every_s
            self._asked[pair] = (self._clock() + pause_s, min(2 * pause_s, max(self._every_s, MOST_PAUSE_S)))

    def _take_away(self, job: int, attempt: int) -> None:
        """Remove a job file that was written here; a prolog's stays: its epilog says how the job ended."""
        path = self._run_dir / "jobs" / f"{job}.json"
        try:
            told = json_with_bytes(own_bytes(path))
            if isinstance(told, dict) and "found_by" in told and told.get("attempt") == f"{attempt}":
                path.unlink()
                log.info("job-over", job=job, attempt=attempt)
        except (OSError, ValueError):
            return  # its epilog has come, or a prolog writes it just now


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
