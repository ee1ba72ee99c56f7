"""Torch files of a save that its format does not name. Of some only a save beside tells that they are a part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path

from sentinel.checkpoints.files import Broken, Foreign, NotKnown, PerhapsForeign, Tree
from sentinel.checkpoints.formats import marks, one_save
from sentinel.checkpoints.formats.base import NEAREST, Ask, Finding, neighbours
from sentinel.checkpoints.formats.torch_file import SUFFIXES, TorchFile, check_file, is_torch
from sentinel.checkpoints.reading import Work, run_all
from sentinel.checkpoints.records import Level
from sentinel.checkpoints.steps import step_of
from sentinel.text import visible

_NEIGHBOURS = 2
_UNNAMED = re.compile(r"(?:.*/)?[A-Za-z][\w-]*")  # without a suffix
_BEST = re.compile(r"best", re.IGNORECASE)  # of a file of the best step so far, which is an earlier one as a rule
_MOST_UNNAMED = 256  # of them that are opened: data and copies of code may be very many


def check(tree: Tree, ask: Ask, finding: Finding, *, perhaps_anothers: bool = False) -> dict[str, TorchFile]:
    """Torch files that a folder holds beside what its format names (schedulers, data loaders): whole, or it is not.

    What lies in a folder of another step is that one's. ``perhaps_anothers``: they may be anybody's, and a damaged one makes
    the save *not known* where one beside has it whole: a resume may read it. One without a checksum says nothing.
    They are returned by name.
    """
    names = [name for name in sorted(tree.files) if name.endswith(SUFFIXES)]
    return _check(tree, ask, finding, names, perhaps_anothers)


def check_unnamed(tree: Tree, ask: Ask, finding: Finding) -> None:
    """Torch files without a suffix (Colossal-AI's ``lr_scheduler``). They may be anybody's, as other archives.

    Only what they begin with tells them from others: of many, those that lie highest are looked at.
    """
    names = [name for name in tree.files if _UNNAMED.fullmatch(name)]
    _check(tree, ask, finding, sorted(names, key=lambda name: (name.count("/"), name))[:_MOST_UNNAMED], True)


def _check(tree: Tree, ask: Ask, finding: Finding, names: list[str], perhaps_anothers: bool) -> dict[str, TorchFile]:
    known, mine = finding.covered.union(finding.unsummed), step_of(tree.root.name)
    files: dict[str, TorchFile] = {}
    for name in names:
        if name in known or _of_another_step(name, mine):
            continue
        try:
            if not is_torch(tree, name):
                continue
            file = files[name] = check_file(tree, name, ask)
        except (Foreign, PerhapsForeign):
            continue
        except (Broken, NotKnown) as error:
            if not perhaps_anothers:
                _refuse_inside(tree, name, finding, error)
                raise
            _refuse(error, _with_it_whole(tree, name, "structural"))
            continue
        if file.works:
            works = _doubted(tree, name, ask.level, file.works) if perhaps_anothers else file.works
            finding.works = [*finding.works, *works]
        if not perhaps_anothers:
            (finding.covered.add if file.summed else finding.unsummed.append)(name)
    one_save.check_optimizers(tree, ask, files)
    if mine is not None:
        _refuse_steps_of_others(tree, mine, files)
    return files


def _refuse_steps_of_others(tree: Tree, mine: int, files: dict[str, TorchFile]) -> None:
    """`NotKnown` where a file is a copy of that of a save beside, and states its step: a loop goes on from it.

    Other counts (of an epoch, of smaller steps) are called a step, too; a file that has one differs in something else.
    """
    for name, file in files.items():
        stated = _stated(file)
        if stated is None or abs(stated - mine) <= 1 or _BEST.search(name):  # some count from 0
            continue
        if (other := _copied_from(tree, name, file)) is not None:
            raise NotKnown(f"{visible(name)} states step {stated}, as that of {visible(other.name)}: two saves mixed")


def _copied_from(tree: Tree, name: str, file: TorchFile) -> Path | None:
    """The save beside of whose file this is a copy, where those of all saves beside state their own steps."""
    found = None
    for folder in neighbours(tree.root, NEAREST):
        one = _file_in(folder, name)
        if one is None or _stated(one) is None:
            continue
        if not _states_its_own(one, folder):
            return None
        if found is None and _is_copy(one, file):
            found = folder
    return found


def _stated(file: TorchFile) -> int | None:
    steps = set(file.steps())
    return steps.pop() if len(steps) == 1 else None


def _states_its_own(file: TorchFile, folder: Path) -> bool:
    stated, step = _stated(file), step_of(folder.name)
    return stated is not None and step is not None and abs(stated - step) <= 1


def _is_copy(one: TorchFile, other: TorchFile) -> bool:
    """By the checksums of their records; of the older format, which has none, by the step alone."""
    records = [file.opened and file.opened.archive.records for file in (one, other)]
    return _stated(one) == _stated(other) and records[0] == records[1]


def _file_in(folder: Path, name: str) -> TorchFile | None:
    entry = one_save.file_inside(folder, name)
    try:
        return check_file(Tree(folder, {name: entry}), name, Ask("structural", 0.0)) if entry else None
    except (Broken, Foreign, NotKnown, OSError):
        return None


def _of_another_step(name: str, mine: int | None) -> bool:
    return any(step_of(folder) not in (None, mine) for folder in name.split("/")[:-1])


def _refuse_inside(tree: Tree, name: str, finding: Finding, error: Broken | NotKnown) -> None:
    """`NotKnown` of a file of a save in a folder: that may be no part of this one, and what is invalid is moved aside."""
    others = (folder for folder in marks.folders(tree) if folder not in finding.inside)
    folder = next((folder for folder in others if name.startswith(f"{folder}/")), None)
    if folder is not None:
        raise NotKnown(f"the save in {visible(folder)}: {error.reason}") from None


def _doubted(tree: Tree, name: str, level: Level, works: Iterable[Work]) -> Iterator[Work]:
    """The same works on a file that may be anybody's; its damage is looked for in a save beside once."""
    beside = cache(lambda: _with_it_whole(tree, name, level))

    def run(work: Work, buffer: bytearray) -> None:
        try:
            work.run(buffer)
        except (Broken, NotKnown) as error:
            _refuse(error, beside())

    return (Work(work.bytes, partial(run, work)) for work in works)


def _refuse(error: Broken | NotKnown, beside: Path | None) -> None:
    if beside is not None:
        raise NotKnown(f"{error.reason}; that of {visible(beside.name)} is whole") from None


def _with_it_whole(tree: Tree, name: str, level: Level) -> Path | None:
    """A save beside this one that has this torch file whole at that level."""
    for folder in neighbours(tree.root, _NEIGHBOURS):
        entry = one_save.file_inside(folder, name)
        try:
            if entry and is_torch(there := Tree(folder, {name: entry}), name):
                run_all(check_file(there, name, Ask(level, 0.0)).works, 1)
                return folder
        except (Broken, NotKnown):
            continue
    return None
