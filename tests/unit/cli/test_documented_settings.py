"""Whatever a site or a user can set is in docs/: settings files, rules, the hooks' variables, a job's comment."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cli.offline.manual import settings_tables
from sentinel.config import convictions_toml, nvlink_toml, returns_toml, rules_toml, signals_toml
from sentinel.config.rules import Judgement
from sentinel.config.rules_document import TABLES
from sentinel.model import intent

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PARTS = {
    "conviction": convictions_toml.KEYS,
    "return": returns_toml.KEYS,
    "rule": rules_toml.RULE_KEYS,
    "xid": rules_toml.XID_KEYS,
    "cause": rules_toml.CAUSE_KEYS,
    "judgement": [item.name for item in dataclasses.fields(Judgement)],
    "nvlink5": nvlink_toml.KEYS,
    "signal": signals_toml.SIGNAL_KEYS,
    "counter": signals_toml.COUNTER_KEYS,
}
HOOKS = [
    *(ROOT / "prolog").iterdir(), *(ROOT / "epilog").iterdir(), ROOT / "deploy/slurm/health-check",
    ROOT / "sentinel/hook.py", ROOT / "sentinel/agent/health/level1.py",
]  # fmt: skip
# What the resume point gives a job, which is no setting.
GIVEN = re.compile(r"SENTINEL_(?:RESUME_(?:PATH|STEP|TIER)|ATTEMPT|INCIDENT|MESSAGE|JOB|UID|RUN|ORDERS)")


def classes_of_settings() -> Iterator[str]:
    """Names of the classes with fields that are settings."""
    for path in (ROOT / "sentinel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(item, ast.AnnAssign)
                and isinstance(item.value, ast.Call)
                and ast.unparse(item.value.func) == "setting"
                for item in node.body
            ):
                yield node.name


def within(kind: type) -> Iterator[str]:
    yield kind.__name__
    for hint in typing.get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint):
            yield from within(typing.cast("type", hint))


def test_every_class_of_settings_is_on_the_page_of_settings() -> None:
    shown = {name for _, kind in settings_tables() for name in within(kind)}
    assert sorted(set(classes_of_settings()) - shown) == []


def test_every_table_of_rules_is_in_this_test() -> None:
    assert set(PARTS) == TABLES | {"signal", "counter"}


@pytest.mark.parametrize("table", PARTS)
def test_every_key_of_a_table_of_rules_is_described(table: str) -> None:
    sections = re.split(r"^## ", (DOCS / "site-rules.md").read_text(), flags=re.MULTILINE)
    (section,) = [
        text for text in sections if f"`[[{table}]]`" in text.partition("\n")[0] or text.startswith(f"`[{table}]`")
    ]
    first = {
        name for row in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert sorted(set(PARTS[table]) ^ first) == [], "missing there, or not read by the program"


def test_every_variable_of_the_hooks_is_described_and_read() -> None:
    read = {name for path in HOOKS for name in re.findall(r"\bSENTINEL_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())}
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "hooks.md").read_text(), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(SENTINEL_\w+)`", row)}
    assert sorted({name for name in read if not GIVEN.fullmatch(name)} ^ described) == []


def test_every_key_of_a_jobs_comment_is_described() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "researcher.md").read_text(), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r'`"([a-z_]+)"`', row)}
    assert sorted(intent.KEYS ^ described) == []
