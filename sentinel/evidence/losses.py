"""Losses that leave their own habit: a spike, with the step at which it began. Pure: one printed loss after the other.

Robust against what training does by itself: the habit is the median of the job's own last losses and their spread (median
absolute deviation), so that a falling loss, noise and a learning rate that begins anew alarm nobody; a loss must stand far
above, and stay there for some printed steps, or be larger than ten times all remembered ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

REMEMBERED = 64
LEAST = 32  # losses before a habit is known: warm-up is no spike
SPREADS = 10.0  # times the spread above the median
SHARE = 0.5  # and at least this share of the median: a very even loss has hardly any spread
STEADY = 3  # printed losses in a row
AT_ONCE = 10.0  # times the largest remembered one: one is enough


@dataclass(frozen=True, slots=True)
class Losses:
    """What is remembered of one attempt's losses."""

    usual: tuple[float, ...] = ()  # the last ones within the habit
    high_since: int | None = None  # first step of the losses that stand out now
    high: int = 0  # so many in a row
    told: bool = False
    new: tuple[float, ...] = ()  # the ones that stand out, which may become the habit
    onset: int | None = None  # first step whose loss was no number

    @property
    def began(self) -> int | None:
        """The step at which numbers went bad, as far as losses tell: of the spike that ended in bad numbers, if one did."""
        told = self.high_since if self.told or self.onset is not None else None
        steps = [step for step in (told, self.onset) if step is not None]
        return min(steps) if steps else None


@dataclass(frozen=True, slots=True)
class Spike:
    onset_step: int
    step: int
    loss: float
    usual: float


def observe(losses: Losses, step: int, loss: float) -> tuple[Losses, Spike | None]:
    """After one printed loss; a spike is told once."""
    if not isfinite(loss):
        return (losses if losses.onset is not None else replace(losses, onset=step)), None
    if losses.onset is not None:
        losses = replace(losses, onset=None)  # numbers are good again: a step was skipped or retried
    if len(losses.usual) < LEAST or loss <= _most(losses.usual):
        usual = (*losses.usual, loss)[-REMEMBERED:]
        return replace(losses, usual=usual, high_since=None, high=0, told=False, new=()), None
    since = losses.high_since if losses.high_since is not None else step
    losses = replace(losses, high_since=since, high=losses.high + 1, new=(*losses.new, loss)[-REMEMBERED:])
    if losses.told and losses.high >= REMEMBERED:
        return Losses(usual=losses.new), None  # it stays there: a new habit
    if losses.told or (losses.high < STEADY and loss <= AT_ONCE * max(losses.usual)):
        return losses, None
    return replace(losses, told=True), Spike(since, step, loss, median(losses.usual))


def _most(usual: tuple[float, ...]) -> float:
    middle = median(usual)
    spread = 1.4826 * median(abs(value - middle) for value in usual)
    return middle + max(SPREADS * spread, SHARE * abs(middle))
