"""Faults by name: each is a real one where a machine without GPUs can have it, and says so where it is faked."""

from __future__ import annotations

from lab.faults import checkpoints, control, devices, nodes, ranks
from lab.faults.base import Fault

ALL: dict[str, Fault] = {
    fault.name: fault for module in (devices, ranks, nodes, checkpoints, control) for fault in module.FAULTS
}
