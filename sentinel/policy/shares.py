"""Whole numbers out of shares: 0.29 of 100 nodes are 29, although 0.29 * 100 is 28.999999999999996 in a computer."""

from __future__ import annotations

import math

_ROUNDING = 1e-9  # far more than the rounding errors of a share of a million, and far less than any share that is meant


def at_most(share: float, of: int) -> int:
    """The greatest number that is no more than this share (0 to 1)."""
    return math.floor(share * of + _ROUNDING)


def at_least(share: float, of: int) -> int:
    """The smallest number that is no less than this share (0 to 1)."""
    return math.ceil(share * of - _ROUNDING)
