"""Learns each job's rhythm of step lines and tells how long a silence is usual for it.

The rhythm consists of the gaps between step lines and of pauses for evaluation and checkpoints, which are announced by a log
line or learned by their period in steps or in time. The phases before the first steps are exempt. Pure: ``observe`` takes a
step line, ``allowed_s`` gives the silence that is still usual after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from math import exp, log
from typing import Protocol

from sentinel.model.records import NOWHERE, Evidence, Kind, Where

PAUSE = "pause"  # kind of evidence: a line that announces an evaluation or a save
GAPS = 96  # gaps between step lines kept
PAUSES = 40  # pauses kept
TIMES = 240  # step times kept
EXEMPT_GAPS = 4  # start-up and compilation: no silence is judged before so many gaps
FIRST_PAUSE_S = 300.0  # an unannounced pause at a round step that the job has not passed often yet
ANNOUNCED_S = 300.0  # an announced pause whose length is not known yet
TOLD_S = 120.0  # an announced pause of a job whose pauses are known: the same text may announce another kind of pause
TOLD = 3  # announced pauses from which the job's pauses are known
SHORT_TOLD = 4  # so many announced short gaps tell as much as one pause: the same words may yet announce a long one
OFTEN_TOLD = 8  # pauses of a kind from which on the next is expected to be like them, also at a round step that is new
TOLD_EARLY_S = 5.0  # a line that comes later, and later than a usual gap, announced nothing: it was held in a buffer
ROUND = (10000, 5000, 2000, 1000, 500, 250, 200, 100, 50, 25, 20, 10)  # steps at which people evaluate and save
LEAST_PAUSE_S = 11.0  # a shorter gap cannot look like a hang, so it need not be learned
HICCUP_S = 11.0  # a single delay of a network or a disk, which is no hang
TAIL = 5.0  # standard deviations of the logarithm of a gap: exceeded once in millions of steps
PASSED = 2  # after so many round steps passed without a pause, none is expected at the next

# Lines of common trainers that count something other than training steps.
_NO_STEP = re.compile(
    r"(?i)\bvalidation (?:loss at|dataloader|step|batch|epoch)|\bvalidate step\b|\bsanity checking\b"
    r"|\beval(?:uating|uation)? (?:iter|step|batch)|\bval (?:step|batch|epoch)\b|\b(?:testing|predicting) dataloader"
    r"|\bsav(?:ed|ing) (?:\w+ )?checkpoint"
)
_ANNOUNCED = re.compile(r"(?i)(sav(?:e|ing)|checkpoint|snapshot)|eval|valid|test")
UNNAMED = ""  # an announcement without the kind of the pause
_PER_EPOCH = frozenset({"step-epoch", "step-bar"})  # rules whose lines may count anew in each epoch


class Limits(Protocol):
    """Limits of usual silence; implemented by ``sentinel.config.settings.Judgement``."""

    @property
    def stall_floor_s(self) -> float: ...

    @property
    def stall_steps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Pause:
    step: int  # last step before it
    at: datetime
    length_s: float
    told: bool = False  # announced before anybody could take it for a hang


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The rhythm learned from a job's step lines. Starts empty; ``observe`` returns the updated one."""

    where: Where = NOWHERE
    lines: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    last_step: int = 0
    stride: int = 1  # steps between two lines
    gaps: tuple[float, ...] = ()  # seconds between step lines, pauses left out
    pauses: tuple[Pause, ...] = ()
    short: tuple[Pause, ...] = ()  # announced ones that took no longer than a long step may, and are no ``pauses``
    passed: tuple[tuple[int, int], ...] = ()  # round number -> multiples passed without a pause that was not announced
    visited: tuple[tuple[int, int], ...] = ()  # round number -> multiples seen, with a pause or without
    announced_at: datetime | None = None
    announced: str = ""  # kind of the announced pause: "save", "evaluation"; ``UNNAMED``: none, or of no known kind
    told_early: bool = False  # whether that line came soon after the last step
    told: int = 0  # number of announced pauses, also of those that took no longer than a step may
    told_of: tuple[tuple[str, int], ...] = ()  # the same by kind, a pause as ``SHORT_TOLD``
    longest_told_s: float = 0.0
    times: tuple[float, ...] = ()  # seconds per step
    numbered: bool = False  # whether its step lines contain the step number
    last_line: tuple[int | None, str | None] = (None, None)  # line and file of the last one

    @property
    def gap_s(self) -> float | None:
        """The usual time between step lines; None while it is not known."""
        gaps = _sorted(self.gaps)
        return (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2.0 if len(gaps) >= EXEMPT_GAPS else None


def observe(rhythm: Rhythm, evidence: Evidence) -> Rhythm:
    """The rhythm after this evidence. A lower step number (a restart) starts a new series and keeps the learned pauses."""
    if evidence.kind == Kind.CHECKPOINT_SAVED:
        return _saved(rhythm, evidence.at)
    if evidence.kind == PAUSE or (evidence.kind == Kind.STEP and _NO_STEP.search(evidence.text[:400])):
        return replace(
            rhythm, announced_at=evidence.at, announced=_what(evidence.text), told_early=_early(rhythm, evidence.at)
        )
    if evidence.kind != Kind.STEP:
        return rhythm
    raw = evidence.data.get("step")
    numbered = isinstance(raw, int) and not isinstance(raw, bool)
    if rhythm.numbered and not numbered:
        return rhythm  # the loss of a step whose number is in another line
    if evidence.line is not None and rhythm.lines and (evidence.line, evidence.where.path) == rhythm.last_line:
        return rhythm  # a progress bar with batches and steps in one line
    step = raw if isinstance(raw, int) and numbered else rhythm.last_step + 1
    last_line = (evidence.line, evidence.where.path)
    epoch = evidence.rule in _PER_EPOCH and step < rhythm.last_step and rhythm.lines > 1
    if rhythm.last_at is None or (step < rhythm.last_step and not epoch):
        return replace(
            rhythm, where=evidence.where, lines=1, first_at=evidence.at, last_at=evidence.at, last_step=step,
            gaps=(), times=(), announced_at=None, numbered=numbered, last_line=last_line,
        )  # fmt: skip
    if step == rhythm.last_step:  # another rank says the same
        return replace(rhythm, numbered=numbered, last_line=last_line)
    gap_s = max((evidence.at - rhythm.last_at).total_seconds(), 0.0)
    steps = 1 if epoch else step - rhythm.last_step
    usual = rhythm.gap_s
    is_pause = usual is not None and gap_s > max(2.5 * usual, LEAST_PAUSE_S)
    told = announced(rhythm) and rhythm.told_early
    pauses, gaps, passed = rhythm.pauses, rhythm.gaps, rhythm.passed
    visited = _pass(rhythm.visited, rhythm.last_step) if usual is not None else rhythm.visited
    if is_pause:
        pauses = (*pauses, Pause(rhythm.last_step, rhythm.last_at, gap_s, told))[-PAUSES:]
    elif not announced(rhythm) and (rhythm.lines > 1 or gap_s < 60.0):
        gaps = (*gaps, gap_s)[-GAPS:]
    if told or (not is_pause and gaps is not rhythm.gaps):
        passed = _pass(passed, rhythm.last_step)
    return replace(
        _learned(rhythm, gap_s, is_pause=is_pause) if told and usual is not None else rhythm,
        where=evidence.where,
        lines=rhythm.lines + 1,
        last_at=evidence.at,
        last_step=step,
        stride=steps,
        gaps=gaps,
        pauses=pauses,
        passed=passed,
        visited=visited,
        announced_at=None,
        times=rhythm.times if is_pause else (*rhythm.times, _seconds(evidence, gap_s, steps))[-TIMES:],
        numbered=numbered,
        last_line=last_line,
    )


def _saved(rhythm: Rhythm, at: datetime) -> Rhythm:
    """The rhythm after a save ended: its duration is a pause, and the silence is counted from its end."""
    if rhythm.last_at is None or rhythm.gap_s is None or at <= rhythm.last_at:
        return replace(rhythm, announced_at=None)
    took_s = (at - rhythm.last_at).total_seconds()
    told = announced(rhythm) and rhythm.told_early
    is_pause = took_s > max(2.5 * rhythm.gap_s, LEAST_PAUSE_S)
    rhythm = replace(_learned(rhythm, took_s, is_pause=is_pause) if told else rhythm, announced_at=None)
    if not is_pause or rhythm.last_at is None:
        return rhythm  # asynchronous or quick
    pauses = (*rhythm.pauses, Pause(rhythm.last_step, rhythm.last_at, took_s, told))[-PAUSES:]
    return replace(rhythm, last_at=at, pauses=pauses)


def _early(rhythm: Rhythm, at: datetime) -> bool:
    """Whether a line that announces a pause comes before anybody could take the pause for a hang."""
    if rhythm.last_at is None or (announced(rhythm) and rhythm.told_early):
        return rhythm.last_at is not None
    return (at - rhythm.last_at).total_seconds() <= max(TOLD_EARLY_S, rhythm.gap_s or 0.0)


def _learned(rhythm: Rhythm, length_s: float, *, is_pause: bool) -> Rhythm:
    """The rhythm after an announced pause, or an announced gap that was none."""
    counts, short = dict(rhythm.told_of), rhythm.short
    counts[rhythm.announced] = counts.get(rhythm.announced, 0) + (SHORT_TOLD if is_pause else 1)
    if not is_pause and length_s > LEAST_PAUSE_S and rhythm.last_at is not None:
        short = (*short, Pause(rhythm.last_step, rhythm.last_at, length_s, told=True))[-PAUSES:]
    return replace(
        rhythm,
        short=short,
        told=rhythm.told + 1,
        told_of=tuple(sorted(counts.items())),
        longest_told_s=max(rhythm.longest_told_s, length_s),
    )


def _what(text: str) -> str:
    """Kind of pause that a line announces; evaluations and saves are learned separately."""
    found = _ANNOUNCED.search(text[:400])
    return UNNAMED if found is None else "save" if found[1] else "evaluation"


def _seconds(evidence: Evidence, gap_s: float, steps: int) -> float:
    printed = evidence.data.get("step_time_s")
    if isinstance(printed, (int, float)) and not isinstance(printed, bool) and 0 < printed < 86400:
        return float(printed)
    return gap_s / max(steps, 1)


def _round_of(step: int) -> tuple[int, ...]:
    """Round numbers of which the step is a multiple; negative ones for the step after it (steps counted from 0)."""
    exact = [number for number in ROUND if step and step % number == 0]
    return (*exact, *(-number for number in ROUND if (step + 1) % number == 0))


def _pass(passed: tuple[tuple[int, int], ...], step: int) -> tuple[tuple[int, int], ...]:
    numbers = _round_of(step)
    if not numbers:
        return passed
    counts = dict(passed)
    for number in numbers:
        counts[number] = counts.get(number, 0) + 1
    return tuple(sorted(counts.items()))


def usual_s(rhythm: Rhythm, limits: Limits) -> float | None:
    """Silence in seconds that this job's step times explain, without pauses; None while it is exempt.

    Step times are roughly lognormal, with a width of each job's own. The width is taken from the middle half of the gaps,
    which a few long ones do not disturb; the longest twentieth counts as well, for spreads that are not lognormal.
    """
    usual = rhythm.gap_s
    if usual is None or rhythm.last_at is None:
        return None
    return max(limits.stall_steps * usual, _spread_s(rhythm, usual, limits))


def spread_s(rhythm: Rhythm, limits: Limits) -> float | None:
    """The same by the spread of its step times alone, without a number of steps that every job is given."""
    return None if rhythm.gap_s is None else _spread_s(rhythm, rhythm.gap_s, limits)


@lru_cache(maxsize=64)
def _sorted(gaps: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(gaps))


def _spread_s(rhythm: Rhythm, usual: float, limits: Limits) -> float:
    gaps = _sorted(rhythm.gaps)
    long = gaps[-max(1, len(gaps) // 20)]
    hiccup = min(usual + HICCUP_S, max(15.0, limits.stall_floor_s))
    tail = usual * exp(min(TAIL * _width(gaps), 3.0)) if len(gaps) >= 16 else 0.0
    return max(limits.stall_floor_s, 1.3 * long, hiccup, tail)


def _width(gaps: Sequence[float]) -> float:
    """Standard deviation of the logarithm of sorted gaps: the larger of the estimates from quartiles and from the 90th
    percentile."""
    low, middle = gaps[len(gaps) // 4], gaps[len(gaps) // 2]
    high, late = gaps[3 * len(gaps) // 4], gaps[9 * len(gaps) // 10]
    return max(log(high / low) / 1.349, log(late / middle) / 1.282) if low > 0.0 else 0.0


def allowed_s(rhythm: Rhythm, limits: Limits) -> float | None:
    """Silence in seconds that is usual after the last step line, including a pause that may be due; None while exempt."""
    allowed = usual_s(rhythm, limits)
    if allowed is None or rhythm.last_at is None:
        return None
    due, step_s = _due(rhythm), rhythm.gap_s or 0.0  # a step follows a pause before the next line
    new = _new_round(rhythm, rhythm.visited, 1)
    if rhythm.announced_at is not None and announced(rhythm):
        since = (rhythm.announced_at - rhythm.last_at).total_seconds()
        if rhythm.told < TOLD or new:
            return since + max(allowed, ANNOUNCED_S + step_s, 1.6 * rhythm.longest_told_s + 10.0)
        return since + max(allowed, TOLD_S + step_s, 1.6 * max(rhythm.longest_told_s, due or 0.0) + 10.0)
    if due is not None:
        return max(allowed, 1.6 * due + 10.0 + (FIRST_PAUSE_S if new else 0.0))
    if _irregular(rhythm):
        allowed = max(allowed, 1.5 * max(pause.length_s for pause in _unsaid(rhythm)[-3:]))
    if _may_be_first(rhythm):
        allowed = max(allowed, FIRST_PAUSE_S + step_s)
    return allowed


def pause_due(rhythm: Rhythm) -> bool:
    """Whether a pause was announced after the last step, is due by its period, or may be the first of its kind there."""
    return announced(rhythm) or _due(rhythm) is not None or _may_be_first(rhythm)


def at_round_step(rhythm: Rhythm) -> bool:
    """Whether pauses are made at steps like the last one: a multiple of a round number, or the step before one. A number of
    which most lines are multiples, since not every step is printed, says nothing."""
    return any(abs(number) >= 5 * rhythm.stride for number in _round_of(rhythm.last_step))


def _may_be_first(rhythm: Rhythm) -> bool:
    """Whether the last step is a round number at which too few steps were seen to exclude a pause."""
    return _new_round(rhythm, rhythm.passed, PASSED)


def _new_round(rhythm: Rhythm, seen: tuple[tuple[int, int], ...], times: int) -> bool:
    """Whether the last step is a multiple of a round number that was seen fewer than ``times`` times."""
    counts = dict(seen)
    return any(counts.get(number, 0) < times for number in _round_of(rhythm.last_step))


def announced(rhythm: Rhythm) -> bool:
    """Whether a line after the last step announced a pause."""
    return rhythm.announced_at is not None and rhythm.last_at is not None and rhythm.announced_at >= rhythm.last_at


def announces(rhythm: Rhythm) -> bool:
    """Whether the job says so before each of its pauses, so that a silence of which it said nothing is none."""
    return rhythm.told >= TOLD and all(pause.told for pause in rhythm.pauses)


def _unsaid(rhythm: Rhythm) -> Sequence[Pause]:
    """The pauses of which one may be due now: those that were announced are not, where nothing was said."""
    if announced(rhythm) or rhythm.told < TOLD:
        return rhythm.pauses
    return [pause for pause in rhythm.pauses if not pause.told]


def pauses_alike(rhythm: Rhythm) -> int:
    """Number of known pauses of the kind that is due or announced after the last step; 0 if it may be the first.

    At a round number that was never passed before (step 1,000 after many evaluations at hundreds) it may be the first,
    unless its kind was announced often.
    """
    told = dict(rhythm.told_of).get(rhythm.announced, 0) // SHORT_TOLD if announced(rhythm) else 0
    named = announced(rhythm) and rhythm.announced != UNNAMED
    if _new_round(rhythm, rhythm.visited, 1):
        return told if named and told >= OFTEN_TOLD else 0
    if named:
        return told
    fitting = len({pause.at for pause in pauses_fitting(rhythm)})
    return min(told, fitting) if announced(rhythm) else fitting


def _due(rhythm: Rhythm) -> float | None:
    """Length in seconds of the pause that is due now by its period in steps or in time; None if none is due."""
    fits = [pause.length_s for pause in pauses_fitting(rhythm)]
    if fits:
        return max(fits)
    return None if _shared(rhythm.pauses, rhythm.stride) else _due_in_time(rhythm)


def pauses_fitting(rhythm: Rhythm) -> Sequence[Pause]:
    """Earlier pauses that are a multiple of a known period away from the last step."""
    return _fitting(rhythm.pauses, tuple(_unsaid(rhythm)), rhythm.stride, rhythm.last_step)


@lru_cache(maxsize=64)  # asked many times in one silence
def _fitting(pauses: tuple[Pause, ...], unsaid: tuple[Pause, ...], stride: int, step: int) -> tuple[Pause, ...]:
    fits: list[Pause] = []
    apart = [(step - pause.step, pause) for pause in unsaid]
    for period in _periods(pauses, stride):
        slack = stride - 1 if period > 8 * stride else 0
        fits.extend(pause for steps, pause in apart if (rest := steps % period) <= slack or period - rest <= slack)
    return tuple(fits)


@lru_cache(maxsize=64)  # asked many times in one silence
def _shared(pauses: tuple[Pause, ...], stride: int) -> frozenset[int]:
    """Distances in steps between pauses that occur in at least three pairs."""
    counts: dict[int, int] = {}
    for i, late in enumerate(pauses):
        for early in pauses[:i]:
            counts[late.step - early.step] = counts.get(late.step - early.step, 0) + 1
    return frozenset(period for period, count in counts.items() if count >= 3 and period >= 5 * stride)


def _periods(pauses: tuple[Pause, ...], stride: int) -> set[int]:
    """Candidate periods in steps: shared distances, and round steps at which a pause was made."""
    periods = set(_shared(pauses, stride))
    for pause in pauses:
        periods.update(own for own in (pause.step, pause.step + 1) if own >= 25 and own % 25 == 0)
    return periods


def _due_in_time(rhythm: Rhythm) -> float | None:
    """Length in seconds of a pause that is due by time: two similar intervals between pauses, and as long since the last."""
    now, usual = rhythm.last_at, rhythm.gap_s or 0.0
    if now is None:
        return None
    pauses = _unsaid(rhythm)[-8:]
    spans = [(b.at - a.at).total_seconds() for a, b in pairwise(pauses)]
    since = (now - pauses[-1].at).total_seconds() if pauses else 0.0
    slack = 3.0 * usual + 5.0
    for span in spans:
        alike = sum(abs(span - other) <= max(0.05 * span, slack) for other in spans)
        if alike >= 2 and span > 20 * usual and abs(since - span) <= max(0.05 * span, slack):
            return max(pause.length_s for pause in pauses)
    return None


def _irregular(rhythm: Rhythm) -> bool:
    """Whether long gaps are usual for this job (sampling, variable work): the last three pauses of which nothing was said
    are close together."""
    pauses = _unsaid(rhythm)
    if len(pauses) < 3 or rhythm.last_at is None:
        return False
    span = (rhythm.last_at - pauses[-3].at).total_seconds()
    return span < 60.0 * (rhythm.gap_s or 0.0)
