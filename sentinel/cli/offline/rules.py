"""``sentinel rules``: list, test and explain the rules."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.operator.arguments import CAUSE, rules_option
from sentinel.cli.operator.output import say, table
from sentinel.errors import FileError
from sentinel.text import visible

if TYPE_CHECKING:
    from sentinel.config.rules import Rule, Rules
    from sentinel.evidence.logs.reader import Signatures

_SITE = rules_option("Site rules: a file or a folder.")


@click.group()
def rules() -> None:
    """List, test and explain the rules.

    \b
    Examples:
      sentinel rules list --cause network_fabric
      sentinel rules test --rules /etc/sentinel/rules.d
      sentinel rules explain "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    """


@rules.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule.")
@click.option("--cause", type=CAUSE, metavar="CAUSE", help="Only rules that speak for this cause.")
@click.option("--xid", "xids", is_flag=True, help="The Xid table instead.")
@_SITE
def list_rules(as_json: bool, cause: str | None, xids: bool, rules_path: Path | None) -> None:
    """All rules: what they recognise and what they speak for."""
    from sentinel.config.rules_files import load_rules

    loaded = load_rules(site=rules_path)
    rows = _xid_rows(loaded, cause) if xids else [_row(rule) for rule in loaded.rules if _speaks(rule, cause)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    _table(rows)


def _speaks(rule: Rule, cause: str | None) -> bool:
    return cause is None or any(name.value == cause and weight > 0 for name, weight in rule.weights.items())


def _row(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "role": rule.role.value,
        "form": rule.form.value,
        "weights": {cause.value: weight for cause, weight in rule.weights.items()},
        "scope": rule.scope.value if rule.scope else None,
        "drain": rule.drain.value,
        "source": rule.source,
        "pattern": rule.pattern,
        "anchors": {source.value: anchor for source, anchor in rule.anchors.items()},
        "file": Path(rule.file).name,
        "line": rule.line,
    }


def _xid_rows(loaded: Rules, cause: str | None) -> list[dict[str, Any]]:
    return [
        {
            "id": f"xid-{entry.number}",
            "role": entry.role.value,
            "form": "kernel",
            "weights": {entry.cause.value: entry.weight} if entry.cause else {},
            "scope": entry.scope.value,
            "drain": loaded.convictions.xid(entry.number).value,
            "pattern": entry.name,
            "immediate": entry.immediate,
            "investigate": entry.investigate,
        }
        for entry in loaded.xids.values()
        if cause is None or (entry.cause is not None and entry.cause.value == cause)
    ]


def _table(rows: Sequence[dict[str, Any]]) -> None:
    table(
        "",
        ("rule", "role", "drain", "speaks for", "recognises"),
        [
            (
                row["id"],
                row["role"],
                row["drain"],
                ", ".join(f"{cause} {weight:+.1f}" for cause, weight in row["weights"].items()),
                row["pattern"],
            )
            for row in rows
        ],
        whole=("rule", "drain"),
        cut=("recognises",),
    )


@rules.command("test")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_SITE
def test_rules(as_json: bool, rules_path: Path | None) -> None:
    """Read every rule strictly, try its examples, and hold the fast screen against the plain one.

    Rows of a site's file that take the place of shipped ones are named.
    """
    from sentinel.adapters.hyperscan import best_screen
    from sentinel.config.rules_files import load_rules, rules_folder
    from sentinel.evidence.logs.reader import Signatures
    from sentinel.evidence.logs.screen.line_templates import LineTemplates
    from sentinel.evidence.logs.screen.prefilter import PlainScreen

    loaded = load_rules(site=rules_path, try_shipped=True)
    patterns = [rule.pattern for rule in loaded.rules]
    fast, plain = (LineTemplates(patterns, matcher, frozenset()) for matcher in (best_screen, PlainScreen))
    examples = 0
    heard = Signatures(loaded, best_screen)
    for index, rule in enumerate(loaded.rules):
        if not Path(rule.file).is_relative_to(rules_folder()):
            _require_heard(rule, heard)
        for line in rule.match:
            examples += 1
            for screen in (fast, plain):
                if index not in {hit for hit, _ in screen.scan(line.encode() + b"\n")}:
                    raise FileError(
                        rule.file, f"the {screen.name} screen misses {line!r:.100}", line=rule.line, key=rule.id,
                        fix="write the pattern with fewer special cases",
                    )  # fmt: skip
        examples += len(rule.reject)
    result = {
        "rules": len(loaded.rules),
        "examples": examples,
        "xids": len(loaded.xids),
        "causes": len(loaded.causes),
        "screen": fast.name,
        "replaced": [asdict(row) for row in loaded.replaced],
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    say(
        f"{result['rules']} rules, {examples} examples, {result['xids']} Xids, {result['causes']} causes: all hold "
        f"(screen: {fast.name})"
    )
    for row in loaded.replaced:
        before = _place(row.before, row.before_line)
        say(f"{_place(row.file, row.line)}: [[{row.table}]] {visible(row.row)} takes the place of the one in {before}")


def _require_heard(rule: Rule, signatures: Signatures) -> None:
    """
    Raises:
        FileError: of an example nothing is made when a log is read: it is not as its line then is, or no line of a log.
    """
    from sentinel.evidence.logs.reader import LogReader
    from sentinel.evidence.logs.timers import TIMERS
    from sentinel.model.records import Source

    now = datetime.now(UTC)
    for line in rule.match if rule.kind != TIMERS else ():
        for source in (Source.JOB_LOG, *rule.anchors):
            reader = LogReader(signatures, source=source, own_times=True)
            if reader.feed(line.encode() + b"\n", now) or reader.finish(now):
                break
        else:
            raise FileError(
                rule.file, f"in a log {line!r:.100} is not recognised, though the pattern matches it", line=rule.line,
                key=rule.id, fix="HTML's entities (&gt;) are read as what they stand for, and lines of set -x are left out",
            )  # fmt: skip


def _place(file: str, line: int | None) -> str:
    return visible(f"{file}:{line}" if line else file)


@rules.command("explain")
@click.argument("line", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule that knows the line.")
@_SITE
def explain(line: tuple[str, ...], as_json: bool, rules_path: Path | None) -> None:
    """Which rules know LINE, what they read from it, and what they speak for."""
    from sentinel.classify.readings import read
    from sentinel.config.rules_files import load_rules
    from sentinel.evidence.logs.reader import LogReader
    from sentinel.evidence.logs.timers import TIMERS
    from sentinel.wire import to_json

    loaded = load_rules(site=rules_path)
    by_id = loaded.by_id()
    now = datetime.now(UTC)
    text = " ".join(line)
    given = os.fsencode(text)  # the bytes of the line, whatever the locale made of them
    found = LogReader(loaded).feed(given + b"\n", now)
    if not found:
        begins = [rule.id for rule in loaded.rules if rule.kind == TIMERS and rule.compiled().search(given)]
        words = f"{begins[0]}: the lines behind it are read as one report of timers" if begins else ""
        answer_of_none = {"rule": begins[0], "kind": TIMERS} if begins else {}
        if as_json:
            click.echo(json.dumps(answer_of_none))
        else:
            say(words or f"no rule knows: {visible(text, None)}")
        return
    for evidence in found:
        reading = read(evidence, loaded, by_id)
        rule = by_id[evidence.rule or ""]
        answer = {
            "rule": rule.id,
            "file": Path(rule.file).name,
            "line": rule.line,
            "kind": evidence.kind,
            "role": reading.role.value if reading else rule.role.value,
            "weights": to_json(reading.weights) if reading else {},
            "drain": reading.drain.value if reading else "no",
            "read": to_json({k: v for k, v in evidence.data.items() if v is not None}),
            "where": {k: v for k, v in to_json(evidence.where).items() if v is not None},
            "note": reading.note if reading else "",
            "advice": reading.advice if reading else "",
        }
        if as_json:
            click.echo(json.dumps(answer))
            continue
        say(f"{rule.id} ({answer['file']}:{rule.line}), {answer['role']}, drain: {answer['drain']}")
        for cause, weight in answer["weights"].items():
            say(f"{weight:+.1f} {cause}", "  ")
        for name, value in {**answer["where"], **answer["read"]}.items():
            say(f"{name} = {visible(str(value), None)}", "  ")
        if answer["note"]:
            say(answer["note"], "  ")
