"""Determines a process's job from what the process cannot forge: its control group and its user.

A process may write any SLURM_JOB_ID into its environment, but slurmstepd chooses its control group.
"""

from __future__ import annotations

import contextlib
import re
from functools import cached_property
from pathlib import Path

from sentinel.adapters.host.environ import environment_of, uid_of

_JOB_ID = frozenset({"SLURM_JOB_ID"})
# ``…/slurm/uid_1000/job_123/step_0/task_0`` (v1), ``…/slurmstepd.scope/job_123/step_0/user/task_0`` (v2); since 26.05 v2 has
# the run's SLUID for ``job_123``, unless cgroup.conf says CgroupJobIdPaths=yes.
# Below user.slice users make control groups themselves, of any name.
_GROUP = re.compile(
    r"^(?:(?!/user\.slice/).)*?/(?:slurm[^/\n]*|uid_\d+|[^/\n]*slurmstepd\.scope)"
    r"/(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?:/(.*))?$",
    re.MULTILINE,
)
_OF_SLURM = re.compile(r"step_[^/]+/slurm")  # below a job's group: slurmstepd alone is there, no user gets in
_TITLE = re.compile(rb"slurmstepd: \[(\d+)[.+]")
_LONGEST_TITLE = 4096  # bytes; a step's id and its daemon's name are a few dozen


class Groups:
    """The jobs of processes' control groups, at one moment.

    Args:
        proc: the kernel's /proc.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def job_of(self, entry: Path) -> int | None:
        """The job whose control group the process is in; None if it is in none of Slurm's, or not known whose.

        Args:
            entry: the process's folder in /proc.
        """
        job, sluid, _ = _group_of(entry)
        return job if sluid is None else self._jobs.get(sluid)

    @cached_property
    def _jobs(self) -> dict[str, int]:
        """The job of each SLUID, by the titles of the step daemons in its groups."""
        found: dict[str, int] = {}
        for entry in self._proc.iterdir():
            _, sluid, below = _group_of(entry) if entry.name.isdigit() else (None, None, "")
            if sluid is None or not _OF_SLURM.fullmatch(below):
                continue
            with contextlib.suppress(OSError):  # it is gone
                title = _TITLE.match((entry / "cmdline").read_bytes()[:_LONGEST_TITLE])
                found |= {sluid: int(title[1])} if title else {}
        return found

    def may_be_of(self, entry: Path, job: int, uid: int | None) -> bool:
        """Whether a process that names the job may belong to it: same user, and in no other job's control group.

        ``uid``: the job's user; None: not known, and then the answer is no.

        Raises:
            OSError: the process is gone.
        """
        return uid is not None and uid_of(entry) == uid and self.job_of(entry) in (None, job)


def _group_of(entry: Path) -> tuple[int | None, str | None, str]:
    """The job that a process's control group names, or its SLUID, and what is below that."""
    try:
        found = _GROUP.search((entry / "cgroup").read_text(errors="replace"))
    except OSError:
        return None, None, ""
    return (int(found[1]) if found[1] else None, found[2], found[3] or "") if found else (None, None, "")


def outputs_of(job: int, uid: int, proc: Path = Path("/proc")) -> frozenset[str]:
    """Paths of the standard output of the job's processes on this node, as far as this process may read them."""
    found, groups = set(), Groups(proc)
    for entry in proc.iterdir():
        try:
            if not entry.name.isdigit() or not groups.may_be_of(entry, job, uid):
                continue
            if environment_of(entry, _JOB_ID).get("SLURM_JOB_ID") == str(job):
                found.add(str((entry / "fd" / "1").readlink()))
        except OSError:
            continue  # gone, or not permitted
    return frozenset(found)
