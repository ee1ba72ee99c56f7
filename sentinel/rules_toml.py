"""Rule files, read strictly: text -> ``Rules``. Nothing here touches a file.

Patterns are the part of regular expressions that a multi-pattern automaton and Python's ``re`` answer alike: no
look-around, no back-reference, no unbounded ``.*`` (write ``.{0,200}``), ASCII only. That keeps one pass over a log
linear in its length whatever the log holds.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from sentinel.errors import FileError
from sentinel.model import Cause, Scope
from sentinel.rules import CauseEntry, Drain, Form, Judgement, Role, Rule, Rules, Xid

# Named groups that a pattern or capture may have, and where they go.
GROUPS = frozenset(
    [
        "node",
        "gpu",
        "rank",
        "pci",
        "uuid",
        "xid",
        "sxid",
        "code",
        "path",
        "peer",
        "speaker",
        "step",
        "total",
        "loss",
        "time_s",
        "time_ms",
        "pid",
        "action",
        "signal",
        "nic",
        "exit_code",
        "text",
        "sequence",
        "op",
        "numel",
        "fatal",
        "gib_tried",
        "gib_total",
        "gib_used",
    ]
)
_KEYS = frozenset(
    [
        "id",
        "pattern",
        "capture",
        "kind",
        "form",
        "role",
        "weights",
        "scope",
        "drain",
        "late",
        "restart",
        "advice",
        "match",
        "reject",
        "note",
    ]
)
_FORBIDDEN = (
    (re.compile(r"(?<!\\)\(\?(?!:|P<|i\)|i:)"), "look-around, atomic groups and flags other than (?i)"),
    (re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]"), "back-references"),
    (re.compile(r"(?<!\\)(?:\\\\)*\.[*+]"), "unbounded .* or .+ (write .{0,200})"),
    (re.compile(r"[*+}]\)(?:[*+]|\{\d*,)"), "a repeated group that ends in a repetition"),
    (re.compile(r"(?<!\\)[*+?}]\+"), "possessive repetition"),
    (re.compile(r"[^\x20-\x7e]"), "characters outside printable ASCII"),
)


def parse_rules(texts: Iterable[tuple[str, str]], *, site: Iterable[tuple[str, str]] = ()) -> Rules:
    """Records of rule files given as (name, text). ``site`` files override entries with the same id or number.

    Raises:
        FileError: bad TOML, unknown key, bad or forbidden pattern, duplicate id, missing or failing example.
    """
    rules: dict[str, Rule] = {}
    xids: dict[int, Xid] = {}
    causes: dict[Cause, CauseEntry] = {}
    judgement = Judgement()
    for override, (name, text) in [(False, pair) for pair in texts] + [(True, pair) for pair in site]:
        document = _Document(name, text)
        for index, table in enumerate(document.tables("rule")):
            rule = _rule(document, index, table)
            if rule.id in rules and not override:
                raise document.error("rule", index, "id", f"{rule.id!r} is already taken by {rules[rule.id].file}")
            rules[rule.id] = rule
        for index, table in enumerate(document.tables("xid")):
            xid = _xid(document, index, table)
            if xid.number in xids and not override:
                raise document.error("xid", index, "number", f"Xid {xid.number} is listed twice")
            xids[xid.number] = xid
        for index, table in enumerate(document.tables("cause")):
            entry = _cause(document, index, table)
            causes[entry.cause] = entry
        judgement = _judgement(document, judgement)
    return Rules(tuple(rules.values()), xids, causes, judgement)


class _Document:
    """One TOML text that knows at which line each table and key stands."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"line (\d+)", str(error))
            raise FileError(
                name, f"not TOML: {error}", line=int(at[1]) if at else None, fix="correct the syntax at this line"
            ) from error
        for key in self.data:
            if key not in {"rule", "xid", "cause", "judgement"}:
                raise FileError(
                    name, "unknown table", line=self._find(0, key), key=key,
                    fix="use [[rule]], [[xid]], [[cause]] or [judgement]",
                )  # fmt: skip

    def tables(self, kind: str) -> list[dict[str, Any]]:
        value = self.data.get(kind, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise FileError(self.name, f"write [[{kind}]], not [{kind}]", key=kind, fix="use double brackets")
        return value

    def error(self, kind: str, index: int, key: str, message: str, fix: str = "") -> FileError:
        starts = [i for i, line in enumerate(self.lines) if line.strip() == f"[[{kind}]]"]
        start = starts[index] if index < len(starts) else 0
        return FileError(self.name, message, line=self._find(start, key), key=key, fix=fix or "see rules/README.md")

    def header(self, kind: str, index: int) -> int | None:
        starts = [i for i, line in enumerate(self.lines) if line.strip() == f"[[{kind}]]"]
        return starts[index] + 1 if index < len(starts) else None

    def _find(self, start: int, key: str) -> int:
        for i in range(start, len(self.lines)):
            line = self.lines[i].strip()
            if re.match(rf"\[*\"?{re.escape(key)}\"?\]*\s*(=|$)", line):
                return i + 1
            if i > start and line.startswith("[["):
                break
        return start + 1


def _rule(document: _Document, index: int, table: dict[str, Any]) -> Rule:
    def bad(key: str, message: str, fix: str = "") -> FileError:
        return document.error("rule", index, key, message, fix)

    for key in table:
        if key not in _KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(_KEYS))}")
    identity = table.get("id")
    if not isinstance(identity, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,60}", identity):
        raise bad("id", f"not an id: {identity!r}", "lower case letters, digits, '-' and '.'")
    role = _enum(Role, table.get("role", "cause"), lambda m: bad("role", m))
    pattern = _pattern(table, "pattern", bad)
    rule = Rule(
        id=identity,
        pattern=pattern,
        kind=_string(table, "kind", identity, bad),
        form=_enum(Form, table.get("form", "program"), lambda m: bad("form", m)),
        role=role,
        weights=_weights(table, role, bad),
        scope=_enum(Scope, table["scope"], lambda m: bad("scope", m)) if "scope" in table else None,
        drain=_enum(Drain, table.get("drain", "no"), lambda m: bad("drain", m)),
        advice=_string(table, "advice", "", bad),
        late=_flag(table, "late", bad),
        capture=_pattern(table, "capture", bad) if "capture" in table else "",
        match=_examples(table, "match", bad),
        reject=_examples(table, "reject", bad),
        file=document.name,
        line=document.header("rule", index),
    )
    compiled = rule.compiled()
    for line in rule.match:
        if not compiled.search(line.encode()):
            raise bad("match", f"the pattern of {identity!r} does not match {line!r:.120}", "correct one of the two")
    for line in rule.reject:
        if compiled.search(line.encode()):
            raise bad("reject", f"the pattern of {identity!r} matches {line!r:.120}", "narrow the pattern")
    return rule


def _pattern(table: dict[str, Any], key: str, bad: Any) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise bad(key, "missing", "give a regular expression in single quotes")
    for forbidden, name in _FORBIDDEN:
        if forbidden.search(value):
            raise bad(key, f"not allowed in a pattern: {name}", "see rules/README.md for the part of regex that is")
    try:
        compiled = re.compile(value.encode("ascii"))
    except re.error as error:
        raise bad(key, f"bad regular expression: {error}", "correct it") from error
    if compiled.search(b""):
        raise bad(key, "matches the empty line", "demand at least one literal word")
    for group in compiled.groupindex:
        if group not in GROUPS:
            raise bad(key, f"unknown group {group!r}", f"use one of: {', '.join(sorted(GROUPS))}")
    return value


def _weights(table: dict[str, Any], role: Role, bad: Any) -> dict[Cause, float]:
    value = table.get("weights", {})
    if not isinstance(value, dict):
        raise bad("weights", "not a table", "write weights = { cause = 2.0 }")
    if not value and role in {Role.CAUSE, Role.SYMPTOM, Role.FALLBACK, Role.CONTEXT} and table.get("kind") != "xid":
        raise bad("weights", "missing", "say what the line speaks for, or give it role = 'consequence'")
    weights: dict[Cause, float] = {}
    for name, weight in value.items():
        cause = _enum(Cause, name, lambda m: bad("weights", m))
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not -8.0 <= weight <= 8.0:
            raise bad("weights", f"{name} = {weight!r} is not a number from -8 to 8", "natural-log odds")
        weights[cause] = float(weight)
    return weights


def _examples(table: dict[str, Any], key: str, bad: Any) -> tuple[str, ...]:
    value = table.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise bad(key, "missing examples", f"give at least one line that must {'not ' * (key == 'reject')}match")
    return tuple(value)


def _string(table: dict[str, Any], key: str, default: str, bad: Any) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise bad(key, f"not text: {value!r:.60}")
    return value


def _flag(table: dict[str, Any], key: str, bad: Any) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise bad(key, "not true or false")
    return value


def _enum(kind: type[Any], value: object, bad: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise bad(f"{value!r:.60} is none of: {', '.join(item.value for item in kind)}") from None


_XID_KEYS = frozenset(
    [
        "number",
        "name",
        "cause",
        "scope",
        "immediate",
        "investigate",
        "drain",
        "role",
        "weight",
        "repeat",
        "follows",
        "advice",
    ]
)


def _xid(document: _Document, index: int, table: dict[str, Any]) -> Xid:
    def bad(key: str, message: str, fix: str = "") -> FileError:
        return document.error("xid", index, key, message, fix)

    for key in table:
        if key not in _XID_KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(_XID_KEYS))}")
    number = table.get("number")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1000:
        raise bad("number", f"not an Xid: {number!r}", "a whole number")
    follows = table.get("follows", [])
    if not isinstance(follows, list) or not all(isinstance(item, int) for item in follows):
        raise bad("follows", "not a list of numbers")
    weight = table.get("weight", 3.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise bad("weight", f"not a number: {weight!r}")
    return Xid(
        number=number,
        name=_string(table, "name", "", bad) or _raise(bad("name", "missing")),
        cause=_enum(Cause, table["cause"], lambda m: bad("cause", m)) if "cause" in table else None,
        scope=_enum(Scope, table.get("scope", "unknown"), lambda m: bad("scope", m)),
        immediate=_string(table, "immediate", "unknown", bad),
        investigate=_string(table, "investigate", "unknown", bad),
        drain=_enum(Drain, table.get("drain", "no"), lambda m: bad("drain", m)),
        role=_enum(Role, table.get("role", "cause"), lambda m: bad("role", m)),
        weight=float(weight),
        repeat=_flag(table, "repeat", bad),
        follows=tuple(follows),
        advice=_string(table, "advice", "", bad),
    )


def _raise(error: FileError) -> str:
    raise error


_CAUSE_KEYS = frozenset(["id", "prior", "scope", "restart", "advice", "confirm", "rivals"])


def _cause(document: _Document, index: int, table: dict[str, Any]) -> CauseEntry:
    def bad(key: str, message: str, fix: str = "") -> FileError:
        return document.error("cause", index, key, message, fix)

    for key in table:
        if key not in _CAUSE_KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(_CAUSE_KEYS))}")
    prior = table.get("prior", 0.0)
    if isinstance(prior, bool) or not isinstance(prior, (int, float)):
        raise bad("prior", f"not a number: {prior!r}")
    restart = _string(table, "restart", "hold", bad)
    if restart not in {"resume", "resume_excluding", "hold", "none"}:
        raise bad("restart", f"{restart!r} is none of: resume, resume_excluding, hold, none")
    rivals = table.get("rivals", [])
    if not isinstance(rivals, list) or len(rivals) > 3:
        raise bad("rivals", "not a list of at most three causes")
    return CauseEntry(
        cause=_enum(Cause, table.get("id"), lambda m: bad("id", m)),
        prior=float(prior),
        scope=_enum(Scope, table.get("scope", "unknown"), lambda m: bad("scope", m)),
        restart=restart,
        advice=_string(table, "advice", "", bad),
        confirm=_string(table, "confirm", "", bad),
        rivals=tuple(_enum(Cause, name, lambda m: bad("rivals", m)) for name in rivals),
    )


def _judgement(document: _Document, before: Judgement) -> Judgement:
    table = document.data.get("judgement")
    if table is None:
        return before
    values = {"temperature": before.temperature, "unknown_below": before.unknown_below}
    values.update(least_weight=before.least_weight, drain_above=before.drain_above)
    if not isinstance(table, dict):
        raise FileError(document.name, "not a table", key="judgement", fix="write [judgement]")
    for key, value in table.items():
        if key not in values:
            raise FileError(document.name, "unknown key", key=key, fix=f"use one of: {', '.join(values)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise FileError(document.name, f"not a positive number: {value!r}", key=key, fix="give a number")
        values[key] = float(value)
    return Judgement(**values)
