"""PyTorch distributed checkpoints: one ``.metadata``, or one per rank (saved without collectives).

The coordinator writes ``.metadata`` last and moves it into place, so it is the end marker; without collectives every
rank's ``__<rank>.metadata`` is the marker of that rank's shards. Every stored piece is a complete torch.save archive,
which is what makes checksums readable without torch. The saved world size is not recorded: it is taken from the ranks
in the file names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, Unsummed, opened
from sentinel.checkpoints.formats import one_save
from sentinel.checkpoints.formats.base import (
    Ask,
    Finding,
    newer_than,
    refuse_links,
    unfinished,
)
from sentinel.checkpoints.formats.dcp_parts import ends, mixed, packed, safetensors_part
from sentinel.checkpoints.formats.dcp_parts.ends import Layout
from sentinel.checkpoints.formats.dcp_parts.metadata import Metadata, read_metadata
from sentinel.checkpoints.formats.dcp_parts.pieces import Files, Item, Shape, tiles, volume
from sentinel.checkpoints.formats.dcp_parts.safetensors_part import Blob, Without
from sentinel.checkpoints.formats.dcp_parts.step_inside import inner_step
from sentinel.checkpoints.parsing import pickle_names
from sentinel.checkpoints.parsing.content import look_at, looks_of, role_of
from sentinel.checkpoints.parsing.floats import Look
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.parsing.tensors import Pickled
from sentinel.checkpoints.parsing.zips import archive_start
from sentinel.checkpoints.reading import (
    Work,
    batches,
    check_slice,
    open_archive,
    run_all,
    threads_for,
)
from sentinel.checkpoints.steps import step_in
from sentinel.text import visible

NAME = "dcp"
_SHARD = re.compile(r"__(\d+)_(\d+)\.distcp")
_TEMPORARY = re.compile(r"(\.|__\d+\.)metadata\.tmp")
_RANK_METADATA = re.compile(r"__(\d+)\.metadata")
_SHARDED_OBJECT = re.compile(r".+/shard_\d+(\.\d+)*_\d+(\.\d+)*")  # as megatron-core names an object by its place
_BYTES_LOOKED_AT = 256  # pieces that are bytes of which a structural check reads what they would import
_COVERAGE_NAMES = 64  # tensors whose coverage a part reports for the join


def recognise(tree: Tree) -> bool:
    return any(
        name in (".metadata", ".metadata.tmp") or _SHARD.fullmatch(name) or _RANK_METADATA.fullmatch(name)
        for name in tree.files
    )


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    left = next((name for name in tree.files if _TEMPORARY.fullmatch(name)), None)
    if left and left.removesuffix(".tmp") in tree.files:
        raise unfinished(tree, ask, f"{left} beside {left.removesuffix('.tmp')}: a save over it did not finish")
    if ".metadata" in tree.files:
        return _check_plain(tree, ask)
    ranks = {int(m.group(1)) for name in tree.files if (m := _RANK_METADATA.fullmatch(name))}
    if ranks:
        return _check_per_rank(tree, ask, ranks)
    if ask.part and ".metadata.tmp" not in tree.files:
        return _check_shards_alone(tree, ask)
    raise unfinished(tree, ask, ".metadata is missing: the save did not finish")


def _shards(tree: Tree) -> dict[str, int]:
    """Shard file -> rank that wrote it."""
    return {name: int(m.group(1)) for name in tree.files if (m := _SHARD.fullmatch(name))}


def _read(tree: Tree, name: str) -> Metadata:
    with opened(tree.path(name), name) as handle:
        return read_metadata(handle)


def objects(tree: Tree) -> set[str]:
    """The names of what ``.metadata`` lists that is no tensor."""
    return _read(tree, ".metadata").blobs


def is_torch_dist(tree: Tree) -> bool:
    """Whether ``.metadata`` says that megatron-core's own backend made it, which saves through torch's."""
    metadata = _read(tree, ".metadata")
    return metadata.of_megatron or any(_SHARDED_OBJECT.fullmatch(name) for name in metadata.blobs)


def _check_plain(tree: Tree, ask: Ask) -> Finding:
    metadata = _read(tree, ".metadata")
    for name, tensor in metadata.tensors.items():
        if not tiles(tensor):
            raise Broken(f"the pieces of {visible(name)} do not cover it exactly once")
    files = metadata.files()
    shards = _shards(tree)
    ask.left_over.update(tree.path(name) for name in shards if name not in files)
    here = files.only([name for name in files if name in tree.files])
    if len(here) < len(files) and not (ask.part and (here or shards)):
        missing = sorted(set(files) - set(here))
        _missing(tree, ask, missing)
    blobs = {name: blob for name in here if (blob := _layout(tree, name, here, ask))}
    newer_than(tree, shards, ".metadata")
    newer_than(tree, here, ".metadata")
    one_save.refuse_older(tree, [*here, ".metadata"], ".metadata")
    packed.check_short(tree, metadata, blobs)
    layout = Without(here, blobs)
    if ask.level == "structural":  # the others read every byte
        run_all(ends.works(tree, layout), threads_for("structural"))
        _look_at_bytes(tree, metadata)
    _saved_here(tree, metadata)
    step = inner_step(tree, metadata)
    owners = frozenset(shards[name] for name in here if name in shards)
    writers = {int(m.group(1)) for name in files if (m := _SHARD.fullmatch(name))}
    return Finding(
        step=step,
        owners=owners,
        world_size=max(writers) + 1 if writers else None,
        whole=len(here) == len(files),
        has={name: tree.files[name].size for name in here},
        needs={} if len(here) == len(files) else {name: files.end(name) for name in files},
        works=chain(_item_works(tree, layout, ask, _always_different), *(blob.works for blob in blobs.values())),
        unsummed=sorted(blobs),
    )


def _saved_here(tree: Tree, metadata: Metadata) -> None:
    """The metadata names the folder that it was saved to: of another step than this one's it is another save's."""
    named = step_in(str(tree.root))
    if named is not None and metadata.saved_step is not None and abs(named - metadata.saved_step) > 1:
        raise NotKnown(f".metadata was saved for step {metadata.saved_step}, the folder is named step {named}")


def _missing(tree: Tree, ask: Ask, missing: list[str]) -> None:
    count = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    reason = f"{visible(missing[0])}{count} named by .metadata, but not there"
    # .metadata is written when all shards are there: one is missing since a save over it began, or a deletion.
    if ask.names_changed(tree) or (ask.fresh(tree) and ".metadata.tmp" in tree.files):
        raise unfinished(tree, ask, reason)
    raise Broken(reason)


def _layout(tree: Tree, name: str, files: Files, ask: Ask) -> Blob | None:
    """The pieces of one file: from its start to its end, one after another, and the file exactly that long.

    Or, where the job had its tensors serialised as safetensors, that part of the file.
    """
    gap = files.gap(name)
    size, reached = tree.files[name].size, files.end(name)
    if gap is None and size == reached:
        return None
    blob = safetensors_part.find(tree, name, files[name], ask)
    if blob is not None:
        return blob
    if gap is not None:
        raise Broken(f"{visible(name)}: a gap or an overlap before {visible(gap)}")
    raise Broken(f"{visible(name)}: {size} bytes, its metadata says {reached}")


def _look_at_bytes(tree: Tree, metadata: Metadata) -> None:
    """Pieces that are bytes are pickles that DCP loads as they are: refuse those that would run something."""
    for item in metadata.bytes_items(_BYTES_LOOKED_AT):
        if item.plain and item.length < 1 << 20 and item.file in tree.files:
            what = f"{visible(item.file)}: {visible(item.name)}"
            with opened(tree.path(item.file), item.file) as handle:
                whole = handle.read(item.offset, item.length)
            found = open_archive(lambda at, n: whole[at : at + n], len(whole), what)  # noqa: B023
            pickle_names.judge(found.pickled.names, what)


def _check_per_rank(tree: Tree, ask: Ask, ranks: set[int]) -> Finding:
    shards = _shards(tree)
    world = max(ranks | set(shards.values())) + 1
    late = sorted(set(shards.values()) - ranks)
    if late:
        raise unfinished(tree, ask, f"rank {late[0]} has shards but no __{late[0]}.metadata: its save did not finish")
    if not ask.part and len(ranks) != world:
        raise unfinished(tree, ask, f"rank {first_hole(ranks, 0, world)} of {world} is missing")
    finding = Finding(owners=frozenset(ranks), world_size=None if ask.part else world, whole=not ask.part)
    union: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}
    totals: dict[str, tuple[str, tuple[int, ...]]] = {}
    layouts: dict[str, Sequence[Item]] = {}
    blobs: dict[str, Blob] = {}
    cuts: dict[int, dict[str, list[Shape]]] = {}
    steps: dict[int, int] = {}
    folders: dict[int, int] = {}
    for rank in sorted(ranks):
        metadata = _check_rank(tree, rank, shards, (layouts, blobs), ask)
        packed.check_short(tree, metadata, blobs, share=len(ranks))
        for name, tensor in metadata.tensors.items():
            if totals.setdefault(name, (tensor.dtype, tensor.size)) != (tensor.dtype, tensor.size):
                raise Broken(f"rank {rank} saved {visible(name)} with another shape or type than the others")
            union.setdefault(name, {}).update(tensor.chunks)
            cuts.setdefault(rank, {})[name] = list(tensor.chunks)
        if ask.part:
            finding.coverage |= _coverage(rank, metadata)
        inner = inner_step(tree, metadata)
        if inner is not None:
            steps[rank] = inner
        if metadata.saved_step is not None:
            folders[rank] = metadata.saved_step
    one_save.refuse_older(tree, [*shards, *(f"__{rank}.metadata" for rank in ranks)], f"__{min(ranks)}.metadata")
    for seen in (steps, folders):
        if len(set(seen.values())) > 1:
            raise Broken(f"the ranks' shards are of different steps: {sorted(set(seen.values()))[:4]}")
    finding.saved_step = next(iter([*steps.values(), *folders.values()]), None)
    finding.step = next(iter(steps.values()), None)
    for name, chunks in union.items():
        have, need = sum(volume(sizes) for sizes in chunks.values()), volume(totals[name][1])
        reason = f"the pieces of {visible(name)} on all ranks cover {have} of {need} elements"
        if have > need:
            raise Broken(reason)
        if have < need and not ask.part:
            raise unfinished(tree, ask, reason)
    layout = Without(layouts, blobs)
    if ask.level == "structural":
        run_all(ends.works(tree, layout), threads_for("structural"))
    finding.has = {name: tree.files[name].size for name in layouts}
    differ = partial(_hold_different_parts, shards, cuts)
    finding.works = chain(_item_works(tree, layout, ask, differ), *(blob.works for blob in blobs.values()))
    finding.unsummed = sorted(blobs)
    return finding


def _always_different(file: str, other: str, tensor: str) -> bool:
    """With one metadata, two shards never hold the same part of a tensor."""
    del file, other, tensor
    return True


def _hold_different_parts(
    shards: Mapping[str, int], cuts: Mapping[int, Mapping[str, list[Shape]]], file: str, other: str, tensor: str
) -> bool:
    """Whether these ranks hold different parts of that tensor; replicated ones are the same on several."""
    return cuts[shards[file]].get(tensor) != cuts[shards[other]].get(tensor)


def _check_rank(
    tree: Tree,
    rank: int,
    shards: dict[str, int],
    found: tuple[dict[str, Sequence[Item]], dict[str, Blob]],
    ask: Ask,
) -> Metadata:
    layouts, blobs = found
    marker = f"__{rank}.metadata"
    metadata = _read(tree, marker)
    files = metadata.files()
    for name in files:
        match = _SHARD.fullmatch(name)
        if not match or int(match.group(1)) != rank:
            raise Broken(f"{marker} names {visible(name)}, which is not a shard of rank {rank}")
        if name not in tree.files:
            raise unfinished(tree, ask, f"{visible(name)} named by {marker}, but not there")
        blob = _layout(tree, name, files, ask)
        blobs |= {name: blob} if blob else {}
        layouts[name] = files[name]
    newer_than(tree, [name for name, owner in shards.items() if owner == rank], marker)
    return metadata


def _coverage(rank: int, metadata: Metadata) -> dict[str, tuple[int, int]]:
    """How much of each tensor that is spread over ranks this rank holds. A bounded choice that all ranks make alike."""
    found: dict[str, tuple[int, int]] = {}
    for name, tensor in metadata.tensors.items():
        have = sum(volume(sizes) for sizes in tensor.chunks.values())
        if have < tensor.elements:
            found[hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()] = (
                have,
                tensor.elements,
            )
    return {f"{rank}:{name}": found[name] for name in sorted(found)[:_COVERAGE_NAMES]}


def owners_by_name(tree: Tree) -> frozenset[int]:
    """The ranks that the file names speak of, whatever the files hold."""
    return frozenset(spread(tree.files))


def _check_shards_alone(tree: Tree, ask: Ask) -> Finding:
    """Shards whose metadata is on another host: walked from their end, archive by archive."""
    shards = _shards(tree)
    layouts: dict[str, Sequence[Item]] = {}
    for name in shards:
        with opened(tree.path(name), name) as handle:
            layouts[name] = _walk_back(handle)
    return Finding(
        owners=frozenset(shards.values()),
        whole=False,
        has={name: tree.files[name].size for name in shards},
        marked=False,
        works=_item_works(tree, layouts, ask, _always_different),
    )


def _walk_back(handle: Handle) -> list[Item]:
    items: list[Item] = []
    end = handle.size
    if not end:
        raise Broken(f"{handle.name}: empty")
    while end > 0:
        start = archive_start(handle.read, end, handle.name)
        if handle.read(start, 4) != b"PK\x03\x04":
            raise Broken(f"{handle.name}: no archive where one should start")
        items.append(Item(f"piece at {start}", handle.name, start, end - start, True))
        end = start
    return items[::-1]


def _item_works(tree: Tree, files: Layout, ask: Ask, differ: mixed.Differ) -> Iterator[Work]:
    opaque: Item | None = None
    for name, items in files.items():
        opaque = opaque or next((item for item in items if not item.plain), None)
        for batch, size in batches(items, lambda item: item.length):
            yield _items_work(tree, name, batch, ask, size)
    if opaque is not None:
        yield _no_checksum(opaque, ask)
    yield Work(0, partial(mixed.compare, tree, files))
    yield Work(0, partial(mixed.refuse_two_counts, tree, files))
    yield Work(0, partial(mixed.refuse_twins, tree, files, differ))
    yield Work(0, partial(mixed.refuse_copies, tree, files))
    yield Work(0, partial(mixed.refuse_negative_squares, tree, files))


def _no_checksum(item: Item, ask: Ask) -> Work:
    def run(buffer: bytearray) -> None:
        del buffer
        if ask.level == "content":
            raise NotKnown(f"{visible(item.file)}: compressed pieces: their numbers are not looked at")
        raise Unsummed(f"{visible(item.file)}: compressed pieces: no checksum recorded")

    return Work(0, run)


def _items_work(tree: Tree, name: str, items: Sequence[Item], ask: Ask, size: int) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            for item in items:
                if not item.plain:
                    ends.check_frames(handle, item)
                    continue
                what = f"{handle.name}: {visible(item.name)}"
                agree = partial(packed.agree, item, what)
                looks = partial(_looks, item) if ask.level == "content" else None
                check_slice(handle, item.offset, item.length, buffer=buffer, what=what, looks=looks, agree=agree)

    return Work(size, run)


def _looks(item: Item, pickled: Pickled) -> Mapping[str, Sequence[Look]]:
    """What of a piece must be finite: a tensor by its name, bytes by what is pickled in them."""
    path = tuple(item.name.split("."))
    role = role_of(path)
    if item.size is None:
        return looks_of(pickled, role)
    look = look_at(path, item.dtype, item.size, role, in_model=len(path) > 1)
    if look is None:
        return {}
    return {t.storage.key: [replace(look, dtype=t.dtype, views=(t.view,))] for t in pickled.tensors}


def spread(names: Iterable[str]) -> dict[int, list[str]]:
    """Shard files by the rank that wrote them (for copying and for spreading work)."""
    found: dict[int, list[str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name) or _RANK_METADATA.fullmatch(name)
        if match:
            found.setdefault(int(match.group(1)), []).append(name)
    return found
