"""approve and refuse: what is asked is shown, then the question; the answer is for what was shown."""

from __future__ import annotations

from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless

from sentinel.errors import Refused, UserError
from sentinel.protocol import CHANGE

WAIT = {
    "kind": "approval",
    "since": "2026-03-01T12:00:00Z",
    "what": ["drain n1", "restart 101"],
    "explanation": "Asked.",
}
SEEN: dict[str, Any] = {
    "incident": {"id": "0f3a9c", "opened_at": "2026-03-01T12:00:00Z"},
    "verdict": {"cause": "gpu_fallen_off_bus", "confidence": 0.97},
    "plan": {
        "observe_only": True,
        "explanation": "Asked. Job 101 starts smaller.",
        "steps": [{"kind": "drain", "data": {}}, {"kind": "exclude", "data": {"nodes": "n1,n4"}}],
    },
    "request": {"id": "12345678", "what": ["drain n1", "restart 101"], "waits": [WAIT]},
}


def answer(change: str, what: list[str], note: str = "") -> tuple[str, dict[str, Any]]:
    return CHANGE, {
        "change": change, "arguments": {"incident": "0f3a9c", "request": "12345678", "what": what, "note": note},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def seen(asked: Asked) -> None:
    asked.views["why"] = SEEN


def test_approve_shows_asks_and_answers_what_was_shown(asked: Asked) -> None:
    found = asked.run("approve", "last", says="y\n")
    assert found.exit_code == 0 and asked.made == [answer("approve", ["drain n1", "restart 101"])]
    assert found.output.index("gpu_fallen_off_bus, 97% sure") < found.output.index("Asked.")
    assert "starts smaller" in found.output and "goes round n1,n4." in found.output
    assert "Approve drain n1, restart 101?" in found.output and "Approved: drain n1, restart 101." in found.output


@pytest.mark.parametrize("says", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_answered(asked: Asked, says: str) -> None:
    assert asked.run("approve", "0f3a", says=says).exit_code == 1 and asked.made == []


def test_of_a_plan_that_is_under_way_only_what_is_asked_is_shown(asked: Asked) -> None:
    asked.views["why"] = SEEN | {"plan": SEEN["plan"] | {"observe_only": False}}
    output = asked.run("approve", "0f3a", says="n\n").output
    assert "Asked." in output and "goes round" not in output and "starts smaller" not in output


def test_a_part_of_it_with_a_note(asked: Asked) -> None:
    found = asked.run("refuse", "0f3a", "--step", "drain:n1", "--note", "ticket 7", "--yes")
    assert asked.made == [answer("refuse", ["drain n1"], "ticket 7")] and "Refused: drain n1." in found.output


def test_what_is_not_asked_is_refused(asked: Asked) -> None:
    error = asked.run("approve", "0f3a", "--step", "drain n2", "--yes").exception
    assert isinstance(error, UserError) and "drain n1, restart 101" in error.fix and asked.made == []
    asked.views["why"] = SEEN | {"request": None}
    error = asked.run("approve", "0f3a", "--yes").exception
    assert isinstance(error, Refused) and "waits for an approval" in error.message and error.exit_status != 0


def test_no_text_drives_the_terminal(asked: Asked) -> None:
    wait = WAIT | {"explanation": HOSTILE, "what": [HOSTILE]}
    plan = {"observe_only": True, "explanation": HOSTILE, "steps": [{"kind": "exclude", "data": {"nodes": HOSTILE}}]}
    asked.views["why"] = SEEN | {"plan": plan, "request": {"id": "1", "what": [HOSTILE], "waits": [wait]}}
    found = asked.run("approve", "last", says="y\n")
    assert harmless(found.output) and found.exit_code == 0 and len(asked.made) == 1
