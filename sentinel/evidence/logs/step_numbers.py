"""Numbers that a step line prints besides its step: loss, norm of the gradients, a skipped step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite

from sentinel.model.records import Scalar

_VALUE = r"['\"]?([-+]?(?:\d{1,20}(?:\.\d{0,24})?(?:[eE][-+]?\d{1,3})?|(?:nan|NaN|inf|Inf)\b))"
_GRAD_NORM = re.compile(r"\bgrad[_ ]?norm['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
_LOSS = re.compile(r"\b(?:reduced_train_|train_|training_|step_|total_|lm_)loss['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
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
    found = {}
    for name in ("loss", "grad_norm"):
        value = data.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    return found


def bad(numbers: Iterable[float]) -> bool:
    return not all(isfinite(value) for value in numbers)
