"""Manifests made while a job runs: each finished save is read once, soon after it was written, and what was read is kept.

One file per checkpoint in a folder of its own (by default in the user's cache), never in the checkpoint's: size, times,
inode and CRC-32 of each block of every file, and whether all numbers were finite. While a file looks the same it is proven
without being read again; one that looks different is read, and invalid where its bytes are others.

A manifest speaks of the save that it was made of. A run saves over a path again (``last.ckpt``, a step that is reached once
more after it was set back): what was written since is another save's, of which it says nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel.checkpoints.files import LITTER, Broken, Entry, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import Ask, Finding
from sentinel.checkpoints.manifest import BLOCK_BYTES
from sentinel.checkpoints.parsing import json_files
from sentinel.checkpoints.reading import Work, span_crc
from sentinel.checkpoints.records import Level, level_at_least, parse_level
from sentinel.text import visible

KEPT_OF_RUN = 100  # manifests of the saves in one folder, the newest: a restart seldom goes back further
KEPT = 5_000  # manifests of a user, of a few KB to 1 MB each; of the run that has most the oldest go first
_LIMIT_BYTES = 32 << 20
_VERSION = 1

Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileThen:
    """One file as it was when its manifest was made."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    crc32: tuple[str, ...]

    def looks_like(self, entry: Entry) -> bool:
        return (self.mtime_ns, self.ctime_ns, self.inode) == (entry.mtime_ns, entry.ctime_ns, entry.inode)

    def was_written_since(self, entry: Entry) -> bool:
        """Whether somebody wrote the file after this; damage on the disk, and a copy that keeps times, leave the mtime."""
        return self.mtime_ns != entry.mtime_ns


@dataclass(frozen=True, slots=True)
class Kept:
    """What one reading found. ``level``: what it proved; ``finding``: what was wrong with the numbers, if anything was."""

    path: str
    level: Level
    finding: str
    made_s: float
    bytes: int
    seconds: float
    files: dict[str, FileThen]


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/sentinel/manifests``, or the same below ``~/.cache``: homes are usually shared by all nodes."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sentinel" / "manifests"


def place_of(folder: Path, path: Path) -> Path:
    """Of the saves in one folder, a run's, the names begin alike."""
    of = path.absolute()
    return folder / f"{_digest(of.parent)[:16]}-{_digest(of)[:40]}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()


def _former_place(place: Path) -> Path:
    """Where a manifest was kept before runs were told apart."""
    return place.with_name(place.name.partition("-")[2])


def paced(
    bytes_per_s: float, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> Pace:
    """A function that is told of bytes read and waits so long that they come at no more than that rate."""
    began = clock()
    done = 0

    def wait(count: int) -> None:
        nonlocal done
        done += count
        ahead_s = done / bytes_per_s - (clock() - began)
        if ahead_s > 0:
            sleep(ahead_s)

    return wait


def sums_of(tree: Tree, pace: Pace) -> dict[str, FileThen]:
    """All files, read at that pace. `NotKnown` where one changes meanwhile."""
    found: dict[str, FileThen] = {}
    buffer = bytearray(1 << 20)
    for name, entry in sorted(tree.files.items()):
        with opened(tree.path(name), name) as handle:
            if handle.size != entry.size:
                raise NotKnown(f"{visible(name)} changed while it was read (being written)")
            sums = [_block(handle, offset, buffer, pace) for offset in range(0, handle.size, BLOCK_BYTES)]
        found[name] = FileThen(entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode, tuple(sums))
    return found


def _block(handle: Handle, offset: int, buffer: bytearray, pace: Pace) -> str:
    crc, end = 0, min(offset + BLOCK_BYTES, handle.size)
    view = memoryview(buffer)
    while offset < end:
        piece = view[: min(len(buffer), end - offset)]
        handle.into(piece, offset)
        crc = zlib.crc32(piece, crc)
        offset += len(piece)
        pace(len(piece))
    return f"{crc:08x}"


def keep(folder: Path, kept: Kept) -> Path:
    """Write it, and forget the oldest beyond `KEPT_OF_RUN` and `KEPT`. OSError where the folder cannot be written to."""
    place = place_of(folder, Path(kept.path))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = place.with_suffix(f".{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"version": _VERSION, **asdict(kept)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    _former_place(place).unlink(missing_ok=True)
    _forget(folder)
    return place


def _forget(folder: Path) -> None:
    """Remove the oldest of the runs that have most: many short jobs of a user push out none of a slow one's saves."""
    runs: dict[str, list[tuple[float, str]]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another node forgets, too
                if entry.name.endswith(".json"):
                    # One that was kept before runs were told apart is by itself.
                    run = entry.name.rpartition("-")[0] or entry.name
                    runs.setdefault(run, []).append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    old: list[str] = []
    for kept in runs.values():
        kept.sort(reverse=True)
        old += [path for _, path in kept[KEPT_OF_RUN:]]
        del kept[KEPT_OF_RUN:]
    while sum(map(len, runs.values())) > KEPT:
        most = max(runs.values(), key=lambda kept: (len(kept), -kept[-1][0] if kept else 0.0))
        old.append(most.pop()[1])
    for path in old:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def find(folder: Path, tree: Tree) -> Kept | None:
    """The manifest of what lies there; None where there is none that can be read."""
    place = place_of(folder, tree.root)
    former = _former_place(place)
    if not os.path.lexists(place) and os.path.lexists(former):
        place = former
    try:
        with opened(place) as handle:
            data = json_files.parse(handle.read(0, min(handle.size, _LIMIT_BYTES)), place.name)
        assert isinstance(data, dict)
        if data["version"] != _VERSION or data["path"] != str(tree.root.absolute()):
            return None
        files = {
            str(name): FileThen(
                int(e["size"]), int(e["mtime_ns"]), int(e["ctime_ns"]), int(e["inode"]), tuple(e["crc32"])
            )
            for name, e in data["files"].items()
        }
        return Kept(
            data["path"], parse_level(data["level"]), str(data["finding"]), float(data["made_s"]), int(data["bytes"]),
            float(data["seconds"]), files,
        )  # fmt: skip
    except (NotKnown, ValueError, OverflowError, KeyError, TypeError, AttributeError, AssertionError):
        return None


def apply(kept: Kept, tree: Tree, ask: Ask, finding: Finding) -> None:
    """Hold what lies there against the manifest: what looks as it did is proven, the rest is read."""
    if ask.level == "structural":
        return
    if _is_of_another_save(kept, tree, finding):
        return
    changed: list[str] = []
    for name, then in kept.files.items():
        entry = tree.files.get(name)
        if entry is None:
            if ask.part or LITTER.fullmatch(name.rpartition("/")[2]):
                continue
            raise Broken(f"{visible(name)} was there when its manifest was made, and is not now", "checksum")
        if entry.size != then.size:
            raise _differs(tree, kept, name, f" ({then.size} bytes then)")
        if not then.looks_like(entry):
            changed.append(name)
    rewritten = any(kept.files[name].was_written_since(tree.files[name]) for name in changed)
    if ask.level == "content" and kept.finding and not rewritten:
        raise Broken(f"{kept.finding} (read when it was saved)", "content")
    new = set(tree.files) - set(kept.files)
    if new & (finding.covered | set(finding.unsummed)) or not level_at_least(kept.level, ask.level):
        finding.unsummed = [name for name in finding.unsummed if name not in kept.files]
        finding.works = [*_works(tree, kept, changed), *finding.works]
        return
    finding.works = _works(tree, kept, changed)
    finding.unsummed = []
    finding.note = "read when it was saved, and " + (
        "nothing has changed since" if not changed else f"{len(changed)} files that look different hold the same bytes"
    )


def _is_of_another_save(kept: Kept, tree: Tree, finding: Finding) -> bool:
    """Whether all that the format reads was written after the manifest was made.

    What else lies there may stay from save to save: settings, shards of ranks that are no more.
    """
    state = tree.files.keys() & finding.covered.union(finding.unsummed, finding.has) or set(tree.files)
    return all(name not in kept.files or kept.files[name].was_written_since(tree.files[name]) for name in state)


def _differs(tree: Tree, kept: Kept, name: str, more: str = "") -> Broken | NotKnown:
    """Other bytes than then: invalid, or not known where a writer left them: it may save only what changes."""
    if not kept.files[name].was_written_since(tree.files[name]):
        return Broken(f"{visible(name)}: changed after its manifest was made{more}", "checksum")
    return NotKnown(
        f"{visible(name)} was written after its manifest was made{more}, other files were not: two saves mixed?"
    )


def _works(tree: Tree, kept: Kept, changed: list[str]) -> list[Work]:
    works: list[Work] = []
    for name in changed:
        size = tree.files[name].size
        for index, crc in enumerate(kept.files[name].crc32):
            offset = index * BLOCK_BYTES
            works.append(_work(tree, kept, name, offset, min(BLOCK_BYTES, size - offset), crc))
    return works


def _work(tree: Tree, kept: Kept, name: str, offset: int, size: int, crc: str) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            if f"{span_crc(handle, offset, size, buffer):08x}" != crc:
                raise _differs(tree, kept, name)

    return Work(size, run)
