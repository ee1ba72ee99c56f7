"""Tells whose job a process belongs to, by what the process cannot choose: its control group and its user.

A process may write any SLURM_JOB_ID into its environment; slurmstepd puts it into the control group of its job.
"""

from __future__ import annotations

import re
from pathlib import Path

# ``…/slurm/uid_1000/job_123/step_0/task_0`` (v1), ``…/slurmstepd.scope/job_123/step_0/user/task_0`` (v2)
_JOB = re.compile(r"/(?:slurm[^/\n]*|uid_\d+|[^/\n]*slurmstepd\.scope)/job_(\d+)(?:/|$)", re.MULTILINE)
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


def job_of_group(entry: Path) -> int | None:
    """The job in whose control group the process is; None if it is in none of Slurm's.

    Args:
        entry: the process's folder in /proc.
    """
    try:
        found = _JOB.findall((entry / "cgroup").read_text(errors="replace"))
    except OSError:
        return None
    return int(found[0]) if found else None


def uid_of(entry: Path) -> int:
    """
    Raises:
        OSError: the process is gone.
    """
    uid = entry.stat().st_uid
    if uid != 0:
        return uid
    # Root's by its folder is also what may not be traced, whoever runs it.
    found = _UID.search((entry / "status").read_text(errors="replace"))
    return int(found[1]) if found else uid


def may_be_of(entry: Path, job: int, uid: int | None) -> bool:
    """Whether a process that names the job may be one of it: it is the user's, and in no other job's control group.

    ``uid`` None: not known whose the job is, and then no process is known to be of it.

    Raises:
        OSError: the process is gone.
    """
    return uid is not None and uid_of(entry) == uid and job_of_group(entry) in (None, job)


def outputs_of(job: int, uid: int, proc: Path = Path("/proc")) -> frozenset[str]:
    """The files that are the standard output of the job's processes on this node, as far as this account may look."""
    wanted, found = f"SLURM_JOB_ID={job}".encode(), set()
    for entry in proc.iterdir():
        try:
            if not entry.name.isdigit() or not may_be_of(entry, job, uid):
                continue
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(str((entry / "fd" / "1").readlink()))
        except OSError:
            continue  # gone, or not ours to look at
    return frozenset(found)
