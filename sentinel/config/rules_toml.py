"""Rule files, read strictly: text -> ``Rules``. Nothing here touches a file.

Patterns are the part of regular expressions that a multi-pattern automaton and Python's ``re`` answer alike: no
look-around, no back-reference, no unbounded ``.*`` (write ``.{0,200}``), ASCII only, no repeated group that can read
one text in several ways, and no three long repeats in a row that take the same characters (no four behind a text that they
do not take). That keeps a pass over a log from taking ever longer with a line, whatever the log holds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from sentinel.config.convictions import Conviction, Convictions, Drain, Key
from sentinel.config.convictions_toml import read_convictions
from sentinel.config.nvlink_toml import nvlink5_rows
from sentinel.config.returns import ReturnRow, Returns
from sentinel.config.returns_toml import read_returns
from sentinel.config.rules import LEADING, OWN_LOG, CauseEntry, Curve, Form, Judgement, NvLink5, Role, Rule, Rules, Xid
from sentinel.config.rules_document import Document, Origins, number_from
from sentinel.errors import FileError
from sentinel.evidence.logs.machine_logs import said
from sentinel.evidence.logs.screen.many_ways import MOST_SHARES, multiplies, shares_out
from sentinel.given_files import number_of
from sentinel.model.records import Cause, Scope, Source
from sentinel.model.vocabulary import NOT_OF_LINES

_MOST_ODDS = 8.0  # natural-log odds: beyond, one line outweighs all others
# Named groups that a pattern or capture may have, and where they go.
GROUPS = frozenset(
    [
        "node", "gpu", "rank", "pci", "uuid", "xid", "sxid", "code", "path", "peer", "speaker", "step", "total", "loss",
        "time_s", "time_ms", "pid", "action", "signal", "nic", "exit_code", "text", "sequence", "op", "numel", "numel_out",
        "fatal", "gib_tried", "gib_total", "gib_used", "comm", "nranks",
    ]
)  # fmt: skip
RULE_KEYS = frozenset(
    [
        "id", "pattern", "anchor", "capture", "kind", "form", "role", "weights", "scope", "drain", "late", "frame",
        "content", "advice", "match", "reject", "source",
    ]
)  # fmt: skip
_FORBIDDEN = (
    (re.compile(r"(?<!\\)\(\?(?!:|P<|i\)|i:)"), "look-around, atomic groups and flags other than (?i)"),
    (re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]"), "back-references"),
    (re.compile(r"(?<!\\)(?:\\\\)*\.[*+]"), "unbounded .* or .+ (write .{0,200})"),
    (re.compile(r"[*+}]\)(?:[*+]|\{\d*,)"), "a repeated group that ends in a repetition"),
    (re.compile(r"(?<!\\)[*+?}]\+"), "possessive repetition"),
    (re.compile(r"(?<!\\)(?:\\\\)*\\[0xuUN]"), "characters by number or name (write the character)"),
    (re.compile(r"(?<![\\[^])\{(?!\d+(?:,\d*)?\})"), "a brace that counts nothing (write \\{), or {,n} (write {0,n})"),
    (re.compile(r"[^\x20-\x7e]"), "characters outside printable ASCII"),
)


def parse_rules(
    texts: Iterable[tuple[str, str]], *, site: Iterable[tuple[str, str]] = (), try_first: bool = True
) -> Rules:
    """Records of rule files given as (name, text). ``site`` files override entries with the same id or number.

    ``try_first``: whether the patterns of ``texts`` are checked and their examples tried; those of ``site`` always are.

    Raises:
        FileError: bad TOML, unknown key, bad or forbidden pattern, missing or failing example, two rows about one thing
            in one file or in two of ``texts``.
    """
    rules: dict[str, Rule] = {}
    xids: dict[int, Xid] = {}
    causes: dict[Cause, CauseEntry] = {}
    nvlink5: dict[tuple[int, str, int, int], NvLink5] = {}
    judgement = Judgement()
    convictions: dict[Key, Conviction] = {}
    returns: dict[str, ReturnRow] = {}
    origins = Origins()
    for override, (name, text) in [(False, pair) for pair in texts] + [(True, pair) for pair in site]:
        document = Document(name, text, trying=override or try_first, site=override)
        for index, table in enumerate(document.tables("rule")):
            rule = _rule(document, index, table)
            origins.take(document, "rule", index, "id", rule.id, repr(rule.id))
            rules[rule.id] = rule
        for index, table in enumerate(document.tables("xid")):
            xid = _xid(document, index, table)
            origins.take(document, "xid", index, "number", xid.number, str(xid.number))
            xids[xid.number] = xid
        for index, table in enumerate(document.tables("cause")):
            entry = _cause(document, index, table)
            origins.take(document, "cause", index, "id", entry.cause, entry.cause.value)
            causes[entry.cause] = entry
        read_convictions(document, convictions, origins)
        read_returns(document, returns, origins)
        for key, row in nvlink5_rows(document.name, document.data).items():
            origins.take(document, "nvlink5", 0, "nvlink5", key, " ".join(map(str, key)))
            nvlink5[key] = row
        judgement = _judgement(document, judgement, origins)
    return Rules(
        tuple(rules.values()), xids, causes, nvlink5, judgement, Convictions(convictions), Returns(returns),
        tuple(origins.replaced),
    )  # fmt: skip


def _rule(document: Document, index: int, table: dict[str, Any]) -> Rule:
    bad = partial(document.error, "rule", index)
    for key in table:
        if key not in RULE_KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(RULE_KEYS))}")
    identity = table.get("id")
    if not isinstance(identity, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,60}", identity):
        raise bad("id", f"not an id: {identity!r}", "lower case letters, digits, '-' and '.'")
    role = _enum(Role, table.get("role", "cause"), lambda m: bad("role", m))
    checked = _pattern if document.trying else _string_of
    pattern = checked(table, "pattern", bad)
    rule = Rule(
        id=identity,
        pattern=pattern,
        kind=_kind(table, identity, bad),
        form=_enum(Form, table.get("form", "program"), lambda m: bad("form", m)),
        role=role,
        weights=_weights(table, role, bad),
        scope=_enum(Scope, table["scope"], lambda m: bad("scope", m)) if "scope" in table else None,
        drain=_enum(Drain, table.get("drain", "no"), lambda m: bad("drain", m)),
        advice=_string(table, "advice", "", bad),
        late=_flag(table, "late", bad),
        frame=_flag(table, "frame", bad),
        content=_flag(table, "content", bad),
        source=_string(table, "source", "", bad),
        anchors=_anchors(table, bad, trying=document.trying),
        capture=checked(table, "capture", bad) if "capture" in table else "",
        match=_examples(table, "match", bad),
        reject=_examples(table, "reject", bad),
        file=document.name,
        line=document.header("rule", index),
    )
    if document.trying:
        _try_examples(rule, bad)
    return rule


def _try_examples(rule: Rule, bad: Any) -> None:
    _require_anchors(rule, bad)
    compiled = rule.compiled()
    for line in rule.match:
        if not compiled.search(line.encode()):
            raise bad("match", f"the pattern of {rule.id!r} does not match {line!r:.120}", "correct one of the two")
    for line in rule.reject:
        if compiled.search(line.encode()):
            raise bad("reject", f"the pattern of {rule.id!r} matches {line!r:.120}", "narrow the pattern")


def _pattern(table: dict[str, Any], key: str, bad: Any) -> str:
    value = table.get(key)
    for group in _expression(value, key, bad).groupindex:
        if group not in GROUPS:
            raise bad(key, f"unknown group {group!r}", f"use one of: {', '.join(sorted(GROUPS))}")
    return str(value)


def _string_of(table: dict[str, Any], key: str, _bad: Any) -> str:
    """A pattern that was tried before."""
    return str(table[key])


def _expression(value: object, key: str, bad: Any) -> re.Pattern[bytes]:
    """One regular expression of the part that is allowed."""
    if not isinstance(value, str) or not value:
        raise bad(key, "missing", "give a regular expression in single quotes")
    for forbidden, name in _FORBIDDEN:
        if forbidden.search(value):
            raise bad(key, f"not allowed in a pattern: {name}", "see rules/README.md for the part of regex that is")
    try:
        compiled = re.compile(value.encode("ascii"))
    except re.error as error:
        raise bad(key, f"bad regular expression: {error}", "correct it") from error
    if multiplies(compiled):
        words = "not allowed in a pattern: a repeated group that can read a text in ever more ways"
        raise bad(
            key, words, "let no two of its parts begin with the same characters, nor one with what another ends with"
        )
    if shares_out(compiled) > MOST_SHARES:
        words = "not allowed in a pattern: repeats in a row that share out one run of characters in too many ways"
        raise bad(key, words, "bound them (\\w{1,20}), or let a character stand between that the next does not take")
    if compiled.search(b""):
        raise bad(key, "matches the empty line", "demand at least one literal word")
    return compiled


# Messages of a log of the machine's own that begin with what users choose. An anchor that fits one of them fits any name.
_OF_USERS = (b"python3[4711]: segfault at 0", b"python3: renamed from eth0", b"my program (4711): ", b"IN=lo OUT= SRC=")


def _anchors(table: dict[str, Any], bad: Any, *, trying: bool) -> dict[Source, str]:
    """How the rule's messages begin, by the log in which they count."""
    value = table.get("anchor", {})
    logs = {source.value: source for source in OWN_LOG.values()}
    if not isinstance(value, dict) or not value.keys() <= logs.keys():
        raise bad(
            "anchor", f"not anchors by log: {value!r:.60}", f"write anchor.LOG = '...', LOG of: {', '.join(logs)}"
        )
    anchors = {}
    for name, given in value.items():
        key = f"anchor.{name}"
        parts = given if isinstance(given, list) else [given]
        for part in parts if trying else ():
            compiled = _expression(part, key, bad)
            if compiled.groupindex or part.startswith("(?i)"):
                raise bad(
                    key, "named groups and (?i) have no place in an anchor", "capture in the pattern; use (?i:...)"
                )
            for text in _OF_USERS:
                if compiled.match(text):
                    raise bad(key, f"fits a message that begins with a name: {text.decode()!r}", "name the subsystem")
        anchors[logs[name]] = "|".join(f"(?:{part})" for part in parts)
        if not parts:
            raise bad(key, "empty", "say how the messages begin")
    return anchors


def _require_anchors(rule: Rule, bad: Any) -> None:
    """A rule that can drain a node says how its subsystem begins the line, and shows it in an example."""
    own = OWN_LOG.get(rule.form)
    if own is not None and rule.convicts and own not in rule.anchors:
        raise bad(
            "anchor", f"{rule.id!r} can drain a node, and users choose names that stand in the {own.value} log",
            f"say how its messages begin there, as in anchor.{own.value} = 'NVRM: Xid \\(', or give it another form",
        )  # fmt: skip
    for source, anchor in rule.anchors.items():
        heard = (said(source, line) for line in rule.match)
        if not any(line.own and re.match(anchor, line.message) for line in heard):
            raise bad(
                f"anchor.{source.value}", f"no example of {rule.id!r} begins so, once users' names are cut out",
                "give such a line in match, or correct the anchor",
            )  # fmt: skip


def _weights(table: dict[str, Any], role: Role, bad: Any) -> dict[Cause, float]:
    value = table.get("weights", {})
    if not isinstance(value, dict):
        raise bad("weights", "not a table", "write weights = { cause = 2.0 }")
    if not value and role in LEADING | {Role.CONTEXT} and table.get("kind") != "xid":
        raise bad("weights", "missing", "say what the line speaks for, or give it role = 'consequence'")
    weights: dict[Cause, float] = {}
    for name, weight in value.items():
        cause = _enum(Cause, name, lambda m: bad("weights", m))
        if cause is Cause.UNKNOWN:
            raise bad(
                "weights", "no line speaks for unknown", "leave it out: it is the answer where no cause is carried"
            )
        if (number := number_of(weight, -_MOST_ODDS, _MOST_ODDS)) is None:
            raise bad("weights", f"{name} = {weight!r} is not a number from -8 to 8", "natural-log odds")
        weights[cause] = number
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


def _kind(table: dict[str, Any], identity: str, bad: Any) -> str:
    kind = _string(table, "kind", identity, bad)
    if kind in NOT_OF_LINES:
        raise bad("kind", f"{kind!r} is found or tested, and no line of a log says it", "give it a name of its own")
    return kind


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


XID_KEYS = frozenset(
    [
        "number", "name", "cause", "scope", "immediate", "investigate", "role", "weight", "repeat", "follows", "advice",
    ]
)  # fmt: skip


def _xid(document: Document, index: int, table: dict[str, Any]) -> Xid:
    bad = partial(document.error, "xid", index)
    for key in table:
        if key == "drain":
            raise bad(
                key,
                "what convicts is in one table",
                f"write [[conviction]] with xid = {table.get('number')} and source",
            )
        if key not in XID_KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(XID_KEYS))}")
    number = table.get("number")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1000:
        raise bad("number", f"not an Xid: {number!r}", "a whole number")
    follows = table.get("follows", [])
    if not isinstance(follows, list) or not all(isinstance(item, int) for item in follows):
        raise bad("follows", "not a list of numbers")
    return Xid(
        number=number,
        name=_string(table, "name", "", bad) or _raise(bad("name", "missing")),
        cause=_enum(Cause, table["cause"], lambda m: bad("cause", m)) if "cause" in table else None,
        scope=_enum(Scope, table.get("scope", "unknown"), lambda m: bad("scope", m)),
        immediate=_string(table, "immediate", "unknown", bad),
        investigate=_string(table, "investigate", "unknown", bad),
        role=_enum(Role, table.get("role", "cause"), lambda m: bad("role", m)),
        weight=number_from(table, "weight", 3.0, -_MOST_ODDS, _MOST_ODDS, bad),
        repeat=_flag(table, "repeat", bad),
        follows=tuple(follows),
        advice=_string(table, "advice", "", bad),
    )


def _raise(error: FileError) -> str:
    raise error


CAUSE_KEYS = frozenset(["id", "prior", "scope", "restart", "advice", "confirm", "rivals"])


def _cause(document: Document, index: int, table: dict[str, Any]) -> CauseEntry:
    bad = partial(document.error, "cause", index)
    for key in table:
        if key not in CAUSE_KEYS:
            raise bad(key, "unknown key", f"use one of: {', '.join(sorted(CAUSE_KEYS))}")
    restart = _string(table, "restart", "hold", bad)
    if restart not in {"resume", "resume_excluding", "hold", "none"}:
        raise bad("restart", f"{restart!r} is none of: resume, resume_excluding, hold, none")
    rivals = table.get("rivals", [])
    if not isinstance(rivals, list) or len(rivals) > 3:
        raise bad("rivals", "not a list of at most three causes")
    return CauseEntry(
        cause=_enum(Cause, table.get("id"), lambda m: bad("id", m)),
        prior=number_from(table, "prior", 0.0, -_MOST_ODDS, _MOST_ODDS, bad),
        scope=_enum(Scope, table.get("scope", "unknown"), lambda m: bad("scope", m)),
        restart=restart,
        advice=_string(table, "advice", "", bad),
        confirm=_string(table, "confirm", "", bad),
        rivals=tuple(_enum(Cause, name, lambda m: bad("rivals", m)) for name in rivals),
    )


# The numbers of [judgement], and between which they stand: shares, what divides natural-log odds, and such odds.
JUDGED = {
    "temperature": (0.1, 10.0), "unknown_below": (0.0, 1.0), "least_weight": (0.0, 100.0), "drain_above": (0.0, 1.0),
    "calibration": (0.0, 1.0), "single_line": (0.0, 1.0),
}  # fmt: skip


def _judgement(document: Document, before: Judgement, origins: Origins) -> Judgement:
    table = document.data.get("judgement")
    if table is None:
        return before
    values = {key: getattr(before, key) for key in JUDGED}
    bad = partial(document.error, "judgement", 0)
    if not isinstance(table, dict):
        raise FileError(document.name, "not a table", key="judgement", fix="write [judgement]")
    curves = {"program_curve": before.program_curve, "machine_curve": before.machine_curve}
    for key, value in table.items():
        origins.take(document, "judgement", 0, key, key, key)
        if key in curves:
            curves[key] = _curve(document.name, key, value)
            continue
        if key not in values:
            known = ", ".join((*values, *curves))
            raise bad(key, "unknown key", f"use one of: {known}")
        values[key] = number_from(table, key, values[key], *JUDGED[key], bad)
    return Judgement(**values, program_curve=curves["program_curve"], machine_curve=curves["machine_curve"])


def _curve(name: str, key: str, value: object) -> Curve:
    """Pairs of numbers from 0 to 1, both growing: a surer verdict is never stated as less sure."""
    fix = "give pairs from 0 to 1 that grow, such as [[0.0, 0.0], [0.5, 0.6], [1.0, 0.9]]"
    pairs = [tuple(pair) for pair in value if isinstance(pair, list)] if isinstance(value, list) else []
    numbers = [number for pair in pairs for number in pair]
    whole = isinstance(value, list) and len(pairs) == len(value) and all(len(pair) == 2 for pair in pairs)
    if not pairs or not whole or any(number_of(n, 0.0, 1.0) is None for n in numbers):
        raise FileError(name, f"no curve: {value!r:.80}", key=key, fix=fix)
    points = tuple((float(share), float(right)) for share, right in pairs)
    steps = list(itertools.pairwise(points))
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in steps):
        raise FileError(name, f"no growing curve: {value!r:.80}", key=key, fix=fix)
    return points
