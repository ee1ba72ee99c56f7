"""What all faults share: how they are described, recorded and undone, and how their victims are found."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lab import processes
from lab.layout import Lab, LabError, write_atomic
from lab.processes import Process

Record = dict[str, Any]
Options = argparse.Namespace


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """A fault without options of its own."""


@dataclass(frozen=True)
class Fault:
    name: str
    line: str  # one line of help
    inject: Callable[[Lab, Options], list[Record]]
    undo: Callable[[Lab, Record], str] | None = None  # gives what it did
    arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments

    def record(self, **facts: Any) -> Record:
        """One fault at one place; ``lasting`` says that it goes on until it is undone."""
        return {
            "id": secrets.token_hex(4),
            "at": datetime.now(UTC).isoformat(),
            "fault": self.name,
            "node": None,
            "gpu": None,
            "rank": None,
            "job": None,
            "lasting": self.undo is not None,
            **facts,
        }


def book(lab: Lab, record: Record) -> None:
    """Append to the lab's list of faults; a person who looks later sees what was done on purpose."""
    with (lab.dir / "faults.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def newest_job(lab: Lab, asked: int | None) -> int:
    """The job that was asked for, else the newest with running tasks; found without asking slurmctld."""
    if asked is not None:
        return asked
    jobs = {int(processes.environ_of(task.pid).get("SLURM_JOB_ID", "0")) for task in processes.tasks(lab)}
    if not jobs:
        raise LabError("no job runs in this lab; start one with: lab submit")
    return max(jobs)


@dataclass(frozen=True)
class Rank:
    job: int
    rank: int
    node: str
    attempt: int
    process: Process


def ranks_of(lab: Lab, job: int) -> list[Rank]:
    """The running ranks of a job by rank; a rank is its task's first process."""
    found: dict[int, Rank] = {}
    for process in processes.tasks(lab, job=job):
        environ = processes.environ_of(process.pid)
        # The batch script has no step of its own number; srun on the batch host is no task either.
        if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ or not is_program(process):
            continue
        rank = int(environ["SLURM_PROCID"])
        seen = found.get(rank)
        if seen is None or process.start < seen.process.start:
            attempt = int(environ.get("SLURM_RESTART_COUNT", "0") or 0)
            found[rank] = Rank(job, rank, environ.get("SLURMD_NODENAME", ""), attempt, process)
    return [found[rank] for rank in sorted(found)]


def is_program(process: Process) -> bool:
    """A rank of the training job or its stand-in (by what it runs, since srun's environment looks alike)."""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as line:
            arguments = line.read().split(b"\0")
    except OSError:
        return False
    return (
        b"-m" in arguments
        and (b"lab.training.train" in arguments or b"lab.training.standin" in arguments)
        and b"srun" not in arguments[0]
    )


def pick_rank(lab: Lab, options: Options) -> Rank:
    """--rank, or a rank on --node, or the last rank."""
    job = newest_job(lab, options.job)
    ranks = ranks_of(lab, job)
    if not ranks:
        raise LabError(f"job {job} has no running ranks (still starting, or not a job of lab submit)")
    rank, node = getattr(options, "rank", None), getattr(options, "node", None)
    if rank is not None:
        ranks = [r for r in ranks if r.rank == rank]
    if node is not None:
        lab.index(node)
        ranks = [r for r in ranks if r.node == node]
    if not ranks:
        raise LabError(
            f"job {job} has no running rank {'' if rank is None else rank} {f'on {node}' if node else ''}".strip()
        )
    return ranks[-1]


def add_victim(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", type=int, help="job id (default: the newest that runs)")
    parser.add_argument("--rank", type=int, help="rank (default: the last)")
    parser.add_argument("--node", help="take a rank on this node")


def add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", required=True)


def ask(lab: Lab, job: int, fault: dict[str, Any]) -> None:
    """Ask the training program of a job for a fault (it looks before each step)."""
    path = lab.control / f"job-{job}.json"
    current = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"faults": []}
    current["faults"].append(fault)
    write_atomic(path, json.dumps(current, indent=1) + "\n")


def take_back(lab: Lab, job: int, identity: str) -> None:
    path = lab.control / f"job-{job}.json"
    current = json.loads(path.read_text(encoding="utf-8"))
    current["faults"] = [fault for fault in current["faults"] if fault.get("id") != identity]
    write_atomic(path, json.dumps(current, indent=1) + "\n")
