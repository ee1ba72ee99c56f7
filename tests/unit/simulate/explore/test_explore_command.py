"""``sentinel explore``: what it prints, its exit status, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.explore import MOST_SEED, explore
from sentinel.errors import UserError
from sentinel.model.records import Task
from sentinel.simulate import explore as running
from sentinel.simulate.explore import MOST_HISTORIES
from sentinel.simulate.stories import STORIES


def called(*arguments: str) -> Any:
    return CliRunner().invoke(explore, list(arguments))


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    real = running.explore
    monkeypatch.setattr(running, "explore", lambda *what, **how: real(*what, **{**how, "processes": 1}))


@pytest.fixture
def unsigned_drains(monkeypatch: pytest.MonkeyPatch, one_process: None) -> None:
    """A planted fault: drains do not say whose they are."""
    monkeypatch.setattr(Task, "reason", property(lambda _task: "broken"))


def test_json_has_the_promised_keys(one_process: None) -> None:
    found = called("--seed", "3", "--histories", "6", "--story", "killed", "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    assert answer["simulated"] is True and answer["seed"] == 3
    assert answer["histories"] == 6 and answer["crash_points"] >= 3 and answer["violations"] == []
    assert answer["wall_s"] > 0


def test_a_broken_promise_is_shrunk_told_and_replayed(unsigned_drains: None) -> None:
    found = called("--seed", "3", "--histories", "4", "--story", "killed-often", "--json")
    assert found.exit_code == 1
    violation = json.loads(found.output)["violations"][0]
    assert violation.keys() >= {"seed", "promise", "story", "at", "id", "why", "events"}
    assert violation["story"] == "killed-often" and len(violation["events"]) == 1, (
        "without the kills, which it does not need"
    )
    shown = called("--seed", "3", "--replay", violation["id"])
    assert (
        shown.exit_code == 1 and violation["promise"] in shown.output and "sentinel: requeue_hold 101" in shown.output
    )
    as_json = json.loads(called("--seed", "3", "--replay", violation["id"], "--json").output)
    assert violation["promise"] in {one["promise"] for one in as_json["violations"]} and len(as_json["events"]) > 5


def test_people_read_how_to_replay_it(unsigned_drains: None) -> None:
    found = called("--seed", "3", "--histories", "2", "--story", "killed")
    assert found.exit_code == 1
    assert "sentinel explore --seed 3 --replay killed-0" in found.output
    assert "2 simulated histories (seed 3)" in found.output


def test_stories_are_listed() -> None:
    lines = called("--story", "list").output.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(STORIES)
    told = json.loads(called("--story", "list", "--json").output)
    assert list(told) == list(STORIES) and all(told.values())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--histories", "0"), ("--histories", "-5"), ("--histories", str(MOST_HISTORIES + 1)), ("--histories", "9" * 40),
        ("--seed", "-1"), ("--seed", str(MOST_SEED + 1)), ("--story", "nobody"), ("--story", ""), ("--replay", "x"),
        ("--replay", "killed-1:7"), ("--replay", ""), ("--replay", "killed-1", "--story", "people"),
        ("--replay", "killed-1", "--histories", "5"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_what_to_give(arguments: tuple[str, ...]) -> None:
    found = called(*arguments)
    assert isinstance(found.exception, UserError), found.output
    assert found.exception.fix and found.exception.exit_status == 2


@pytest.mark.parametrize("arguments", [("--histories", "many"), ("--seed", "1.5"), ("--seed", "nan"), ("extra",)])
def test_what_is_no_number_is_refused(arguments: tuple[str, ...]) -> None:
    assert called(*arguments).exit_code == 2
