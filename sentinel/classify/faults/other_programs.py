"""Weakens what other programs say in a machine's log: such a log is full of services' errors that are no job's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from sentinel.classify.readings import Reading
from sentinel.classify.roles import LEADS, points_to
from sentinel.classify.weights import FAMILIES
from sentinel.config.rules import LEADING, Drain, Form
from sentinel.model.records import Cause, Evidence
from sentinel.model.vocabulary import WRITER

KERNEL = "kernel"
AUDIT = "audit"  # what the kernel was told to note of programs
# Causes of a program's own, and servers that it does not reach; that a disk is full is the machine's, whoever says it.
OF_PROGRAMS = FAMILIES[0] | {Cause.NETWORK_BOOTSTRAP}
_SETTINGS = frozenset({Cause.USER_CONFIG, Cause.SOFTWARE_ENV, Cause.DATALOADER, Cause.NETWORK_BOOTSTRAP})
_MACHINES = FAMILIES[1] | FAMILIES[2] | FAMILIES[3]
MOSTLY = 0.8  # share of a log's recognised lines in a machine's form from which it is the machine's, not a job's
SEVERAL = 3  # programs beside the kernel from which a log is no single one's own
BESIDE = 0.25  # weight of an application's cause that a job's program names, in a log whose kernel names a machine's
# Tags of what starts jobs, runs them or is one. All others (logins, packages' updates, a desktop) tell of no job.
_OF_JOBS = re.compile(
    r"(?i)slurm|srun|sbatch|pbs_|sge_|lsf|flux|condor|munge|python|torch|mpi(?:run|exec)|orted|prte|prrte|hydra|ray(?:let)?$"
    r"|kubelet|containerd|cri-?o|docker|podman|enroot|pyxis|apptainer|singularity|nvidia|nv-|dcgm|amd|rocm"
)


def services_weakened(readings: Sequence[Reading], evidence: Iterable[Evidence]) -> list[Reading]:
    """``readings`` with what programs say of an application weakened, in each log that is a machine's.

    A job's log holds one program's errors. In a journal or a kernel's log hundreds of programs write, also of files they do
    not find and of what an access control denied them, all day. Where several write, of a job only those speak that start or
    run jobs, and they say little where the machine's own kernel names a fault. ``evidence``: also what no rule read.
    """
    tags: dict[str | None, set[str]] = {}
    for item in evidence:
        if item.line is not None and WRITER in item.data:
            tags.setdefault(item.where.path, set()).add(str(item.data[WRITER]))
    logs: dict[str | None, list[Reading]] = {}
    for reading in readings:
        if reading.evidence.line is not None:
            logs.setdefault(reading.evidence.where.path, []).append(reading)
    left: dict[int, float] = {}
    for path, log in logs.items():
        if _of_machine(log):
            said = BESIDE if any(map(_names_machine, log)) else 1.0
            for reading in filter(_of_a_program, log):
                left[id(reading)] = said if _may_speak_of_a_job(reading, tags[path]) else 0.0
    left.update({id(reading): 0.0 for reading in readings if _of_the_kernel_itself(reading)})
    return [_weakened(reading, left.get(id(reading), 1.0)) for reading in readings]


def _of_machine(log: Sequence[Reading]) -> bool:
    return sum(WRITER in reading.evidence.data for reading in log) >= MOSTLY * len(log)


def _names_machine(reading: Reading) -> bool:
    if reading.evidence.data.get(WRITER) != KERNEL or reading.role not in LEADING or reading.strength < LEADS:
        return False
    return points_to(reading) in _MACHINES


def _of_a_program(reading: Reading) -> bool:
    return reading.evidence.data.get(WRITER, KERNEL) != KERNEL and points_to(reading) in OF_PROGRAMS


def _of_the_kernel_itself(reading: Reading) -> bool:
    """Whether a sentence that programs print stands in the kernel's own line: an option of a mount, a file of firmware."""
    own = reading.evidence.data.get(WRITER) == KERNEL and reading.form is Form.PROGRAM
    return own and reading.drain is Drain.NO and points_to(reading) in _SETTINGS


def _may_speak_of_a_job(reading: Reading, tags: Set[str]) -> bool:
    """``tags``: of all that write in its log."""
    tag = str(reading.evidence.data[WRITER])
    if tag == AUDIT:
        return tags == {AUDIT}
    return len(tags - {KERNEL, AUDIT}) < SEVERAL or _OF_JOBS.match(tag) is not None


def _weakened(reading: Reading, share: float) -> Reading:
    if share == 1.0:
        return reading
    return replace(reading, weights={cause: share * w if w > 0 else w for cause, w in reading.weights.items()})
