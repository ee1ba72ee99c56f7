"""Reads files that people name, whatever lies at their place: within bounds, and never waiting long for a silent pipe.

A pipe is as good as a file (``--config <(...)``); a device never ends, a socket cannot be opened, and both are refused.
"""

from __future__ import annotations

import os
import re
import select
import stat
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sentinel.errors import FileError

T = TypeVar("T")

MOST_BYTES = 16 << 20  # of settings, rules, templates and secrets; those that come with Sentinel have 60 KB at most
SILENT_S = 30.0  # for a pipe into which nobody writes
# Of a dotted key of TOML: tomllib's time and memory grow by their square, 60,000 in a file of 120 KB took 13 GB.
MOST_PARTS = 64
BLOCK = 1 << 19  # bytes read at a time: small enough for the processor's cache

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*\.[ \t]*){{{MOST_PARTS}}}")


@dataclass(frozen=True, slots=True)
class GivenFile:
    """An open regular file or pipe."""

    path: Path
    descriptor: int
    status: os.stat_result

    @property
    def is_pipe(self) -> bool:
        return stat.S_ISFIFO(self.status.st_mode)

    def read(self, most: int, silent_s: float | None = None) -> bytes:
        """The next bytes, at most so many; empty at the end.

        Raises:
            FileError: nobody wrote into the pipe in that time. OSError: it cannot be read.
        """
        silent_s = SILENT_S if silent_s is None else silent_s
        if self.is_pipe and not select.select([self.descriptor], [], [], silent_s)[0]:
            raise FileError(self.path, f"nobody wrote into this pipe for {silent_s:g} s", fix="give a file")
        return os.read(self.descriptor, most)

    def whole(self, most: int = MOST_BYTES, silent_s: float | None = None, too_large: str = "") -> bytes:
        """All of it. ``too_large``: what is said of more than it may be.

        Raises:
            FileError: longer than ``most`` bytes; a silent pipe. OSError: it cannot be read.
        """
        if stat.S_ISREG(self.status.st_mode) and self.status.st_size > most:
            raise self._too_large(most, too_large)
        content = bytearray()
        while block := self.read(min(BLOCK, most + 1 - len(content)), silent_s):
            content += block
            if len(content) > most:  # a pipe, or a file that grows
                raise self._too_large(most, too_large)
        return bytes(content)

    def _too_large(self, most: int, said: str) -> FileError:
        return FileError(self.path, said or f"is larger than {_size(most)}", fix="name a smaller file")


def require_file(path: Path) -> None:
    """For what a library will open, without bounds.

    Raises:
        FileError: a pipe, device, socket or folder. OSError: it is not there, or may not be looked at.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise FileError(path, "is no regular file", fix="name one")


def _require(path: Path, mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise FileError(path, "neither a file nor a pipe", fix="name a regular file")


@contextmanager
def opened(path: Path) -> Iterator[GivenFile]:
    """
    Raises:
        FileError: a device, socket or folder. OSError: it cannot be opened.
    """
    _require(path, path.stat().st_mode)  # before it is opened: a device may do something then
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        _require(path, status.st_mode)
        yield GivenFile(path, descriptor, status)
    finally:
        os.close(descriptor)


def file_text(path: Path, *, fix: str = "check the path and the file's rights") -> str:
    """The whole text. ``fix``: what the error advises where it cannot be read.

    Raises:
        FileError: it cannot be read, is no file or pipe, too large, or not UTF-8.
    """
    try:
        with opened(path) as file:
            return file.whole().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 at byte {error.start}", fix="save it as UTF-8") from error


def toml_of(path: Path | str, text: str) -> dict[str, Any]:
    """The tables of a TOML text; ``path`` is what errors call it.

    Raises:
        FileError: it is not TOML.
    """
    if (found := _DEEP_KEY.search(text)) is not None:
        where = text.count("\n", 0, found.start()) + 1
        raise FileError(path, f"a key of more than {MOST_PARTS} parts", line=where, fix="no setting has so many")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FileError(path, "is not TOML: brackets within brackets", fix="see https://toml.io") from None
    except ValueError as error:  # also of a number with thousands of digits
        line = re.search(r"line (\d+)", str(error))
        number = int(line[1]) if line else None
        raise FileError(
            path, f"is not TOML: {error}", line=number, fix="correct the syntax: https://toml.io"
        ) from error


def number_of(value: object, least: float = -sys.float_info.max, most: float = sys.float_info.max) -> float | None:
    """A number of a file, as from TOML or JSON; None where it is none from ``least`` to ``most``.

    NaN, which no comparison finds, an infinity and a whole number beyond every float are no numbers, and true is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >> 30 else f"{count >> 20} MiB" if count >> 20 else f"{count:,} bytes"


def states(paths: Iterable[str]) -> list[tuple[int, int, int] | None]:
    """By which a change of a file is seen, also where another one took its place; None: there is none, or a pipe, which is
    read once."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - often, and nothing else of the path is asked
        except OSError:
            found.append(None)
            continue
        whole = (status.st_mtime_ns, status.st_size, status.st_ino)
        found.append(whole if stat.S_ISREG(status.st_mode) else None)
    return found


class MadeOfFiles(Generic[T]):
    """What is made of files, and made anew when one of them has changed."""

    def __init__(self, files: Iterable[str], make: Callable[[], T]) -> None:
        self._files, self._make = tuple(files), make
        self._made = states(self._files), make()  # one value: threads ask, too

    def now(self) -> T:
        """Raises what ``make`` raises as long as changed files cannot be used."""
        before, made = self._made
        if (state := states(self._files)) != before:
            made = self._make()
            self._made = state, made
        return made
