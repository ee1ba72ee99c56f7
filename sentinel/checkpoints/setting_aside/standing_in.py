"""Puts a copy of the chosen save where a file was moved away by whose name alone a program resumes.

Lightning's ``last.ckpt``, fairseq's ``checkpoint_last.pt``, timm's ``last.pth.tar`` are each the state of a save that lies
beside them. With none the program begins anew, over saves that are whole, and says little about it. A link would not do: the
program's next save would be written through it, over the chosen one; a second name of that likewise.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import stat
import time
from collections.abc import Collection
from pathlib import Path

from sentinel.checkpoints.own_folders import below, exists, half_of, keep_owner

BY_ITS_NAME = "the program itself"  # what names such a file
BY_ITS_END = "NeMo"  # likewise, and a copy would be of another step and other samples than its name tells it
_LAST = re.compile(r"(?P<start>(?:checkpoint[-_])?)last(?:-v\d+)?(?P<end>\.(?:ckpt|pt|pth|pth\.tar))")
_NEMOS_LAST = re.compile(r".+-last(?:\.ckpt)?")
PIECE_BYTES = 16 << 20


def is_wanted(inside: Path, chosen: Path | None) -> bool:
    """Whether a program resumes by that file's name alone, and the chosen save is such a file beside it."""
    match = _LAST.fullmatch(inside.name)
    if match is None or chosen is None or chosen.parent != inside.parent or _LAST.fullmatch(chosen.name):
        return False
    return chosen.name.startswith(match["start"][:-1]) and chosen.name.endswith(match["end"])


def not_without(source: int, moved: Collection[Path], chosen: Path | None) -> set[Path]:
    """Of what is to be moved, by whose end of the name alone NeMo resumes, with no such save left beside the chosen one.

    Args:
        source: descriptor of the root, below which all the paths lie.
    """
    if chosen is None or _is_nemos_last(chosen.name):
        return set()
    asked = {path for path in moved if path.parent == chosen.parent and _is_nemos_last(path.name)}
    if asked:
        names: set[str] = set()
        with contextlib.suppress(OSError), below(source, chosen.parent.parts) as folder, os.scandir(folder) as entries:
            names = {entry.name for entry in entries}
        stay = [name for name in names - {path.name for path in asked} if _is_nemos_last(name)]
        asked = set() if stay else {path for path in asked if path.name in names}
    return asked


def _is_nemos_last(name: str) -> bool:
    return _NEMOS_LAST.fullmatch(name) is not None and _LAST.fullmatch(name) is None


def is_there(source: int, inside: Path, chosen: Path) -> bool:
    """Whether the file there is a copy of the chosen one, as its size and times tell."""
    try:
        with below(source, inside.parts[:-1]) as folder:
            told = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (inside.name, chosen.name)]
    except OSError:
        return False
    (mine, theirs), regular = told, all(stat.S_ISREG(one.st_mode) for one in told)
    return regular and (mine.st_size, mine.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def prepare(source: int, inside: Path, chosen: Path, until_s: float = math.inf) -> None:
    """Copy the chosen save to a name beside the file's, before that is moved; what a killed call left is written anew.

    Args:
        until_s: of the monotonic clock; a copy that is not on the disk then is given up.

    Raises:
        OSError: it cannot be copied, for want of space or time too; nothing is left of it.
    """
    discard(source, inside)
    half = half_of(inside.name)
    with below(source, inside.parts[:-1]) as folder:
        fd = os.open(chosen.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            _copy(fd, folder, half, until_s)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(half, dir_fd=folder)
            raise
        finally:
            os.close(fd)


def _copy(fd: int, folder: int, half: str, until_s: float) -> None:
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode):
        raise OSError("no regular file")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    out = os.open(half, flags, before.st_mode & 0o777, dir_fd=folder)
    try:
        keep_owner(out, before)
        at = 0
        while at < before.st_size:
            if time.monotonic() >= until_s:
                raise OSError(errno.ETIMEDOUT, "it takes too long")
            count = os.sendfile(out, fd, at, min(PIECE_BYTES, before.st_size - at))
            if not count:
                break
            at += count
            os.fsync(out)  # each piece: at the end nobody knows how long all of them take
        after = os.fstat(fd)
        if (at, after.st_mtime_ns) != (after.st_size, before.st_mtime_ns):
            raise OSError("it changes")
        os.utime(out, ns=(before.st_mtime_ns, before.st_mtime_ns))
    finally:
        os.close(out)


def discard(source: int, inside: Path) -> None:
    """Remove the copy that has no name of its own, or has it and was not rid of its first one."""
    with contextlib.suppress(FileNotFoundError), below(source, inside.parts[:-1]) as folder:
        os.unlink(half_of(inside.name), dir_fd=folder)


def put(source: int, inside: Path) -> None:
    """Give the copy its name, unless somebody has written another file there since.

    Raises:
        OSError: without the right to.
    """
    half = half_of(inside.name)
    with below(source, inside.parts[:-1]) as folder:
        try:
            os.link(half, inside.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:  # also where a file system has no second names
            if not exists(folder, inside.name):
                os.rename(half, inside.name, src_dir_fd=folder, dst_dir_fd=folder)
                return
        os.unlink(half, dir_fd=folder)


def take_away(source: int, inside: Path, chosen: Path) -> None:
    """Remove the copy; another file that has been written there since stays."""
    if is_there(source, inside, chosen):
        with contextlib.suppress(OSError), below(source, inside.parts[:-1]) as folder:
            os.unlink(inside.name, dir_fd=folder)
