"""What every format provides: a way to recognise it, and a check."""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from sentinel.checkpoints.files import BeingWritten, Broken, Entry, Foreign, NotKnown, Tree, entry_at, opened
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.reading import Held, Work
from sentinel.checkpoints.records import Level
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

# How much newer than its marker a shard may be: clocks of several clients of one file system.
SKEW_S = 5.0
_SETTLED_NS = int((SKEW_S + 1.0) * 1e9)  # what was changed more recently may change again without another time
_COPY_HANG_S = 120.0  # of storage, between two files of one copy
_COPY_BYTES_PER_S = 50e6  # of a slow one
# A save that has not finished is "being written" while something in it changed this recently; storage that hangs for
# longer makes it look abandoned, and it is then called invalid until its marker appears.
FRESH_S = 120.0

# Names of files that a rank wrote, those that count ranks from 1, and pieces of an array, which any rank may have written.
_RANK = re.compile(r"(?:(?:rank|process|rng_state|random_states)[-_]?|(?:^|/)__)(\d{1,9})")
_COUNTED_RANK = re.compile(r"(?:^|/)shard-(\d{1,9})-")
_CHUNK = re.compile(r"(?:.*/)?(?:c/)?\d+(?:[./]\d+)*")

StepReader = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """How to check: the level, the time it is, whether only some ranks' shards are expected here.

    ``remarks``: what the formats found worth saying that makes nothing invalid. ``left_over``: shards that the metadata
    beside them does not name, of an earlier save by more ranks into that folder: no part of this one.
    """

    level: Level
    now_s: float
    part: bool = False
    step: int | None = None  # where several lie in one folder
    fresh_s: float = FRESH_S
    remarks: list[str] = field(default_factory=list)
    held: Held = field(default_factory=Held)
    left_over: set[Path] = field(default_factory=set)

    def say(self, remark: str) -> None:
        if remark:
            self.remarks.append(remark)

    def fresh(self, tree: Tree) -> bool:
        """Whether it may still be being written. A time to come is of a clock that is ahead: how old it is is not known."""
        return self.fresh_s > 0 and self.now_s - tree.newest_s < self.fresh_s

    def age(self, tree: Tree) -> str:
        """In words, the times of what may still be being written."""
        ahead_s = tree.newest_s - self.now_s
        if ahead_s > SKEW_S:
            return f"its files' times are {ahead_s:.0f} s ahead of this node's clock"
        return f"files changed less than {self.fresh_s:.0f} s ago"

    def names_changed(self, tree: Tree) -> bool:
        """Whether a name in one of its folders was added or taken away just now: a deletion changes no file's times."""
        changed = tree.folder_times.values()
        return any(-SKEW_S < self.now_s - at_s < self.fresh_s for at_s in changed)


@dataclass(slots=True)
class Finding:
    """What the structural check found, and what is left to read.

    ``works``: the bytes whose checksums are recorded (and whose floats are to be looked at). ``unsummed``: files for
    which no checksum is recorded. ``covered``: files that ``works`` check to the last byte (so that a manifest need not be
    read against them).
    """

    step: int | None = None
    saved_step: int | None = None  # that the shards here were saved as, to compare with other hosts'
    epoch: int | None = None  # that a single file states
    owners: frozenset[int] = frozenset()
    world_size: int | None = None
    whole: bool = True
    has: dict[str, int] = field(default_factory=dict)
    needs: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, tuple[int, int]] = field(default_factory=dict)
    marked: bool = True
    resumable: bool = True  # False: weights and no state of an optimizer, as far as names inside tell
    optimizer: bool = True  # False: no name inside speaks of one, though a step may be there
    works: Iterable[Work] = ()
    unsummed: list[str] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)
    note: str = ""
    manifest: bool = False  # a manifest covers every file
    unended: str = ""  # why it may still be being written, where nothing in it says that its save ended
    inside: set[str] = field(default_factory=set)  # folders with a save of its own that were looked at with this one
    unread: str = ""  # whose numbers this format does not look at: level content is not known then


class Format(Protocol):
    """One checkpoint format. ``check`` raises `Broken` or `NotKnown`, or returns what it found."""

    NAME: str

    def recognise(self, tree: Tree) -> bool: ...

    def check(self, tree: Tree, ask: Ask) -> Finding: ...

    def owners_by_name(self, tree: Tree) -> frozenset[int]: ...


def unfinished(tree: Tree, ask: Ask, reason: str) -> Exception:
    """The exception for a save of which something is missing: being written, or deleted, if it changed just now."""
    if ask.fresh(tree) or ask.names_changed(tree):
        age = ask.age(tree) if ask.fresh(tree) else f"names in its folders changed less than {ask.fresh_s:.0f} s ago"
        return BeingWritten(f"{reason}; {age}: being written or deleted", reason)
    return Broken(reason)


def newer_than(tree: Tree, names: Iterable[str], marker: str) -> None:
    """Refuse shards that were written after the marker that says the save had finished (torn overwrite in place).

    A program that was exported beside them is no shard, whatever its name; a copy gives times in an order of its own. Only
    what the writer of the marker wrote is proven by its clock: of a node that may have another one the same lateness in a
    save beside shows that its clock is ahead, and without that it is not known which of the two it is.
    """
    names = list(names)
    late_s = {name: tree.files[name].mtime_s - tree.files[marker].mtime_s for name in names}
    late = [name for name in names if late_s[name] > SKEW_S and not _is_program(tree, name)]
    copied = bool(late) and times_of_a_copy(tree, [*names, marker])
    put_in = put_in_later(tree.files[name] for name in [*names, marker]) if copied else ""
    for name in sorted(late, key=lambda name: not _by_one_clock(name, marker)):  # what proves something first
        words = f"{visible(name)} was written {late_s[name]:.0f} s after {visible(marker)}"
        if copied:
            if put_in:
                raise NotKnown(f"{words}, and {put_in}: two saves mixed?")
        elif _by_one_clock(name, marker):
            raise Broken(f"{words}: overwritten in place")
        elif not _as_late_beside(tree, name, marker, late_s[name]):
            raise NotKnown(f"{words}: overwritten in place, or by a clock that is ahead?")


def _by_one_clock(name: str, marker: str) -> bool:
    """Whether the process that wrote the marker wrote this file, as far as names tell: what names no rank is the first's."""
    return _CHUNK.fullmatch(name) is None and _ranks_of(name) == _ranks_of(marker)


def _ranks_of(name: str) -> set[int]:
    """The ranks that a name speaks of."""
    found = {int(number) for number in _RANK.findall(name)}
    return found | {int(number) - 1 for number in _COUNTED_RANK.findall(name)} or {0}


def _as_late_beside(tree: Tree, name: str, marker: str, late_s: float) -> bool:
    """Whether the file is about as late in one of the saves beside: a clock is ahead in all of them."""
    for folder in neighbours(tree.root, NEAREST):
        theirs, ended = entry_at(folder / name), entry_at(folder / marker)
        if theirs is not None and ended is not None:
            beside_s = theirs.mtime_s - ended.mtime_s
            if beside_s > SKEW_S and abs(beside_s - late_s) <= _COPY_HANG_S:
                return True
    return False


def times_of_a_copy(tree: Tree, names: Iterable[str]) -> bool:
    """Whether these files may have been made by a copy that keeps no times (``cp -r``, from an object store).

    Such a copy makes every file anew, in an order of its own: then the order of the times says nothing about the save. What
    was written over in place looks otherwise: it leaves its folder as it was, or lies a pause behind the save before.
    """
    entries = {name: tree.files[name] for name in names if name in tree.files}
    newest = max(entries, key=lambda name: entries[name].mtime_s, default="")
    for name, entry in entries.items():
        changed_s = tree.folder_times.get(name.rpartition("/")[0])
        # A folder is changed when a file in it is begun: only what came last may have been written on after that.
        writing_s = entry.size / _COPY_BYTES_PER_S if name == newest else 0.0
        if changed_s is None or entry.mtime_s > changed_s + SKEW_S + writing_s:
            return False
    return one_stretch(tree, entries.values())


def one_stretch(tree: Tree, entries: Iterable[Entry]) -> bool:
    """Whether no pause lies between these files, and the others of that time, that is longer than a copy takes for one."""
    asked = list(entries)
    first_s, last_s = (edge(entry.mtime_s for entry in asked) for edge in (min, max))
    between = [entry for entry in tree.files.values() if first_s < entry.mtime_s < last_s]
    in_order = sorted([*asked, *between], key=lambda entry: entry.mtime_s)
    return all(
        after.mtime_s - before.mtime_s <= _COPY_HANG_S + after.size / _COPY_BYTES_PER_S
        for before, after in pairwise(in_order)
    )


def put_in_later(entries: Iterable[Entry]) -> str:
    """In words, that some of these files got times that are not those of their writing, after the others were written.

    A copy that keeps no times gives none, and one that keeps them, or a new owner, changes every ctime. Empty otherwise.
    """
    changed_s: list[float] = []
    written_s: list[float] = []
    for entry in entries:
        ctime_s = entry.ctime_ns / 1e9
        (changed_s if ctime_s > entry.mtime_s + SKEW_S else written_s).append(ctime_s)
    later_s = max(changed_s) - max(written_s) if changed_s and written_s else 0.0
    return f"a file was put in with its times {later_s:.0f} s after the others were written" if later_s > SKEW_S else ""


def _is_program(tree: Tree, name: str) -> bool:
    try:
        with opened(tree.path(name), name) as handle:
            if zips.looks_like_zip(handle.read(0, min(4, handle.size))):
                zips.refuse_program(handle.read, handle.size, visible(name))
    except Foreign:
        return True
    except (Broken, NotKnown):
        pass  # neither a program nor a whole archive: a shard, for all that is known
    return False


def refuse_links(tree: Tree) -> None:
    if tree.links:
        raise NotKnown(f"{visible(tree.links[0])}: a symbolic link inside the checkpoint: not followed")
    if tree.odd:
        raise NotKnown(f"{visible(tree.odd[0])}: neither file, folder nor link")


NEAREST = 4  # saves beside one that it is held against: some may be torn themselves


def neighbours(root: Path, limit: int) -> list[Path]:
    """The same folder of the steps beside this one, nearest first; those that cannot be listed are none.

    The step may be in the folder's own name or in that of the folder above (``step=100-last/weights``).
    """
    for inside in (0, 1):
        named = root if not inside else root.parent
        read_step, mine = _read_step(named.name)
        if mine is None or (read_step is number_of and named.name.isdigit() and inside):
            continue
        try:
            saves = _saves_in(named.parent, read_step)
        except OSError:
            return []
        first, behind = bisect_left(saves, (mine,)), bisect_left(saves, (mine + 1,))
        around = saves[max(0, first - limit) : first] + saves[behind : behind + limit]
        nearest = sorted(around, key=lambda pair: (abs(pair[0] - mine), pair))[:limit]
        return [named.parent / name / root.name if inside else named.parent / name for _, name in nearest]
    return []


def _read_step(name: str) -> tuple[StepReader, int | None]:
    """What a name states, its step or else its number, and how that is read of the others."""
    step = step_of(name)
    return (step_of, step) if step is not None else (number_of, number_of(name))


def _saves_in(folder: Path, read_step: StepReader) -> tuple[tuple[int, str], ...]:
    """What lies in a folder under names that state a step or a number, in that order.

    Thousands may, and each of them is asked for those beside it: a listing is kept while the folder does not change. Its
    ctime tells, which no program sets back as one that copies sets the mtime.
    """
    changed_ns = settled_since(folder)
    if changed_ns is None:
        return _list_saves(folder, read_step)
    return _list_saves_once(folder, read_step, changed_ns)


def settled_since(folder: Path) -> int | None:
    """The folder's ctime, while which stays a listing of its names holds; None where it may change again without another.

    Raises:
        OSError: it cannot be looked at.
    """
    changed_ns = folder.stat().st_ctime_ns
    return None if time.time_ns() - changed_ns < _SETTLED_NS else changed_ns


def _list_saves(folder: Path, read_step: StepReader) -> tuple[tuple[int, str], ...]:
    with os.scandir(folder) as entries:
        found = ((read_step(entry.name), entry) for entry in entries)
        return tuple(sorted((step, entry.name) for step, entry in found if step is not None and not entry.is_symlink()))


@lru_cache(maxsize=2)
def _list_saves_once(folder: Path, read_step: StepReader, changed_ns: int) -> tuple[tuple[int, str], ...]:
    del changed_ns
    return _list_saves(folder, read_step)


def no_owners(tree: Tree) -> frozenset[int]:
    """For formats whose file names speak of no ranks."""
    del tree
    return frozenset()
