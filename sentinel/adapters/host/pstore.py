"""What the kernel wrote into persistent storage (pstore) before it ended, also where systemd-pstore moved it.

The first line of a record says why it was written (``Panic#2 Part1``; kernel source: fs/pstore/platform.c). Not every
record is of a panic: by default an oops leaves one, too, after which the kernel may go on, and with
``printk.always_kmsg_dump`` each ordinary shutdown does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sentinel.errors import Unavailable

_MOST_BYTES = 65_536  # of one record; those of EFI and ERST are a few kilobytes
_HEADER = re.compile(r"(Panic|Oops|Emergency|Shutdown|Unknown)#\d{1,10}(?: Part(\d{1,10}))?\s*(?:\n|$)")
_EFI = re.compile(r"dmesg-efi-(\d{10})\d{5}")  # its number is the time, a part and a count


@dataclass(frozen=True, slots=True)
class CrashDump:
    """One record of what the kernel said last."""

    name: str
    written_s: float  # Unix seconds
    text: str  # without the header
    reason: str  # as the kernel names it: "Panic", "Oops", ...; empty: it is not told
    part: int  # 1: the newest lines; a long log is several records
    digest: str  # of its content, by which it is known again after it was moved


def crash_dumps(folder: str, archive: str, seen: Mapping[str, float], oldest_s: float) -> list[CrashDump]:
    """Records of crashes by name, without those of ``seen`` and those older than ``oldest_s``.

    Args:
        folder: where the kernel shows them, usually /sys/fs/pstore.
        archive: below which systemd-pstore puts them, in folders named by their times; empty: nowhere.
        seen: digests of those that were told; names of files, with their times, as agents of 0.1.0 kept them.
        oldest_s: Unix seconds.

    Raises:
        Unavailable: one is there and cannot be read.
    """
    made: dict[str, CrashDump] = {}
    for entry in _records(folder, archive):
        try:
            written_s = min(_written_s(entry), time.time())
            if written_s < oldest_s or seen.get(entry.name) == entry.stat().st_mtime:
                continue
            with entry.open("rb") as stream:
                content = stream.read(_MOST_BYTES)
        except FileNotFoundError:
            continue  # systemd-pstore has just moved it
        except OSError as error:
            raise Unavailable(f"{entry}: {error.strerror}") from error
        digest = sha256(content).hexdigest()
        if digest not in seen:
            text = content.decode("utf-8", "replace")
            header = _HEADER.match(text)
            reason, part = (header[1], int(header[2] or 1)) if header else ("", 1)
            body = text[header.end() :] if header else text
            made.setdefault(digest, CrashDump(entry.name, written_s, body, reason, part, digest))
    return list(made.values())


def _records(folder: str, archive: str) -> Iterator[Path]:
    yield from _found(folder, "dmesg-*")
    if archive:
        for pattern in ("dmesg-*", "*/dmesg-*", "*/*/dmesg-*"):
            yield from _found(archive, pattern)


def _found(folder: str, pattern: str) -> list[Path]:
    try:
        return sorted(Path(folder).glob(pattern))
    except OSError:
        return []


def _written_s(entry: Path) -> float:
    """systemd-pstore copies: the time of a moved file is that of the boot after, so the one in its name goes before it."""
    told = _EFI.match(entry.name)
    return float(told[1]) if told else entry.stat().st_mtime
