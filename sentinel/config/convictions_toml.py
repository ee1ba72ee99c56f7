"""The rows of ``[[conviction]]``, read strictly: a key is honoured or refused with file, line and fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sentinel.config.convictions import CONDITIONS, RECOVERY_ACTIONS, Conviction, Drain, Key, Remedy
from sentinel.config.rules_document import Bad, Document, Origins, source_of

_SUBJECTS = ("xid", "dcgm", "dcgm_severity", "dcgm_words", "recovery_action", "condition")
KEYS = (*_SUBJECTS, "drain", "action", "remedy", "near_pct", "source")
_NUMBERS = {"xid": (1, 999), "dcgm": (0, 9999), "dcgm_severity": (0, 99)}
_LEAST_WORDS = 6  # letters: fewer are in too many messages
_NAMES = {"recovery_action": frozenset(RECOVERY_ACTIONS), "condition": CONDITIONS}


def read_convictions(document: Document, rows: dict[Key, Conviction], origins: Origins) -> None:
    """Add the rows of one file.

    Raises:
        FileError: a row is refused, or two rows of this file or of the shipped ones are about the same thing.
    """
    for index, table in enumerate(document.tables("conviction")):
        for key, row in _rows(table, partial(document.error, "conviction", index)):
            origins.take(document, "conviction", index, key[0], key, f"{key[0]} {key[1]}")
            rows[key] = row


def _rows(table: Mapping[str, Any], bad: Bad) -> Iterator[tuple[Key, Conviction]]:
    """Rows of one ``[[conviction]]``.

    Raises:
        FileError: an unknown key, an unknown name, no source, or a drain for what is no fault.
    """
    for key in table:
        if key not in KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(KEYS)}")
    subjects = [key for key in _SUBJECTS if key in table]
    if len(subjects) != 1:
        raise bad(
            subjects[1] if subjects else "drain", "a row is about one thing", f"give one of: {', '.join(_SUBJECTS)}"
        )
    (subject,) = subjects
    row = _conviction(subject, table, source_of(table, bad), bad)
    given = table[subject]
    for item in given if isinstance(given, list) and given else [given]:
        yield (subject, _subject(subject, item, bad)), row


def _conviction(subject: str, table: Mapping[str, Any], source: str, bad: Bad) -> Conviction:
    action = table.get("action")
    if action is not None and subject != "dcgm":
        raise bad("action", f"has no meaning for {subject}", "rows about dcgm may have one, no others")
    if action is not None and "drain" in table:
        raise bad("action", "its row says what follows", "give one of the two: action, or drain")
    if action is not None and action not in RECOVERY_ACTIONS[1:]:
        raise bad("action", f"not known: {action!r:.40}", f"use one of: {', '.join(RECOVERY_ACTIONS[1:])}")
    drain = _word(Drain, table, "drain", bad) if action is None else Drain.NO
    is_diagnostic = subject.startswith("dcgm")
    if is_diagnostic != ("remedy" in table):
        what = "missing" if is_diagnostic else f"has no meaning for {subject}"
        raise bad("remedy", what, "rows about dcgm, dcgm_severity and dcgm_words have one, no others")
    remedy = _word(Remedy, table, "remedy", bad) if is_diagnostic else Remedy.UNCLEAR
    if is_diagnostic and (drain is not Drain.NO or action is not None) and not remedy.is_fault:
        raise bad(
            "drain" if action is None else "action",
            f"{remedy} is no fault of a GPU and convicts nobody",
            'write drain = "no", or another remedy',
        )
    near_pct = table.get("near_pct", 0)
    if isinstance(near_pct, bool) or not isinstance(near_pct, int | float) or not 0 <= near_pct < 100:
        raise bad("near_pct", f"no share of what a test requires: {near_pct!r:.40}", "a number from 0 to 100")
    if near_pct and (subject != "dcgm" or not drain.convicts):
        raise bad("near_pct", "has no meaning here", 'it lowers rows about dcgm with drain = "yes" or "advise"')
    return Conviction(drain, source, remedy, float(near_pct), action or "")


def _subject(subject: str, item: object, bad: Bad) -> int | str:
    if subject in _NUMBERS:
        least, most = _NUMBERS[subject]
        if isinstance(item, bool) or not isinstance(item, int) or not least <= item <= most:
            raise bad(subject, f"not a number from {least} to {most}: {item!r:.40}", "a number, or a list of them")
        return item
    if subject == "dcgm_words":
        words = item.strip().lower() if isinstance(item, str) else ""
        if sum(map(str.isalpha, words)) < _LEAST_WORDS:
            raise bad(subject, f"too short: {item!r:.40}", f"words of DCGM's message, at least {_LEAST_WORDS} letters")
        return words
    if not isinstance(item, str) or item not in _NAMES[subject]:
        raise bad(subject, f"not known: {item!r:.40}", f"use one of: {', '.join(sorted(_NAMES[subject]))}")
    return item


def _word(kind: type[Any], table: Mapping[str, Any], key: str, bad: Bad) -> Any:
    try:
        return kind(table.get(key))
    except ValueError:
        words = ", ".join(item.value for item in kind)
        raise bad(key, f"{table.get(key)!r:.40} is none of: {words}", "write one of these words in quotes") from None
