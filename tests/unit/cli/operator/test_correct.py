"""correct: what is sent, what is listed, and labelled cases that overwrite nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless, incident_row, objects

from sentinel.protocol import CHANGE

TOLD: dict[str, Any] = {
    "at": "2026-03-02T09:00:00Z", "by": "ada", "cause": "user_code", "scope": "application", "was": "gpu_memory_ecc",
    "was_scope": "gpu", "note": "the same on three other nodes",
}  # fmt: skip
ITEM: dict[str, Any] = {
    "id": "e1", "at": "2026-03-01T11:59:58Z", "source": "job_log", "kind": "error", "rule": "python-bug", "trust": "user",
    "text": "IndexError: list index out of range", "where": {"node": "n1"},
}  # fmt: skip


def test_what_was_found_out_is_sent(asked: Asked) -> None:
    asked.answer = {"incident": "0f3a9c", **TOLD}
    found = asked.run("correct", "0f3", "--cause", "user_code", "--note", "seen elsewhere")
    arguments = {"incident": "0f3", "cause": "user_code", "note": "seen elsewhere"}
    assert asked.made == [(CHANGE, {"change": "correct", "arguments": arguments})]
    assert "gpu_memory_ecc (gpu) was judged, user_code (application) it was" in found.output
    assert objects(asked.run("correct", "0f3", "--cause", "user_code", "--json").output) == [asked.answer]


def test_last_is_the_newest_incident(asked: Asked) -> None:
    asked.views["why"], asked.answer = {"incident": incident_row()}, {"incident": "0f3a9c", **TOLD}
    asked.run("correct", "last", "--cause", "gpu_nvlink", "--scope", "link")
    assert asked.made[0][1]["arguments"] == {"incident": "0f3a9c", "cause": "gpu_nvlink", "scope": "link"}


@pytest.mark.parametrize(
    "words",
    [
        ("correct", "0f3"),
        ("correct", "--cause", "user_code"),
        ("correct", "0f3", "--cause", "user_code", "--since", "7d"),
        ("correct", "0f3", "--cause", "nonsense"),
    ],
)
def test_half_a_correction_is_none(asked: Asked, words: tuple[str, ...]) -> None:
    assert asked.run(*words).exit_code != 0 and asked.made == []


def test_corrections_are_listed(asked: Asked) -> None:
    asked.views["incidents"] = {"incidents": [incident_row(corrections=[TOLD | {"cause": "unknown"}, TOLD])]}
    output = asked.run("correct").output
    assert asked.seen == [("incidents", {"corrected": True})]
    assert "0f3a9c" in output and "user_code" in output and "unknown" not in output
    asked.views["incidents"] = {"incidents": []}
    assert "No verdict was corrected." in asked.run("correct").output


def test_labelled_cases_are_written_once(asked: Asked, tmp_path: Path) -> None:
    asked.views["incidents"] = {"incidents": [incident_row(corrections=[TOLD])]}
    asked.views["why"] = {"evidence": [ITEM]}
    path = tmp_path / "cases.jsonl"
    assert asked.run("correct", "--export", str(path)).exit_code == 0
    (case,) = (json.loads(line) for line in path.read_text().splitlines())
    assert (case["id"], case["cause"], case["scope"]) == ("0f3a9c", "user_code", "application")
    assert case["judged"] == "gpu_memory_ecc" and case["lines"][0]["text"] == ITEM["text"]
    assert path.stat().st_mode & 0o077 == 0
    before = path.read_text()
    assert asked.run("correct", "--export", str(path)).exit_code != 0 and path.read_text() == before


def test_what_users_and_operators_wrote_is_harmless(asked: Asked) -> None:
    asked.views["incidents"] = {"incidents": [incident_row(corrections=[TOLD | {"note": HOSTILE, "by": HOSTILE}])]}
    for words in (("correct",), ("incidents",)):
        assert harmless(asked.run(*words).output)
