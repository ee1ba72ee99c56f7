"""audit: who changed what; all pages, every text harmless, and a broken chain is an exit status."""

from __future__ import annotations

from typing import Any

from in_memory.cli_asked import HOSTILE, Asked, harmless, objects


def entry(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "number": number, "at": "2026-03-01T12:00:00Z", "who": "ada", "origin": "10.0.0.7", "action": "drain",
        "stage": "done", "target": "node n1", "incident": "", "why": "a fan", "before": {"state": "idle"},
        "after": {"drained": True}, "previous": "0" * 64, "digest": "a" * 64, **changes,
    }  # fmt: skip


def test_entries_with_who_where_why_before_and_after(asked: Asked) -> None:
    asked.views["audit"] = {"entries": [entry(7)], "more": False}
    output = asked.run("audit").output
    assert asked.seen == [("audit", {})]
    for part in ("7", "drain node n1: done, by ada from 10.0.0.7", "why: a fan", '{"state": "idle"}', "drained"):
        assert part in output
    asked.views["audit"] = {"entries": [], "more": False}
    assert "No change" in asked.run("audit").output


def test_json_asks_for_every_page(asked: Asked) -> None:
    pages = [{"entries": [entry(1), entry(2)], "more": True}, {"entries": [entry(3)], "more": False}]
    asked._given = lambda _: pages.pop(0)  # type: ignore[method-assign,assignment,misc]
    asked.views["audit"] = None
    rows = objects(asked.run("audit", "--json").output)
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert asked.seen == [("audit", {"all": True}), ("audit", {"all": True, "after": 2})]


def test_verify_says_what_is_wrong_and_exits_with_one(asked: Asked) -> None:
    asked.views["audit"] = {"checked": {"entries": 5, "head": "b" * 64, "fault": ""}}
    good = asked.run("audit", "--verify")
    assert good.exit_code == 0 and "5 entries in order" in good.output and "b" * 64 in good.output
    asked.views["audit"] = {"checked": {"entries": 1, "head": "b" * 64, "fault": "entry 2 was changed"}}
    for words in (("audit", "--verify"), ("audit", "--verify", "--json")):
        bad = asked.run(*words)
        assert bad.exit_code == 1 and "entry 2 was changed" in bad.output


def test_verify_asks_for_every_part(asked: Asked) -> None:
    head = "b" * 64
    pages = [
        {"checked": {"entries": 5, "head": head, "fault": ""}, "more": True, "of": 8},
        {"checked": {"entries": 8, "head": "c" * 64, "fault": ""}, "more": False, "of": 8},
    ]
    asked._given = lambda _: pages.pop(0)  # type: ignore[method-assign,assignment,misc]
    asked.views["audit"] = None
    output = asked.run("audit", "--verify").output
    assert "8 entries in order" in output and "c" * 64 in output
    part = {"verify": True, "part": True}
    assert asked.seen == [("audit", part), ("audit", {**part, "after": 5, "head": head})]


def test_no_text_of_an_entry_drives_the_terminal(asked: Asked) -> None:
    odd = entry(1, who=HOSTILE, origin=HOSTILE, action=HOSTILE, target=HOSTILE, why=HOSTILE, after={HOSTILE: HOSTILE})
    asked.views["audit"] = {"entries": [odd], "more": False}
    assert harmless(asked.run("audit").output)


def test_steps_are_said_in_words(asked: Asked) -> None:
    asked.views["audit"] = {"entries": [entry(7, action="choose_checkpoint", target="job 5")], "more": False}
    assert "choose a checkpoint for job 5: done" in asked.run("audit").output
