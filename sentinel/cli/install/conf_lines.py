"""Lines of a slurm.conf as Slurm reads them: comments off, continued lines joined, included files in their place.

Source of the rules: Slurm's own reader (``parse_config.c``): ``#`` begins a comment unless a backslash stands before it; a
line whose rest ends with an odd number of backslashes goes on in the next; ``Include`` is relative to slurm.conf's folder,
also within an included file, and ``%c`` in it is the cluster's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import FileError
from sentinel.given_files import opened

_COMMENT = re.compile(r"(?<!\\)#.*$")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*(\\)[ \t]*$")
_INCLUDE = re.compile(r"^[ \t]*include[ \t]+(\S+)[ \t]*$", re.IGNORECASE)
_KEY = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(.*?)[ \t]*$")
_DEEPEST = 8  # files: sites use one or two; a file that includes itself must end


@dataclass(frozen=True, slots=True)
class Line:
    """A line as Slurm understands it; several of the file where it is continued."""

    raw: tuple[str, ...]  # as they stand in the file
    text: str  # joined, without comments
    comment: str  # with its mark; empty if there is none
    number: int  # of the first, from 1
    file: Path | None = None  # None: slurm.conf itself

    def value_of(self, key: str) -> str | None:
        """The value, if the line sets ``key`` (in any case, as in Slurm)."""
        match = _KEY.match(self.text)
        return match[2] if match and match[1].lower() == key.lower() else None


def lines_in(text: str, file: Path | None = None) -> Iterator[Line]:
    raw: list[str] = []
    joined, comments = "", []
    lines = text.removesuffix("\n").split("\n") if text else []  # no other character ends a line for Slurm
    for number, line in enumerate(lines, 1):
        raw.append(line)
        bare = _COMMENT.sub("", line)
        comments += [line[len(bare) :].strip()] if len(bare) < len(line) else []
        more = _CONTINUED.search(bare)
        joined += bare[: more.start(1)] if more else bare
        if not more:
            yield Line(tuple(raw), joined, " ".join(comments), number - len(raw) + 1, file)
            raw, joined, comments = [], "", []
    if raw:
        yield Line(tuple(raw), joined, " ".join(comments), len(lines) - len(raw) + 1, file)


def read(text: str, path: Path | None, root: Path = Path("/"), *, lenient: bool = False) -> list[Line]:
    """All lines of the slurm.conf at ``path`` whose text this is, each included file's in the place of its Include.

    Args:
        path: None if there is no slurm.conf.
        root: the image's folder: absolute names of included files are below it.
        lenient: an included file that cannot be read is left out.

    Raises:
        FileError: an included file cannot be read, or files include each other without end.
    """
    lines: list[Line] = []
    _read(text, path, None, root, 1, lenient, lines)
    return lines


def _read(
    text: str, main: Path | None, file: Path | None, root: Path, deep: int, lenient: bool, lines: list[Line]
) -> None:
    for line in lines_in(text, file):
        lines.append(line)
        match = _INCLUDE.match(line.text)
        if not match or main is None:
            continue
        name = match[1].replace("%c", _cluster(lines))
        path = root / name.lstrip("/") if name.startswith("/") else main.parent / name
        try:
            if deep >= _DEEPEST:
                raise FileError(
                    file or main,
                    f"more than {_DEEPEST} files deep",
                    line=line.number,
                    key="Include",
                    fix="include it once",
                )
            try:
                with opened(path) as given:
                    inner = given.whole().decode("utf-8", "replace")
            except OSError as error:
                said = f"{path} cannot be read: {error.strerror}"
                fix = "put it there: what it sets must be known"
                raise FileError(file or main, said, line=line.number, key="Include", fix=fix) from error
        except FileError:
            if lenient:
                continue
            raise
        _read(inner, main, path, root, deep + 1, lenient, lines)


def _cluster(lines: list[Line]) -> str:
    names = [name for line in lines if (name := line.value_of("ClusterName"))]
    return names[-1].strip('"').lower() if names else "%c"
