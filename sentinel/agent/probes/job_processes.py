"""Determines a process's job from what the process cannot forge: its control group and its user.

A process may write any SLURM_JOB_ID into its environment, but slurmstepd chooses its control group.
"""

from __future__ import annotations

import re
from pathlib import Path

from sentinel.adapters.host.environ import environment_of

_JOB_ID = frozenset({"SLURM_JOB_ID"})
# ``…/slurm/uid_1000/job_123/step_0/task_0`` (v1), ``…/slurmstepd.scope/job_123/step_0/user/task_0`` (v2)
# Below user.slice users make control groups themselves, of any name.
_JOB = re.compile(
    r"^(?:(?!/user\.slice/).)*?/(?:slurm[^/\n]*|uid_\d+|[^/\n]*slurmstepd\.scope)/job_(\d+)(?:/|$)", re.MULTILINE
)
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


def job_of_group(entry: Path) -> int | None:
    """The job whose control group the process is in; None if it is in no control group of Slurm.

    Args:
        entry: the process's folder in /proc.
    """
    try:
        found = _JOB.findall((entry / "cgroup").read_text(errors="replace"))
    except OSError:
        return None
    return int(found[0]) if found else None


def uid_of(entry: Path) -> int:
    """The uid of a process.

    Raises:
        OSError: the process is gone.
    """
    uid = entry.stat().st_uid
    if uid != 0:
        return uid
    # The owner of /proc/PID is root also for processes that may not be traced: read the uid from "status" instead.
    found = _UID.search((entry / "status").read_text(errors="replace"))
    return int(found[1]) if found else uid


def may_be_of(entry: Path, job: int, uid: int | None) -> bool:
    """Whether a process that names the job may belong to it: same user, and in no other job's control group.

    ``uid``: the job's user; None: not known, and then the answer is no.

    Raises:
        OSError: the process is gone.
    """
    return uid is not None and uid_of(entry) == uid and job_of_group(entry) in (None, job)


def outputs_of(job: int, uid: int, proc: Path = Path("/proc")) -> frozenset[str]:
    """Paths of the standard output of the job's processes on this node, as far as this process may read them."""
    found = set()
    for entry in proc.iterdir():
        try:
            if not entry.name.isdigit() or not may_be_of(entry, job, uid):
                continue
            if environment_of(entry, _JOB_ID).get("SLURM_JOB_ID") == str(job):
                found.add(str((entry / "fd" / "1").readlink()))
        except OSError:
            continue  # gone, or not permitted
    return frozenset(found)
