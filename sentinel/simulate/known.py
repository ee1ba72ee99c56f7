"""Defects that explore has found and that are not mended yet. Each entry goes when its defect goes.

What a history breaks because of one of them is counted and named, and not shown as a violation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.simulate.histories import History
from sentinel.simulate.promises import Violation


@dataclass(frozen=True, slots=True)
class Defect:
    """A violation of one of ``promises`` is explained by it if all that is given here fits.

    ``why`` is searched in the sentence of the violation, ``needs`` in what happened; a job of the kind ``job`` was there.
    """

    promises: frozenset[str]
    why: str = ""
    needs: str = ""
    job: str = ""


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


KNOWN: Mapping[str, Defect] = {}


def known_defect(history: History, violation: Violation) -> str | None:
    """The name of the defect that explains the violation; None if there is none."""
    happened = "\n".join(map(str, history.happenings))
    kinds = {job.kind for job in history.setup.jobs}
    for name, defect in KNOWN.items():
        fits = violation.promise in defect.promises and re.search(defect.why, violation.why)
        if fits and re.search(defect.needs, happened) and (not defect.job or defect.job in kinds):
            return name
    return None
