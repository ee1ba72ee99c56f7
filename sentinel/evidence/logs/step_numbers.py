"""Numbers that a line prints: what its rule captured, and of a step the loss, the norm of the gradients, a skipped step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite

from sentinel.model.records import Scalar

_VALUE = r"['\"]?([-+]?(?:\d{1,20}(?:\.\d{0,24})?(?:[eE][-+]?\d{1,3})?|(?:nan|NaN|inf|Inf)\b))"
_GRAD_NORM = re.compile(r"\bgrad[_ ]?norm['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
_LOSS = re.compile(r"\b(?:reduced_train_|train_|training_|step_|total_|lm_)loss['\"]?\s{0,3}[:=]\s{0,3}" + _VALUE)
_SKIPPED = re.compile(r"(?:number of )?skipped iterations:\s{1,4}[1-9]")
# Words before the number of a step that say where a job takes up, not what it has gained.
_READ_BACK = re.compile(
    rb"(?i)\b(?:resum(?:e|ed|ing)|(?:re)?load(?:ed|ing)?|restor(?:ed|ing)|continu(?:e|ing))\b[^|\n]{0,120}"
    rb"\b(?:from|at|checkpoint|ckpt|state)\b"
)
_NUMBERS = frozenset(
    {
        "xid", "sxid", "step", "total", "loss", "time_s", "time_ms", "pid",
        "action", "signal", "exit_code", "gib_tried", "gib_total", "gib_used",
    }
)  # fmt: skip


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


def value_of(name: str, text: str) -> Scalar:
    """A captured field: of those that are numbers the number (\"nan\" and \"inf\" are), None where it is none."""
    if name not in _NUMBERS:
        return text
    text = text.replace(",", "").strip().rstrip(".")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def only_read_back(line: bytes, at: int, fields: Mapping[str, str]) -> bool:
    """Whether the step at ``at`` is that of a checkpoint which is being read: no step was gained by it."""
    return (
        not fields.keys() & {"loss", "time_s", "time_ms"} and _READ_BACK.search(line, max(0, at - 200), at) is not None
    )
