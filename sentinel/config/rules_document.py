"""One file of rules as TOML that knows at which line each table and key stands, so that errors can name it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sentinel.config.rules import Replaced
from sentinel.errors import FileError
from sentinel.given_files import number_of, toml_of

TABLES = frozenset(["rule", "xid", "cause", "conviction", "judgement", "nvlink5", "return"])
_TABLES_FIX = "use [[rule]], [[xid]], [[cause]], [[conviction]], [[return]], [judgement] or nvlink5"

Bad = Callable[[str, str, str], FileError]  # makes the error for a key, what is wrong with it, and the fix


class Document:
    """One TOML text that knows at which line each table and key stands."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        trying: bool = True,
        site: bool = False,
        tables: Collection[str] = TABLES,
        tables_fix: str = _TABLES_FIX,
    ) -> None:
        self.name = name
        self.site = site  # whether its rows may take the place of those read before
        self.trying = trying  # whether patterns are compiled and held to their examples
        self.lines = text.splitlines()
        self._starts: dict[str, list[int]] = {}  # headers of tables -> their lines, counted from 1
        for number, line in enumerate(self.lines, 1):
            if line.lstrip().startswith("["):
                self._starts.setdefault(line.strip(), []).append(number)
        self.data = toml_of(name, text)
        for key in self.data:
            if key not in tables:
                named = re.compile(rf"\s*\[*\s*{re.escape(key)}\b")
                at = next((number for number, row in enumerate(self.lines, 1) if named.match(row)), None)
                raise FileError(name, "unknown table", line=at, key=key, fix=tables_fix)

    def tables(self, kind: str) -> list[dict[str, Any]]:
        value = self.data.get(kind, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise FileError(self.name, f"write [[{kind}]], not [{kind}]", key=kind, fix="use double brackets")
        return value

    def error(self, kind: str, index: int, key: str, message: str, fix: str = "") -> FileError:
        start = (self.header(kind, index) or 1) - 1
        return FileError(self.name, message, line=self._find(start, key), key=key, fix=fix or "see rules/README.md")

    def header(self, kind: str, index: int) -> int | None:
        """The line of the table with this number, counted from 1."""
        starts = self._starts.get(f"[[{kind}]]") or self._starts.get(f"[{kind}]", [])
        return starts[index] if index < len(starts) else None

    def _find(self, start: int, key: str) -> int:
        for i in range(start, len(self.lines)):
            line = self.lines[i].strip()
            if re.match(rf"\[*\"?{re.escape(key)}\"?\]*\s*(=|$)", line):
                return i + 1
            if i > start and line.startswith("[["):
                break
        return start + 1


def source_of(table: Mapping[str, Any], bad: Bad) -> str:
    given = table.get("source")
    if not isinstance(given, str) or not given.strip():
        raise bad("source", "missing", "say where it comes from: a document, a measurement, a decision of this site")
    return given.strip()


def number_from(table: Mapping[str, Any], key: str, default: float, least: float, most: float, bad: Bad) -> float:
    """
    Raises:
        FileError: what ``table`` gives for ``key`` is no number from ``least`` to ``most``.
    """
    value = table.get(key, default)
    if (number := number_of(value, least, most)) is None:
        raise bad(key, f"not a number: {value!r:.60}", f"give a number from {least:g} to {most:g}")
    return number


class Origins:
    """Where the row stands that is in force for each thing; no row vanishes without a word."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, object], tuple[str, int | None]] = {}
        self.replaced: list[Replaced] = []

    def take(self, document: Document, table: str, index: int, key: str, subject: object, row: str) -> None:
        """The row of ``document`` with this number is in force for ``subject``, whose name is ``row``, from now on.

        Raises:
            FileError: the same file has said it before, or another one that no site's row may replace.
        """
        place = (document.name, document.header(table, index))
        before = self._at.get((table, subject))
        if before is not None and (before[0] == document.name or not document.site):
            first = f"{before[0]}:{before[1]}" if before[1] else before[0]
            raise document.error(table, index, key, f"{row} is listed twice, first in {first}", "keep one of the two")
        if before is not None:
            self.replaced.append(Replaced(table, row, *place, *before))
        self._at[table, subject] = place
