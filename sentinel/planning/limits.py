"""What the formulas refuse: the two errors of planning and the checks that raise them."""

from __future__ import annotations

import math


class PlanningError(ValueError):
    """A quantity that makes no sense. ``fix`` is the sentence that tells a person what to do about it."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class OutOfRange(PlanningError):
    """The quantities make sense, the formula does not hold for them: no number is better than a wrong one."""


def finite(value: float, name: str) -> float:
    """The value as a float; refuses what is not a finite number (``bool`` included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlanningError(f"{name} is {value!r}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise PlanningError(f"{name} is too large to compute with") from None
    if not math.isfinite(number):
        raise PlanningError(f"{name} is {number}, not a finite number")
    return number


def positive(value: float, name: str) -> float:
    """A finite number above zero."""
    number = finite(value, name)
    if number <= 0:
        raise PlanningError(f"{name} is {number:g}; it must be more than zero")
    return number


def not_negative(value: float, name: str) -> float:
    """A finite number, zero or more."""
    number = finite(value, name)
    if number < 0:
        raise PlanningError(f"{name} is {number:g}; it must not be negative")
    return number


def fraction(value: float, name: str, *, zero: bool = False, one: bool = True) -> float:
    """A number between 0 and 1; whether the ends belong to it is the caller's to say."""
    number = finite(value, name)
    if number < 0 or number > 1 or (number == 0 and not zero) or (number == 1 and not one):
        ends = f"{'from' if zero else 'above'} 0 {'to' if one else 'and below'} 1"
        raise PlanningError(f"{name} is {number:g}; it must be {ends}", fix="10 % is 0.1")
    return number


def whole(value: int, name: str, *, least: int = 1, most: int | None = None) -> int:
    """A whole number of at least ``least`` (and at most ``most``)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanningError(f"{name} is {value!r}, not a whole number")
    if value < least:
        raise PlanningError(f"{name} is {value}; it must be at least {least}")
    if most is not None and value > most:
        raise PlanningError(f"{name} is {value}; more than {most} is not computed here", fix=f"Give at most {most}.")
    return value
