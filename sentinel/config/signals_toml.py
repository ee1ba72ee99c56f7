"""``rules/signals/*.toml``, read strictly: text -> signals that Prometheus is asked for, and counters that age.

Nothing here touches a file. Every error names file, line, key and the fix.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sentinel.classify.ageing import Counter
from sentinel.config.rules_document import Bad, Document
from sentinel.evidence.prometheus import MOST_WEIGHT, Signal
from sentinel.given_files import number_of
from sentinel.model.records import Cause, Scope

MOST_QUERY = 2000  # characters
SIGNAL_KEYS = frozenset(
    ["id", "words", "query", "above", "below", "for_s", "cause", "scope", "weight", "node_label", "node_pattern"]
)
COUNTER_KEYS = frozenset(["name", "words", "cause", "per_day", "least_days", "limit"])
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class Signals:
    signals: Mapping[str, Signal] = field(default_factory=dict)
    counters: Mapping[str, Counter] = field(default_factory=dict)


def parse_signals(texts: Iterable[tuple[str, str]], *, site: Iterable[tuple[str, str]] = ()) -> Signals:
    """Of files given as (name, text). ``site`` files override entries with the same id or name.

    Raises:
        FileError: bad TOML, an unknown key, a value that cannot be, an id that is there twice.
    """
    signals: dict[str, Signal] = {}
    counters: dict[str, Counter] = {}
    for override, (name, text) in [(False, pair) for pair in texts] + [(True, pair) for pair in site]:
        document = Document(name, text, tables=("signal", "counter"), tables_fix="use [[signal]] or [[counter]]")
        for index, table in enumerate(document.tables("signal")):
            bad = partial(document.error, "signal", index)
            signal = _signal(table, name, bad)
            if signal.id in signals and (not override or signals[signal.id].file == name):
                raise bad("id", f"{signal.id!r} is already taken by {signals[signal.id].file}", "give it another id")
            signals[signal.id] = signal
        named: set[str] = set()
        for index, table in enumerate(document.tables("counter")):
            bad = partial(document.error, "counter", index)
            counter = _counter(table, bad)
            if counter.name in named or (counter.name in counters and not override):
                raise bad("name", f"{counter.name!r} is there twice", "keep one of them")
            named.add(counter.name)
            counters[counter.name] = counter
    return Signals(signals, counters)


def _known(table: Mapping[str, Any], keys: frozenset[str], bad: Bad) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            raise bad(key, "unknown key", f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(keys))}")


def _signal(table: Mapping[str, Any], name: str, bad: Bad) -> Signal:
    _known(table, SIGNAL_KEYS, bad)
    identity = _text(table, "id", bad)
    if not _ID.fullmatch(identity):
        raise bad("id", f"not an id: {identity!r:.80}", "lower case letters, digits, '-' and '_'")
    query = _text(table, "query", bad)
    if len(query) > MOST_QUERY:
        raise bad("query", f"has {len(query)} characters", f"at most {MOST_QUERY}")
    if ("above" in table) == ("below" in table):
        key = "below" if "below" in table else "above"
        raise bad(key, "give exactly one limit", "write above = NUMBER or below = NUMBER")
    scope = _scope(table, bad)
    label, pattern = _text(table, "node_label", bad, ""), _text(table, "node_pattern", bad, "")
    if scope is not Scope.CLUSTER and not label:
        raise bad("node_label", f"missing: scope is {scope}", "name the label that holds the node's name")
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise bad("node_pattern", f"bad regular expression: {error}", "correct it") from error
    if pattern and groups > 1:
        raise bad("node_pattern", f"has {groups} groups", "one group, around the node's name")
    return Signal(
        id=identity,
        words=_text(table, "words", bad),
        query=query,
        cause=_cause(table, bad),
        above=_number(table, "above", bad) if "above" in table else None,
        below=_number(table, "below", bad) if "below" in table else None,
        for_s=_number(table, "for_s", bad, 60.0, 0.0, 3600.0),
        scope=scope,
        weight=_number(table, "weight", bad, 2.5, 0.1, MOST_WEIGHT),
        node_label=label,
        node_pattern=pattern,
        file=name,
    )


def _counter(table: Mapping[str, Any], bad: Bad) -> Counter:
    _known(table, COUNTER_KEYS, bad)
    name = _text(table, "name", bad)
    if not _ID.fullmatch(name):
        raise bad("name", f"not a name: {name!r:.80}", "lower case letters, digits and '_'")
    return Counter(
        name=name,
        words=_text(table, "words", bad),
        cause=_cause(table, bad),
        per_day=_number(table, "per_day", bad, None, 0.0),
        least_days=int(_number(table, "least_days", bad, 7.0, 1.0, 365.0)),
        limit=_number(table, "limit", bad, None, 0.0) if "limit" in table else None,
    )


def _text(table: Mapping[str, Any], key: str, bad: Bad, default: str | None = None) -> str:
    value = table.get(key, default)
    if value is None or (value == "" and default is None):
        raise bad(key, "missing", f'write {key} = "..."')
    if not isinstance(value, str):
        raise bad(key, f"is text, not {value!r:.60}", "write it in quotes")
    return value


def _number(
    table: Mapping[str, Any],
    key: str,
    bad: Bad,
    default: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float:
    value = table.get(key, default)
    if value is None:
        raise bad(key, "missing", f"write {key} = NUMBER")
    number = number_of(value)
    if number is None:
        raise bad(key, f"is a number, not {value!r:.60}", "write it without quotes")
    if least is not None and number < least:
        raise bad(key, f"{number:g} is below {least:g}", f"at least {least:g}")
    if most is not None and number > most:
        raise bad(key, f"{number:g} is above {most:g}", f"at most {most:g}")
    return number


def _cause(table: Mapping[str, Any], bad: Bad) -> Cause:
    value = _text(table, "cause", bad)
    if value not in list(Cause) or value == Cause.UNKNOWN:
        known = ", ".join(cause for cause in Cause if cause is not Cause.UNKNOWN)
        raise bad("cause", f"no cause {value!r:.60}", f"one of: {known}")
    return Cause(value)


def _scope(table: Mapping[str, Any], bad: Bad) -> Scope:
    value = _text(table, "scope", bad, "cluster")
    scopes = [Scope.CLUSTER, Scope.NODE, Scope.LINK, Scope.GPU]
    if value not in scopes:
        raise bad("scope", f"no scope {value!r:.60}", f"one of: {', '.join(scopes)}")
    return Scope(value)
