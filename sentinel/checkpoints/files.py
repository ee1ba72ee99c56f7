"""Lists and opens a checkpoint's files without trusting them.

No link is followed (symbolic links are noted, never opened), nothing but regular files is opened, and
what changes or vanishes while it is looked at gives *not known*, never *corrupt*: a purge may be running.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.checkpoints.parsing import copy_names
from sentinel.text import visible

# What file systems, editors, desktops and kernels leave behind in a folder: no part of a save, whenever it was written.
LITTER = re.compile(r"\.nfs[0-9a-f]{8,}|\.fuse_hidden[0-9a-f]+|\.DS_Store|\._.+|Thumbs\.db|core\.\d+|.+~|\..+\.sw[op]")
# Where rsync keeps what it puts in its place at the end of a copy (--delay-updates), or goes on with (--partial-dir, by the
# name that its manual gives).
_TRANSFERS = frozenset((".~tmp~", ".rsync-partial"))
MAX_FILES = 300_000  # of one checkpoint; beyond it the answer is "not known"
MAX_DEPTH = 6


class Broken(Exception):
    """The checkpoint is invalid, for the reason given. ``level``: the level that saw it."""

    def __init__(self, reason: str, level: str = "structural") -> None:
        super().__init__(reason)
        self.reason = reason
        self.level = level


class NotKnown(Exception):
    """Neither proven whole nor proven broken, for the reason given."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BeingWritten(NotKnown):
    """Something of it is missing or cut short, and it changed just now. ``broken``: what is wrong if nobody writes it."""

    def __init__(self, reason: str, broken: str) -> None:
        super().__init__(reason)
        self.broken = broken


class Unsummed(NotKnown):
    """No checksum is recorded for what was looked at, and nothing was wrong with it otherwise."""


class Unread(NotKnown):
    """It is there, and reading it failed: of what it holds nothing is known."""


class TooLarge(NotKnown):
    """More of it would have to be taken into memory than this reader takes."""


class PerhapsForeign(NotKnown):
    """A file that begins as a program does and is damaged: a program, or a checkpoint's file whose blocks lie elsewhere."""


class Foreign(NotKnown):
    """A file of another kind than its name says, whole or not: nothing that a training state is read from."""


def unread(error: OSError, what: str) -> NotKnown:
    """What a read that failed says: that nothing is there, or that it is not known what is."""
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return (NotKnown if missing else Unread)(explain_os(error, what))


def explain_os(error: OSError, what: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{what}: vanished while it was read (being deleted)"
    return f"{what}: cannot be read ({error.strerror or type(error).__name__})"


@dataclass(frozen=True, slots=True)
class Entry:
    """One regular file of a checkpoint."""

    size: int
    mtime_s: float
    inode: int
    mtime_ns: int
    ctime_ns: int = 0  # cannot be set back by whoever writes in place


@dataclass(slots=True)
class Tree:
    """The files below one folder, by name relative to it; or the one file, by its name, with those of other ranks beside it
    where each has one (``sentinel.checkpoints.formats.beside.rank_files``)."""

    root: Path
    files: dict[str, Entry] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)  # neither file, folder nor link
    copies: list[str] = field(default_factory=list)  # what no loader reads by its name
    staged: dict[str, Entry] = field(default_factory=dict)  # what a copy has not put in its place, by its name to be
    folders: set[str] = field(default_factory=set)
    folder_times: dict[str, float] = field(default_factory=dict)  # when a name was last added, removed or changed
    single: bool = False
    _orders: dict[str, _Order] = field(default_factory=dict, repr=False, compare=False)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())

    @property
    def newest_s(self) -> float:
        return max((entry.mtime_s for entry in self.files.values()), default=0.0)

    @property
    def oldest_s(self) -> float:
        return min((entry.mtime_s for entry in self.files.values()), default=0.0)

    def path(self, name: str) -> Path:
        return place_in(self, self.root, name)

    def below(self, folder: str) -> Tree:
        """The same, seen from a folder inside."""
        prefix = folder.rstrip("/") + "/"
        cut = len(prefix)
        inner = Tree(self.root / folder)
        inner.files = {name[cut:]: self.files[name] for name in self._order("files", self.files).below(prefix)}
        inner.links = [name[cut:] for name in self._order("links", self.links).below(prefix)]
        inner.folders = {name[cut:] for name in self._order("folders", self.folders).below(prefix)}
        times = self._order("folder_times", self.folder_times).below(prefix)
        inner.folder_times = {name[cut:]: self.folder_times[name] for name in times}
        if prefix[:-1] in self.folder_times:
            inner.folder_times[""] = self.folder_times[prefix[:-1]]
        return inner

    def _order(self, what: str, names: Collection[str]) -> _Order:
        """These names in order: a save may hold thousands of folders, and each of them is looked at from inside."""
        kept = self._orders.get(what)
        if kept is None or len(kept.names) != len(names):
            kept = self._orders[what] = _Order(sorted(names))
        return kept


@dataclass(frozen=True, slots=True)
class _Order:
    """Names of files or folders in order, where those below one folder follow each other."""

    names: list[str]

    def below(self, prefix: str) -> Iterator[str]:
        for index in range(bisect_left(self.names, prefix), len(self.names)):
            if not self.names[index].startswith(prefix):
                return
            yield self.names[index]


def place_in(tree: Tree, root: Path, name: str) -> Path:
    """Where a file of a save lies in a copy of it at ``root``."""
    if not tree.single:
        return root / name
    return root.with_name(name) if name in tree.files and name != tree.root.name else root


def scan(path: Path) -> Tree:
    """List what is there. Raises `NotKnown` where it cannot be listed; `Broken` where the path is nothing at all."""
    tree = Tree(path)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise NotKnown("there is nothing at this path") from None
    except (OSError, ValueError) as error:
        raise NotKnown(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if stat.S_ISLNK(status.st_mode):
        raise NotKnown("a symbolic link: not followed")
    if stat.S_ISREG(status.st_mode):
        tree.single = True
        tree.files[path.name] = entry_of(status)
        return tree
    if not stat.S_ISDIR(status.st_mode):
        raise NotKnown("neither a file nor a folder")
    tree.folder_times[""] = status.st_mtime
    try:
        _walk(tree)
    except OSError as error:
        raise NotKnown(explain_os(error, visible(str(error.filename or path)))) from None
    return tree


def entry_of(status: os.stat_result) -> Entry:
    return Entry(status.st_size, status.st_mtime, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def entry_at(path: Path) -> Entry | None:
    """What lies there, a link as itself; None where nothing does or it cannot be looked at."""
    try:
        return entry_of(os.lstat(path))
    except OSError:
        return None


def is_file(path: Path) -> bool:
    """Whether a file lies there; not where it cannot be looked at: a save beside that cannot be read says nothing."""
    try:
        return path.is_file()
    except OSError:
        return False


def _walk(tree: Tree) -> None:
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        with os.scandir(tree.root / prefix if prefix else tree.root) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_symlink():
                    tree.links.append(name)
                elif entry.name in _TRANSFERS and entry.is_dir(follow_symlinks=False):
                    _list_staged(tree, prefix, entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    tree.folders.add(name)
                    tree.folder_times[name] = entry.stat(follow_symlinks=False).st_mtime
                    if depth >= MAX_DEPTH:
                        raise NotKnown(f"folders nested more than {MAX_DEPTH} deep")
                    pending.append((name + "/", depth + 1))
                elif LITTER.fullmatch(entry.name) or copy_names.duplicate_of(entry.name):
                    tree.copies.append(name)
                elif entry.is_file(follow_symlinks=False):
                    tree.files[name] = entry_of(entry.stat(follow_symlinks=False))
                else:
                    tree.odd.append(name)
                _refuse_too_many(tree)


def _refuse_too_many(tree: Tree) -> None:
    if sum(map(len, (tree.files, tree.folders, tree.links, tree.copies, tree.staged))) > MAX_FILES:
        raise NotKnown(f"more than {MAX_FILES} files: too many to look at")


def _list_staged(tree: Tree, prefix: str, folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                tree.staged[prefix + entry.name] = entry_of(entry.stat(follow_symlinks=False))
                _refuse_too_many(tree)


def refuse_renamed(tree: Tree, of_ranks: Collection[str] = ()) -> None:
    """`NotKnown` where a copy of a file is there, or what was set aside, and the file itself is not; and where rsync has not
    put another one in its place yet.

    ``of_ranks``: files that are known to be none, though they are named so.
    """
    here = {*tree.files, *tree.links}
    for name, new in sorted(tree.staged.items()):
        old = tree.files.get(name)
        if name not in here or (old is not None and (old.size, old.mtime_ns) != (new.size, new.mtime_ns)):
            what = "another" if name in here else "it"
            raise NotKnown(f"{visible(name)}: rsync has not put {what} in its place: a copy that did not end?")
    for name in (*tree.copies, *(file for file in tree.files if file not in of_ranks)):
        folder, slash, file = name.rpartition("/")
        original = copy_names.duplicate_of(file) or copy_names.set_aside_from(file)
        if original and folder + slash + original not in here:
            raise NotKnown(
                f"{visible(original)} is missing, {visible(name)} is there: renamed, or a copy that did not end?"
            )


class Handle:
    """An open regular file, read at offsets. Short reads raise `NotKnown`: the file shrank under us."""

    __slots__ = ("fd", "name", "size")

    def __init__(self, fd: int, size: int, name: str) -> None:
        self.fd = fd
        self.size = size
        self.name = name

    def read(self, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            data = os.pread(self.fd, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self.fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise unread(error, self.name) from None
        if len(data) != length:
            raise NotKnown(f"{self.name}: became shorter while it was read")
        return data

    def into(self, view: memoryview, offset: int) -> None:
        """Fill the view from that offset."""
        done = 0
        try:
            while done < len(view):
                count = os.preadv(self.fd, [view[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise unread(error, self.name) from None
        if done != len(view):
            raise NotKnown(f"{self.name}: became shorter while it was read")


@contextmanager
def opened(path: Path, name: str | None = None) -> Iterator[Handle]:
    """Open a regular file for reading; never through a link, never a device or a pipe."""
    shown = visible(name or path.name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise unread(error, shown) if isinstance(error, OSError) else NotKnown(f"{shown}: {error}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotKnown(f"{shown}: not a regular file")
        yield Handle(fd, status.st_size, shown)
    finally:
        os.close(fd)


def refuse_changed(path: Path, entry: Entry) -> None:
    """`NotKnown` where a file is no longer what was listed: what was read of it may be of two saves."""
    try:
        now = entry_of(os.lstat(path))
    except OSError as error:
        raise unread(error, visible(path.name)) from None
    if now != entry:
        raise NotKnown(f"{visible(path.name)} changed while it was copied (being written)")


def read_small(path: Path, limit_bytes: int, name: str | None = None) -> bytes:
    """The whole of a file that is expected to be small. `NotKnown` where it is not."""
    with opened(path, name) as handle:
        if handle.size > limit_bytes:
            raise NotKnown(f"{handle.name}: {handle.size} bytes, more than the {limit_bytes} this reader takes")
        return handle.read(0, handle.size)
