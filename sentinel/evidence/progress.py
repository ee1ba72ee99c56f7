"""Silent hangs from progress alone, at each job's own rhythm.

A job's silence means something only against its own habit: the gap between its step lines, the pauses that it makes for
evaluation and checkpoints (announced by a line, or learned by their period in steps or in time), and the phases before its
first steps, which are exempt. Pure: ``observe`` takes a step line, ``allowed_s`` says what silence after it is usual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import exp, log
from statistics import median
from typing import Protocol

from sentinel.model import NOWHERE, Evidence, Kind, Where

PAUSE = "pause"  # kind of evidence: a line that announces an evaluation or a save
GAPS = 96  # gaps between step lines that are remembered
PAUSES = 40
TIMES = 240
EXEMPT_GAPS = 4  # start-up and compilation: no silence is judged before so many gaps
FIRST_PAUSE_S = 300.0  # an unannounced pause at a round step that the job has not passed often yet
ANNOUNCED_S = 300.0  # an announced pause whose length is not known yet
TOLD_S = 120.0  # an announced pause of a job whose pauses are known: the same words may announce another kind of pause
TOLD = 3
ROUND = (10000, 5000, 2000, 1000, 500, 250, 200, 100, 50, 25)  # steps at which people evaluate and save
LEAST_PAUSE_S = 11.0  # a shorter gap cannot look like a hang, so it need not be learned
HICCUP_S = 11.0  # one delay of a network or a disk that is no hang
TAIL = 5.0  # standard deviations of the logarithm of a gap: once in millions of steps
PASSED = 2  # so many round steps passed without a pause: none is expected at the next

# Lines that count something else than training steps, in the words of the usual trainers.
_NO_STEP = re.compile(
    r"(?i)\bvalidation (?:loss at|dataloader|step|batch|epoch)|\bvalidate step\b|\bsanity checking\b"
    r"|\beval(?:uating|uation)? (?:iter|step|batch)|\bval (?:step|batch|epoch)\b|\b(?:testing|predicting) dataloader"
    r"|\bsav(?:ed|ing) (?:\w+ )?checkpoint"
)
_ANNOUNCED = re.compile(r"(?i)(sav(?:e|ing)|checkpoint|snapshot)|eval|valid|test")
UNNAMED = ""  # an announcement that does not say of what
_PER_EPOCH = frozenset({"step-epoch", "step-bar"})  # rules whose lines may count anew in each epoch


class Limits(Protocol):
    """When silence is a hang; ``sentinel.settings.Judgement`` has these."""

    @property
    def stall_floor_s(self) -> float: ...

    @property
    def stall_steps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    stall_floor_s: float = 12.0
    stall_steps: float = 3.0


@dataclass(frozen=True, slots=True)
class Pause:
    step: int  # last step before it
    at: datetime
    length_s: float


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What a job's step lines say of its habits. Starts empty; ``observe`` gives the next."""

    where: Where = NOWHERE
    lines: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    last_step: int = 0
    stride: int = 1  # steps between two lines
    gaps: tuple[float, ...] = ()  # seconds between step lines, pauses left out
    pauses: tuple[Pause, ...] = ()
    passed: tuple[tuple[int, int], ...] = ()  # round number -> multiples passed without a pause
    visited: tuple[tuple[int, int], ...] = ()  # round number -> multiples seen, with a pause or without
    announced_at: datetime | None = None
    announced: str = ""  # what was announced: a word of its line
    told: int = 0  # announced pauses seen
    told_of: tuple[tuple[str, int], ...] = ()  # the same by that word
    longest_told_s: float = 0.0
    times: tuple[float, ...] = ()  # seconds per step
    numbered: bool = False  # its step lines say which step
    last_line: tuple[int | None, str | None] = (None, None)  # line and file of the last one

    @property
    def gap_s(self) -> float | None:
        """The usual time between step lines; None while it is not known."""
        return median(self.gaps) if len(self.gaps) >= EXEMPT_GAPS else None


def observe(rhythm: Rhythm, evidence: Evidence) -> Rhythm:
    """The rhythm after this evidence. A step number that goes back (a restart) begins anew and keeps what was learned."""
    if evidence.kind == Kind.CHECKPOINT_SAVED:
        return _saved(rhythm, evidence.at)
    if evidence.kind == PAUSE or (evidence.kind == Kind.STEP and _NO_STEP.search(evidence.text[:400])):
        return replace(rhythm, announced_at=evidence.at, announced=_what(evidence.text))
    if evidence.kind != Kind.STEP:
        return rhythm
    raw = evidence.data.get("step")
    numbered = isinstance(raw, int) and not isinstance(raw, bool)
    if rhythm.numbered and not numbered:
        return rhythm  # the loss of a step that another line counts
    if evidence.line is not None and rhythm.lines and (evidence.line, evidence.where.path) == rhythm.last_line:
        return rhythm  # a bar that counts batches and steps in one line
    step = raw if isinstance(raw, int) and numbered else rhythm.last_step + 1
    rhythm = replace(rhythm, numbered=numbered, last_line=(evidence.line, evidence.where.path))
    epoch = evidence.rule in _PER_EPOCH and step < rhythm.last_step and rhythm.lines > 1
    if rhythm.last_at is None or (step < rhythm.last_step and not epoch):
        return replace(
            rhythm, where=evidence.where, lines=1, first_at=evidence.at, last_at=evidence.at, last_step=step,
            gaps=(), times=(), announced_at=None,
        )  # fmt: skip
    if step == rhythm.last_step:  # another rank says the same
        return rhythm
    gap_s = max((evidence.at - rhythm.last_at).total_seconds(), 0.0)
    steps = 1 if epoch else step - rhythm.last_step
    usual = rhythm.gap_s
    is_pause = usual is not None and gap_s > max(2.5 * usual, LEAST_PAUSE_S)
    announced = rhythm.announced_at is not None and rhythm.announced_at >= rhythm.last_at
    pauses, gaps, passed = rhythm.pauses, rhythm.gaps, rhythm.passed
    visited = _pass(rhythm.visited, rhythm.last_step) if usual is not None else rhythm.visited
    if is_pause:
        pauses = (*pauses, Pause(rhythm.last_step, rhythm.last_at, gap_s))[-PAUSES:]
    elif not announced and (rhythm.lines > 1 or gap_s < 60.0):
        gaps = (*gaps, gap_s)[-GAPS:]
        passed = _pass(passed, rhythm.last_step)
    return replace(
        rhythm,
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
        told=rhythm.told + (is_pause and announced),
        told_of=_one_more(rhythm.told_of, rhythm.announced) if is_pause and announced else rhythm.told_of,
        longest_told_s=max(rhythm.longest_told_s, gap_s) if is_pause and announced else rhythm.longest_told_s,
        times=rhythm.times if is_pause else (*rhythm.times, _seconds(evidence, gap_s, steps))[-TIMES:],
    )


def _saved(rhythm: Rhythm, at: datetime) -> Rhythm:
    """A save is over. What it took is a pause; from here on the next step is awaited."""
    if rhythm.last_at is None or rhythm.gap_s is None or at <= rhythm.last_at:
        return replace(rhythm, announced_at=None)
    took_s = (at - rhythm.last_at).total_seconds()
    if took_s <= max(2.5 * rhythm.gap_s, LEAST_PAUSE_S):
        return replace(rhythm, announced_at=None)  # an asynchronous one; or quick
    told = rhythm.announced_at is not None and rhythm.announced_at >= rhythm.last_at
    return replace(
        rhythm,
        last_at=at,
        pauses=(*rhythm.pauses, Pause(rhythm.last_step, rhythm.last_at, took_s))[-PAUSES:],
        announced_at=None,
        told=rhythm.told + told,
        told_of=_one_more(rhythm.told_of, rhythm.announced) if told else rhythm.told_of,
        longest_told_s=max(rhythm.longest_told_s, took_s) if told else rhythm.longest_told_s,
    )


def _what(text: str) -> str:
    """Whether a line announces an evaluation or a save: the one says nothing of how the other looks."""
    found = _ANNOUNCED.search(text[:400])
    return UNNAMED if found is None else "save" if found[1] else "evaluation"


def _one_more(counts: tuple[tuple[str, int], ...], what: str) -> tuple[tuple[str, int], ...]:
    known = dict(counts)
    known[what] = known.get(what, 0) + 1
    return tuple(sorted(known.items()))


def _seconds(evidence: Evidence, gap_s: float, steps: int) -> float:
    printed = evidence.data.get("step_time_s")
    if isinstance(printed, (int, float)) and not isinstance(printed, bool) and 0 < printed < 86400:
        return float(printed)
    return gap_s / max(steps, 1)


def _round_of(step: int) -> tuple[int, ...]:
    """Round numbers that the step, or (counted from 0, hence negative) the one after it, is a multiple of."""
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
    """Silence that this job's steps alone explain, pauses left out; None while it is exempt.

    Step times spread like a lognormal variable, each job with its own width: it is taken from the middle half of the gaps
    (a few long ones say nothing) and from the longest twentieth (which say everything where the spread is not even).
    """
    usual = rhythm.gap_s
    if usual is None or rhythm.last_at is None:
        return None
    gaps = sorted(rhythm.gaps)
    long = gaps[-max(1, len(gaps) // 20)]
    hiccup = min(usual + HICCUP_S, max(15.0, limits.stall_floor_s))
    tail = usual * exp(min(TAIL * _width(gaps), 3.0)) if len(gaps) >= 16 else 0.0
    return max(limits.stall_floor_s, limits.stall_steps * usual, 1.3 * long, hiccup, tail)


def _width(gaps: list[float]) -> float:
    """Standard deviation of the logarithm of sorted gaps, from their quartiles or from their ninth tenth."""
    low, middle = gaps[len(gaps) // 4], gaps[len(gaps) // 2]
    high, late = gaps[3 * len(gaps) // 4], gaps[9 * len(gaps) // 10]
    return max(log(high / low) / 1.349, log(late / middle) / 1.282) if low > 0.0 else 0.0


def allowed_s(rhythm: Rhythm, limits: Limits) -> float | None:
    """Silence that is still usual after the last step line, with the pause that may be due; None while the job is exempt."""
    allowed = usual_s(rhythm, limits)
    if allowed is None or rhythm.last_at is None:
        return None
    due = _due(rhythm)
    new = _new_round(rhythm, rhythm.visited, 1)
    if rhythm.announced_at is not None and announced(rhythm):
        since = (rhythm.announced_at - rhythm.last_at).total_seconds()
        if rhythm.told < TOLD or new:
            return since + max(allowed, ANNOUNCED_S, 1.6 * rhythm.longest_told_s + 10.0)
        return since + max(allowed, TOLD_S, 1.6 * max(rhythm.longest_told_s, due or 0.0) + 10.0)
    if due is not None:
        return max(allowed, 1.6 * due + 10.0 + (FIRST_PAUSE_S if new else 0.0))
    if _irregular(rhythm):
        allowed = max(allowed, 1.5 * max(pause.length_s for pause in rhythm.pauses[-3:]))
    if _may_be_first(rhythm):
        allowed = max(allowed, FIRST_PAUSE_S)
    return allowed


def pause_due(rhythm: Rhythm) -> bool:
    """Whether a pause was announced after the last step, is due by its period, or may be the first of its kind there."""
    return announced(rhythm) or _due(rhythm) is not None or _may_be_first(rhythm)


def _may_be_first(rhythm: Rhythm) -> bool:
    """Whether the last step is a round number at which, for all that was seen, a pause may be made."""
    return _new_round(rhythm, rhythm.passed, PASSED)


def _new_round(rhythm: Rhythm, seen: tuple[tuple[int, int], ...], times: int) -> bool:
    """Whether the last step is a multiple of a round number that was seen fewer than so many times."""
    counts = dict(seen)
    return any(counts.get(number, 0) < times for number in _round_of(rhythm.last_step))


def announced(rhythm: Rhythm) -> bool:
    """Whether a line after the last step announced a pause."""
    return rhythm.announced_at is not None and rhythm.last_at is not None and rhythm.announced_at >= rhythm.last_at


def pauses_alike(rhythm: Rhythm) -> int:
    """Pauses seen of the kind that is due or announced after the last step; 0 where it may be the first of its kind.

    A round number that was never passed (the first save at step 1,000 after many evaluations at hundreds) is a first.
    """
    if _new_round(rhythm, rhythm.visited, 1):
        return 0
    fitting = len({pause.at for pause in pauses_fitting(rhythm)})
    if announced(rhythm):
        told = dict(rhythm.told_of).get(rhythm.announced, 0)
        return min(told, fitting) if rhythm.announced == UNNAMED else told
    return fitting


def _due(rhythm: Rhythm) -> float | None:
    """Length of the pause that this job makes after this step, by its period in steps or in time; None if none is due."""
    fits = [pause.length_s for pause in pauses_fitting(rhythm)]
    if fits:
        return max(fits)
    return None if len(_shared(rhythm)) > 0 else _due_in_time(rhythm)


def pauses_fitting(rhythm: Rhythm) -> list[Pause]:
    """Earlier pauses that a period in steps joins with the last step."""
    step = rhythm.last_step
    fits: list[Pause] = []
    for period in _periods(rhythm):
        slack = rhythm.stride - 1 if period > 8 * rhythm.stride else 0
        fits.extend(pause for pause in rhythm.pauses if _apart(step - pause.step, period) <= slack)
    return fits


def _apart(steps: int, period: int) -> int:
    rest = steps % period
    return min(rest, period - rest)


def _shared(rhythm: Rhythm) -> set[int]:
    """Distances in steps that at least three pairs of pauses share."""
    counts: dict[int, int] = {}
    for i, late in enumerate(rhythm.pauses):
        for early in rhythm.pauses[:i]:
            counts[late.step - early.step] = counts.get(late.step - early.step, 0) + 1
    return {period for period, count in counts.items() if count >= 3 and period >= 5 * rhythm.stride}


def _periods(rhythm: Rhythm) -> set[int]:
    """Shared distances, and round steps at which a pause was made."""
    periods = _shared(rhythm)
    for pause in rhythm.pauses:
        periods.update(own for own in (pause.step, pause.step + 1) if own >= 25 and own % 25 == 0)
    return periods


def _due_in_time(rhythm: Rhythm) -> float | None:
    """The same for pauses that come by the clock: two spans alike, and about as much time gone by."""
    now, usual = rhythm.last_at, rhythm.gap_s or 0.0
    if now is None:
        return None
    pauses = rhythm.pauses[-8:]
    spans = [(b.at - a.at).total_seconds() for a, b in pairwise(pauses)]
    since = (now - pauses[-1].at).total_seconds() if pauses else 0.0
    slack = 3.0 * usual + 5.0
    for span in spans:
        alike = sum(abs(span - other) <= max(0.05 * span, slack) for other in spans)
        if alike >= 2 and span > 20 * usual and abs(since - span) <= max(0.05 * span, slack):
            return max(pause.length_s for pause in pauses)
    return None


def _irregular(rhythm: Rhythm) -> bool:
    """Long gaps are usual for this job (sampling, variable work): at least three in the remembered ones."""
    if len(rhythm.pauses) < 3 or rhythm.last_at is None:
        return False
    span = (rhythm.last_at - rhythm.pauses[-3].at).total_seconds()
    return span < 60.0 * (rhythm.gap_s or 0.0)
