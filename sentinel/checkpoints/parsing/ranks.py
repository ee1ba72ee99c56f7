"""Numbers of ranks and files that names and contents of checkpoints state. Pure.

Whoever writes a checkpoint may state any number: nothing is made for each number below it.
"""

from __future__ import annotations

from collections.abc import Container

MOST_RANKS = 1 << 18  # more than any job has; who states more is not believed


def first_hole(numbers: Container[int], least: int, end: int) -> int | None:
    """The first of ``least`` ... ``end - 1`` that is not in ``numbers``; None where all are."""
    return next((number for number in range(least, end) if number not in numbers), None)


def ranks_or_none(stated: int | None) -> int | None:
    """A number of ranks that a job can have; None where none is stated, or an absurd one."""
    return stated if stated is not None and 0 < stated <= MOST_RANKS else None
