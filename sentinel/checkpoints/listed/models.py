"""Two models of one run, each in a folder of its own: ``actor/step-30`` beside ``critic/step-30``. Pure.

They go on together: where the save of a step is torn in one folder, the step is not whole, and a run that resumed one model
from it and the other from an earlier one would train two states that never were together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sentinel.checkpoints.records import Candidate
from sentinel.checkpoints.steps import without_numbers
from sentinel.text import visible

# The longest that the saves of one step in two folders are taken for one: a storage may be slow, and one waits for another.
TOGETHER_S = 1800.0
# What a run may do without when it resumes: folders that keep more of the same model.
_MORE_OF_THE_SAME = re.compile(r"best|backup|copy|export|top|(?<![a-z])ema(?![a-z])", re.IGNORECASE)
_Steps = dict[int, Candidate]


def may_be_of_one_run(folder: Path, other: Path) -> bool:
    """Whether two folders may hold two models: side by side, with names that differ in more than numbers (runs' do not)."""
    beside = folder.parent == other.parent and bool(folder.parts and other.parts)
    return beside and without_numbers(folder.name) != without_numbers(other.name)


def twin(chosen: Path, folder: Path) -> Path:
    """What goes on with the chosen save in another model's folder: of the same name; else the chosen one itself."""
    return folder / chosen.name if may_be_of_one_run(chosen.parent, folder) else chosen


def halves(candidates: Iterable[Candidate]) -> Mapping[tuple[str, int | None], str]:
    """Path and step -> why, of whole saves whose step is torn in another model's folder.

    That the folders are of two models show their earlier saves: of the same steps, whole, from about the same time, and no
    copies of each other.
    """
    runs: dict[tuple[str, Path], dict[Path, _Steps]] = {}
    torn: list[tuple[Candidate, Path, int]] = []
    for one in candidates:
        folder = Path(one.path).parent
        if one.step is not None and one.valid:
            runs.setdefault((one.tier, folder.parent), {}).setdefault(folder, {})[one.step] = one
        elif one.step is not None and one.valid is False and not _MORE_OF_THE_SAME.search(folder.name):
            torn.append((one, folder, one.step))
    found = {}
    for bad, folder, step in torn:
        models = runs.get((bad.tier, folder.parent), {})
        own = models.get(folder, {})
        for other, theirs in models.items() if own and step not in own else ():
            if step in theirs and may_be_of_one_run(other, folder) and _go_together(own, theirs):
                name = visible(f"{folder.name}/{Path(bad.path).name}")
                why = f"{name}, of this step and another model of the run, is invalid: {bad.reason}"
                found[theirs[step].path, theirs[step].step] = why
    return found


def _go_together(own: _Steps, theirs: _Steps) -> bool:
    """Whether the two folders have been saved together before, each a state of its own."""
    pairs = [(own[step], theirs[step]) for step in own.keys() & theirs.keys()]
    return bool(pairs) and all(
        min(one.written_s, other.written_s) > 0
        and abs(one.written_s - other.written_s) <= TOGETHER_S
        and (one.written_s, one.bytes) != (other.written_s, other.bytes)
        for one, other in pairs
    )
