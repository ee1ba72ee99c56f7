"""A folder of safetensors: a model in numbered files with an index, or the shards that DCP's Hugging Face writer leaves.

``model-0000i-of-0000n`` must be complete and hold exactly the tensors of the index. ``shard-0000r-model-...`` (one per
rank) has no end marker: the ranks must be 1..W without a hole and their pieces must tile every tensor; how many ranks
there should have been is written nowhere, so it is compared with the steps beside it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sentinel.checkpoints.files import Broken, NotKnown, Tree, opened
from sentinel.checkpoints.formats import one_save
from sentinel.checkpoints.formats.base import (
    Ask,
    Finding,
    neighbours,
    newer_than,
    no_owners,
    refuse_links,
    unfinished,
)
from sentinel.checkpoints.formats.beside import lacking
from sentinel.checkpoints.formats.dcp_parts.pieces import Shape, TensorInfo, tiles, volume
from sentinel.checkpoints.formats.safetensors_file import (
    Header,
    check_file,
    has_moments,
    read_table,
    refuse_other_names,
)
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

NAME = "safetensors_set"
INDEX = "model.safetensors.index.json"
SHARDED = "sharded"
INDEX_LIMIT_BYTES = 32 << 20
_INDEX = re.compile(
    r"[^/.][^/]*\.safetensors\.index(\.[^./]+)?\.json"
)  # Diffusers names it after its set, and after its type
_COMPARED = 64  # tensors of a consolidated model that are held against the shards it was made of
_HEAD_BYTES = 256  # of each of them
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[^./]+)?\.safetensors")
_PLACE_IN_SET = re.compile(r"-\d{5}-of-")
_SHARD = re.compile(r"shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors")

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and any(_is_ours(name) for name in tree.files)


def _is_ours(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return (folder in ("", SHARDED) and file.endswith(".safetensors")) or name == INDEX


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    if f"{SHARDED}/" in {name[: len(SHARDED) + 1] for name in tree.files}:
        return _consolidated(tree, ask)
    json_files.check_read_at_resume(tree)
    works, names = check_models(tree, ask)
    lacking.refuse_lacking(tree)
    one_save.refuse_damaged_texts(tree, ask)
    ranks = {int(m.group(1)) for name in names if (m := _SHARD.fullmatch(name))}
    return Finding(
        owners=frozenset(rank - 1 for rank in ranks),
        world_size=len(ranks) or None,
        works=works,
        unsummed=names,
        resumable=any(has_moments(tree, name) for name in names),
    )


def _consolidated(tree: Tree, ask: Ask) -> Finding:
    """DCP's Hugging Face writer with consolidation: the ranks' shards first, then one model made of them beside.

    The shards alone are all that training resumes from; a model beside them that is not whole is a consolidation that
    broke off, and it is that model which others would load.
    """
    shards = check(tree.below(SHARDED), ask)
    outer = Tree(tree.root, {name: entry for name, entry in tree.files.items() if "/" not in name})
    outer.folder_times = tree.folder_times
    works, names = check_models(outer, ask)
    if not names:
        raise unfinished(tree, ask, "no model beside the shards: the consolidation did not finish")
    inner = [f"{SHARDED}/{name}" for name in tree.below(SHARDED).files if name.endswith(".safetensors")]
    if INDEX in tree.files:
        newer_than(tree, [*names, *inner], INDEX)
    _made_of(tree, names, inner)
    shards.works = [*shards.works, *works]
    shards.unsummed = [*(f"{SHARDED}/{name}" for name in shards.unsummed), *names]
    return shards


def _made_of(tree: Tree, models: Iterable[str], shards: Iterable[str]) -> None:
    """The consolidated model has the tensors of the shards, as large as all their pieces together, with the same bytes."""
    whole = {key: part for name in models for key, part in _parts(tree, name)}
    reached: dict[str, Shape] = {}
    first: dict[str, Part] = {}
    for name in shards:
        for key, part in _parts(tree, name):
            place = part.place or (0,) * len(part.shape)
            ends = tuple(a + b for a, b in zip(place, part.shape, strict=True))
            reached[key] = tuple(map(max, reached.get(key, ends), ends))
            if not any(place):
                first[key] = part
    for key in sorted(whole.keys() | reached.keys()):
        if key not in whole or key not in reached:
            where = "the consolidated model" if key not in whole else "the shards"
            raise Broken(f"{visible(key)} is missing in {where}")
        if whole[key].shape != reached[key] or (key in first and first[key].dtype != whole[key].dtype):
            raise Broken(
                f"{visible(key)} is {whole[key].shape} in the consolidated model, {reached[key]} in the shards"
            )
    for key in sorted(first)[:: max(1, len(first) // _COMPARED)]:
        if _head(tree, first[key]) != _head(tree, whole[key], first[key].row):
            raise Broken(f"{visible(key)} is another in the consolidated model than in the shards: of two saves")


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor, or a piece of it, in a file: where its bytes are, and the bytes of its first row."""

    file: str
    begin: int
    dtype: str
    shape: Shape
    place: Shape
    row: int


def _parts(tree: Tree, name: str) -> Iterator[tuple[str, Part]]:
    with opened(tree.path(name), name) as handle:
        table = read_table(handle, 0, handle.size)
    offsets = _offsets(name, Header({}, table.metadata))
    for key, begin, end, dtype, shape in table.spans:
        rows = volume(shape[:-1]) or 1
        yield key, Part(name, table.base + begin, dtype, shape, offsets.get(key, ()), (end - begin) // rows)


def _head(tree: Tree, part: Part, row: int | None = None) -> bytes:
    with opened(tree.path(part.file), part.file) as handle:
        return handle.read(part.begin, min(part.row if row is None else row, _HEAD_BYTES))


def check_models(tree: Tree, ask: Ask) -> tuple[list[Work], list[str]]:
    """All safetensors directly in the folder: (works, their names)."""
    names = sorted(name for name in tree.files if "/" not in name and name.endswith(".safetensors"))
    numbers = [name for name in names if _NUMBERED.fullmatch(name) and not _SHARD.fullmatch(name)]
    _complete(tree, ask, numbers)
    headers = {name: check_file(tree, name, ask) for name in names}
    if INDEX in tree.files and numbers and "model.safetensors" in headers:
        raise NotKnown(f"model.safetensors beside a set with {INDEX}: which of the two is this save's?")
    mapped: set[str] = set()
    for index in sorted(name for name in tree.files if _INDEX.fullmatch(name) and _speaks_of(tree, name, numbers)):
        files = check_index(tree, ask, index, {name: set(header.tensors) for name, header in headers.items()})
        newer_than(tree, [name for name in numbers if name in files], index)
        mapped |= files
    _refuse_without_index(tree, ask, [name for name in numbers if name not in mapped])
    if len(names) > 1:
        one_save.refuse_older(tree, names)
    refuse_other_names(tree, headers, ask)
    shards = {name: header for name, header in headers.items() if _SHARD.fullmatch(name)}
    renamed = [name for name in names if name.startswith("shard-") and name not in shards]
    if shards and renamed:
        raise NotKnown(f"{visible(renamed[0])} is no name of a shard: renamed, or downloaded twice")
    if shards:
        _ranks(tree, ask, shards)
        _tile(shards)
    return [work for header in headers.values() for work in header.works], names


def _speaks_of(tree: Tree, index: str, numbers: list[str]) -> bool:
    """Whether the index is of a set that is here: a base model's may have been copied in with its settings.

    Raises:
        NotKnown: none of the set is here, and a whole model is that would be loaded before it.
    """
    if any(index in _indexes_of(name) for name in numbers):
        return True
    files = mapped_by(tree, index) or set()
    if index == INDEX and "model.safetensors" in tree.files and files.isdisjoint(tree.files):
        raise NotKnown(
            f"model.safetensors beside {index}, which names none of the files here: of a base model, or half deleted?"
        )
    return index == INDEX or not files.isdisjoint(tree.files)


def mapped_by(tree: Tree, index: str) -> set[str] | None:
    """The files that an index puts tensors into; None where it is damaged."""
    try:
        held = json_files.read(tree, index, INDEX_LIMIT_BYTES)
    except ValueError:
        return None
    table = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(table, dict):
        return None
    files = {file for file in table.values() if isinstance(file, str)}
    return files if files or not table else None


def _indexes_of(name: str) -> tuple[str, str]:
    """Names of the index of a file's set: Diffusers puts a variant behind the stem, Transformers behind the number."""
    match = _NUMBERED.fullmatch(name)
    assert match is not None
    stem, _, _, variant = match.groups(default="")
    base, dot, of_stem = stem.rpartition(".")
    return f"{stem}.safetensors.index{variant}.json", f"{base}.safetensors.index{dot}{of_stem}.json"


def _complete(tree: Tree, ask: Ask, numbers: Iterable[str]) -> None:
    for name in numbers:
        match = _NUMBERED.fullmatch(name)
        assert match is not None
        stem, _, total, variant = match.groups(default="")
        for index in range(1, int(total) + 1):
            needed = f"{stem}-{index:05d}-of-{total}{variant}.safetensors"
            if needed not in tree.files:
                raise unfinished(tree, ask, f"{visible(needed)} is missing")


def _refuse_without_index(tree: Tree, ask: Ask, numbers: Iterable[str]) -> None:
    """Hugging Face writes the index of a set last; a user's own training script may write none."""
    for name in numbers:
        index, _ = _indexes_of(name)
        if index == INDEX:
            raise unfinished(tree, ask, f"{index} is missing: the save did not finish")
        raise NotKnown(f"{visible(index)} is missing: an unfinished save, or one of a library that writes no index")


def check_index(tree: Tree, ask: Ask, name: str, held: dict[str, set[str]]) -> set[str]:
    """Every file of the index is there and holds exactly the tensors that the index puts into it. The names of its files."""
    try:
        index = json_files.read(tree, name, INDEX_LIMIT_BYTES)
    except ValueError:
        raise unfinished(tree, ask, f"{visible(name)} is not JSON") from None
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table:
        raise Broken(f"{visible(name)} has no weight_map")
    mapped: dict[str, set[str]] = {}
    for tensor, file in table.items():
        if not isinstance(file, str):
            raise Broken(f"{visible(name)}: a damaged weight_map")
        mapped.setdefault(file, set()).add(tensor)
    for file, tensors in mapped.items():
        if file not in tree.files:
            raise unfinished(tree, ask, f"{visible(file)} named by {visible(name)}, but not there")
        if file in held and held[file] != tensors:
            other = sorted(held[file] ^ tensors)[0]
            raise Broken(f"{visible(file)} and {visible(name)} disagree about {visible(other)}")
    sets = {_PLACE_IN_SET.sub("", file) for file in mapped}
    for file in sorted(held.keys() - mapped.keys()):
        if _PLACE_IN_SET.sub("", file) in sets:
            raise Broken(f"{visible(file)} is of the set, and {visible(name)} puts no tensor into it")
    return set(mapped)


def _ranks(tree: Tree, ask: Ask, shards: Iterable[str]) -> None:
    matches = [m for name in shards if (m := _SHARD.fullmatch(name))]
    ranks = {int(m.group(1)) for m in matches}
    totals = {int(m.group(3)) for m in matches}
    if len(totals) != 1:
        raise Broken("shards of two saves: they disagree about the number of model files")
    hole = first_hole(ranks, 1, max(ranks) + 1)
    if hole is not None and not ask.part:
        raise unfinished(tree, ask, f"the shard of rank {hole - 1} is missing")
    usual = _usual_ranks(tree)
    if usual is not None and len(ranks) < usual and not ask.part:
        raise NotKnown(f"shards of {len(ranks)} ranks; the step beside it has those of {usual}")


def _usual_ranks(tree: Tree) -> int | None:
    """How many ranks the nearest step beside this one has."""
    for folder in neighbours(tree.root, 1):
        try:
            with os.scandir(folder) as entries:
                return len({m.group(1) for e in entries if (m := _SHARD.fullmatch(e.name))}) or None
        except OSError:
            return None
    return None


def _tile(shards: dict[str, Header]) -> None:
    """The pieces of every tensor, at the offsets that the shards record, tile one box without a hole."""
    pieces: dict[str, tuple[str, dict[Shape, Shape]]] = {}
    for name, header in shards.items():
        offsets = _offsets(name, header)
        for key, (dtype, shape) in header.tensors.items():
            place = offsets.get(key, (0,) * len(shape))
            known, chunks = pieces.setdefault(key, (dtype, {}))
            if known != dtype or len(place) != len(shape):
                raise Broken(f"{visible(name)}: {visible(key)} does not fit the other shards")
            if place in chunks and chunks[place] != shape:
                raise Broken(f"{visible(name)}: {visible(key)} overlaps another shard's piece")
            chunks[place] = shape
    for key, (dtype, chunks) in pieces.items():
        rank = len(next(iter(chunks)))
        size = tuple(max(place[d] + shape[d] for place, shape in chunks.items()) for d in range(rank))
        if not tiles(TensorInfo(dtype, size, chunks)):
            raise Broken(f"the shards' pieces of {visible(key)} leave a hole or overlap")


def _offsets(name: str, header: Header) -> dict[str, Shape]:
    text = header.metadata.get("DCP_SHARDING_INFO")
    if text is None:
        return {}
    try:
        info = json.loads(text)
        return {key: tuple(int(n) for n in entry["saved_offsets"]) for key, entry in info.items()}
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        raise Broken(f"{visible(name)}: its sharding information is damaged") from None
