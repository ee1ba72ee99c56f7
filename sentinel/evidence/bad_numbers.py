"""Losses and gradients that are no numbers any more: whether they stay so, and the step at which it began. Pure.

A step whose numbers are bad is skipped by trainers every day, above all by a loss scaler that looks for its scale; numbers
that stay bad are the end of a run that goes on computing. What tells them apart: so many printed steps in a row without a
good one between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite

from sentinel.model import Scalar

SCALING = 40  # prints in a row while a scaler skips steps: one that begins at 2**32 halves it 32 times
LEAST = 2  # prints, however long they are apart
QUIET = 10  # steps without a bad word clear an attempt that prints no numbers

_VALUE = r"['\"]?([-+]?(?:\d{1,20}(?:\.\d{0,24})?(?:[eE][-+]?\d{1,3})?|(?:nan|NaN|inf|Inf)\b))"
_GRAD_NORM = re.compile(r"\bgrad[_ ]?norm['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
_LOSS = re.compile(r"\b(?:reduced_train_|train_|lm_)loss['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
_SKIPPED = re.compile(r"(?:number of )?skipped iterations:\s{1,4}[1-9]")


def numbers_of(line: str) -> dict[str, Scalar]:
    """What a step line says besides the loss that its rule reads: the norm of the gradients, and that a step was skipped."""
    found: dict[str, Scalar] = {}  # the words first: every step line of a log comes here
    if "norm" in line and (norm := _GRAD_NORM.search(line)) is not None:
        found["grad_norm"] = float(norm[1])
    if "_loss" in line and (loss := _LOSS.search(line)) is not None:
        found["loss"] = float(loss[1])
    if "skipped" in line and _SKIPPED.search(line) is not None:
        found["skipped"] = True
    return found


def values(data: Mapping[str, Scalar]) -> dict[str, float]:
    """The numbers that a step line printed, by name."""
    known = {name: data.get(name) for name in ("loss", "grad_norm")}
    return {name: float(v) for name, v in known.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def bad(numbers: Iterable[float]) -> bool:
    return not all(isfinite(value) for value in numbers)


@dataclass(frozen=True, slots=True)
class Run:
    """Printed steps in a row whose numbers are bad; empty while they are good."""

    prints: int = 0
    onset: int | None = None  # the first of them
    last: int | None = None
    since: datetime | None = None
    newest: datetime | None = None
    what: str = ""
    scaling: bool = False  # a loss scaler skipped steps meanwhile
    exhausted: bool = False  # and has come to its least scale
    numbered: bool = False  # this attempt prints numbers at all
    quiet: int = 0
    told: bool = False


def printed(run: Run, step: int, at: datetime, data: Mapping[str, Scalar]) -> Run:
    """After one printed step."""
    numbers = values(data)
    if data.get("skipped") is True:
        run = replace(run, scaling=True)
    if not numbers:
        if run.numbered or run.onset is None:
            return run
        return replace(run, quiet=run.quiet + 1) if run.quiet + 1 < QUIET else Run()
    if not bad(numbers.values()):
        return Run(numbered=True)
    named = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in numbers.items() if not isfinite(value))
    return _counted(replace(run, numbered=True, what=named), step, at)


def said(run: Run, step: int, at: datetime, text: str, *, exhausted: bool = False) -> Run:
    """After a line that speaks of bad numbers. It counts for itself only where no numbers are printed; else it may tell the
    step at which it began more exactly than the printed ones do."""
    run = replace(run, exhausted=run.exhausted or exhausted, quiet=0)
    if not run.numbered:
        return _counted(replace(run, what=run.what or text), step, at)
    if run.onset is None:
        return replace(run, onset=step, since=at, newest=at, what=text)
    return replace(run, onset=min(run.onset, step))


def scaled(run: Run) -> Run:
    """After a line with which a loss scaler skips a step."""
    return replace(run, scaling=True)


def stays(run: Run, *, prints: int, for_s: float) -> bool:
    """Whether the numbers stay bad: ``prints`` in a row, or fewer of them for as long as ``for_s``."""
    if run.since is None or run.newest is None:
        return False
    if run.scaling and not run.exhausted:
        return run.prints >= max(prints, SCALING)
    lasted_s = (run.newest - run.since).total_seconds()
    return run.prints >= prints or (run.prints >= LEAST and lasted_s >= for_s)


def _counted(run: Run, step: int, at: datetime) -> Run:
    """Each step counts once, also one that is told by several lines or sent again."""
    if run.onset is None or run.last is None:
        onset = step if run.onset is None else min(run.onset, step)
        return replace(run, onset=onset, last=step, prints=1, since=run.since or at, newest=at, quiet=0)
    if run.onset <= step <= run.last:
        return run
    onset, last = min(run.onset, step), max(run.last, step)
    return replace(run, onset=onset, last=last, prints=run.prints + 1, newest=at, quiet=0)
