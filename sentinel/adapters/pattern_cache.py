"""Caches compiled patterns between runs, in a folder that only the user can write.

A compiled automaton is trusted like a program: it is read only from a folder and a file that this account owns and nobody
else can write. A file that is broken, foreign or for another machine is as good as none. Nothing here is needed: whatever
goes wrong, the patterns are compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel import __version__

MAGIC = b"sentinel patterns 1\n"
KEPT_FILES = 6  # rules of a few sites and versions on a few kinds of processors; a file takes some 3 MB
LARGEST_BYTES = 64 << 20  # twenty times what the shipped rules take
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path | None:
    """The cache folder of this account; None if it has no home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        return Path(given) / "sentinel"
    home = os.environ.get("HOME", "")
    return Path(home) / ".cache" / "sentinel" if home.startswith("/") and home != "/" else None


def key_of(compiler: str, patterns: Sequence[str]) -> str:
    """The cache key: patterns in order, compiler, its version, and the processor."""
    digest = hashlib.sha256()
    for part in (__version__, compiler, _processor(), *patterns):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:40]


def load(key: str, folder: Path | None = None) -> bytes | None:
    """The payload saved under ``key``; None if there is none, it is damaged, or its file cannot be trusted."""
    try:
        with _opened(folder or cache_folder()) as place:
            descriptor = os.open(_name(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=place)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or not _own(status) or status.st_size > LARGEST_BYTES:
                    return None
                content = file.read(LARGEST_BYTES)
    except OSError:
        return None
    head = len(MAGIC) + hashlib.sha256().digest_size
    payload = content[head:]
    return payload if content[:head] == MAGIC + hashlib.sha256(payload).digest() else None


def save(key: str, payload: bytes, folder: Path | None = None) -> bool:
    """Save ``payload`` under ``key``, atomically; False if it cannot be saved."""
    target = folder or cache_folder()
    if target is None or len(payload) + 1024 > LARGEST_BYTES:
        return False
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(target) as place:
            fresh = f".{_name(key)}.{secrets.token_hex(4)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=place), "wb") as file:
                    file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
                os.replace(fresh, _name(key), src_dir_fd=place, dst_dir_fd=place)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=place)
                raise
            _drop_oldest(place)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _opened(folder: Path | None) -> Iterator[int]:
    """A descriptor of the folder. Raises OSError unless it belongs to this account and nobody else can write it."""
    if folder is None:
        raise FileNotFoundError("no folder for compiled patterns")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _own(os.fstat(descriptor)):
            raise PermissionError(f"{folder}: others own it or can write it")
        yield descriptor
    finally:
        os.close(descriptor)


def _own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _name(key: str) -> str:
    return f"{key}.patterns"


def _drop_oldest(place: int) -> None:
    """Remove the oldest files: those of earlier rules, and partial ones of killed processes."""
    found = []
    for name in os.listdir(place):
        if name.endswith(".patterns") or ".patterns." in name:
            with contextlib.suppress(OSError):
                found.append((os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime, name))
    for _, name in sorted(found, reverse=True)[KEPT_FILES:]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=place)


def _processor() -> str:
    """The processor's features: a home folder may be shared by nodes with different processors."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    flags = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    return f"{os.uname().machine} {flags}"
