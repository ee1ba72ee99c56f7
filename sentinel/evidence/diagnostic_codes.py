"""DCGM's error codes, severities and return codes, as we read them. Pure data and one function."""

from __future__ import annotations

from enum import StrEnum


class Remedy(StrEnum):
    """What a warning asks for; our reading of DCGM's severity, with overrides."""

    REPLACE = "replace"  # out of service until a deeper diagnostic or a repair
    RESET = "reset"  # reset or reboot, then again
    INVESTIGATE = "investigate"  # the GPU did worse than it should
    CONFIGURE = "configure"  # nothing is broken: correct it and run again
    BUSY = "busy"  # somebody else was on the GPU
    WATCH = "watch"  # counted, no fault
    UNCLEAR = "unclear"


# DCGM's severities: 0 none, 1 monitor, 2 isolate, 3 unknown, 4 triage, 5 configuration, 6 reset.
_BY_SEVERITY = {
    1: Remedy.WATCH,
    2: Remedy.REPLACE,
    4: Remedy.UNCLEAR,
    5: Remedy.CONFIGURE,
    6: Remedy.RESET,
}
# Where DCGM's severity says something else than the fault does.
_OVERRIDES = {
    20: Remedy.CONFIGURE,  # device count: also what a device cgroup makes of a healthy node
    22: Remedy.CONFIGURE,  # a library cannot be opened
    24: Remedy.CONFIGURE,  # the driver's library is bad: an installation, not a GPU
    25: Remedy.BUSY,  # a graphics process of a user
    30: Remedy.INVESTIGATE,  # low bandwidth
    31: Remedy.INVESTIGATE,  # high latency
    45: Remedy.INVESTIGATE,  # PCIe generation
    46: Remedy.REPLACE,  # PCIe width: a seating or board fault, although DCGM calls it configuration
    50: Remedy.INVESTIGATE,  # did not reach the stress level
    56: Remedy.BUSY,  # memory could not be allocated: a job is on the GPU
    62: Remedy.INVESTIGATE,  # memory bandwidth
    63: Remedy.INVESTIGATE,  # did not reach the target power
    73: Remedy.BUSY,  # host memory could not be allocated
    80: Remedy.REPLACE,  # row remap failure: reset since 4.6, yet the reason to return a board
    101: Remedy.INVESTIGATE,  # an Xid came up during the test
    110: Remedy.INVESTIGATE,  # too few operations per second
    132: Remedy.REPLACE,  # too many rows remapped
}
# Severities of 4.6 for outputs that carry none (2.x and 3.x): isolate and reset.
_ISOLATE = frozenset(
    {3, 4, 7, 8, 13, 15, 33, 35, 36, 38, 39, 52, 57, 58, 70, 71, 79, 81, 86, 87, 88, 95, 98, *range(102, 108), 109, 111,
     113, 114, 115, 116, 118, 119, 120, 121, 122, 126}
)  # fmt: skip
_RESET = frozenset({6, 83, 84, 85, 125, 127, 128, 129})

# DCGM's return codes that say that nothing was found out, and the exit status that goes with each: 256 + code.
RETURN_CODES = {
    -1: "a parameter was refused, or the number of GPUs is not the expected one",
    -11: "DCGM gave up waiting; the diagnostic may still be running",
    -14: "DCGM had no data",
    -21: "the host engine went away",
    -23: "different GPU models in one diagnostic",
    -30: "DCGM reported an error",
    -34: "another diagnostic is running",
    -39: "another diagnostic is running",
    -41: "the diagnostic could not be launched",
    -47: "a running diagnostic could not be stopped in time",
    -51: "DCGM reported an error that isolates a GPU",
    -52: "the diagnostic's program is missing",
    -53: "the diagnostic was killed",
    -58: "a test that was asked for does not exist here",
    -66: "the diagnostic was stopped",
}


def remedy_of(code: int | None, severity: int | None, text: str) -> Remedy:
    """What a warning asks for."""
    if "busy or unavailable" in text.lower() or "out of memory" in text.lower():
        return Remedy.BUSY
    if code in _OVERRIDES:
        return _OVERRIDES[code]
    if severity in _BY_SEVERITY:
        return _BY_SEVERITY[severity]
    if severity is None and code is not None:
        return Remedy.REPLACE if code in _ISOLATE else Remedy.RESET if code in _RESET else Remedy.UNCLEAR
    return Remedy.UNCLEAR
