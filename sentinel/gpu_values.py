"""What DCGM, NVML and their tools write where they have no value: the one rule for all ways on which values come. Pure."""

from __future__ import annotations

from typing import Any

# DCGM's blanks (dcgm_structs.h): each has some numbers behind it for "not found", "not supported" and "not permitted".
_INT32, _INT32_LAST = 0x7FFFFFF0, 0x7FFFFFFF
_INT64 = 0x7FFFFFFFFFFFFFF0  # NVML's "not available" is beyond
_DOUBLE = 2.0**47
_TEXT = "<<<"


def known_value(value: Any) -> Any:
    """The value; None for a blank, and for a number that cannot be reckoned with: not a number, or infinite.

    DCGM copies blanks of 32 bits into fields of 64. A counter that stands at one of these 16 numbers is not known until it
    grows on.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return None if _INT32 <= value <= _INT32_LAST or abs(value) >= _INT64 else value
    if isinstance(value, float):
        return value if abs(value) < _DOUBLE else None  # of "not a number" no comparison is true
    return None if isinstance(value, str) and value.startswith(_TEXT) else value
