"""The daemon as commands see it: each view answers what a test gives it, and everything asked is remembered."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.cli import cli
from sentinel.errors import SentinelError

HOSTILE = "[red]x[/red]\x1b[2J\x1b]0;title\x07\r\nroot\u202eevil {0} %s"
_MODULES = ("fleet", "incidents", "history", "operate", "doctor")


class Asked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.views: dict[str, Any] = {}
        self.answer: Any = {}
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.made: list[tuple[str, Mapping[str, object]]] = []
        for name in _MODULES:
            module = importlib.import_module(f"sentinel.cli.{name}")
            monkeypatch.setattr(module, "view", self.view)
            if hasattr(module, "ask"):
                monkeypatch.setattr(module, "ask", self.ask)

    def view(self, _config: Path, name: str, **arguments: object) -> Any:
        self.seen.append((name, arguments))
        return self._given(self.views[name])

    def ask(self, _config: Path, path: str, body: Mapping[str, object]) -> Any:
        self.made.append((path, body))
        return self._given(self.answer)

    @staticmethod
    def _given(answer: Any) -> Any:
        if isinstance(answer, SentinelError):
            raise answer
        return json.loads(json.dumps(answer))

    def run(self, *words: str, columns: int = 140, says: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(words), input=says, env={"COLUMNS": str(columns), "TERM": "dumb"})


def incident_row(**changes: object) -> dict[str, Any]:
    """One incident as the daemon's views show it."""
    return {
        "id": "0f3a9c", "opened_at": "2026-03-01T12:00:00Z", "updated_at": "2026-03-01T12:00:05Z", "closed_at": None,
        "state": "watching", "job": 101, "attempt": 0, "user": "ada", "outcome": "restarted", "cause": "gpu_memory_ecc",
        "scope": "gpu", "confidence": 0.953, "culprit_nodes": ["n1"], "decided_at": "2026-03-01T12:00:01Z", **changes,
    }  # fmt: skip


def harmless(text: str) -> bool:
    """Nothing that moves a terminal's cursor, colours it, or turns its text around."""
    return all(ch == "\n" or ch.isprintable() for ch in text)


def objects(text: str) -> list[dict[str, Any]]:
    """What ``--json`` printed: one object a line and nothing else."""
    rows = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(row, dict) for row in rows)
    return rows
