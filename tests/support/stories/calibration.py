"""When times of the lab and times of the simulator are taken for the same.

The lab gives a few times of each phase, the simulator hundreds. Between the least and the greatest of n times lies the
median of what they were drawn from, but for a chance of 2^(1 - n) (12 % of four, 6 % of five). This interval must meet what
lies between the simulator's 5th and 95th percentile. A machine that others use as well makes everything longer: the
interval may be divided by up to its slowdown, measured beside (``Slowdown``): on an idle machine nothing is forgiven.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST = 3.0  # chosen, not measured: whoever forgives more compares nothing
LOW, HIGH = 0.05, 0.95
FEWEST = 4  # times of the lab that say anything; the lab has room for so many drains
_SPIN_S = 0.02  # of CPU


@dataclass
class Slowdown:
    """How much longer than on an idle machine something takes that needs the CPU: wall-clock time over CPU time."""

    seen: list[float] = field(default_factory=list)

    def look(self) -> None:
        began, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < _SPIN_S:
            pass
        self.seen.append((time.monotonic() - began) / _SPIN_S)

    @property
    def factor(self) -> float:
        """The mean: a phase is many turns on the CPU. No more than ``MOST``: a phase waits for more than the CPU."""
        return min(MOST, max(1.0, sum(self.seen) / len(self.seen))) if self.seen else 1.0


def apart(lab: Sequence[float], simulated: Sequence[float], slowdown: float) -> str:
    """Why the two are not the same, as one sentence; empty where nothing says so.

    Raises:
        ValueError: there are too few times to say anything.
    """
    if len(lab) < FEWEST or len(simulated) < 20:
        raise ValueError(f"{len(lab)} times of the lab and {len(simulated)} simulated ones are too few")
    least, most = min(lab), max(lab)
    low, high = (quantile(simulated, share) for share in (LOW, HIGH))
    if most < low:
        return f"simulated longer: {least:.2f} to {most:.2f} s in the lab, {low:.2f} to {high:.2f} s simulated"
    if least / slowdown > high:
        return (
            f"simulated shorter: {least:.2f} to {most:.2f} s in the lab, {slowdown:.1f} times slower than idle, "
            f"{low:.2f} to {high:.2f} s simulated"
        )
    return ""


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
