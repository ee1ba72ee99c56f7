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


KNOWN: Mapping[str, Defect] = {
    # Of a heterogeneous job only the component that failed gets a resume point; the others start as their script does.
    "components-without-resume-point": Defect(_of("resume-point-first"), "without a resume point", job="het"),
    # A user holds a job that runs and fails a moment later: the hold is lifted with ours.
    "hold-just-before-the-end": Defect(
        _of("only-what-is-ours", "holds-stay"), "a person holds it|by a person", needs="hold"
    ),
    # A node is convicted by late evidence while the release of its job is on its way: the job may get it again.
    "convicted-during-the-release": Defect(_of("not-offered-back"), "which broke under it"),
    # A verdict on two nodes of which the budget would take one drains neither, also when there is room for one.
    "all-or-nothing": Defect(_of("nothing-lost"), "there is room now"),
}


def known_defect(history: History, violation: Violation) -> str | None:
    """The name of the defect that explains the violation; None if there is none."""
    happened = "\n".join(map(str, history.happenings))
    kinds = {job.kind for job in history.setup.jobs}
    for name, defect in KNOWN.items():
        fits = violation.promise in defect.promises and re.search(defect.why, violation.why)
        if fits and re.search(defect.needs, happened) and (not defect.job or defect.job in kinds):
            return name
    return None
