"""Remembers which Xids of one GPU were reported: they are read again after each restart of the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEEP_S = 300.0  # DCGM hands out what is not older; without a cursor, older ones are history that was dealt with before
CLOCK_BACK_S = 60.0  # a cursor this far ahead of now belongs to a clock that was wrong
MOST = 200  # remembered of one GPU


class XidCursor:
    """Tells new Xids from those told before, by number and time.

    Args:
        state: what an earlier cursor's ``state`` was; also the form of 0.1.0, ``[newest, [Xids at that time]]``.
    """

    def __init__(self, state: object = None) -> None:
        self._newest: int | None = None
        self._floor = 0  # older ones were told, or are history
        self._told: dict[tuple[int, int], None] = {}  # in the order in which they were told
        if isinstance(state, Mapping):
            self._newest, self._floor = int(state["newest"]), int(state["floor"])
            self._told = {(int(at_us), int(xid)): None for at_us, xid in state["told"]}
        elif isinstance(state, (list, tuple)):
            self._newest = self._floor = int(state[0])
            self._told = {(int(state[0]), int(xid)): None for xid in state[1]}

    @property
    def state(self) -> dict[str, Any]:
        return {"newest": self._newest or 0, "floor": self._floor, "told": [list(item) for item in self._told]}

    def is_new(self, xid: int, at_us: int, now_s: float) -> bool:
        """Whether this one was not told yet; it counts as told from now on."""
        if (at_us, xid) in self._told:
            return False
        if self._newest is None or self._newest / 1e6 > now_s + CLOCK_BACK_S:
            self._floor = int((now_s - KEEP_S) * 1e6)  # the first, or the clock was set back: what comes now is new
            self._newest = at_us
        if at_us < self._floor:
            return False
        self._newest = max(self._newest, at_us)
        self._floor = max(self._floor, self._newest - int(KEEP_S * 1e6))
        self._told[(at_us, xid)] = None
        while len(self._told) > MOST:
            oldest = next(iter(self._told))
            del self._told[oldest]
            if oldest[0] < self._newest:  # else it is of a clock that was ahead
                self._floor = max(self._floor, oldest[0] + 1)
        return True


class LastXids:
    """Tells Xids by the last one of each GPU, which has no time and stays for ever, as ``dcgmi`` gives it.

    Args:
        state: what ``state`` was before a restart, so that what came meanwhile is seen.
    """

    def __init__(self, state: object = None) -> None:
        self.state: dict[str, int] = dict(state) if isinstance(state, Mapping) else {}  # 0: it had none

    def told(self, gpu: str, xid: int) -> None:
        """Note one that was told in another way."""
        self.state[gpu] = xid

    def changed(self, shown: Mapping[str, int]) -> dict[str, int]:
        """The new ones. Of a GPU that was not looked at before, the last one may be of any time: it is history."""
        before = {gpu: self.state.get(gpu, xid) for gpu, xid in shown.items()}
        self.state.update(shown)
        return {gpu: xid for gpu, xid in shown.items() if xid != before[gpu]}
