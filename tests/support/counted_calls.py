"""How much work a function does, counted in calls, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


class TooMuch(BaseException):
    """No handler of ordinary errors takes it."""


def within_calls(most: int, work: Callable[[], object]) -> bool:
    """Whether ``work`` ends within so many calls of functions, Python's own too; it is broken off where it does not."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if count > most:
            sys.setprofile(None)
            raise TooMuch

    sys.setprofile(called)
    try:
        work()
    except TooMuch:
        return False
    finally:
        sys.setprofile(None)
    return True
