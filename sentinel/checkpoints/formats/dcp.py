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
from functools import partial
from itertools import pairwise

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened, visible
from sentinel.checkpoints.formats import dcp_mixed
from sentinel.checkpoints.formats.base import (
    Ask,
    Finding,
    newer_than,
    refuse_links,
    unfinished,
)
from sentinel.checkpoints.formats.dcp_metadata import Metadata, read_metadata
from sentinel.checkpoints.formats.dcp_pieces import Files, Item, tiles, volume
from sentinel.checkpoints.tensors import Pickled
from sentinel.checkpoints.work import (
    BATCH_BYTES,
    Work,
    check_slice,
    open_archive,
    run_all,
    threads_for,
)
from sentinel.checkpoints.zips import archive_start
from sentinel.inert_pickle import Opaque

NAME = "dcp"
_SHARD = re.compile(r"__(\d+)_(\d+)\.distcp")
_TEMPORARY = re.compile(r"(\.|__\d+\.)metadata\.tmp")
_RANK_METADATA = re.compile(r"__(\d+)\.metadata")
_ENDS_CHECKED = 50_000  # pieces whose two ends are looked at by a structural check; beyond, the ends of each file
_COVERAGE_NAMES = 64  # tensors whose coverage a part reports for the join
# Names under which trainers keep the step; one of them is compared with the step of the folder.
_STEP_NAMES = ("train_state.step", "trainer.global_step", "global_step", "state.step", "step", "iteration")


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


def _check_plain(tree: Tree, ask: Ask) -> Finding:
    metadata = _read(tree, ".metadata")
    for name, tensor in metadata.tensors.items():
        if not tiles(tensor):
            raise Broken(f"the pieces of {visible(name)} do not cover it exactly once")
    files = metadata.files()
    shards = _shards(tree)
    here = files.only([name for name in files if name in tree.files])
    if len(here) < len(files) and not (ask.part and (here or shards)):
        missing = sorted(set(files) - set(here))
        _missing(tree, ask, missing)
    for name in here:
        _layout(tree, name, here)
    newer_than(tree, shards, ".metadata")
    newer_than(tree, here, ".metadata")
    if ask.level == "structural":  # the others read every byte
        run_all(_ends(tree, here), threads_for("structural"))
    step = _inner_step(tree, metadata)
    owners = frozenset(shards[name] for name in here if name in shards)
    writers = {int(m.group(1)) for name in files if (m := _SHARD.fullmatch(name))}
    return Finding(
        step=step,
        owners=owners,
        world_size=max(writers) + 1 if writers else None,
        whole=len(here) == len(files),
        has={name: tree.files[name].size for name in here},
        needs={} if len(here) == len(files) else {name: files.end(name) for name in files},
        works=_item_works(tree, here, ask),
    )


def _missing(tree: Tree, ask: Ask, missing: list[str]) -> None:
    count = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    reason = f"{visible(missing[0])}{count} named by .metadata, but not there"
    if ask.now_s - tree.newest_s < ask.fresh_s and ".metadata.tmp" in tree.files:
        raise unfinished(tree, ask, reason)
    raise Broken(reason)


def _layout(tree: Tree, name: str, files: Files) -> None:
    """The pieces of one file: from its start to its end, one after another, and the file exactly that long."""
    gap = files.gap(name)
    if gap is not None:
        raise Broken(f"{visible(name)}: a gap or an overlap before {visible(gap)}")
    size, reached = tree.files[name].size, files.end(name)
    if size != reached:
        raise Broken(f"{visible(name)}: {size} bytes, its metadata says {reached}")


Layout = Mapping[str, Sequence[Item]]


def _ends(tree: Tree, files: Files | Layout) -> Iterator[Work]:
    count = files.count() if isinstance(files, Files) else sum(len(items) for items in files.values())
    every = count <= _ENDS_CHECKED
    batch: list[str] = []
    for name in files:
        batch.append(name)
        if len(batch) >= 32:
            yield _ends_work(tree, batch, files, every)
            batch = []
    if batch:
        yield _ends_work(tree, batch, files, every)


def _ends_work(tree: Tree, names: list[str], files: Layout, every: bool) -> Work:
    def run(buffer: bytearray) -> None:
        del buffer
        for name in names:
            with opened(tree.path(name), name) as handle:
                _check_ends(handle, files[name], every)

    return Work(0, run)


def _check_ends(handle: Handle, items: Sequence[Item], every: bool) -> None:
    """Each piece starts and ends as an archive does. Where one ends the next starts: one read sees both."""
    looked = items if every else [items[0], *(() if len(items) == 1 else (items[-1],))]
    if looked[0].plain and handle.read(looked[0].offset, 4) != b"PK\x03\x04":
        raise Broken(f"{handle.name}: does not start with an archive ({_what_instead(handle, looked[0])})")
    for item, following in pairwise([*looked, None]):
        assert item is not None
        end = item.offset + item.length
        more = 4 if following is not None and following.offset == end and following.plain else 0
        data = handle.read(end - 22, 22 + more)
        if item.plain and data[:4] != b"PK\x05\x06":
            raise Broken(f"{handle.name}: {visible(item.name)} does not end as an archive does")
        if more and data[22:] != b"PK\x03\x04":
            assert following is not None
            raise Broken(f"{handle.name}: {visible(following.name)} does not start as an archive does")
        if following is not None and not more and following.plain:
            start = handle.read(following.offset, 4)
            if start != b"PK\x03\x04":
                raise Broken(f"{handle.name}: {visible(following.name)} does not start as an archive does")


def _what_instead(handle: Handle, item: Item) -> str:
    head = handle.read(item.offset, min(item.length, 64))
    return "zeros" if not head.strip(b"\0") else "something else"


def _inner_step(tree: Tree, metadata: Metadata) -> int | None:
    """The step that the training state inside states, where it is kept as a plain number."""
    items = {name: item for name, item in metadata.named(_STEP_NAMES).items() if item.size is None}
    for name in _STEP_NAMES:
        item = items.get(name)
        if item and item.plain and item.length < 1 << 20 and item.file in tree.files:
            with opened(tree.path(item.file), item.file) as handle:
                whole = handle.read(item.offset, item.length)
            found = open_archive(lambda at, n: whole[at : at + n], len(whole), f"{visible(item.file)}: {name}")  # noqa: B023
            if type(found.pickled.value) is int:
                return found.pickled.value
    return None


def _check_per_rank(tree: Tree, ask: Ask, ranks: set[int]) -> Finding:
    shards = _shards(tree)
    world = max(ranks | set(shards.values())) + 1
    late = sorted(set(shards.values()) - ranks)
    if late:
        raise unfinished(tree, ask, f"rank {late[0]} has shards but no __{late[0]}.metadata: its save did not finish")
    if not ask.part and len(ranks) != world:
        raise unfinished(tree, ask, f"rank {min(set(range(world)) - ranks)} of {world} is missing")
    finding = Finding(owners=frozenset(ranks), world_size=None if ask.part else world, whole=not ask.part)
    union: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}
    totals: dict[str, tuple[str, tuple[int, ...]]] = {}
    layouts: dict[str, Sequence[Item]] = {}
    steps: dict[int, int] = {}
    folders: dict[int, int] = {}
    for rank in sorted(ranks):
        metadata = _check_rank(tree, rank, shards, layouts)
        for name, tensor in metadata.tensors.items():
            if totals.setdefault(name, (tensor.dtype, tensor.size)) != (tensor.dtype, tensor.size):
                raise Broken(f"rank {rank} saved {visible(name)} with another shape or type than the others")
            union.setdefault(name, {}).update(tensor.chunks)
        if ask.part:
            finding.coverage |= _coverage(rank, metadata)
        inner = _inner_step(tree, metadata)
        if inner is not None:
            steps[rank] = inner
        if metadata.saved_step is not None:
            folders[rank] = metadata.saved_step
    for seen in (steps, folders):
        if len(set(seen.values())) > 1:
            raise Broken(f"the ranks' shards are of different steps: {sorted(set(seen.values()))[:4]}")
    finding.saved_step = next(iter([*steps.values(), *folders.values()]), None)
    finding.step = next(iter(steps.values()), None)
    for name, chunks in union.items():
        have, need = sum(volume(sizes) for sizes in chunks.values()), volume(totals[name][1])
        if have > need or (have < need and not ask.part):
            raise Broken(f"the pieces of {visible(name)} on all ranks cover {have} of {need} elements")
    if ask.level == "structural":
        run_all(_ends(tree, layouts), threads_for("structural"))
    finding.has = {name: tree.files[name].size for name in layouts}
    finding.works = _item_works(tree, layouts, ask)
    return finding


def _check_rank(tree: Tree, rank: int, shards: dict[str, int], layouts: dict[str, Sequence[Item]]) -> Metadata:
    marker = f"__{rank}.metadata"
    metadata = _read(tree, marker)
    files = metadata.files()
    for name in files:
        match = _SHARD.fullmatch(name)
        if not match or int(match.group(1)) != rank:
            raise Broken(f"{marker} names {visible(name)}, which is not a shard of rank {rank}")
        if name not in tree.files:
            raise Broken(f"{visible(name)} named by {marker}, but not there")
        _layout(tree, name, files)
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
        works=_item_works(tree, layouts, ask),
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


def _item_works(tree: Tree, files: Layout, ask: Ask) -> Iterator[Work]:
    opaque: Item | None = None
    for name, items in files.items():
        start = size = 0
        for index, item in enumerate(items):
            if item.plain:
                size += item.length
            else:
                opaque = opaque or item
            if size >= BATCH_BYTES:
                yield _items_work(tree, name, items[start : index + 1], ask, size)
                start, size = index + 1, 0
        if size:
            yield _items_work(tree, name, items[start:], ask, size)
    if opaque is not None:
        yield _no_checksum(opaque)
    yield Work(0, partial(dcp_mixed.compare, tree, files))


def _no_checksum(item: Item) -> Work:
    def run(buffer: bytearray) -> None:
        del buffer
        raise NotKnown(f"{visible(item.file)}: transformed (compressed) pieces: no checksum recorded")

    return Work(0, run)


def _items_work(tree: Tree, name: str, items: Sequence[Item], ask: Ask, size: int) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            for item in items:
                if not item.plain:
                    continue
                what = f"{handle.name}: {visible(item.name)}"
                agree = partial(_agree, item, what)
                check_slice(handle, item.offset, item.length, level=ask.level, buffer=buffer, what=what, agree=agree)

    return Work(size, run)


def _agree(item: Item, what: str, pickled: Pickled) -> None:
    """What the piece says of itself is what the metadata says of it."""
    if item.size is None or not isinstance(pickled.value, Opaque) or len(pickled.tensors) != 1:
        return
    tensor = pickled.tensors[0]
    if tensor.dtype != item.dtype:
        raise Broken(f"{what}: stored as {tensor.dtype}, the metadata says {item.dtype}", "checksum")
    if tensor.size != item.size:
        raise Broken(f"{what}: stored with shape {tensor.size}, the metadata says {item.size}", "checksum")


def spread(names: Iterable[str]) -> dict[int, list[str]]:
    """Shard files by the rank that wrote them (for copying and for spreading work)."""
    found: dict[int, list[str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name) or _RANK_METADATA.fullmatch(name)
        if match:
            found.setdefault(int(match.group(1)), []).append(name)
    return found
