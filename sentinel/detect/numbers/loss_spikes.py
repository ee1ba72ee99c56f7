"""Detects loss spikes and the step at which they began. Pure: takes one printed loss after the other.

The baseline is the median of the job's own last losses and their spread (median absolute deviation), so that a falling
loss, noise and a restarted learning-rate schedule raise no alarm. A spike must be far above the baseline for some
printed steps, or more than ten times the largest loss in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

REMEMBERED = 64
LEAST = 32  # losses before there is a baseline: warm-up is no spike
SPREADS = 10.0  # a high loss is this many spreads above the median
SHARE = 0.5  # and at least this share of the median above it: a very even loss has hardly any spread
STEADY = 3  # high losses in a row that are a spike
AT_ONCE = 10.0  # a single loss this many times the largest of the baseline is a spike


@dataclass(frozen=True, slots=True)
class Losses:
    """The state kept for one attempt's losses."""

    usual: tuple[float, ...] = ()  # the baseline: the last losses that were not high
    high_since: int | None = None  # first step of the present run of high losses
    high: int = 0  # length of that run
    told: bool = False  # whether the spike was reported
    new: tuple[float, ...] = ()  # losses of that run, which may become the baseline
    onset: int | None = None  # first step whose loss was not finite

    @property
    def began(self) -> int | None:
        """The step at which numbers went bad, judged by the losses: the beginning of the spike that led to it, if any."""
        told = self.high_since if self.told or self.onset is not None else None
        steps = [step for step in (told, self.onset) if step is not None]
        return min(steps) if steps else None


NO_LOSSES = Losses()


@dataclass(frozen=True, slots=True)
class Spike:
    onset_step: int
    step: int
    loss: float
    usual: float


def observe(losses: Losses, step: int, loss: float) -> tuple[Losses, Spike | None]:
    """The state after one printed loss, and the spike if this loss completes one; each is returned once."""
    if not isfinite(loss):
        return (losses if losses.onset is not None else replace(losses, onset=step)), None
    if losses.onset is not None:
        losses = replace(losses, onset=None)  # numbers are good again: a step was skipped or retried
    if len(losses.usual) < LEAST or not _is_high(loss, losses.usual):
        return Losses(usual=(*losses.usual, loss)[-REMEMBERED:]), None
    since = losses.high_since if losses.high_since is not None else step
    losses = replace(losses, high_since=since, high=losses.high + 1, new=(*losses.new, loss)[-REMEMBERED:])
    if losses.told and losses.high >= REMEMBERED:
        return Losses(usual=losses.new), None  # it stays high: the new baseline
    if losses.told or (losses.high < STEADY and loss <= AT_ONCE * max(losses.usual)):
        return losses, None
    return replace(losses, told=True), Spike(since, step, loss, median(losses.usual))


def _is_high(loss: float, usual: tuple[float, ...]) -> bool:
    middle = median(usual)
    if loss <= middle + SHARE * abs(middle):
        return False  # nearly every loss: their spread need not be known
    spread = 1.4826 * median([abs(value - middle) for value in usual])
    return loss > middle + SPREADS * spread
