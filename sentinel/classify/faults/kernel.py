"""Blames a fault of the kernel on the module in whose code the processor was, where the kernel names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.classify.readings import Reading
from sentinel.model.records import Cause

FAULTS = frozenset({"kernel-panic", "kernel-fault", "soft-lockup"})  # sentences that say only that the kernel faulted
# Modules whose node is to be drained in any case. A file system's client is not among them: its cause drains no node, and
# the kernel of this one is broken whatever the servers did.
MODULES = frozenset({"oops-gpu", "oops-fabric"})
WARNING = "kernel-warning"  # the kernel goes on after it, and shows the registers with it, too
REGISTERS = frozenset({"oops-registers", "oops-kernel"})  # and where in its own code the processor was
WITHIN_S = 2.0  # from the fault's sentence to its registers
WITHIN_LINES = 60  # the same in a log without times


def of_modules(readings: Sequence[Reading]) -> list[Reading]:
    """``readings``, without warnings' registers, with each kernel fault weighed as the module that is named after it."""
    warned = [reading for reading in readings if reading.key == WARNING]
    readings = [r for r in readings if r.key not in REGISTERS or not any(_belongs(r, warning) for warning in warned)]
    # A site may have taken all weight from a module's rule.
    named = [reading for reading in readings if reading.key in MODULES and reading.strength > 0]
    if not named:
        return list(readings)
    moved = []
    for reading in readings:
        module = next((m for m in named if reading.key in FAULTS and _belongs(m, reading)), None)
        moved.append(reading if module is None else _moved(reading, module))
    return moved


def _belongs(module: Reading, fault: Reading) -> bool:
    one, other = module.evidence, fault.evidence
    if one.where.node != other.where.node or one.where.path != other.where.path or one.source is not other.source:
        return False
    if one.line is not None and other.line is not None and not 0 < one.line - other.line <= WITHIN_LINES:
        return False
    return 0 <= (one.at - other.at).total_seconds() <= WITHIN_S


def _moved(fault: Reading, module: Reading) -> Reading:
    """The fault's weight, shared among causes as the module's own weights are."""
    host = fault.weights.get(Cause.NODE_OS_OR_HOST, 0.0)
    shares = {cause: host * weight / module.strength for cause, weight in module.weights.items()}
    return replace(
        fault, weights={**fault.weights, **shares}, scope=module.scope, note=f"{fault.note}, in the code of a module"
    )
