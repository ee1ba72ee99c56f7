"""Detects losses and gradients that stay NaN or infinite, and the step at which that began. Pure.

Trainers routinely skip single steps with bad numbers, above all while a loss scaler searches its scale. Numbers that
stay bad ruin a run that keeps computing. The criterion is a number of printed steps in a row with bad numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite

from sentinel.evidence.logs.step_numbers import bad, values
from sentinel.model.records import Scalar

SCALING = 40  # bad prints in a row while a loss scaler skips steps: a scale of 2**32 is halved 32 times
LEAST = 2  # bad prints, even if they are far apart in time
QUIET = 10  # steps without a message about bad numbers that clear an attempt which prints no numbers


@dataclass(frozen=True, slots=True)
class Run:
    """A run of consecutive printed steps with bad numbers; empty while they are good."""

    prints: int = 0
    onset: int | None = None  # the first of them
    last: int | None = None
    since: datetime | None = None
    newest: datetime | None = None
    what: str = ""
    scaling: bool = False  # a loss scaler skipped steps meanwhile
    exhausted: bool = False  # and has reached its least scale
    numbered: bool = False  # whether this attempt prints numbers at all
    quiet: int = 0
    told: bool = False
    steps: frozenset[int] = frozenset()  # those counted, SCALING at most: they may come again, and in any order


NO_RUN = Run()
_GOOD = Run(numbered=True)


def after_print(run: Run, step: int, at: datetime, data: Mapping[str, Scalar]) -> Run:
    """The run after one printed step."""
    numbers = values(data)
    if data.get("skipped") is True:
        run = replace(run, scaling=True)
    if not numbers:
        if run.numbered or run.onset is None:
            return run
        return replace(run, quiet=run.quiet + 1) if run.quiet + 1 < QUIET else Run()
    if not bad(numbers.values()):
        return _after_good(run, at)
    named = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in numbers.items() if not isfinite(value))
    return _counted(replace(run, numbered=True, what=named), step, at)


def after_message(run: Run, step: int, at: datetime, text: str, *, exhausted: bool = False) -> Run:
    """The run after a log line about bad numbers.

    The line counts as a bad step only if the attempt prints no numbers; otherwise it may only move the onset to an earlier
    step than the printed ones show.
    """
    run = replace(run, exhausted=run.exhausted or exhausted, quiet=0)
    if not run.numbered:
        return _counted(replace(run, what=run.what or text), step, at)
    if run.onset is None:
        return replace(run, onset=step, since=at, newest=at, what=text)
    return replace(run, onset=min(run.onset, step))


def after_scaler_skip(run: Run) -> Run:
    """The run after a log line in which a loss scaler skips a step."""
    return replace(run, scaling=True)


def persists(run: Run, *, prints: int, for_s: float) -> bool:
    """Whether the numbers stay bad: ``prints`` in a row, or fewer of them for as long as ``for_s``."""
    if run.since is None or run.newest is None:
        return False
    if run.scaling and not run.exhausted:
        return run.prints >= max(prints, SCALING)
    lasted_s = (run.newest - run.since).total_seconds()
    return run.prints >= prints or (run.prints >= LEAST and lasted_s >= for_s)


def _after_good(run: Run, at: datetime) -> Run:
    """The run after a good print, which may come late: after the daemon was away, lines come in any order."""
    if run.since is None or run.newest is None or run.last is None or at >= run.newest:
        return _GOOD
    if at < run.since:
        return replace(run, numbered=True)
    return replace(run, numbered=True, onset=run.last, since=run.newest, prints=1, steps=frozenset({run.last}))


def _counted(run: Run, step: int, at: datetime) -> Run:
    """Count one bad step; a step reported by several lines or sent again counts once."""
    if run.onset is None or run.last is None:
        onset = step if run.onset is None else min(run.onset, step)
        since, steps = run.since or at, frozenset({step})
        return replace(run, onset=onset, last=step, prints=1, since=since, newest=at, quiet=0, steps=steps)
    unsure = len(run.steps) < run.prints and run.onset <= step <= run.last
    if step in run.steps or unsure:
        return run
    return replace(
        run,
        onset=min(run.onset, step),
        last=max(run.last, step),
        prints=run.prints + 1,
        since=min(run.since or at, at),
        newest=max(run.newest or at, at),
        quiet=0,
        steps=run.steps | {step} if len(run.steps) < SCALING else run.steps,
    )
