"""Finds a job's owner in root's own record of this node's jobs, else by asking Slurm; never by asking the daemon.

The record comes from slurmd's prolog, which runs as root, or from slurmctld where no prolog reported the job
(``sentinel.agent.collectors.unreported_jobs``). It is kept for a while after a job's end, when its
checkpoints are chosen and moved aside. A node that never ran the job may have to list its shared folders because the
job's own nodes are lost: it then asks slurmctld for the job's user (``sentinel.agent.probes.ask_slurm``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.jobs import JobOnNode, first_node
from sentinel.agent.collectors.log_path import pattern_of
from sentinel.agent.process.state_files import node_name, restore, save
from sentinel.agent.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class Owner:
    """A job's user and group. ``gid`` None: the user's primary group on this node."""

    uid: int
    gid: int | None


@dataclass(frozen=True, slots=True)
class _Kept:
    uid: int
    gid: int | None
    attempt: int
    ended_s: float | None  # Unix time; None while the job runs here
    log: str = ""  # glob pattern of the batch script's output; empty: the script ran on another node


class Owners:
    """The record of jobs that run here and of the latest that ended. Safe from any thread."""

    def __init__(self, settings: AgentSettings, clock: Callable[[], float] = time.time) -> None:
        self._node = node_name(settings.node)
        self._path = Path(settings.state) / "owners.json"
        self._most = settings.jobs.remembered
        self._kept_s = settings.jobs.remembered_s
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[int, _Kept] = {}
        kept = restore(self._path)
        for name, entry in kept.items() if isinstance(kept, dict) else ():
            found = _kept_from(entry)
            if name.isdigit() and found is not None:
                self._jobs[int(name)] = found

    def of(self, job: int) -> Owner | None:
        """The owner of a job that runs here or ended here lately; None for any other."""
        with self._lock:
            kept = self._jobs.get(job)
        if kept is None or (kept.ended_s is not None and self._clock() - kept.ended_s > self._kept_s):
            return None
        return Owner(kept.uid, kept.gid)

    def log_of(self, job: int, attempt: int) -> str:
        """Glob pattern of the log of an attempt whose batch script ran here; empty for any other."""
        with self._lock:
            kept = self._jobs.get(job)
        return kept.log if kept is not None and kept.attempt == attempt else ""

    def came(self, job: JobOnNode) -> None:
        """Record a job that a prolog reported; not recorded if Slurm did not name its user."""
        if job.uid is not None:
            self._keep(job.job, self._kept(job))

    def left(self, job: JobOnNode) -> None:
        """Record a job's end: its epilog reported it, or its job file is gone."""
        with self._lock:
            kept = self._jobs.get(job.job)
        if kept is not None and kept.attempt > job.attempt:
            return  # a newer attempt runs here
        if job.uid is not None:
            kept = self._kept(job)
        if kept is not None:
            self._keep(job.job, replace(kept, ended_s=self._clock()))

    def here(self, jobs: set[int]) -> None:
        """Once, at the start, with the jobs that run now: all others ended while the agent was not running."""
        now_s = self._clock()
        with self._lock:
            for job, kept in self._jobs.items():
                if kept.ended_s is None and job not in jobs:
                    self._jobs[job] = replace(kept, ended_s=now_s)

    def _kept(self, job: JobOnNode) -> _Kept:
        assert job.uid is not None, "asked for jobs of a known user"
        first = bool(job.stdout) and job.stdout != os.devnull and first_node(job.nodelist) == self._node
        log = (
            pattern_of(job.stdout, job=job.job, user=job.user, node=self._node, work_dir=job.work_dir) if first else ""
        )
        return _Kept(job.uid, job.gid, job.attempt, None, log)

    def _keep(self, job: int, kept: _Kept) -> None:
        now_s = self._clock()
        with self._lock:
            self._jobs[job] = kept
            ended = sorted((e.ended_s, number) for number, e in self._jobs.items() if e.ended_s is not None)
            surplus = max(0, len(self._jobs) - self._most)
            for place, (ended_s, number) in enumerate(ended):
                if place < surplus or now_s - ended_s > self._kept_s:
                    del self._jobs[number]
            written = {str(number): asdict(entry) for number, entry in self._jobs.items()}
        save(self._path, written)


def _kept_from(entry: Any) -> _Kept | None:
    try:
        kept = _Kept(**entry)
    except TypeError:
        return None
    whole = type(kept.uid) is int and type(kept.attempt) is int and (kept.gid is None or type(kept.gid) is int)
    whole = whole and isinstance(kept.log, str)
    return kept if whole and (kept.ended_s is None or isinstance(kept.ended_s, float)) else None
