"""Keeps a job's loss and step time over its steps in a bounded number of points, for people to look at. Pure.

Nothing is decided from it. When it is full every second point goes, so that a curve always covers the whole attempt with
the same distance between its points.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite, nan

from sentinel.detect.activity import float_of
from sentinel.model.records import Evidence

MOST = 256  # points of one attempt: 8 kB; a screen shows no more


@dataclass(frozen=True, slots=True)
class Point:
    """``loss`` and ``step_s`` (seconds a step) are None where they are not known or not finite."""

    step: int
    at_s: float  # Unix time
    loss: float | None
    step_s: float | None


@dataclass(slots=True)
class ProgressCurve:
    stride: int = 1  # of so many printed steps one is kept
    bad: int = 0  # printed losses that were not finite
    _seen: int = 0
    _last: tuple[int, float] | None = None  # step and Unix time of the newest line
    _steps: array[float] = field(default_factory=lambda: array("d"))
    _times: array[float] = field(default_factory=lambda: array("d"))
    _losses: array[float] = field(default_factory=lambda: array("d"))
    _lengths: array[float] = field(default_factory=lambda: array("d"))

    def note(self, item: Evidence) -> None:
        """Take a step line. One that repeats a step, or goes back, is left out."""
        step, loss, length = (
            item.data.get("step"),
            float_of(item.data.get("loss")),
            float_of(item.data.get("step_time_s")),
        )
        if isinstance(step, bool) or not isinstance(step, int) or abs(step) > 2**53:
            return
        before, at_s = self._last, _seconds(item.at)
        if before is not None and step <= before[0]:
            return
        self._last = (step, at_s)
        if loss is not None and not isfinite(loss):
            self.bad += 1
        if length is None and before is not None and at_s > before[1]:
            length = (at_s - before[1]) / (step - before[0])
        self._seen += 1
        if (self._seen - 1) % self.stride:
            return
        for column, value in zip(
            (self._steps, self._times, self._losses, self._lengths),
            (float(step), at_s, nan if loss is None else loss, nan if length is None else length),
            strict=True,
        ):
            column.append(value)
        if len(self._steps) >= MOST:
            self._steps, self._times = self._steps[::2], self._times[::2]
            self._losses, self._lengths = self._losses[::2], self._lengths[::2]
            self.stride *= 2

    def points(self) -> list[Point]:
        """In order of steps."""
        return [
            Point(int(step), at_s, loss if isfinite(loss) else None, length if isfinite(length) else None)
            for step, at_s, loss, length in zip(self._steps, self._times, self._losses, self._lengths, strict=True)
        ]


def _seconds(at: datetime) -> float:
    return at.timestamp()
