"""Checks whether the files of a set come from one save, by their times and by the saves beside them.

A checksum proves a file, not that it belongs to the files beside it. Three things give a set away that was put together
from two saves: a file is older than the end of the save before; a file that changes in every step is, byte for byte,
that of another save while the files beside it are not; one process wrote all of them, and between two of them lies a
pause in which nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from sentinel.checkpoints.files import (
    Broken,
    Entry,
    Foreign,
    Handle,
    NotKnown,
    TooLarge,
    Tree,
    Unread,
    entry_at,
    opened,
)
from sentinel.checkpoints.formats.base import SKEW_S, Ask, neighbours, one_stretch, put_in_later
from sentinel.checkpoints.formats.beside import far_saves
from sentinel.checkpoints.formats.torch_file import TorchFile, check_file
from sentinel.checkpoints.parsing import json_files, zips
from sentinel.checkpoints.records import level_at_least
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

_NEIGHBOURS = 2
_SHARDS = (".distcp", ".safetensors")
_TEXTS = (".json", ".yaml", ".yml")
_MOST_TEXTS = 2000
_MOST_TEXT_BYTES = 32 << 20
_TELLING_BYTES = 32  # of a record: smaller ones (a step, a scale) may well stay the same
_OPTIMIZER_DEPTH = 4  # of tables and lists in which trainers keep an optimizer
_SAMPLES = 16  # places at which files without checksums are compared
_SAMPLE_BYTES = 4096
# The pause of one process between two files of one save: the time to write them at this rate, and a hang of the storage.
SLOW_BYTES_PER_S = 20e6
_HANG_S = 120.0
RANKS_HANG_S = 900.0  # between ranks: the last may wait for storage that the others had already

Explains = Callable[[Path, Mapping[str, bool | None]], bool]


def refuse_mixed(
    tree: Tree, ask: Ask, must_change: Sequence[str], others: Sequence[str] = (), *, explains: Explains | None = None
) -> None:
    """`NotKnown` where the files were shown to come from two saves.

    ``must_change``: files of which each is another in every save. ``others``: files that were saved with them. Saves further
    back are looked at from level checksum on: they are many. ``explains(folder, alike)``: whether those that are the same
    in that save may be so.
    """
    names = list(dict.fromkeys(name for name in (*must_change, *others) if name in tree.files))
    if len(names) < 2:
        return

    def refuse_same(folder: Path) -> None:
        alike: dict[str, bool | None] = {}
        unread = False
        for name in names:
            try:
                alike[name] = _compared(tree, name, folder)
            except Unread:
                alike[name], unread = None, True
        same = [name for name in must_change if alike.get(name)]
        if not same or False not in alike.values():
            return
        try:  # what cannot be read there may be what explains it
            explained = explains is not None and (unread or explains(folder, alike))
        except Unread:
            explained = True
        if not explained:
            raise NotKnown(
                f"{visible(same[0])} is byte for byte that of {visible(folder.name)}, other files are not: two saves mixed"
            )

    for folder in neighbours(tree.root, _NEIGHBOURS):
        _older_than_the_save_before(tree, names, folder)
        refuse_same(folder)
    far = level_at_least(ask.level, "checksum")
    for folder, alike_there in far_saves.perhaps_copies(tree, must_change, _NEIGHBOURS) if far else ():
        if any(identical(tree, name, folder) for name in alike_there):
            refuse_same(folder)


def refuse_pause(tree: Tree, names: Iterable[str], hang_s: float = _HANG_S) -> None:
    """`NotKnown` where whoever wrote these files paused for longer than a save can: one process, or the ranks of a job."""
    mine = [tree.files[name].mtime_s for name in names if name in tree.files]
    # Whatever else was written meanwhile shows that there was no pause.
    entries = sorted(
        ((entry, name) for name, entry in tree.files.items() if mine and min(mine) <= entry.mtime_s <= max(mine)),
        key=lambda pair: pair[0].mtime_s,
    )
    for (before, old), (after, new) in pairwise(entries):
        pause_s = after.mtime_s - before.mtime_s
        if pause_s > hang_s + after.size / SLOW_BYTES_PER_S:
            raise NotKnown(
                f"{visible(old)} was written {pause_s:.0f} s before {visible(new)}: from an earlier save, or copied since"
            )


def refuse_older(tree: Tree, names: Sequence[str], marker: str | None = None) -> None:
    """`NotKnown` where some of these files are older than the end of the save before, and some are newer.

    ``marker``: the file that ends a save; without one the newest of these files does.
    """
    for folder in neighbours(tree.root, _NEIGHBOURS):
        _older_than_the_save_before(tree, names, folder, marker)


def _older_than_the_save_before(tree: Tree, names: Sequence[str], folder: Path, marker: str | None = None) -> None:
    mine, theirs = _order(tree.root), _order(folder)
    if mine is None or theirs is None or theirs > mine:
        return
    names = [name for name in names if name in tree.files]
    ends = names if marker is None else [marker]
    before = [entry for name in ends if (entry := entry_at(folder / name)) is not None]
    if len(before) < len(ends) or not before:
        return
    ended_s = max(entry.mtime_s for entry in before)
    old = [name for name in names if tree.files[name].mtime_s <= ended_s]
    new = [name for name in names if tree.files[name].mtime_s > ended_s + SKEW_S]
    mine_now = [tree.files[name] for name in names]
    # Both copied at once, by something that keeps no times.
    if old and new and (put_in_later(mine_now) or not one_stretch(tree, [*before, *mine_now])):
        raise NotKnown(
            f"{visible(old[0])} is older than the end of {visible(folder.name)}, {visible(new[0])} is newer: two saves mixed"
        )


def refuse_twins(tree: Tree, names: Iterable[str]) -> None:
    """`NotKnown` where one of these partitions of a state is that of another rank: copied over it, or written twice.

    Where all numbers are the same (a state that was just made) nothing follows.
    """
    seen: dict[tuple[tuple[str, int, int], ...], str] = {}
    for name in sorted(names):
        with opened(tree.path(name), name) as handle:
            sums = _sums(handle)
            if not sums:
                continue
            twin = seen.setdefault(tuple(sums), name)
            if twin != name and not _constant(handle):
                raise NotKnown(f"{visible(name)} holds the numbers of {visible(twin)}: a shard is there twice")


def _constant(handle: Handle) -> bool:
    """Whether all its larger records begin with one number again and again."""
    for record in zips.parse(handle.read, handle.size, handle.name).records.values():
        if "/data/" in record.name and record.size >= _TELLING_BYTES:
            start = handle.read(record.data, min(record.size, _SAMPLE_BYTES) // 8 * 8)
            if start != start[:8] * (len(start) // 8):
                return False
    return True


def refuse_damaged_texts(tree: Tree, ask: Ask) -> None:
    """`NotKnown` for JSON and YAML that is damaged here, and whole in a save beside: a resume may read it.

    Settings with comments are no JSON in any save; and nothing writes zeros.
    """
    beside = neighbours(tree.root, _NEIGHBOURS)
    read_bytes = 0
    for name in sorted(name for name in tree.files if name.endswith(_TEXTS))[:_MOST_TEXTS]:
        read_bytes += tree.files[name].size
        if read_bytes > _MOST_TEXT_BYTES:
            return
        if _is_text(tree, name):
            if level_at_least(ask.level, "checksum"):
                _refuse_renamed_keys(tree, name, beside)
            continue
        for folder in beside:
            if _is_text_in(folder, name):
                raise NotKnown(f"{visible(name)} is cut short or damaged, that of {visible(folder.name)} is whole")
        if _is_zeros(tree, name):
            raise NotKnown(f"{visible(name)} is zeros: a lost write?")


def _refuse_renamed_keys(tree: Tree, name: str, beside: Sequence[Path]) -> None:
    """`NotKnown` where a key that frameworks read is a flipped bit away from its name in both saves beside."""
    if not json_files.speaks_to_a_resume(name) or tree.files[name].size > json_files.SMALL_BYTES:
        return
    told = [theirs for folder in beside if (theirs := _told(folder, name)) is not None]
    # Of two that differ it is not known which is damaged: two that agree show it.
    renamed = {json_files.renamed_key(_told(tree.root, name), theirs) for theirs in told}
    names = renamed.pop() if len(told) == _NEIGHBOURS and len(renamed) == 1 else None
    if names is not None:
        raise NotKnown(
            f"{visible(name)} has a key {visible(names[0])}, that of {visible(beside[0].name)} {visible(names[1])}: damaged?"
        )


def _told(folder: Path, name: str) -> object:
    """The value of a JSON file of a save; None where it is not read."""
    entry = file_inside(folder, name)
    try:
        return json_files.read(Tree(folder, {name: entry}), name, json_files.SMALL_BYTES) if entry else None
    except (NotKnown, ValueError):
        return None


def _is_text(tree: Tree, name: str) -> bool:
    """Whether it is JSON, one value or one a line; of YAML, whether there is something in it and no zeros.

    Raises:
        NotKnown: it cannot be read, and so a load that reads it could not.
    """
    try:
        if name.endswith(".json"):
            return json_files.looks_whole(tree, name) or json_files.is_lines(tree, name)
        return tree.files[name].size > 0 and not _is_zeros(tree, name)
    except TooLarge:
        return True  # nothing is shown


def _is_text_in(folder: Path, name: str) -> bool:
    """Whether that of another save is shown to be whole."""
    entry = file_inside(folder, name)
    try:
        return entry is not None and _is_text(Tree(folder, {name: entry}), name)
    except NotKnown:
        return False


def _is_zeros(tree: Tree, name: str) -> bool:
    with opened(tree.path(name), name) as handle:
        return handle.size > 0 and not handle.read(0, min(handle.size, _SAMPLE_BYTES)).strip(b"\0")


def is_before(folder: Path, other: Path) -> bool:
    """Whether the first is an earlier save than the other, by their names."""
    one, two = _order(folder), _order(other)
    return one is not None and two is not None and one < two


def _order(folder: Path) -> int | None:
    """By its own name, or by that of the folder above (``step=100-last/weights``)."""
    for name in (folder.name, folder.parent.name):
        step = step_of(name)
        if (found := number_of(name) if step is None else step) is not None:
            return found
    return None


def file_inside(folder: Path, name: str) -> Entry | None:
    """The file of that name in a save; None where there is none or it cannot be looked at, or a link on the way to it
    leads elsewhere."""
    path = folder / name
    on_the_way = [path, *path.parents][: len(Path(name).parts) + 1]
    try:
        return None if any(step.is_symlink() for step in on_the_way) or not path.is_file() else entry_at(path)
    except OSError:
        return None


def identical(tree: Tree, name: str, folder: Path) -> bool | None:
    """Whether the file holds the numbers of the same file in that folder; None where that says nothing."""
    try:
        return _compared(tree, name, folder)
    except Unread:
        return None


def _compared(tree: Tree, name: str, folder: Path) -> bool | None:
    """The same. Raises `Unread` where one of the two is there and cannot be read."""
    try:
        with opened(folder / name, name) as other, opened(tree.path(name), name) as mine:
            sums = _sums(mine)
            if sums is not None:
                return sums == _sums(other) if sums else None
            return mine.size == other.size and _same_bytes(mine, other)
    except Unread:
        raise
    except (NotKnown, Broken):
        return None  # not there, or no such file: nothing to compare with


def _sums(handle: Handle) -> list[tuple[str, int, int]] | None:
    """The recorded checksums of the tensors of an archive; None where it is none, or they were not recorded."""
    if handle.size < 22 or not zips.looks_like_zip(handle.read(0, 4)):
        return None
    archive = zips.parse(handle.read, handle.size, handle.name, program=True)
    if not archive.has_checksums:
        return None
    records = archive.records.values()
    return [
        (r.name.partition("/")[2], r.size, r.crc) for r in records if "/data/" in r.name and r.size >= _TELLING_BYTES
    ]


def _same_bytes(mine: Handle, other: Handle) -> bool:
    places = {mine.size * index // _SAMPLES for index in range(_SAMPLES)} | {max(0, mine.size - _SAMPLE_BYTES)}
    for place in sorted(places):
        length = min(_SAMPLE_BYTES, mine.size - place)
        if mine.read(place, length) != other.read(place, length):
            return False
    return True


def check_optimizers(tree: Tree, ask: Ask, files: Mapping[str, TorchFile]) -> None:
    """Optimizers in files that no format names: none lost its state, or is of another save than the model beside it."""
    refuse_lost_state(tree, files)
    trained = [name for name, file in files.items() if any(_with_state(found) for _, found in optimizers(file.value))]
    shards = [name for name in tree.files if name.endswith(_SHARDS) and tree.path(name) not in ask.left_over]
    refuse_mixed(tree, ask, trained, shards)


def refuse_lost_state(tree: Tree, files: Mapping[str, TorchFile]) -> None:
    """`NotKnown` for an optimizer with state for fewer of its parameters than in a save before: state stays."""
    held = {name: found for name, file in files.items() if (found := dict(optimizers(file.value)))}
    for folder in neighbours(tree.root, 2) if held else ():
        if not is_before(folder, tree.root):
            continue
        for name, mine in held.items():
            try:
                before = dict(optimizers(check_file(Tree(folder), name, Ask("structural", 0.0)).value))
            except (Broken, Foreign, NotKnown, OSError):
                continue
            for place in mine.keys() & before.keys():
                now, then = _with_state(mine[place]), _with_state(before[place])
                if now < then and parameters(mine[place]) == parameters(before[place]):
                    raise NotKnown(
                        f"{visible(name)} has the state of {now} of {parameters(mine[place])} parameters, that of"
                        f" {visible(folder.name)} of {then}: emptied, or of another optimizer?"
                    )


def parameters(optimizer: object) -> int:
    """The number of parameters that an optimizer has."""
    if not isinstance(optimizer, dict):
        return 0
    groups = optimizer.get("param_groups")
    lists = [group.get("params") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return max(_with_state(optimizer), sum(len(params) for params in lists if isinstance(params, list)))


def _with_state(optimizer: dict[object, object]) -> int:
    states = optimizer.get("state")
    return len(states) if isinstance(states, dict) else 0


def optimizers(value: object) -> Iterator[tuple[tuple[object, ...], dict[object, object]]]:
    """Every table of ``state`` and ``param_groups`` with the names on the way to it, each once."""
    seen: set[int] = set()
    pending: list[tuple[tuple[object, ...], object]] = [((), value)]
    for place, table in pending:
        if not isinstance(table, (dict, list)) or id(table) in seen:
            continue
        seen.add(id(table))
        if isinstance(table, dict) and isinstance(table.get("state"), dict) and "param_groups" in table:
            yield place, table
        elif len(place) < _OPTIMIZER_DEPTH:
            children = table.items() if isinstance(table, dict) else enumerate(table)
            pending += [((*place, key), child) for key, child in children if isinstance(child, (dict, list))]
