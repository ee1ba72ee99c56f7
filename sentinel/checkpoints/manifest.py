"""A manifest of our own, for what records no checksum: safetensors, old torch files, metadata, trackers.

``.sentinel-manifest.json`` inside the folder (``<file>.sentinel-manifest.json`` beside a single file) lists every file
with its size and the CRC-32 of each block; the list carries its own. It is written once, right after a save, and never
overwritten: what it proves is that the bytes are those of that moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sentinel.checkpoints.files import LITTER, Broken, NotKnown, Tree, opened, read_small
from sentinel.checkpoints.formats.base import Ask, Finding, unfinished
from sentinel.checkpoints.formats.beside.rank_files import scan_save
from sentinel.checkpoints.own_folders import FULL
from sentinel.checkpoints.reading import Work, span_crc, threads_for
from sentinel.errors import Denied, Refused, Unavailable
from sentinel.text import visible

NAME = ".sentinel-manifest.json"
BLOCK_BYTES = 64 << 20
_LIMIT_BYTES = 32 << 20
_VERSION = 1


def place_of(path: Path, single: bool) -> Path:
    return path.with_name(path.name + NAME) if single else path / NAME


def write(path: Path) -> Path:
    """Record the checksums of what is at the path now. `Refused` where they are recorded already."""
    try:
        tree = scan_save(path)
    except NotKnown as error:
        raise Unavailable(f"{visible(str(path))}: {error.reason}") from error
    place = place_of(path, tree.single)
    if os.path.lexists(place):
        raise Refused(f"{visible(str(place))} exists: a manifest is written once", fix="Validate against it.")
    names = sorted(name for name in tree.files if name != NAME)
    with ThreadPoolExecutor(threads_for("checksum")) as pool:
        try:
            sums = list(pool.map(lambda name: _blocks(tree, name), names))
        except NotKnown as error:
            raise Unavailable(error.reason, fix="Try again when nothing writes to it.") from error
    files = {name: {"size": tree.files[name].size, "crc32": s} for name, s in zip(names, sums, strict=True)}
    text = json.dumps({"version": _VERSION, "block_bytes": BLOCK_BYTES, "files": files, "self": _own(files)})
    temporary = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):  # half of one is no part of the save
            temporary.unlink()
        fix = "Free some space there." if error.errno in FULL else ""
        raise Denied(f"{visible(str(place))} cannot be written: {error.strerror}", fix=fix) from error
    return place


def _own(files: object) -> str:
    return f"{zlib.crc32(json.dumps(files, sort_keys=True).encode()):08x}"


def _blocks(tree: Tree, name: str) -> list[str]:
    buffer = bytearray(1 << 20)
    with opened(tree.path(name), name) as handle:
        return [
            f"{span_crc(handle, offset, min(BLOCK_BYTES, handle.size - offset), buffer):08x}"
            for offset in range(0, handle.size, BLOCK_BYTES)
        ]


def apply(tree: Tree, ask: Ask, finding: Finding) -> None:
    """Hold the files against the manifest, where there is one: sizes now, bytes as works."""
    place = place_of(tree.root, tree.single)
    if (tree.single and not os.path.lexists(place)) or (not tree.single and NAME not in tree.files):
        return
    files = _read(place)
    sums: list[Work] = []
    for name, (size, blocks) in files.items():
        entry = tree.files.get(name)
        if entry is None:
            if ask.part or LITTER.fullmatch(name.rpartition("/")[2]):
                continue
            raise unfinished(tree, ask, f"{visible(name)} is in the manifest, but not there")
        if entry.size != size:
            raise Broken(f"{visible(name)}: {entry.size} bytes, the manifest says {size}")
        sums += [_work(tree, name, index, block) for index, block in enumerate(blocks)]
    if ask.level == "checksum" and set(files) >= set(tree.files) - {NAME}:
        finding.works = sums  # every byte is in it, so the checksums inside need not be read as well
    else:
        finding.works = [*sums, *finding.works]
    finding.unsummed = [name for name in finding.unsummed if name not in files]
    finding.manifest = set(files) >= set(tree.files) - {NAME}


def _read(place: Path) -> dict[str, tuple[int, list[int]]]:
    try:
        data = json.loads(read_small(place, _LIMIT_BYTES, place.name))
        files = data["files"]
        if data["version"] != _VERSION or data["block_bytes"] != BLOCK_BYTES or data["self"] != _own(files):
            raise ValueError("its own checksum differs")
        return {
            name: (int(entry["size"]), [int(block, 16) for block in entry["crc32"]]) for name, entry in files.items()
        }
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotKnown(f"{visible(place.name)} is damaged") from None


def _work(tree: Tree, name: str, index: int, crc: int) -> Work:
    offset = index * BLOCK_BYTES
    size = min(BLOCK_BYTES, tree.files[name].size - offset)

    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            if span_crc(handle, offset, size, buffer) != crc:
                raise Broken(f"{visible(name)}: CRC-32 differs from the manifest", "checksum")

    return Work(size, run)
