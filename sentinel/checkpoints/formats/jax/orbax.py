"""Orbax: a step in one folder, one folder inside per item (``default``, ``state``, ``params``), or the item itself.

A save goes to ``<step>.orbax-checkpoint-tmp...`` and gets its name when it is committed; where renaming is not atomic, and
in newer versions everywhere, ``commit_success.txt`` is written last. Arrays lie in OCDBT (merged from one store per process)
or in zarr. Neither records a checksum of the values, which are inflated from level checksum on where they are compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sentinel.checkpoints.files import Broken, NotKnown, Tree
from sentinel.checkpoints.formats import one_save, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, neighbours, newer_than, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.jax import chunks, inflating, ocdbt, zarr
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.records import level_at_least
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.text import visible

NAME = "orbax"
ROOT = "_CHECKPOINT_METADATA"
ITEM = "_METADATA"
COMMITTED = "commit_success.txt"
_TEMPORARY = ".orbax-checkpoint-tmp"
STORE = "manifest.ocdbt"
_BESIDE_ITEMS = (ITEM, STORE, "_sharding", "_strings.json", "checkpoint", "metadata")
_PROCESS = re.compile(r"(.*/)?ocdbt\.process_(\d+)/manifest\.ocdbt")
_ARRAY_METADATA = re.compile(r"(.*/)?array_metadatas/process_\d+")
_TABLE = "metadata"  # of an item that is JSON: the position in the data, settings
STRINGS = "_strings.json"  # of a tree, beside its arrays
_SHARDING = "_sharding"  # without it arrays are read only by who says how they are to be sharded
_MARKERS = (ROOT, ITEM, COMMITTED, STORE, _SHARDING)
_OF_TREES = ("StandardCheckpointHandler", "PyTreeCheckpointHandler", "StandardHandler", "PyTreeHandler")
_BEGINNINGS = (ITEM, STORE, "checkpoint")  # one of them is in the folder of every tree; the last is of old versions
_STRING = "string"
_NOT_STORED = {_STRING, "None", "Dict", "List", "Tuple", "NamedTuple"}  # all but the first are empty containers
_JSON_BYTES = 64 << 20


def owners_by_name(tree: Tree) -> frozenset[int]:
    """The processes whose stores are there."""
    return frozenset(int(match.group(2)) for name in tree.files if (match := _PROCESS.fullmatch(name)))


def recognise(tree: Tree) -> bool:
    if tree.single:
        return False
    last = {name.rpartition("/")[2] for name in tree.files if name.count("/") <= 1}
    return (
        bool(last & {ROOT, ITEM, STORE}) or _TEMPORARY in tree.root.name or any(_TEMPORARY in f for f in tree.folders)
    )


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    temporary = next((f for f in [tree.root.name, *sorted(tree.folders)] if _TEMPORARY in f), None)
    if temporary is not None:
        raise unfinished(tree, ask, f"{visible(temporary)}: Orbax had not committed it")
    _as_beside(tree, ask)
    _json(tree, ask)
    _refuse_lacking_items(tree, ask)
    items = sorted({_item_of(name) for name in tree.files if _item_of(name) is not None}, key=str)
    if not items:
        raise unfinished(tree, ask, "no item in it: the save did not finish")
    finding = Finding(step=step_of(tree.root.name))
    if finding.step is None:
        finding.step = number_of(tree.root.name)
    for item in items:
        assert item is not None
        inner = (
            tree.below(item)
            if item
            else Tree(tree.root, dict(tree.files), folders=set(tree.folders), folder_times=tree.folder_times)
        )
        values, arrays = _check_item(inner, ask, item or tree.root.name)
        _count(tree, ask, finding, item or tree.root.name, arrays)
        if level_at_least(ask.level, "checksum"):
            finding.works = [*finding.works, *inflating.works(inner, values)]
    written = [name for name in tree.files if not name.rpartition("/")[2].startswith(".sentinel")]
    # What lies beside the items and is none of Orbax's was put there by somebody, at any time.
    data = [name for name in written if name in _BESIDE_ITEMS or "/" in name]
    data = [name for name in data if name.rpartition("/")[2] not in (ROOT, COMMITTED)]
    for marker in (COMMITTED, ROOT):
        if marker in tree.files:
            newer_than(tree, data, marker)
    one_save.refuse_older(tree, data, COMMITTED if COMMITTED in tree.files else None)
    if not finding.whole:
        finding.owners = owners_by_name(tree)
    finding.unsummed = sorted(name for name in data if not name.endswith(torch_file.SUFFIXES))
    extras.check(tree, ask, finding, perhaps_anothers=True)
    finding.unread = "arrays of Orbax"
    return finding


def _as_beside(tree: Tree, ask: Ask) -> None:
    """Descriptions, stores and end markers that the save beside it has, in the step and in each of its items."""
    for folder in neighbours(tree.root, 1):
        try:
            inside = [""] + [
                f"{entry.name}/" for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()
            ]
            theirs = [f"{item}{name}" for item in inside for name in _MARKERS if (folder / item / name).exists()]
            # Which items a step has is the program's to say, and its description's; one that it has is whole.
            shared = [item for item in inside[1:] if item.rstrip("/") in tree.folders]
            theirs += [f"{item}{_TABLE}" for item in shared if (folder / item / _TABLE).is_file()]
        except OSError:
            return
        lacking = sorted(set(theirs) - set(tree.files))
        if lacking:
            raise unfinished(tree, ask, f"{visible(lacking[0])} is missing, which {visible(folder.name)} has")


def _refuse_lacking_items(tree: Tree, ask: Ask) -> None:
    """Each item that the step's description names has a folder, and in it what Orbax's own handlers always write.

    Before the description came to name them, and for a step that is one item, there is nothing to ask for.
    """
    told = json_files.read(tree, ROOT, _JSON_BYTES) if ROOT in tree.files else {}
    handlers = told.get("item_handlers") if isinstance(told, dict) else None
    begun = {folder for name in tree.files for folder, _, last in [name.rpartition("/")] if last in _BEGINNINGS}
    holding = {folder for name in tree.files for folder in _folders_of(name) if name != f"{folder}/{COMMITTED}"}
    for item, handler in sorted(handlers.items()) if isinstance(handlers, dict) else ():
        of_orbax = isinstance(handler, str) and handler.startswith("orbax.")
        is_tree = of_orbax and handler.rpartition(".")[2] in _OF_TREES
        if item not in holding and (of_orbax or item not in tree.folders):
            raise unfinished(tree, ask, f"the item {visible(item)} is missing, which {ROOT} names")
        if is_tree and item not in begun:
            raise unfinished(tree, ask, f"{visible(item)}/{ITEM} is missing, and {ROOT} names that item")


def _folders_of(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _item_of(name: str) -> str | None:
    """The folder of the item that a file belongs to, as its description or its store tells; "" for the step itself."""
    folder, _, last = name.rpartition("/")
    if last in (ITEM, STORE) and folder.count("/") == 0 and not folder.startswith("ocdbt.process_"):
        return folder
    return None


def _json(tree: Tree, ask: Ask) -> None:
    for name in sorted(tree.files):
        last = name.rpartition("/")[2]
        if (
            last in (ROOT, ITEM, _SHARDING, STRINGS)
            or _ARRAY_METADATA.fullmatch(name)
            or (last == _TABLE and "/" in name)
        ):
            try:
                told = json_files.read(tree, name, _JSON_BYTES)
            except ValueError:
                raise Broken(f"{visible(name)} is not JSON (cut short or damaged)") from None
            begun = name == ROOT and isinstance(told, dict) and told.get("init_timestamp_nsecs")
            if begun and isinstance(told, dict) and not told.get("commit_timestamp_nsecs"):
                raise unfinished(tree, ask, f"{ROOT} states no commit: the save did not finish")
        elif last == COMMITTED and not tree.files[name].size:
            raise unfinished(tree, ask, f"{visible(name)} is empty")


def _count(tree: Tree, ask: Ask, finding: Finding, item: str, arrays: Mapping[str, chunks.Stored]) -> None:
    """What of the item's arrays is there: on a node's own disk a part of them, of which others may hold the rest."""
    lacking = next((name for name, array in sorted(arrays.items()) if array.have < array.need), None)
    if ask.part:
        finding.whole = finding.whole and lacking is None
        finding.coverage |= {f"{key}@{item}": held for key, held in chunks.coverage(arrays).items()}
    elif lacking is not None:
        have, need = arrays[lacking].have, arrays[lacking].need
        counted = f"of the array {visible(lacking)} {have} of {need} chunks are there"
        raise unfinished(tree, ask, f"{visible(item)}: {counted}: one node's part of the save?")


def _check_item(tree: Tree, ask: Ask, shown: str) -> tuple[list[ocdbt.Span], dict[str, chunks.Stored]]:
    """The stretches in which the item's arrays are kept, and of which arrays how much."""
    what = visible(shown)
    described = ITEM in tree.files
    told = json_files.read(tree, ITEM, _JSON_BYTES) if described else {}
    if STRINGS not in tree.files and _has_strings(told):
        raise unfinished(tree, ask, f"{what}: {STRINGS} is missing, and its description names strings")
    uses_store = isinstance(told, dict) and told.get("use_ocdbt") is True
    if STORE in tree.files:
        values = []
        inline: dict[bytes, bytes] = {}
        for span in ocdbt.spans(tree, inline=inline):
            ocdbt.check_span(tree, span)
            if span.value and span.length:
                values.append(span)
        ocdbt.check_not_zeros(tree, values)
        ocdbt.check_tails(tree, values)
        _processes(tree, ask)
        # Else chunks of nothing but zeros are not stored at all.
        every = isinstance(told, dict) and told.get("store_array_data_equal_to_fill_value") is True
        return values, chunks.stored(tree, values, inline, _array_names(told)) if every else {}
    if _has_no_arrays(told):  # a tree of nothing but strings, as Keras saves a model's settings
        return [], {}
    if uses_store:
        raise unfinished(tree, ask, f"{what}: {STORE} is missing: the processes' stores were not merged")
    folders = zarr.arrays(tree)
    if described and not folders and isinstance(told, dict) and told.get("tree_metadata"):
        raise unfinished(tree, ask, f"{what}: no array in it: half deleted or half written")
    wanted = _array_names(told)
    missing = sorted(wanted - set(folders))
    if missing:
        raise unfinished(tree, ask, f"{what}: the array {visible(missing[0])} is missing")
    all_stored = isinstance(told, dict) and bool(told.get("store_array_data_equal_to_fill_value"))
    files = [name for folder in folders for name in zarr.check(tree, folder, all_stored=all_stored)]
    return [ocdbt.Span(name, 0, tree.files[name].size, value=True) for name in files], {}


def _has_strings(told: object) -> bool:
    return _STRING in _types_of_values(told)


def _has_no_arrays(told: object) -> bool:
    """Whether the item's description names values, and none of them is kept in a store."""
    types = _types_of_values(told)
    return bool(types) and types <= _NOT_STORED


def _types_of_values(told: object) -> set[str]:
    """Of the values that the item's description names; "" for one of no known form."""
    table = told.get("tree_metadata") if isinstance(told, dict) else None
    found: set[str] = set()
    for entry in table.values() if isinstance(table, dict) else ():
        value = entry.get("value_metadata") if isinstance(entry, dict) else None
        kind = value.get("value_type") if isinstance(value, dict) else None
        found.add(kind if isinstance(kind, str) else "")
    return found


def _array_names(told: object) -> set[str]:
    """The folders of the arrays that the item's description names."""
    table = told.get("tree_metadata") if isinstance(told, dict) else None
    found: set[str] = set()
    for entry in table.values() if isinstance(table, dict) else ():
        keys, value = (
            (entry.get("key_metadata"), entry.get("value_metadata")) if isinstance(entry, dict) else (None, None)
        )
        kind = value.get("value_type") if isinstance(value, dict) else None
        if (isinstance(keys, list) and isinstance(kind, str) and "Array" in kind) or kind in ("np.ndarray", "scalar"):
            found.add(".".join(str(key.get("key")) for key in keys or () if isinstance(key, dict)))
    return found


def _processes(tree: Tree, ask: Ask) -> None:
    """Each process wrote a store of its own: their numbers have no hole."""
    numbers = {int(m.group(2)) for name in tree.files if (m := _PROCESS.fullmatch(name))}
    numbers |= {int(m.group(1)) for folder in tree.folders if (m := re.fullmatch(r"ocdbt\.process_(\d+)", folder))}
    hole = first_hole(numbers, 0, max(numbers, default=-1) + 1)
    if hole is not None and not ask.part:
        raise unfinished(tree, ask, f"ocdbt.process_{hole} is missing")
    for number in sorted(numbers):
        if f"ocdbt.process_{number}/{STORE}" not in tree.files:
            raise NotKnown(f"ocdbt.process_{number} has no {STORE}: half deleted or half written?")
