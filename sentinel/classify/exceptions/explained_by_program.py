"""What a program itself said of an error: why it came, and what it means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from sentinel.classify.history import History
from sentinel.classify.readings import Reading, lines_below, of_context
from sentinel.classify.roles import LEADS, points_to
from sentinel.config.rules import Role, Rules
from sentinel.model.records import Cause, Incident
from sentinel.model.vocabulary import INTERPRETED

C = Cause
_LOOKED_UP = re.compile(r"\b(?:KeyError|IndexError|AttributeError|StopIteration|ModuleNotFoundError)\b")
RAISED_WITHIN = 40  # lines between an exception and the one that its handler raises
# Warnings of PyTorch and TensorFlow why they use no GPU.
_NOT_STARTED = re.compile(
    r"CUDA initialization: |Could not load dynamic library 'lib(?:cuda|cudart|cublas|cudnn|cufft|cusolver|cusparse|curand)\b"
    r"|Cannot dlopen some GPU libraries"
)
_NO_GPU = re.compile(
    r"(?i)\bGPU device not found\b|\b(?:needs?|requires?) (?:a|an|at least one) (?:\w{1,12} )?(?:gpu|accelerator)\b"
    r"|\b(?:no|any) (?:\w{1,12} )?(?:gpus?|accelerators?|cuda devices?)\b"
    r"|\bcuda(?: is|\.is_available\(\) is)? (?:not available|unavailable|False)\b|on a CUDA device but torch\.cuda"
)


def if_both(
    found: Reading | None,
    others: set[str],
    readings: Sequence[Reading],
    name: str,
    weights: dict[Cause, float],
    note: str,
) -> list[Reading]:
    """A reading if ``found`` and one of ``others`` are both there: together they mean more than each alone."""
    if found is None or not any(r.key in others for r in readings):
        return []
    return [of_context(found.evidence, name, weights, note)]


def interpreted(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """An exception of the language's that a handler caught, and for which it raised one that says what is wrong."""
    added = []
    for caught in readings:
        if caught.evidence.data.get(INTERPRETED) is not True or caught.strength < LEADS:
            continue
        if not caught.generic or not _LOOKED_UP.search(caught.evidence.text):
            continue
        rank = caught.evidence.where.rank
        own = (r for r in readings if r.evidence.where.rank == rank and r.strength >= LEADS)
        raised = next((r for r in own if 0 < (lines_below(r, caught) or 0) <= RAISED_WITHIN), None)
        deliberate = raised is not None and raised.evidence.data.get("refused") is True and raised.role is Role.CAUSE
        if raised is not None and deliberate and points_to(raised) is not points_to(caught):
            weights = {cause: -0.7 * weight for cause, weight in caught.weights.items() if weight > 0}
            added.append(of_context(caught.evidence, "interpreted", weights, f"its handler says: {raised.note}"))
    return added


def empty(incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime) -> list[Reading]:
    """A division by a count that was printed as 0: a size or path is wrong, not the arithmetic."""
    divided = next((r for r in readings if "ZeroDivisionError" in r.evidence.text), None)
    weights = {C.USER_CONFIG: 3.0, C.USER_CODE: -1.4}
    return if_both(divided, {"nothing-counted"}, readings, "nothing-to-do", weights, "there was nothing to work on")


def came_true(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A program that finds no GPU after its library had warned why CUDA did not start: the warning names the cause."""
    warned = next((r for r in readings if r.warned and _NOT_STARTED.search(r.evidence.text)), None)
    if warned is None:
        return []
    later = [r for r in readings if (below := lines_below(r, warned)) is not None and below >= 0]
    without = [r for r in later if not r.warned and r.strength >= 1.0 and _NO_GPU.search(r.evidence.text)]
    if not without:
        return []
    weights = {cause: 2.0 * weight for cause, weight in warned.weights.items()}
    for cause in {cause for r in without for cause in r.weights} - weights.keys():
        weights[cause] = -max(r.weights.get(cause, 0.0) for r in without)
    return [of_context(warned.evidence, "came-true", weights, "then the program found no GPU")]


def backend_failed(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """What a compiler of graphs raised is its own, though no frame of it is shown: Dynamo names it in the line before."""
    named = next((r for r in readings if r.key == "compile" and "BackendCompilerFailed" in r.evidence.text), None)
    weights = {C.SOFTWARE_ENV: 3.4, C.USER_CODE: -2.0}
    return if_both(named, {"python-bug"}, readings, "backend-failed", weights, "raised by the graph compiler")
