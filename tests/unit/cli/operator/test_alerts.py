"""``sentinel alerts``: dead letters with their reason, tests with their outcome and exit status."""

from __future__ import annotations

import json
from typing import Any

from in_memory.cli_asked import HOSTILE, Asked

from sentinel.protocol import CHANGE


def row(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a1", "at": "2026-03-01T12:00:00Z", "receiver": "ops-chat", "state": "given up", "tries": 12,
        "reason": "channel ops-chat answered 503", "next_at": None, "incident": "51a7", "stage": "failed",
        "severity": "critical", "job": 8801, "user": "ada", "title": "job 8801: pcie (gpu)", **changes,
    }  # fmt: skip


def test_list_shows_what_was_not_delivered_and_why(asked: Asked) -> None:
    waits = row(state="tried", tries=2, next_at="2026-03-01T12:00:30Z", receiver="mail")
    asked.views["alerts"] = {"messages": [row(), waits, row(state="delivered", receiver="other")]}
    output = asked.run("alerts", "list", columns=200).output
    assert "2 messages: 1 given up, 1 tried" in output and "other" not in output
    assert "given up 12x" in output and "answered 503" in output and "again" in output
    assert "other" in asked.run("alerts", "list", "--all").output


def test_list_as_json_and_since(asked: Asked) -> None:
    asked.views["alerts"] = {"messages": [row()]}
    found = asked.run("alerts", "list", "--json", "--since", "7d")
    assert json.loads(found.output.splitlines()[0])["reason"] == "channel ops-chat answered 503"
    ((name, arguments),) = asked.seen
    assert name == "alerts" and arguments["since"]


def test_nothing_undelivered(asked: Asked) -> None:
    asked.views["alerts"] = {"messages": [row(state="delivered")]}
    assert asked.run("alerts", "list").output == "Nothing is undelivered; 1 message sent.\n"


def test_hostile_text_drives_no_terminal(asked: Asked) -> None:
    asked.views["alerts"] = {"messages": [row(reason=HOSTILE, title=HOSTILE, receiver=HOSTILE)]}
    for columns in (40, 80, 200):
        output = asked.run("alerts", "list", columns=columns).output
        assert "\x1b" not in output and "\u202e" not in output


def test_test_says_what_became_of_each_channel(asked: Asked) -> None:
    asked.answer = {"results": [{"receiver": "ops", "delivered": True, "reason": ""}]}
    found = asked.run("alerts", "test", "--to", "ops")
    assert found.exit_code == 0 and found.output == "ops: delivered\n"
    assert asked.made == [(CHANGE, {"change": "test_alert", "arguments": {"to": "ops"}})]


def test_channel_that_does_not_take_it_is_an_exit_status(asked: Asked) -> None:
    bad = {"receiver": "mail", "delivered": False, "reason": "channel mail: the mail server answered 550"}
    asked.answer = {"results": [{"receiver": "ops", "delivered": True, "reason": ""}, bad]}
    found = asked.run("alerts", "test")
    assert "mail: NOT delivered: channel mail: the mail server answered 550" in found.output
    assert found.exception is not None and "1 channel of 2 did not take it: mail" in str(found.exception)
