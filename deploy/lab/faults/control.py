"""Faults of the control plane."""

from __future__ import annotations

import signal

from lab import processes
from lab.faults.base import Fault, Options, Record
from lab.layout import Lab, LabError
from lab.processes import Process


def controllers(lab: Lab) -> list[Process]:
    """slurmctld and the script runner that it forks."""
    main = processes.known(lab, "slurmctld")
    if main is None:
        raise LabError("slurmctld does not run; see lab status")
    names = ("slurmctld", "slurmctld-wlm")
    return [main, *processes.find(lambda pid: processes.exe_of(pid) in names and processes.parent_of(pid) == main.pid)]


def freeze(lab: Lab, options: Options) -> list[Record]:
    for process in controllers(lab):
        process.send(signal.SIGSTOP)
    return [FROZEN.record()]


def go_on(lab: Lab, record: Record) -> str:
    for process in controllers(lab):
        process.send(signal.SIGCONT)
    return "slurmctld answers again"


FROZEN = Fault("controller-frozen", "slurmctld stops answering (SIGSTOP)", freeze, go_on)
FAULTS = (FROZEN,)
