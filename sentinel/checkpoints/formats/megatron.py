"""Megatron-LM: ``iter_<7 digits>``, found out in Megatron's own order: metadata.json, ``mp_rank_*``, bare ``.metadata``.

torch_dist: a DCP checkpoint whose end marker is ``metadata.json``, written after ``.metadata``; with integrity checking
``integrity.json`` holds the sha256 of every file. Legacy: one ``model_optim_rng.pt`` per tensor/pipeline/expert rank.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping

from sentinel.checkpoints.files import Broken, NotKnown, Tree, is_file, opened, read_small
from sentinel.checkpoints.formats import dcp, one_save, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, neighbours, newer_than, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.jax import zarr
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

NAME = "megatron"
MARKER = "metadata.json"
INTEGRITY = "integrity.json"
_MOST = 64  # folders that are held against saves beside
COMMON = "common.pt"
_COMMON_INSIDE = "common_state"  # where newer Megatron keeps it: an object among the shards
_FOLDER = re.compile(r"iter_\d{7,}|release")
_RANK = re.compile(r"mp_rank_(\d{2})(?:_(\d{3}))?(?:_(\d{3}))?")
_OBJECT = re.compile(r"(?P<key>.+)/shard_(?P<place>\d+(?:\.\d+)*)_(?P<shape>\d{1,9}(?:\.\d{1,9})*)\.pt")
_JSON_LIMIT_BYTES = 16 << 20
# What megatron-core's CheckpointingConfig takes; any other key is an error.
_KEYS = frozenset(("sharded_backend", "sharded_backend_version", "common_backend", "common_backend_version"))
_BACKEND = "torch"  # the only one of the common part

owners_by_name = dcp.owners_by_name


def recognise(tree: Tree) -> bool:
    if tree.single:
        return False
    if any(_RANK.fullmatch(folder) for folder in tree.folders):
        return True
    named = bool(_FOLDER.fullmatch(tree.root.name))
    if MARKER in tree.files and (dcp.recognise(tree) or INTEGRITY in tree.files or named):
        return True
    return (named and dcp.recognise(tree)) or (COMMON in tree.files and bool(zarr.arrays(tree)))


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    if any(_RANK.fullmatch(folder) for folder in tree.folders):
        finding = _check_legacy(tree, ask)
        extras.check(tree, ask, finding)
        return finding
    backend = _marker(tree, ask)
    arrays = backend and not dcp.recognise(tree) and bool(zarr.arrays(tree))
    finding = _check_zarr(tree, ask) if arrays else dcp.check(tree, ask)
    if backend:
        _after(tree)
        check_common(tree, ask)
    files = {}
    if COMMON in tree.files:
        common = files[COMMON] = torch_file.check_file(tree, COMMON, ask)
        finding.step = _common_step(common, finding.step)
        finding.works = [*finding.works, *common.works]
        (finding.covered.add if common.summed else finding.unsummed.append)(COMMON)
    files |= extras.check(tree, ask, finding)
    if INTEGRITY in tree.files:
        _integrity(tree, ask, finding, files)
    return finding


def check_common(tree: Tree, ask: Ask) -> None:
    """What is not sharded (arguments, iteration, optimizer groups) must be there: every load begins with it.

    megatron-core up to 0.16 reads ``common.pt``, which nothing in the save names; later it is an object in ``.metadata``.
    Nor does it load what lacks the marker, which copies in the order of the names bring after the shards.

    Raises:
        Broken, NotKnown: a save of Megatron's that has neither.
    """
    if ask.part:
        return
    if MARKER not in tree.files and ".metadata" in tree.files and dcp.is_torch_dist(tree):
        raise unfinished(tree, ask, f"{MARKER} is missing, which torch_dist writes last: the save did not finish")
    if COMMON in tree.files or MARKER not in tree.files or _backend(tree, ask) not in ("torch_dist", "zarr"):
        return
    if ".metadata" not in tree.files or not any(name.partition("/")[0] == _COMMON_INSIDE for name in dcp.objects(tree)):
        raise unfinished(
            tree, ask, f"{COMMON} is missing, and no {_COMMON_INSIDE} is in .metadata: nothing can load it"
        )


def refuse_unmarked(tree: Tree) -> None:
    """`NotKnown` where Megatron's state lies beside DCP's shards, in whatever folder, without the marker.

    A file called common.pt may be somebody's own: it says so only where a save beside has the marker.
    """
    begun = [
        (name, name.rpartition("/")[0])
        for name in tree.files
        if name.rpartition("/")[2] in (COMMON, INTEGRITY) and _in(name, ".metadata") in tree.files
    ]
    begun = [(name, folder) for name, folder in begun if _in(name, MARKER) not in tree.files]
    beside = neighbours(tree.root, 2) if begun else []
    for name, folder in begun[:_MOST]:
        if name.rpartition("/")[2] == INTEGRITY or any(is_file(at / folder / MARKER) for at in beside):
            raise NotKnown(f"{visible(name)} is there and no {MARKER}: a save of Megatron's that did not finish?")


def _in(name: str, file: str) -> str:
    """``file`` in the folder of ``name``."""
    folder, slash, _ = name.rpartition("/")
    return f"{folder}{slash}{file}"


def _marker(tree: Tree, ask: Ask) -> bool:
    """Whether the end marker is there and says what it should. torch_dcp and fsdp_dtensor have none."""
    if MARKER not in tree.files:
        # A step that has common.pt or an integrity list was saved by torch_dist, which writes the marker.
        if INTEGRITY in tree.files or COMMON in tree.files:
            raise unfinished(tree, ask, f"{MARKER} is missing: the save did not finish")
        beside = next((folder.name for folder in neighbours(tree.root, 1) if is_file(folder / MARKER)), "")
        if beside and _FOLDER.fullmatch(tree.root.name):
            raise unfinished(tree, ask, f"{MARKER} is missing, which {visible(beside)} has: the save did not finish")
        check_common(tree, ask)
        return False
    if _backend(tree, ask) not in ("torch_dist", "zarr", "fsdp_dtensor", "torch_dcp"):
        raise Broken(f"{MARKER} names no known backend: {visible(str(_backend(tree, ask)))}")
    _refuse_flipped(tree, ask)
    return True


def _refuse_flipped(tree: Tree, ask: Ask) -> None:
    """`Broken` where a key or the common backend is a flipped bit away from Megatron's own: it loads no other ones.

    Another version of what it wrote may follow: one that only a bit tells from that of both saves beside is not known.
    """
    marker = _said(tree, ask)
    backend = str(marker.get("common_backend", _BACKEND))
    for word, known in ((backend, _BACKEND), *((key, known) for key in marker.keys() - _KEYS for known in _KEYS)):
        if json_files.one_bit_apart(str(word), known):
            raise Broken(f"{MARKER} says {visible(str(word))}, which should be {known}: damaged")
    try:
        beside = [_said(Tree(folder), ask) for folder in neighbours(tree.root, 2) if is_file(folder / MARKER)]
    except (Broken, NotKnown):
        return
    for key in sorted(marker.keys() & _KEYS):
        mine, theirs = marker[key], [other.get(key) for other in beside]
        # Of two that differ it is not known which is damaged: two that agree show it.
        agree = len(theirs) == 2 and theirs[0] == theirs[1] and type(mine) is type(theirs[0]) is int
        if agree and json_files.one_bit_apart(str(mine), str(theirs[0])):
            raise NotKnown(f"{MARKER} says {key} {mine}, those of the saves beside {theirs[0]}: damaged?")


def _backend(tree: Tree, ask: Ask) -> object:
    """What the marker says wrote the shards."""
    return _said(tree, ask).get("sharded_backend")


def _said(tree: Tree, ask: Ask) -> dict[str, object]:
    """What the marker says."""
    try:
        marker = json.loads(read_small(tree.path(MARKER), _JSON_LIMIT_BYTES, MARKER))
    except (ValueError, RecursionError):
        raise unfinished(tree, ask, f"{MARKER} is not JSON (cut short or damaged)") from None
    return marker if isinstance(marker, dict) else {}


def _check_zarr(tree: Tree, ask: Ask) -> Finding:
    """The backend of older Megatron and NeMo: one zarr array per tensor beside ``common.pt``. No checksum of the arrays."""
    folders = zarr.arrays(tree)
    if not folders or COMMON not in tree.files:
        raise unfinished(tree, ask, "no arrays" if not folders else f"{COMMON} is missing")
    finding = Finding(unread="arrays in zarr")
    for folder in folders:
        finding.unsummed += [*zarr.check(tree, folder, all_stored=False)]
    objects = _check_objects(tree, ask, finding)
    _as_beside(tree, set(folders))
    shards = sorted({*finding.unsummed, *objects})
    newer_than(tree, shards, MARKER)
    one_save.refuse_older(tree, shards, MARKER)
    return finding


def _check_objects(tree: Tree, ask: Ask, finding: Finding) -> set[str]:
    """The files of what is no array (random and extra states): ``<key>/shard_<place>_<shape>.pt``, one for each place."""
    places: dict[tuple[str, str], set[str]] = {}
    found: set[str] = set()
    for name in sorted(tree.files):
        match = _OBJECT.fullmatch(name)
        if not match:
            continue
        file = torch_file.check_file(tree, name, ask)
        finding.works = [*finding.works, *file.works]
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
        places.setdefault((match["key"], match["shape"]), set()).add(match["place"])
        found.add(name)
    for (key, shape), mine in places.items():
        needed = math.prod(map(int, shape.split(".")))
        if len(mine) < needed and not ask.part:
            raise unfinished(tree, ask, f"{visible(key)} has {len(mine)} of its {needed} shards")
    return found


def _as_beside(tree: Tree, arrays: set[str]) -> None:
    """Which arrays there should be is written nowhere: one that lacks what the step beside it has is doubtful."""
    for folder in neighbours(tree.root, 1):
        try:
            theirs = {entry.name for entry in folder.iterdir() if (entry / zarr.V2).exists()}
        except OSError:
            return
        if theirs - arrays and theirs & arrays:
            raise NotKnown(f"the array {visible(min(theirs - arrays))} is missing, which {visible(folder.name)} has")


def _after(tree: Tree) -> None:
    """The marker is written after ``.metadata``; a newer ``.metadata`` means that it was overwritten in place."""
    newer_than(tree, [name for name in (".metadata",) if name in tree.files], MARKER)


def _common_step(common: torch_file.TorchFile, inner: int | None) -> int | None:
    step = common.get("iteration")
    return step if type(step) is int else inner


def _integrity(tree: Tree, ask: Ask, finding: Finding, others: Mapping[str, torch_file.TorchFile]) -> None:
    """sha256 of every listed file; shards that are not listed do not belong to this save. ``others``: torch files beside."""
    try:
        listed = json.loads(read_small(tree.path(INTEGRITY), _JSON_LIMIT_BYTES, INTEGRITY))
    except (ValueError, RecursionError):
        raise unfinished(tree, ask, f"{INTEGRITY} is not JSON (cut short or damaged)") from None
    files = listed.get("files") if isinstance(listed, dict) else None
    if not isinstance(files, dict) or listed.get("algorithm") != "sha256":
        raise Broken(f"{INTEGRITY} lists no sha256 sums")
    for name, digest in files.items():
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise Broken(f"{INTEGRITY}: no sha256 for {visible(name)}")
        if name not in tree.files and not ask.part:
            raise unfinished(tree, ask, f"{visible(name)} named by {INTEGRITY}, but not there")
    for name in tree.files:
        if name.endswith(".distcp") and "/" not in name and name not in files:  # in a folder lies another one's
            raise Broken(f"{visible(name)} is not in {INTEGRITY}: not of this save")
    sums = [_sum(tree, name, files[name]) for name in files if name in tree.files]
    if ask.level == "checksum":
        # They cover every byte of what is listed, so the CRC-32s inside need not be read as well.
        finding.works = [*sums, *(work for name in others.keys() - files.keys() for work in others[name].works)]
    else:
        finding.works = [*sums, *finding.works]
    finding.unsummed = [name for name in finding.unsummed if name not in files]
    finding.covered |= set(files)


def _sum(tree: Tree, name: str, digest: str) -> Work:
    def run(buffer: bytearray) -> None:
        total = hashlib.sha256()
        view = memoryview(buffer)
        with opened(tree.path(name), name) as handle:
            for offset in range(0, handle.size, len(buffer)):
                piece = view[: min(len(buffer), handle.size - offset)]
                handle.into(piece, offset)
                total.update(piece)
        if total.hexdigest() != digest:
            raise Broken(f"{visible(name)}: sha256 differs from {INTEGRITY}", "checksum")

    return Work(tree.files[name].size, run)


def _check_legacy(tree: Tree, ask: Ask) -> Finding:
    """One folder per rank: the ranks must form a full grid, each with its file, all of one iteration."""
    ranks: dict[tuple[int, int, int], str] = {}
    for folder in tree.folders:
        match = _RANK.fullmatch(folder)
        if match:
            tp, pp, ep = (int(part or 0) for part in match.groups())
            ranks[tp, pp, ep] = folder
    sides = [sorted({key[side] for key in ranks}) for side in range(3)]
    for side in sides:
        if side != list(range(len(side))):
            raise unfinished(tree, ask, f"the ranks {side[:8]} have a hole")
    grid = {(t, p, e) for t in sides[0] for p in sides[1] for e in sides[2]}
    if set(ranks) != grid:
        raise unfinished(tree, ask, f"{len(ranks)} of {len(grid)} ranks' folders are there")
    finding = Finding()
    kinds = {name.rpartition("/")[2] for name in tree.files if name.partition("/")[0] in ranks.values()}
    works: list[Work] = []
    steps: dict[str, int] = {}
    if "model_optim_rng.pt" not in kinds:
        raise unfinished(tree, ask, "no model_optim_rng.pt: the save did not finish")
    for key, folder in sorted(ranks.items()):
        for kind in sorted(kinds):
            name = f"{folder}/{kind}"
            if name not in tree.files:
                if kind == "distrib_optim.pt" and not _needs_optimizer(tree, ranks, key):
                    continue
                raise unfinished(tree, ask, f"{visible(name)} is missing")
            if not kind.endswith(".pt"):
                continue
            file = torch_file.check_file(tree, name, ask)
            works += file.works
            (finding.covered.add if file.summed else finding.unsummed.append)(name)
            step = file.get("iteration")
            if kind == "model_optim_rng.pt" and type(step) is int:
                steps[folder] = step
    if len(set(steps.values())) > 1:
        raise Broken(f"the ranks' files are of different iterations: {sorted(set(steps.values()))[:4]}")
    one_save.refuse_pause(tree, finding.covered.union(finding.unsummed), one_save.RANKS_HANG_S)
    finding.step = next(iter(steps.values()), None)
    finding.works = works
    return finding


def _needs_optimizer(tree: Tree, ranks: dict[tuple[int, int, int], str], key: tuple[int, int, int]) -> bool:
    """With expert parallelism only some ranks save an optimizer; then whole expert columns have none."""
    return key[2] == 0 or any(
        f"{folder}/distrib_optim.pt" in tree.files for other, folder in ranks.items() if other[2] == key[2]
    )
