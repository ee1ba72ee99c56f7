"""The rows of ``[[return]]``, read strictly: a key is honoured or refused with file, line and fix."""

from __future__ import annotations

from functools import partial
from typing import Any

from sentinel.config.returns import DEEPEST, OTHER, Remedial, ReturnRow, level_told
from sentinel.config.rules_document import Bad, Document, Origins, source_of
from sentinel.model.records import Cause

KEYS = ("cause", "tests", "actions", "failures", "source")
_MOST_FAILURES = 10


def read_returns(document: Document, rows: dict[str, ReturnRow], origins: Origins) -> None:
    """Add the rows of one file.

    Raises:
        FileError: a row is refused, or two rows of this file or of the shipped ones are about the same cause.
    """
    for index, table in enumerate(document.tables("return")):
        bad = partial(document.error, "return", index)
        for key in table:
            if key not in KEYS:
                raise bad(key, "unknown key", f"use one of: {', '.join(KEYS)}")
        row = ReturnRow(_tests(table, bad), _actions(table, bad), _failures(table, bad), source_of(table, bad))
        given = table.get("cause")
        for cause in given if isinstance(given, list) and given else [given]:
            name = _cause(cause, bad)
            origins.take(document, "return", index, "cause", name, name)
            rows[name] = row


def _cause(given: object, bad: Bad) -> str:
    known = [*Cause, OTHER]
    if not isinstance(given, str) or given not in known:
        raise bad("cause", f"not known: {given!r:.40}", f"use one of: {', '.join(known)}")
    return given


def _tests(table: dict[str, Any], bad: Bad) -> tuple[int, ...]:
    """At least one: no node returns without proof."""
    given = table.get("tests")
    fix = f"levels from 1 to {DEEPEST}, each once, the quickest first, e.g. tests = [1, 2, 3]"
    if not isinstance(given, list) or not given:
        raise bad("tests", "missing: a node returns only after a test has passed", fix)
    if not all(map(level_told, given)):
        raise bad("tests", f"not levels: {given!r:.40}", fix)
    if given != sorted(set(given)):
        raise bad("tests", f"not in order: {given!r:.40}", fix)
    return tuple(given)


def _actions(table: dict[str, Any], bad: Bad) -> tuple[Remedial, ...]:
    given, words = table.get("actions", []), ", ".join(Remedial)
    if not isinstance(given, list) or any(item not in list(Remedial) for item in given):
        raise bad("actions", f"not a list of: {words}", 'e.g. actions = ["reset", "reboot"], or [] for none')
    return tuple(Remedial(item) for item in given)


def _failures(table: dict[str, Any], bad: Bad) -> int:
    given = table.get("failures", 2)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_FAILURES:
        raise bad("failures", f"not a number from 1 to {_MOST_FAILURES}: {given!r:.40}", "e.g. failures = 2")
    return given
