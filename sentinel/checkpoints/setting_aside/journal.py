"""The journal of a quarantine: every move is written to it before it is made, and again when it is taken back.

A full disk has no space for a line, and what is torn has to be moved. A rename needs none: the name that a thing
gets in the quarantine says then where it came from.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from sentinel.checkpoints.own_folders import FULL, check_own, exists_below
from sentinel.errors import Denied, FileError
from sentinel.text import json_with_bytes, visible

FOLDER = ".quarantine"
JOURNAL = "journal.jsonl"
_STAMP = "%Y%m%dT%H%M%SZ"
_UNWRITTEN = re.compile(r"(\d{8}T\d{6}Z)\.unwritten\.([^@]+)@([^@]*)@([^@]*)")
_MOST_OF_A_NAME = 255
_JOURNAL_BYTES = 64 << 20  # read at most; a move has a line of a few hundred


@dataclass(frozen=True, slots=True)
class Move:
    """One rename, from ``source`` to ``target``; ``link``: of a symbolic link, the path that it named; ``points_to``: what
    the link in its place says, empty where there is none; of a file, the one beside it of which a copy is in its place.
    ``wrote``: of a file that named ``link`` and was written anew, the digest of what it says then, and ``points_to`` what it
    names; ``target`` is what it was."""

    source: str
    target: str
    reason: str
    time_s: float
    link: str = ""
    points_to: str = ""
    wrote: str = ""


def store_of(root: Path) -> Path:
    """The quarantine of that checkpoint root: beside what a link to it names, which is on the same file system."""
    real = real_of(root.absolute())
    return real.parent / FOLDER / real.name


def real_of(base: Path) -> Path:
    """The folder that a root which is a link names; by that its journal knows it, whatever it is called."""
    return Path(os.path.realpath(base)) if base.is_symlink() else base


class NoSpace(Denied):
    """There is no space for a line."""


def place_that_tells(inside: Path, now: float, link: str = "", points_to: str = "") -> Path:
    """A place in the quarantine whose name says what a line would: what lies there came from, and the rest of a link.

    Raises:
        NoSpace: such a name would be too long.
    """
    told = [quote(os.fsencode(text), safe="") for text in (str(inside), link, points_to)]
    name = f"{time.strftime(_STAMP, time.gmtime(now))}.unwritten.{'@'.join(told)}"
    if len(name) > _MOST_OF_A_NAME:
        raise NoSpace("the journal cannot be written: no space is left", fix="Free some space there.")
    return Path(name)


def tells_itself(move: Move) -> bool:
    """Whether a move is known by the name of what it moved, and by no line."""
    return _UNWRITTEN.fullmatch(Path(move.target).name) is not None


def _told_by_names(base: Path, store: int) -> Iterator[Move]:
    for name in sorted(os.listdir(store)):
        if match := _UNWRITTEN.fullmatch(name):
            inside, link, points_to = (os.fsdecode(unquote_to_bytes(text)) for text in match.groups()[1:])
            at = datetime.fromisoformat(match[1]).timestamp()
            if _lies_below(source := str(base / inside), base):
                yield Move(source, str(store_of(base) / name), "", at, link and str(base / link), points_to)


def _renamed(path: str, folder: Path, other: Path) -> str:
    return str(other / Path(path).relative_to(folder)) if path.startswith(f"{folder}/") else path


def read(base: Path, store: int) -> list[Move]:
    """The moves that stand. A line that was cut short is left out."""
    standing = {move.target: move for move in _told_by_names(base, store)}
    journal, real = store_of(base) / JOURNAL, real_of(base)
    try:
        fd = os.open(JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=store)
    except FileNotFoundError:
        return list(standing.values())
    except OSError as error:
        raise Denied(f"{visible(str(journal))} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        check_own(fd, journal)
        lines = file.read(_JOURNAL_BYTES).decode("utf-8", "surrogateescape").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.endswith("}"):
            continue
        try:
            entry = json_with_bytes(line)
            how = (
                _renamed(str(entry.get("link", "")), real, base),
                *(str(entry.get(key, "")) for key in ("points_to", "wrote")),
            )
            move = Move(
                _renamed(entry["source"], real, base), entry["target"], entry["reason"], float(entry["time_s"]), *how
            )
            event = entry["event"]
            sound = _lies_below(move.source, base) and _lies_below(move.target, store_of(base))
        except (ValueError, OverflowError, KeyError, TypeError) as error:
            raise FileError(journal, "not a line of the journal", line=number, fix="Mend or remove it.") from error
        if not sound:
            raise FileError(
                journal, "a move that is not between the folder and its quarantine", line=number, fix="Remove it."
            )
        if event == "move":
            standing[move.target] = move
        else:
            standing.pop(move.target, None)
    return list(standing.values())


def _lies_below(path: str, folder: Path) -> bool:
    return os.path.normpath(path) == path and folder in Path(path).parents


def append(base: Path, store: int, event: str, move: Move) -> None:
    """Write a line, which is on the disk then.

    Raises:
        NoSpace: there is no space for it. Denied: it cannot be written for another reason.
    """
    entry = {
        "event": event,
        "source": _renamed(move.source, base, real_of(base)),
        "target": move.target,
        "reason": move.reason,
        "time_s": move.time_s,
        "link": _renamed(move.link, base, real_of(base)),
        "points_to": move.points_to,
        "wrote": move.wrote,
    }
    line = json.dumps(entry).encode() + b"\n"
    journal = store_of(base) / JOURNAL
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(JOURNAL, flags, 0o600, dir_fd=store)
        try:
            check_own(fd, journal)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                os.write(fd, b"\n")  # an earlier line was cut short by a crash
            if os.write(fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        said = f"the journal {visible(str(journal))} cannot be written: {error.strerror}"
        if error.errno in FULL:
            raise NoSpace(said, fix="Free some space there.") from error
        raise Denied(said) from error


def free(store: int, inside: Path, now: float) -> Path:
    """A place in the quarantine that is not taken: <time>/<path below the root>."""
    stamp = time.strftime(_STAMP, time.gmtime(now))
    number = 0
    while True:
        place = Path(stamp if not number else f"{stamp}-{number}") / inside
        if not exists_below(store, place):
            return place
        number += 1
