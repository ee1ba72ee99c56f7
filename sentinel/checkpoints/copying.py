"""Copies checkpoints between tiers: local to global (drain), local to a peer's disk (replicate).

Into a sibling of the target root first (``<root>/../.incoming/<run>/``, so that no framework finds half a checkpoint),
shards before markers, each file read back and compared, times kept; then one rename (of each file, where each rank has one
beside the others'). Nothing is ever overwritten; what is
in its place already is read and compared, too. A copy that was broken off is taken up where it stopped. When the shards lie
on several nodes each copies its own, and the one that completes the checkpoint renames it.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.copies.earlier import of_an_earlier_save
from sentinel.checkpoints.files import Entry, NotKnown, Tree, opened, place_in, refuse_changed
from sentinel.checkpoints.formats import marks
from sentinel.checkpoints.formats.beside.rank_files import files_of, scan_save
from sentinel.checkpoints.own_folders import (
    below,
    exists,
    half_of,
    opened_folder,
    opened_half,
    own_store,
    require_parent,
)
from sentinel.checkpoints.validate import validate
from sentinel.errors import Denied, Refused, Unavailable, UserError
from sentinel.text import visible

FOLDER = ".incoming"
PIECE_BYTES = 4 << 20
# Written last by the frameworks, so copied last.
_MARKERS = re.compile(
    r"(.*/)?(\.metadata|__\d+\.metadata|metadata\.json|integrity\.json|\.sentinel-manifest\.json|"
    + f"{marks.LIBRARIES.pattern})"
)
OVERLAP_WARNING = 0.10  # a drain that takes more of the interval than this leaves little for a slow day


class Pace:
    """Keeps a copy below a rate. Clock and sleep are given, so that a test need not wait."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._start = clock()
        self._done = 0

    def spend(self, count: int) -> None:
        """Wait until that many bytes more may have been copied."""
        self._done += count
        if self.bytes_per_s:
            ahead = self._done / self.bytes_per_s - (self._clock() - self._start)
            if ahead > 0:
                self._sleep(ahead)


@dataclass(slots=True)
class Copied:
    """What a copy did. ``complete``: the checkpoint is in its place; else other nodes' shards are still to come, or it is
    ``damaged`` for this reason, which no other node mends."""

    target: str
    files: int = 0
    bytes: int = 0
    already: int = 0
    seconds: float = 0.0
    complete: bool = False
    waiting_for: str = ""
    damaged: str = ""

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def overlap_fraction(seconds: float, interval_s: float) -> float:
    """The share of the time between two checkpoints that copying one takes."""
    if interval_s <= 0:
        raise ValueError("an interval must be more than 0 s")
    return seconds / interval_s


def incoming(target_root: Path, relative: Path) -> Path:
    """Where a checkpoint is put together before it is renamed to ``target_root / relative``."""
    root = target_root.absolute()
    return root.parent / FOLDER / root.name / relative


def copy(
    source: Path,
    target_root: Path,
    relative: Path,
    *,
    pace: Pace | None = None,
    progress: Callable[[int], None] | None = None,
    in_place: bool = False,
) -> Copied:
    """Copy the checkpoint at ``source`` to ``target_root / relative``.

    It is renamed into its place when it is whole, which may be when another node has added its shards. ``in_place``: the
    files are put there one by one beside what is there (a peer that keeps its own shards of the same step).
    Raises `Refused` where the target exists with other contents, `UserError` for an impossible place or where the target is
    the source itself, `Unavailable` where the source cannot be read or changes.
    """
    start = time.monotonic()
    pace = pace or Pace(None)
    final = target_root.absolute() / relative
    try:
        tree = scan_save(source)
    except NotKnown as error:
        raise Unavailable(f"{visible(str(source))}: {error.reason}") from error
    names = order_of(tree)
    one_by_one = in_place or (tree.single and len(names) > 1)  # a call that was killed may have put some there
    refuse_itself(source, final, ((tree.path(name), place_in(tree, final, name)) for name in names))
    done = Copied(str(final))
    if os.path.lexists(final) and _has_all(final, tree, names):
        for name in names:
            there = place_in(tree, final, name)
            _refuse_other_bytes(tree.path(name), there, tree.files[name], pace, progress)
        done.complete, done.already, done.seconds = True, len(names), time.monotonic() - start
        return done
    try:
        with _folder_of(final, target_root, in_place) as (folder, shown):
            for name in names:
                there = place_in(tree, final, name)
                inside = there.relative_to(final.parent)
                if os.path.lexists(there) and not (one_by_one and same(there, tree.files[name])):
                    raise Refused(
                        f"{visible(str(there))} exists with other contents: not overwritten",
                        fix="Move it aside with `sentinel checkpoints quarantine`, or copy elsewhere.",
                    )
                if os.path.lexists(there):
                    _refuse_other_bytes(tree.path(name), there, tree.files[name], pace, progress)
                with below(folder, inside.parts[:-1], make=True) as place:
                    if same(inside.name, tree.files[name], place):
                        _put_there_now(place, inside.name, tree.files[name])
                        done.already += 1
                        continue
                    done.bytes += _copy_file(tree.path(name), place, there, tree.files[name], pace, progress)
                    done.files += 1
            if in_place:
                done.complete = True
            else:
                _finish(folder, shown / final.name, final, done, tree)
    except OSError as error:
        raise Denied(f"{visible(str(final))} cannot be written: {error.strerror}") from error
    done.seconds = time.monotonic() - start
    return done


@contextmanager
def _folder_of(final: Path, target_root: Path, in_place: bool) -> Iterator[tuple[int, Path]]:
    """A descriptor of the folder in which the checkpoint is put together, and that folder's path."""
    root = target_root.absolute()
    require_parent(root)
    try:
        if in_place:
            final.parent.mkdir(parents=True, exist_ok=True)
            with opened_folder(final.parent) as folder:
                yield folder, final.parent
        else:
            inside = final.parent.relative_to(root)
            with (
                own_store(root.parent, (FOLDER, root.name), make=True) as store,
                below(store, inside.parts, make=True) as folder,
            ):
                yield folder, incoming(target_root, inside)
    except OSError as error:
        raise Denied(f"{visible(str(final))} cannot be written: {error.strerror}") from error


def order_of(tree: Tree) -> list[str]:
    """Shards first, markers last, each group in the order of their times."""
    return sorted(tree.files, key=lambda name: (bool(_MARKERS.fullmatch(name)), tree.files[name].mtime_ns, name))


def refuse_itself(source: Path, final: Path, files: Iterable[tuple[Path, Path]]) -> None:
    """
    Raises:
        UserError: the target is the source by another path, has a file in common with it, or lies in it.
    """
    inside = Path(os.path.realpath(final)).is_relative_to(os.path.realpath(source))
    if inside or (os.path.lexists(final) and any(_one_file(here, there) for here, there in files)):
        raise not_a_copy(final)


def not_a_copy(final: Path) -> UserError:
    return UserError(
        f"{visible(str(final))} is the checkpoint itself: that is no second copy", fix="Name a folder on another disk."
    )


def _one_file(here: Path, there: Path) -> bool:
    try:
        return here.samefile(there)
    except OSError:
        return False


def same(place: Path | str, entry: Entry, folder: int | None = None) -> bool:
    """Whether a file of this size and time is there: one of ours got its name only when it was verified.

    ``folder``: descriptor of the folder that ``place`` is the name of a file in.
    """
    try:
        status = os.stat(place, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns)


def _has_all(final: Path, tree: Tree, names: Sequence[str]) -> bool:
    return all(same(place_in(tree, final, name), tree.files[name]) for name in names)


def _refuse_other_bytes(
    source: Path, there: Path, entry: Entry, pace: Pace, progress: Callable[[int], None] | None
) -> None:
    """`Refused` where what has the size and time of the source holds other bytes: who copied it verified nothing, or a page
    was lost since."""
    try:
        with opened(source) as mine, opened(there) as theirs:
            give_up_pages(theirs.fd)
            alike = mine.size == theirs.size
            for at in range(0, mine.size if alike else 0, PIECE_BYTES):
                length = min(PIECE_BYTES, mine.size - at)
                if not (alike := mine.read(at, length) == theirs.read(at, length)):
                    break
                pace.spend(length)
                if progress:
                    progress(length)
        refuse_changed(source, entry)
        if not alike:
            raise other_bytes(there, source)
    except NotKnown as error:
        raise Unavailable(error.reason, fix="Run it again.") from error


def other_bytes(there: Path, source: Path | str) -> Refused:
    return Refused(
        f"{visible(str(there))} holds other bytes than {visible(str(source))}, with its size and time: one is damaged",
        fix="`sentinel checkpoints validate --level checksum` says which; move the damaged one aside.",
    )


def _copy_file(
    source: Path, folder: int, there: Path, entry: Entry, pace: Pace, progress: Callable[[int], None] | None
) -> int:
    """Copy one file into an open folder, that of ``there``, taking up what is there of it; verify it by reading it back;
    give it its name and times."""
    name, half, copied = there.name, half_of(there.name), 0
    try:
        with opened(source) as handle:
            fd = opened_half(name, folder, there)
            try:
                size = os.fstat(fd).st_size
                offset = size if size <= handle.size else 0
                offset -= offset % PIECE_BYTES
                os.ftruncate(fd, offset)
                crc = 0
                for at in range(0, offset, PIECE_BYTES):
                    crc = zlib.crc32(handle.read(at, min(PIECE_BYTES, offset - at)), crc)
                while offset < handle.size:
                    piece = handle.read(offset, min(PIECE_BYTES, handle.size - offset))
                    crc = zlib.crc32(piece, crc)
                    write_all(fd, piece, offset)
                    offset += len(piece)
                    copied += len(piece)
                    pace.spend(len(piece))
                    if progress:
                        progress(len(piece))
                os.fsync(fd)
                try:
                    refuse_changed(source, entry)
                except NotKnown:
                    os.unlink(half, dir_fd=folder)
                    raise
                if handle.size != entry.size or read_back(fd, handle.size) != crc:
                    os.unlink(half, dir_fd=folder)
                    raise Unavailable(
                        f"{visible(name)}: what was read back differs from {visible(str(source))}",
                        fix="Run it again; if it happens again, one of the two disks loses data.",
                    )
            finally:
                os.close(fd)
    except NotKnown as error:
        raise Unavailable(error.reason, fix="Run it again: it goes on where it stopped.") from error
    _put_there_now(folder, half, entry)
    os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
    return copied


def _put_there_now(folder: int, name: str, entry: Entry) -> None:
    """Give a copy its times. Its ctime says since when it is known to be what lies at the source."""
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)


def write_all(fd: int, piece: bytes, offset: int) -> None:
    view = memoryview(piece)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def read_back(fd: int, size: int) -> int:
    """CRC-32 of what is on the disk: the pages that were just written are given up first."""
    give_up_pages(fd)
    crc = 0
    for offset in range(0, size, PIECE_BYTES):
        crc = zlib.crc32(os.pread(fd, min(PIECE_BYTES, size - offset), offset), crc)
    return crc


def give_up_pages(fd: int) -> None:
    """So that what is read next comes from the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _finish(folder: int, stage: Path, final: Path, done: Copied, mine: Tree) -> None:
    """Rename what is complete. What is not waits for the other nodes, unless every file is there and one's bytes are wrong.

    Args:
        folder: descriptor of the folder that ``stage`` is in.
        mine: this node's part, as it was copied.
    """
    # Of a save in one file per rank another node may have put some of ours in their place, and goes by those that it saw.
    staged = [place_in(mine, stage, name) for name in mine.files] if mine.single else [stage]
    left = next((file for file in staged if exists(folder, file.name)), None)
    if left is None:  # another node was the last, and has renamed it
        done.complete = os.path.lexists(final)
        return
    stage = left
    now_s = time.time()  # reading a large save takes minutes, in which nothing that was copied gets older
    shape, answer = validate(stage, "structural"), validate(stage, "checksum")
    if shape.valid is not True:
        done.waiting_for = shape.reason
        return
    try:
        done.waiting_for = of_an_earlier_save(mine, scan_save(stage), now_s)
    except NotKnown as error:
        done.waiting_for = error.reason
    if done.waiting_for:
        return
    if answer.valid is False:
        done.damaged = answer.reason
        return
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with opened_folder(final.parent) as target:
            _rename_all(files_of(stage) or [stage], folder, target, final.parent, mine)
    except FileNotFoundError:
        done.complete = os.path.lexists(final)
        return
    except OSError as error:
        raise Denied(f"{visible(str(final))} cannot be made: {error.strerror}") from error
    done.complete = True


def _rename_all(staged: Sequence[Path], folder: int, target: int, place: Path, mine: Tree) -> None:
    """Give a save its name; of one in a file per rank, the file of the lowest comes last: by that the step is found."""
    there = [file.name for file in staged if exists(target, file.name)]
    for name in there:
        if not (mine.single and name in mine.files and same(name, mine.files[name], target)):
            raise Refused(f"{visible(str(place / name))} exists: not overwritten", fix="Move it aside.")
    for file in reversed(staged):
        if file.name in there:  # by a call that was killed
            os.unlink(file.name, dir_fd=folder)
        else:
            os.rename(file.name, file.name, src_dir_fd=folder, dst_dir_fd=target)
