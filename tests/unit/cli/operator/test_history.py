"""history: what comes again stands first, whoever asks for less gets less, and no key of a user acts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless, incident_row, objects


def group(key: str, failures: int, **changes: Any) -> dict[str, Any]:
    return {
        "key": key, "failures": failures, "first_at": "2026-02-01T12:00:00Z", "last_at": "2026-03-01T12:00:00Z",
        "burst_s": 2460.0, "causes": {"gpu_memory_ecc": failures}, "jobs": 2, "nodes": 1, **changes,
    }  # fmt: skip


SCORE = {"failures": 6, "per_month": 6.2, "low_per_month": 2.9, "high_per_month": 9.8, "lemon": True}
FEBRUARY, MARCH = "2026-02-27T12:00:00Z", "2026-03-01T12:00:00Z"
INCIDENTS = [incident_row(), *(incident_row(opened_at=at) for at in (FEBRUARY, *[MARCH] * 5))]
HISTORY: dict[str, Any] = {
    "days": 30.0,
    "incidents": INCIDENTS,
    "cut": True,
    "by": {
        "node": [group("n1", 6, score=SCORE), group("n2", 1, score=None)],
        "cause": [group("gpu_memory_ecc", 7)],
        "job": [],
        "user": [group("ada", 7, causes={"gpu_memory_ecc": 6, "pcie": 1})],
        "time": [group("2026-02-27", 1), group("2026-03-01", 6)],
    },
}


def test_history_with_bars(asked: Asked) -> None:
    asked.views["history"] = HISTORY
    output = asked.run("history").output
    assert asked.seen == [("history", {"days": 30.0})] and "7 incidents in the last 30 days" in output
    assert "the oldest are missing" in output
    bars = {line.split()[0]: line.count("█") for line in output.splitlines() if "█" in line}
    assert bars == {"gpu_memory_ecc": 20, "n1": 20, "n2": 3, "ada": 20, "2026-02-27": 3, "2026-03-01": 20}
    assert "By job" not in output and "6.2 (2.9-9.8) LEMON" in output and "41 min" in output
    assert "1 node, 2 jobs" in output and "6 gpu_memory_ecc, 1 pcie" in output


def test_causes_that_have_no_place_are_counted(asked: Asked) -> None:
    causes = {"pcie": 9, "user_code": 3, "gpu_nvlink": 2, "numerical_nan": 1}
    rows = [group("2026-03-01", 15, causes=causes), group("2026-03-02", 15, causes=dict(list(causes.items())[:3]))]
    asked.views["history"] = HISTORY | {"by": {"user": rows}}
    output = asked.run("history", columns=200).output
    assert "9 pcie, 3 user_code, 2 gpu_nvlink, +1 more\n" in output and "2 gpu_nvlink\n" in output


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit(asked: Asked, columns: int) -> None:
    long = group("a-very-long-name-of-a-user", 3, causes={"gpu_fallen_off_bus": 2, "filesystem_storage": 1, "pcie": 1})
    asked.views["history"] = HISTORY | {"by": HISTORY["by"] | {"user": [long] * 40}}
    output = asked.run("history", columns=columns).output
    assert max(len(line) for line in output.splitlines()) <= columns
    assert output.count("a-very-long-name-of-a-user") == 15 and "--by user shows 25 more" in output
    assert asked.run("history", "--by", "user", columns=columns).output.count("a-very-long-name-of-a-user") == 40


def days(output: str) -> list[str]:
    return re.findall(r"^(\d{4}-\d\d-\d\d) +(\d+) ", output, re.M)


def test_days_are_those_of_the_terminals_zone(asked: Asked, zone: Callable[[str], None]) -> None:
    """An evening in Los Angeles is the next day by UTC. What an operator said the cause was is counted."""
    told = [{"cause": "user_code", "scope": "application", "by": "op", "at": MARCH, "note": ""}]
    rows = [
        incident_row(opened_at="2026-11-28T06:00:00Z"),
        incident_row(opened_at="2026-11-28T05:00:00Z", corrections=told),
        incident_row(opened_at="2026-11-28T08:00:00Z", cause=None),
    ]
    by = {"time": [group("2026-11-28", 3)]}
    asked.views["history"] = HISTORY | {"incidents": rows, "by": by}
    for command in (("history",), ("history", "--by", "time")):
        zone("America/Los_Angeles")
        output = asked.run(*command).output
        assert days(output) == [("2026-11-27", "2"), ("2026-11-28", "1")], output
        assert "1 gpu_memory_ecc, 1 user_code" in output and "unknown" in output
        zone("UTC")
        assert days(asked.run(*command).output) == [("2026-11-28", "3")]
    assert objects(asked.run("history", "--by", "time", "--json").stdout) == [{"by": "time", **by["time"][0]}]


def test_days_that_are_left_out_are_counted(asked: Asked) -> None:
    rows = [incident_row(opened_at=f"2026-03-{day:02}T12:00:00Z") for day in range(1, 31)]
    asked.views["history"] = HISTORY | {"incidents": rows}
    output = asked.run("history").output
    assert "By day (the last 15 of 30 with a failure; --by time shows all)" in output and len(days(output)) == 15
    output = asked.run("history", "--by", "time").output
    assert "By day\n" in output and len(days(output)) == 30


def test_history_by_one_thing(asked: Asked) -> None:
    asked.views["history"] = HISTORY
    output = asked.run("history", "--by", "node", "--days", "7").output
    assert asked.seen == [("history", {"days": 7.0})] and "By node" in output and "By user" not in output
    rows = objects(asked.run("history", "--by", "node", "--json").stdout)
    assert rows == [{"by": "node", **row} for row in HISTORY["by"]["node"]]
    assert {row["by"] for row in objects(asked.run("history", "--json").stdout)} == {"node", "cause", "user", "time"}


def test_filters_reach_the_daemon_and_are_named(asked: Asked) -> None:
    asked.views["history"] = HISTORY
    words = ("--node", "n1", "--job", "101", "--user", "ada", "--cause", "gpu_memory_ecc")
    output = asked.run("history", *words).output
    chosen = {"node": "n1", "job": 101, "user": "ada", "cause": "gpu_memory_ecc"}
    assert asked.seen == [("history", {"days": 30.0, **chosen})]
    assert "of node n1 of job 101 of user ada of cause gpu_memory_ecc in the last 30 days" in output
    assert "By node" not in output and "By day" in output  # a table of the one that was asked for says nothing


def test_quiet_history(asked: Asked) -> None:
    asked.views["history"] = {"days": 7, "cut": False, "incidents": [], "by": {"node": []}}
    assert asked.run("history", "--days", "7").output == "No incident in the last 7 days.\n"
    assert asked.run("history", "--node", "n9").output == "No incident of node n9 in the last 30 days.\n"
    assert asked.run("history", "--json").output == ""
    asked.views["history"]["own_only"] = True
    assert asked.run("history", "--days", "7").output == "No incident of your jobs in the last 7 days.\n"


def test_hostile_keys(asked: Asked) -> None:
    asked.views["history"] = HISTORY | {"by": {"user": [group(HOSTILE, 1, causes={HOSTILE: 1})]}}
    assert harmless(asked.run("history").output)
    assert harmless(asked.run("history", "--node", HOSTILE).output)


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_history_is_shown_at_every_width(asked: Asked, width: int) -> None:
    """At 40 columns it ended with a traceback: it left a column out that only nodes have."""
    asked.views["history"] = HISTORY
    found = asked.run("history", columns=width)
    assert found.exit_code == 0 and "By cause" in found.output and "gpu_memory_ecc" in found.output
