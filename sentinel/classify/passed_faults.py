"""Lowers to a suspicion what convicts a machine whose own log says that the fault passed, or that it was being shut down.

A node left out of the job's retry and tested costs little; a drain waits for people. Only the log that convicts can say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.classify.readings import Reading
from sentinel.classify.weights import points_to
from sentinel.config.rules import Drain
from sentinel.model.records import Cause

RESET_DONE = "amd-reset-done"  # the driver reset the GPU, and it works again
GOING_DOWN = "going-down"  # the kernel is about to stop
# Until the machine is off. Devices that lose power, and drivers taken down in the wrong order, report fatal errors.
OFF_WITHIN_S = 60.0
_OFF_WITHIN_LINES = 100  # the same in a log without times


def passed(readings: Sequence[Reading]) -> list[Reading]:
    """``readings``, in order of time, of which those that passed convict no more."""
    resets = [reading for reading in readings if reading.key == RESET_DONE]
    stops = [reading for reading in readings if reading.key == GOING_DOWN]
    if not resets and not stops:
        return list(readings)
    return [_lowered(reading, readings, resets, stops) for reading in readings]


def _lowered(
    reading: Reading, every: Sequence[Reading], resets: Sequence[Reading], stops: Sequence[Reading]
) -> Reading:
    note = ""
    if not reading.drain.convicts:
        return reading
    if any(_after(reading, stop) and _before_it_was_off(stop, reading) for stop in stops):
        note = "while the machine was being shut down"
    elif points_to(reading) is Cause.GPU_GSP_OR_DRIVER and any(
        _after(reset, reading) and not _failed_again(reset, every) for reset in resets
    ):
        note = "the driver reset it, and it works again"
    return replace(reading, drain=Drain.SUSPECT, note=f"{reading.note} ({note})") if note else reading


def _failed_again(reset: Reading, every: Sequence[Reading]) -> bool:
    """Whether a line after it convicts the machine: a reset that succeeds may be followed by a start that fails."""
    return any(_after(reading, reset) and reading.drain.convicts for reading in every)


def _after(one: Reading, other: Reading) -> bool:
    """Whether ``one`` stands below ``other`` in the same log; what a program printed into it says nothing of the machine."""
    a, b = one.evidence, other.evidence
    if (
        a.source is not b.source
        or a.trust is not b.trust
        or (a.where.path, a.where.node) != (b.where.path, b.where.node)
    ):
        return False
    if None not in (parts := (a.data.get("pci"), b.data.get("pci"))) and parts[0] != parts[1]:
        return False
    return (a.at, a.line or 0) > (b.at, b.line or 0)


def _before_it_was_off(stop: Reading, reading: Reading) -> bool:
    one, other = stop.evidence, reading.evidence
    began_s, at_s = one.data.get("uptime_s"), other.data.get("uptime_s")
    if (other.at - one.at).total_seconds() > OFF_WITHIN_S:
        return False
    if isinstance(began_s, float) and isinstance(at_s, float):
        return 0.0 <= at_s - began_s <= OFF_WITHIN_S  # less: of another boot
    if one.at != other.at:
        return True
    return (other.line or 0) - (one.line or 0) <= _OFF_WITHIN_LINES
