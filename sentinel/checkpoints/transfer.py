"""Copies a checkpoint to a node whose disk is mounted nowhere else, over two streams: one to it, one back.

The sender names the files; the receiver says what it has, whole or in part; what is missing is sent, each file with its
CRC-32, read back there, and given its name and times only then. Of what is there already the CRC-32 alone is sent, and
compared. Broken off and begun again, it goes on where it stopped. Nothing is overwritten. Both sides run as the same user;
whatever comes over the stream is checked all the same.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sentinel.checkpoints.copying import (
    PIECE_BYTES,
    Copied,
    Pace,
    not_a_copy,
    order_of,
    other_bytes,
    read_back,
    same,
    write_all,
)
from sentinel.checkpoints.files import Entry, NotKnown, Tree, opened, refuse_changed
from sentinel.checkpoints.formats.beside.rank_files import scan_save
from sentinel.checkpoints.own_folders import check_own, half_of, opened_half, own_store, require_parent
from sentinel.errors import Denied, ProtocolError, Refused, Unavailable, UserError
from sentinel.text import visible

_LINE_BYTES = 64 << 20
_MOST_FILES = 300_000


def send(
    source: Path,
    to: IO[bytes],
    back: IO[bytes],
    *,
    pace: Pace | None = None,
    progress: Callable[[int], None] | None = None,
) -> Copied:
    """Send the checkpoint at ``source``. Raises what the receiver says is wrong, and `Unavailable` when it goes away."""
    began_s = time.monotonic()
    pace = pace or Pace(None)
    try:
        tree = scan_save(source)
    except NotKnown as error:
        raise Unavailable(f"{visible(str(source))}: {error.reason}") from error
    names = order_of(tree)
    listed = [[name, tree.files[name].size, tree.files[name].mtime_ns] for name in names]
    try:
        first = [names[0], *_identity(tree.path(names[0]))] if names else []
        single, apart = tree.single and len(names) == 1, tree.single and len(names) > 1
        _say(to, {"name": source.name, "single": single, "apart": apart, "files": listed, "first": first})
        answer = _hear(back)
        have, parts = set(answer["have"]), dict(answer["parts"])
        done = Copied(str(answer["target"]), already=len(have))
        for name in names:
            if name in have:
                _say(to, {"name": name, "crc": _sum(tree, name, pace, progress)})
                _hear(back)
            else:
                done.bytes += _send_file(tree, name, int(parts.get(name, 0)), to, pace, progress)
                done.files += _hear(back).get("done") == name
        _say(to, {"end": True})
    except (BrokenPipeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Unavailable(
            f"the receiving side went away ({type(error).__name__})", fix="Its own words are above; run it again."
        ) from error
    done.complete, done.seconds = True, time.monotonic() - began_s
    return done


def _send_file(
    tree: Tree, name: str, offset: int, to: IO[bytes], pace: Pace, progress: Callable[[int], None] | None
) -> int:
    try:
        with opened(tree.path(name), name) as handle:
            if handle.size != tree.files[name].size or not 0 <= offset <= handle.size:
                raise NotKnown(f"{visible(name)}: changed since it was listed")
            _say(to, {"name": name, "offset": offset})
            crc = 0
            for at in range(0, handle.size, PIECE_BYTES):
                piece = handle.read(at, min(PIECE_BYTES, handle.size - at))
                crc = zlib.crc32(piece, crc)
                new = piece[max(0, offset - at) :] if at + len(piece) > offset else b""
                to.write(new)
                if new:
                    pace.spend(len(new))
                    if progress:
                        progress(len(new))
            try:
                refuse_changed(tree.path(name), tree.files[name])
            except NotKnown:  # told, so that the other side keeps nothing of it
                _say(to, {"crc": None})
                raise
            _say(to, {"crc": crc})
            return handle.size - offset
    except NotKnown as error:
        raise Unavailable(error.reason, fix="Run it again: it goes on where it stopped.") from error


def _sum(tree: Tree, name: str, pace: Pace, progress: Callable[[int], None] | None) -> int:
    """CRC-32 of a file that the other side has."""
    try:
        with opened(tree.path(name), name) as handle:
            crc = 0
            for at in range(0, handle.size, PIECE_BYTES):
                piece = handle.read(at, min(PIECE_BYTES, handle.size - at))
                crc = zlib.crc32(piece, crc)
                pace.spend(len(piece))
                if progress:
                    progress(len(piece))
        refuse_changed(tree.path(name), tree.files[name])
    except NotKnown as error:
        raise Unavailable(error.reason, fix="Run it again.") from error
    return crc


def receive(root: Path, source: IO[bytes], back: IO[bytes]) -> None:
    """The other side: puts what comes under ``root``. Errors are told to the sender and raised."""
    try:
        _receive(root, source, back)
    except (UserError, Refused, Denied, ProtocolError, Unavailable) as error:
        _say(back, {"error": type(error).__name__, "message": error.message, "fix": error.fix})
        raise


def _receive(root: Path, source: IO[bytes], back: IO[bytes]) -> None:
    head = _hear(source)
    files, name, single = _listed(head), head.get("name"), head.get("single") is True
    if not isinstance(name, str) or not _is_inside(name) or "/" in name:
        raise ProtocolError("a checkpoint without a sound name")
    target = root / name
    require_parent(root.absolute())
    apart = head.get("apart") is True and not any("/" in file for file in files)  # of ranks, beside each other
    places = {file: target if single else (root if apart else target) / file for file in files}
    for place in {target, *(places.values() if apart else ())}:
        _check_target(place)
    told = head.get("first")
    first = told if isinstance(told, list) and len(told) == 3 else [""]
    if str(first[0]) in places and first[1:] == _identity(places[str(first[0])]):
        raise not_a_copy(target)
    have: set[str] = set()
    parts: dict[str, int] = {}
    for file, entry in files.items():
        if same(places[file], entry):
            have.add(file)
        elif os.path.lexists(places[file]):
            raise Refused(
                f"{visible(str(places[file]))} exists with other contents: not overwritten",
                fix="Move it aside there, or copy elsewhere.",
            )
        else:
            parts[file] = _begun(places[file], entry)
    _say(back, {"target": str(target), "have": sorted(have), "parts": parts})
    while not (head := _hear(source)).get("end"):
        file = str(head.get("name"))
        if file in have:
            _refuse_other_bytes(places[file], file, head.get("crc"))
            _say(back, {"done": file})
            continue
        if file not in parts or head.get("offset") != parts[file]:
            raise ProtocolError("a file that was not announced")
        try:
            root.mkdir(exist_ok=True)
            # Where others may write, too, a folder, link or file of theirs may come in the way meanwhile.
            above = places[file].relative_to(root).parts[:-1]
            with own_store(root, above, make=True, mode=0o755) as folder:
                _take(source, folder, places[file], files[file], parts[file])
        except OSError as error:
            raise Denied(f"{visible(str(places[file]))} cannot be written: {error.strerror}") from error
        _say(back, {"done": file})


def _identity(path: Path) -> list[int]:
    """What two hosts that share a file system see of one file, and no copy can have: nobody sets the time of its change."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_ino, status.st_ctime_ns]


def _check_target(target: Path) -> None:
    """What is there already is believed to be ours: nobody else may have put it there."""
    try:
        fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Denied(f"{visible(str(target))} cannot be opened: {error.strerror}") from error
    try:
        check_own(fd, target)
    finally:
        os.close(fd)


def _begun(place: Path, entry: Entry) -> int:
    """How much of the file an earlier call has left there, in whole pieces."""
    try:
        size = os.lstat(place.with_name(half_of(place.name))).st_size
    except FileNotFoundError:
        return 0
    return 0 if size > entry.size else size - size % PIECE_BYTES


def _refuse_other_bytes(place: Path, file: str, crc: object) -> None:
    """`Refused` where a file that is there holds other bytes than the sender's."""
    try:
        with opened(place) as handle:
            if read_back(handle.fd, handle.size) != crc:
                raise other_bytes(place, file)
    except NotKnown as error:
        raise Unavailable(error.reason, fix="Run it again.") from error


def _take(source: IO[bytes], folder: int, place: Path, entry: Entry, offset: int) -> None:
    """Take one file into an open folder, that of ``place``."""
    half = half_of(place.name)
    fd = opened_half(place.name, folder, place)
    try:
        os.ftruncate(fd, offset)
        while offset < entry.size:
            piece = source.read(min(PIECE_BYTES, entry.size - offset))
            if not piece:
                raise Unavailable("the sending side went away", fix="Run it again: it goes on where it stopped.")
            write_all(fd, piece, offset)
            offset += len(piece)
        os.fsync(fd)
        sent = _hear(source).get("crc")
        if read_back(fd, entry.size) != sent:
            os.unlink(half, dir_fd=folder)
            if sent is None:
                raise Unavailable(f"{visible(str(place))}: changed while it was sent", fix="Run it again.")
            raise Unavailable(
                f"{visible(str(place))}: what was read back differs from what was sent",
                fix="Run it again; if it happens again, one of the two disks loses data.",
            )
    finally:
        os.close(fd)
    os.utime(half, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
    os.rename(half, place.name, src_dir_fd=folder, dst_dir_fd=folder)


def _listed(head: dict[str, Any]) -> dict[str, Entry]:
    files = head.get("files")
    if not isinstance(files, list) or len(files) > _MOST_FILES:
        raise ProtocolError("no list of files")
    found: dict[str, Entry] = {}
    for item in files:
        if not isinstance(item, list) or len(item) != 3 or not isinstance(item[0], str) or not _is_inside(item[0]):
            raise ProtocolError("a file without a sound name")
        if type(item[1]) is not int or type(item[2]) is not int or item[1] < 0:
            raise ProtocolError(f"{visible(item[0])}: no size or time")
        found[item[0]] = Entry(item[1], item[2] / 1e9, 0, item[2])
    return found


def _is_inside(name: str) -> bool:
    return bool(name) and "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def _say(stream: IO[bytes], what: dict[str, Any]) -> None:
    stream.write(json.dumps(what).encode() + b"\n")
    stream.flush()


def _hear(stream: IO[bytes]) -> dict[str, Any]:
    """The next line. An error that the other side reports is raised here."""
    line = stream.readline(_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise Unavailable("the other side went away", fix="Its own words are above; run it again.")
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the other side said {visible(line[:80].decode(errors='replace'))!r}") from error
    if not isinstance(told, dict):
        raise ProtocolError("the other side said what is no object")
    if "error" in told:
        kinds = {kind.__name__: kind for kind in (UserError, Refused, Denied, Unavailable, ProtocolError)}
        kind = kinds.get(str(told["error"]), ProtocolError)
        raise kind(f"on the other side: {visible(str(told.get('message')))}", fix=visible(str(told.get("fix", ""))))
    return told
