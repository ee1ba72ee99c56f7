"""DCGM's severities by error code and its return codes; what we read into a code is in rules/convictions.toml."""

from __future__ import annotations

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


def severity_of(code: int | None, severity: int | None) -> int | None:
    """DCGM's severity; that of 4.6 where an output carries none, None where that is not known either."""
    if severity is None and code is not None:
        return 2 if code in _ISOLATE else 6 if code in _RESET else None
    return severity
