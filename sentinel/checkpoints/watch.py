"""Watches a run's saves: whether they still come, are as large as before and stay valid. Pure, over listings.

What a listing shows is enough: the oldest file of a checkpoint says when its save began, the newest when it ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from sentinel.checkpoints.records import Part

Kind = Literal["stopped", "shrunk", "grown", "slow", "overlap", "invalid", "full"]


@dataclass(frozen=True, slots=True)
class Save:
    """One save as the files show it. Of the parts of several hosts: from the first file to the last."""

    step: int
    began_s: float
    ended_s: float
    bytes: int
    valid: bool | None
    reason: str

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """When to report. Each is a share of what this run itself has done before (the median of its saves)."""

    late: float = 2.5  # intervals without a save; two may be an evaluation in between
    small: float = 0.9  # of the usual size: a missing rank of eight is 0.875
    large: float = 1.5
    slow: float = 2.0
    overlap: float = 0.10
    full_in_s: float = 86_400.0  # the storage will be full within a day
    least: int = 3  # saves before anything is "usual"


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: Kind
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What is usual for this run; None while there are too few saves to say."""

    interval_s: float | None
    duration_s: float | None
    bytes: float | None


def saves_of(parts: Iterable[Part]) -> list[Save]:
    """The saves that the listings show, by step. Parts without a step or without files say nothing."""
    groups: dict[int, list[Part]] = {}
    for part in parts:
        if part.step is not None and part.newest_mtime_s > 0:
            groups.setdefault(part.step, []).append(part)
    found: list[Save] = []
    for step, group in sorted(groups.items()):
        worst = min(group, key=lambda part: {False: 0, None: 1, True: 2}[part.valid])
        found.append(
            Save(
                step,
                min(part.oldest_mtime_s for part in group),
                max(part.newest_mtime_s for part in group),
                sum(part.bytes for part in group),
                worst.valid,
                worst.reason,
            )
        )
    return found


def rhythm(saves: Sequence[Save]) -> Rhythm:
    """Medians over the saves that are not invalid, in the order of their steps."""
    sound = [save for save in saves if save.valid is not False]
    gaps = [b.ended_s - a.ended_s for a, b in itertools.pairwise(sound) if b.ended_s > a.ended_s]
    if len(sound) < LIMITS.least or not gaps:
        return Rhythm(None, None, None)
    interval, size = median(gaps), median(save.bytes for save in sound)
    return Rhythm(interval, median(save.duration_s for save in sound), size)


def assess(saves: Sequence[Save], now_s: float) -> list[Trouble]:
    """What is wrong with how a running job saves; whether there is space for more, `sentinel.checkpoints.space` says."""
    if not saves:
        return []
    usual = rhythm(saves[:-1] if len(saves) > LIMITS.least else saves)
    last = saves[-1]
    found: list[Trouble] = []
    if last.valid is False:
        found.append(
            Trouble("invalid", f"the newest checkpoint, step {last.step}, is invalid: {last.reason}", last.step)
        )
    if usual.interval_s is None or usual.duration_s is None or usual.bytes is None:
        return found
    silent = now_s - last.ended_s
    if silent > LIMITS.late * usual.interval_s + usual.duration_s:
        text = f"no checkpoint for {silent:.0f} s; one came every {usual.interval_s:.0f} s"
        found.append(Trouble("stopped", text, last.step))
    # While it is being written the last save is small: its size counts once it is known to be whole.
    if last.valid is True and last.bytes < LIMITS.small * usual.bytes:
        text = f"step {last.step} has {last.bytes} bytes, {usual.bytes:.0f} are usual"
        found.append(Trouble("shrunk", text, last.step))
    if last.bytes > LIMITS.large * usual.bytes:
        text = f"step {last.step} has {last.bytes} bytes, {usual.bytes:.0f} are usual"
        found.append(Trouble("grown", text, last.step))
    if usual.duration_s > 0 and last.duration_s > LIMITS.slow * usual.duration_s:
        text = f"step {last.step} took {last.duration_s:.0f} s to save, {usual.duration_s:.0f} s are usual"
        found.append(Trouble("slow", text, last.step))
    if usual.duration_s > LIMITS.overlap * usual.interval_s:
        share = usual.duration_s / usual.interval_s
        found.append(Trouble("overlap", f"saving takes {share:.0%} of the time between saves"))
    return found
