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
_MODULES = (
    "status",
    "fleet",
    "jobs",
    "incidents",
    "history",
    "commands",
    "doctor",
    "arguments",
    "audit",
    "alerts",
    "corrections",
    "approvals",
)


class Asked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.views: dict[str, Any] = {}
        self.answer: Any = {}
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.made: list[tuple[str, Mapping[str, object]]] = []
        for name in _MODULES:
            module = importlib.import_module(f"sentinel.cli.operator.{name}")
            monkeypatch.setattr(module, "view", self.view)
            if hasattr(module, "ask"):
                monkeypatch.setattr(module, "ask", self.ask)

    def view(self, _config: Path, name: str, *, deadline_s: float = 0.0, **arguments: object) -> Any:
        self.seen.append((name, arguments))
        return self._given(self.views[name])

    def ask(self, _config: Path, path: str, body: Mapping[str, object], *, deadline_s: float = 0.0) -> Any:
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


STATUS: dict[str, Any] = {
    "at": "2026-03-01T12:00:00Z", "version": "1.0", "cluster": "lab", "paused": False, "mode": "act",
    "modes": {"train": {"mode": "act", "drain": "act", "restart": "act", "known": True}},
    "breakers": {
        "breaker": {"open": False, "last_at": None, "incident": None, "opens_at_nodes": 5, "window_s": 60.0},
        "hang-breaker": {"open": False, "last_at": None, "incident": None, "opens_at_jobs": 3, "window_s": 120.0},
    },
    "budget": {"drained_at_once": {"used": 0, "limit": 8}, "drains_last_hour": {"used": 0, "limit": 6},
               "restarts_last_hour": {"used": 0, "limit": 100}},
    "under_way": [], "would_have_done": [],
    "slurm": {"answers": True, "problem": "", "snapshot_at": "2026-03-01T12:00:00Z"},
    "nodes": {"idle": 2, "mixed": 5}, "agents": {"heard": 7}, "jobs": {}, "drained_by_us": [],
    "open_incidents": [], "recent_incidents": [],
}  # fmt: skip


def node_row(**changes: object) -> dict[str, Any]:
    return {
        "node": "n1", "state": "draining", "reason": "sentinel:0f3a9c gpu_memory_ecc n1:3", "partitions": ["train"],
        "gpus": 8, "agent": "heard", "orders": True, "verdict": {"state": "bad"}, "clock_offset_s": 0.1, "job": 101,
        "failures_30d": 4, "score": score(), "suspect": True, "suspect_reasons": ["4 x gpu_memory_ecc", REMAPPED["reason"]],
        "trends": [REMAPPED], **changes,
    }  # fmt: skip


REMAPPED: dict[str, Any] = {
    "counter": "remapped_rows", "words": "remapped rows", "unit": "gpu3", "value": 12.0, "days": 20.0, "per_day": 0.6,
    "low_per_day": 0.31, "high_per_day": 0.9, "faster": True, "suspect": True,
    "reason": "remapped rows of gpu3: 0.6 a day (0.31 to 0.9), more than 0.1", "speaks_for": "gpu_memory_ecc",
}  # fmt: skip


def score(**changes: object) -> dict[str, Any]:
    return {
        "failures": 4, "busy_days": 28.04, "others_busy_days": 700.0, "compared": "worse",
        "per_month": 3.1234, "low_per_month": 1.2, "high_per_month": 16.5,
        "others_per_month": 0.04, "lemon": True, "reasons": ["4 x gpu_memory_ecc", "under 3 different jobs"],
        "last_at": "2026-03-01T11:00:00Z", "burst_s": 3000.0, **changes,
    }  # fmt: skip


def attempt_row(**changes: object) -> dict[str, Any]:
    return {
        "job": 101, "attempt": 1, "name": "train", "user": "ada", "partition": "train", "nodes": ["n1", "n2"],
        "started_at": "2026-03-01T11:00:00Z", "ended_at": None, "state": "running", "first_step": 201, "last_step": 250,
        "step_time_s": 2.0, "gpus": 16, "steps_gained": 50,
        "save_interval_s": 600.0, "recommended_interval_s": 412.0, "interval_verdict": "longer",
        **changes,
    }  # fmt: skip


def failed_row(**changes: object) -> dict[str, Any]:
    """An attempt that failed, and what that cost."""
    row = attempt_row(
        attempt=0, state="failed", ended_at="2026-03-01T10:58:00Z", started_at="2026-03-01T09:00:00Z", first_step=1,
        last_step=230, steps_gained=230, incident="0f3a9c", cause="gpu_memory_ecc", redone_steps=30, redone_s=60.0,
        down_s=120.0, lost_gpu_h=0.8,
    )  # fmt: skip
    for name in ("save_interval_s", "recommended_interval_s", "interval_verdict"):
        del row[name]
    return row | changes


def harmless(text: str) -> bool:
    """Nothing that moves a terminal's cursor, colours it, or turns its text around."""
    return all(ch == "\n" or ch.isprintable() for ch in text)


def objects(text: str) -> list[dict[str, Any]]:
    """What ``--json`` printed: one object a line and nothing else."""
    rows = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(row, dict) for row in rows)
    return rows
