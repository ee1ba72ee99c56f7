"""Weakens what other programs say in a machine's log beside its kernel: such a log is full of services' errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.classify.readings import Reading
from sentinel.classify.roles import LEADING, LEADS, points_to
from sentinel.classify.weights import FAMILIES
from sentinel.model.vocabulary import WRITER

KERNEL = "kernel"
_PROGRAMS = FAMILIES[0]  # causes of a program's own; that a disk is full is the machine's, whoever says it
_MACHINES = FAMILIES[1] | FAMILIES[2] | FAMILIES[3]
MOSTLY = 0.8  # share of a log's recognised lines in a machine's form from which it is the machine's, not a job's
BESIDE = 0.25  # weight of an application's cause that another program names, in a log whose kernel names a machine's


def beside_kernel(readings: Sequence[Reading]) -> list[Reading]:
    """``readings`` with the words of services weakened, in each log in which the machine's own kernel names a fault.

    A job's log holds one program's errors. In a journal or a kernel's log hundreds of programs write, also of files they do
    not find and of what an access control denied them, all day.
    """
    logs: dict[str | None, list[Reading]] = {}
    for reading in readings:
        if reading.evidence.line is not None:
            logs.setdefault(reading.evidence.where.path, []).append(reading)
    weakened = {id(reading) for log in logs.values() if _of_machine(log) for reading in log if _of_a_service(reading)}
    return [_weakened(reading) if id(reading) in weakened else reading for reading in readings]


def _of_machine(log: Sequence[Reading]) -> bool:
    in_form = sum(WRITER in reading.evidence.data for reading in log)
    return in_form >= MOSTLY * len(log) and any(_names_machine(reading) for reading in log)


def _names_machine(reading: Reading) -> bool:
    if reading.evidence.data.get(WRITER) != KERNEL or reading.role not in LEADING or reading.strength < LEADS:
        return False
    return points_to(reading) in _MACHINES


def _of_a_service(reading: Reading) -> bool:
    return reading.evidence.data.get(WRITER, KERNEL) != KERNEL and points_to(reading) in _PROGRAMS


def _weakened(reading: Reading) -> Reading:
    return replace(reading, weights={cause: BESIDE * w if w > 0 else w for cause, w in reading.weights.items()})
