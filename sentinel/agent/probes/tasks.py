"""Reads the states of a job's processes on this node from /proc, and how much its network adapters moved.

Reading /proc of a stuck process, or the counters of a broken adapter, may itself hang.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.host.environ import environment_of
from sentinel.adapters.host.readings import network_bytes
from sentinel.agent.probes import begin, say
from sentinel.agent.probes.job_processes import Groups
from sentinel.text import whole_number

# Processes between slurmd and the training processes.
WRAPPERS = frozenset({"slurmstepd", "srun", "slurm_script", "bash", "sh", "dash", "ksh", "zsh", "tcsh", "env", "timeout",
                      "numactl", "time", "nsenter", "enroot", "apptainer", "singularity", "torchrun"})  # fmt: skip

# What is read of a process's environment: no more is kept of it, since a user's processes may hold gigabytes of it.
_NAMES = frozenset({
    "SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_PROCID", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "RANK", "LOCAL_RANK", "HOME",
    "XDG_CACHE_HOME", "NCCL_RAS_ADDR", "TORCH_WORKER_SERVER_SOCKET", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE",
})  # fmt: skip


@dataclass(frozen=True)
class Task:
    rank: int | None
    pid: int
    parent: int
    state: str
    cpu_s: float
    command: str
    leaf: bool  # it does the task's work: neither a wrapper nor the launcher of worker processes
    read_bytes: int | None = None  # by read and write calls of any kind, so that network file systems count
    written_bytes: int | None = None


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    state: str
    cpu_s: float
    command: str
    environment: dict[str, str]
    moved: tuple[int | None, int | None]


def tasks_of(
    job: int, proc: Path = Path("/proc"), ticks: int | None = None, node: str = "", uid: int | None = None
) -> list[Task]:
    """Every process with this job in its environment, except those of another node on the same host.

    Args:
        uid: the job's user, since another user's process may name this job in its environment. None: not known; the
            result is then empty.
    """
    processes = _processes(job, proc, ticks or os.sysconf("SC_CLK_TCK"), uid)
    found = {p.pid: p for p in processes if p.environment.get("SLURMD_NODENAME", node) in (node, "") or not node}
    launchers = set()
    for process in found.values():
        parent = found.get(process.parent)
        while parent is not None:
            if "LOCAL_RANK" in process.environment and "LOCAL_RANK" not in parent.environment:
                launchers.add(parent.pid)
            parent = found.get(parent.parent)
    made = []
    for process in found.values():
        working = process.command not in WRAPPERS and process.pid not in launchers
        parent = found.get(process.parent)
        below = parent is not None and parent.command not in WRAPPERS and parent.pid not in launchers
        made.append(
            Task(
                rank=_rank(process.environment),
                pid=process.pid,
                parent=process.parent,
                state=process.state,
                cpu_s=process.cpu_s,
                command=process.command,
                leaf=working and not below,
                read_bytes=process.moved[0],
                written_bytes=process.moved[1],
            )
        )
    return sorted(made, key=lambda task: task.pid)


def environments(
    job: int, proc: Path = Path("/proc"), node: str = "", *, uid: int | None
) -> list[tuple[int, int | None, dict[str, str]]]:
    """(pid, rank, environment) of each process that does a task's work, sorted by rank."""
    leaves = {task.pid for task in tasks_of(job, proc, 100, node, uid) if task.leaf}
    found = [(p.pid, _rank(p.environment), p.environment) for p in _processes(job, proc, 100, uid) if p.pid in leaves]
    return sorted(found, key=lambda item: (item[1] is None, item[1] or 0, item[0]))


def own_gpus(gpus: object, environments: Iterable[dict[str, str]]) -> object:
    """The node's GPUs that Slurm gave the job, by its processes' environments; all if these name none."""
    if not isinstance(gpus, list):
        return gpus
    given: set[int] = set()
    for found in environments:
        listed = found.get("SLURM_STEP_GPUS") or found.get("SLURM_JOB_GPUS") or ""
        if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", listed):
            return gpus
        given.update(map(int, listed.split(",")))
    own = [gpu for gpu in gpus if isinstance(gpu, dict) and gpu.get("index") in given]
    return own if len(own) == len(given) else gpus


def _processes(job: int, proc: Path, ticks: int, uid: int | None) -> Iterator[_Process]:
    groups = Groups(proc)
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if not groups.may_be_of(entry, job, uid):
                continue
            environment = environment_of(entry, _NAMES)
            if environment.get("SLURM_JOB_ID") != str(job):
                continue
            head, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue  # not permitted, or gone
        fields = rest.split()
        yield _Process(
            pid=int(entry.name),
            parent=int(fields[1]),
            state=fields[0],
            cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
            command=head.partition("(")[2],
            environment=environment,
            moved=_moved(entry),
        )


def _moved(entry: Path) -> tuple[int | None, int | None]:
    """Bytes read and written by system calls since the process started; None where the kernel does not give them."""
    try:
        lines = (entry / "io").read_text().splitlines()
    except OSError:
        return None, None
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    read, written = found.get("rchar", ""), found.get("wchar", "")
    return int(read) if read.isdigit() else None, int(written) if written.isdigit() else None


def _rank(environment: dict[str, str]) -> int | None:
    """The rank set by the launcher (torchrun), else Slurm's."""
    text = environment.get("RANK") if "LOCAL_RANK" in environment else None
    text = text or environment.get("SLURM_PROCID", "")
    return whole_number(text)


def answer_of(arguments: dict[str, Any], proc: Path = Path("/proc")) -> dict[str, dict[str, object] | str]:
    """The answer to the order: a result, or an error if the job's processes cannot be determined.

    An empty list means that no process is left, and the daemon relies on it: processes that cannot be read give an
    error.
    """
    job, node, uid = int(arguments["job"]), str(arguments.get("node", "")), arguments.get("uid")
    if uid is None:
        return {"error": f"whose job {job} is is not known on this node: its processes are not known"}
    tasks = tasks_of(job, proc, node=node, uid=uid)
    groups = Groups(proc)
    if not tasks and any(entry.name.isdigit() and groups.job_of(entry) == job for entry in proc.iterdir()):
        return {"error": f"there are processes in the control group of job {job}, and what they are cannot be read"}
    result: dict[str, Any] = {"tasks": [asdict(task) for task in tasks], "at_s": time.monotonic()}
    result.update({name: arguments[name] for name in ("gpus", "has_gpus") if name in arguments})
    if result.get("gpus"):
        here = (p.environment for p in _processes(job, proc, 100, uid))
        result["gpus"] = own_gpus(result["gpus"], (e for e in here if e.get("SLURMD_NODENAME", node) in (node, "")))
    return {"result": result}


def answers(
    arguments: dict[str, Any], proc: Path = Path("/proc"), sysfs: Path = Path("/sys")
) -> Iterator[dict[str, dict[str, object] | str]]:
    """The answer, and once more with what the network moved: a read of a broken adapter may never end."""
    answer = answer_of(arguments, proc)
    yield answer
    if isinstance(result := answer.get("result"), dict):
        yield {"result": {**result, "network_bytes": network_bytes(sysfs)}}


def main() -> None:
    for answer in answers(begin()):
        say(answer)


if __name__ == "__main__":
    main()
