"""Free space on the storage that a run saves to: whether a save ended for want of it, and when there will be none.

Numbers of ``statvfs``, as the job's user sees them. A quota shows only where the file system counts it there (Lustre
project quotas, XFS); elsewhere it is not known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sentinel.checkpoints.watch import LIMITS, Rhythm, Save, Trouble
from sentinel.planning.quantities import show_bytes, show_duration, show_rate

_LEAST_BYTES = 1 << 20  # that a save needs where nothing is known of its size
_REACH = 5.0  # times as long as it was looked at: two minutes in which others wrote say nothing of the next half hour


@dataclass(frozen=True, slots=True)
class Space:
    """What a user may still write. ``free_files`` None: the file system does not count them."""

    free_bytes: int
    total_bytes: int
    free_files: int | None

    def to_json(self) -> dict[str, int | None]:
        return {"free_bytes": self.free_bytes, "total_bytes": self.total_bytes, "free_files": self.free_files}

    @classmethod
    def from_json(cls, data: object) -> Space | None:
        """None for anything that is none: it came from a child that runs as a user."""
        if not isinstance(data, Mapping):
            return None
        free, total, files = data.get("free_bytes"), data.get("total_bytes"), data.get("free_files")
        if type(free) is not int or type(total) is not int or (files is not None and type(files) is not int):
            return None
        return cls(free, total, files)

    def __str__(self) -> str:
        files = "" if self.free_files is None else f", {self.free_files} files"
        return f"{show_bytes(self.free_bytes)} of {show_bytes(self.total_bytes)}{files} free"


def space_of(path: str) -> Space:
    """Of the file system that the path lies on. OSError where it cannot be asked."""
    told = os.statvfs(path)
    files = told.f_favail if told.f_files else None
    return Space(told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize, files)


def no_room(save: Save, usual: Rhythm, space: Space | None) -> str:
    """Why a save that is not whole could not be finished; empty where the storage has space for the rest of it."""
    if space is None:
        return ""
    lacking = _LEAST_BYTES if usual.bytes is None else max(_LEAST_BYTES, int(usual.bytes) - save.bytes)
    if space.free_files == 0 or space.free_bytes < lacking:
        return f"step {save.step} was not finished and there is no space for the rest, {show_bytes(lacking)}: {space}"
    return ""


def filling(history: Sequence[tuple[float, Space]], usual: Rhythm) -> Trouble | None:
    """Whether the next save will not fit, or the storage will be full soon at the rate at which it filled.

    ``history``: (when, what was free) at the saves so far. What a framework deletes again is not counted as growth, and
    what others write to the same storage is.
    """
    if len(history) < LIMITS.least:
        return None
    (first_s, _), (last_s, last) = history[0], history[-1]
    if usual.bytes is not None and last.free_bytes < usual.bytes:
        return Trouble("full", f"the next checkpoint needs about {show_bytes(usual.bytes)}: {last}")
    took_s = last_s - first_s
    # What goes on fills it in both halves of the time: one program's burst does not.
    rate = min(_rate(one, other) for one, other in pairwise((history[0], history[len(history) // 2], history[-1])))
    if rate <= 0:
        return None
    left_s = last.free_bytes / rate
    if left_s >= min(LIMITS.full_in_s, _REACH * took_s):
        return None
    speed = f"{show_rate(rate)}, as in the last {show_duration(took_s)}"
    return Trouble("full", f"full in {show_duration(left_s)} at {speed}: {last}")


def _rate(one: tuple[float, Space], later: tuple[float, Space]) -> float:
    """Bytes a second by which there was less; 0 where no time passed."""
    took_s = later[0] - one[0]
    return (one[1].free_bytes - later[1].free_bytes) / took_s if took_s > 0 else 0.0
