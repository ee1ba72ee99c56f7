"""status, nodes and jobs: what machines read is whole, what people read fits, and no text of users acts."""

from __future__ import annotations

from typing import Any

import pytest
from cli_asked import HOSTILE, Asked, harmless, incident_row, objects

from sentinel.errors import Denied, Unavailable, UserError

STATUS: dict[str, Any] = {
    "at": "2026-03-01T12:00:00Z", "version": "1.0", "cluster": "lab", "paused": False,
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
        "failures": 4, "busy_days": 28.04, "per_month": 3.1234, "low_per_month": 1.2, "high_per_month": 16.5,
        "others_per_month": 0.04, "lemon": True, "reasons": ["4 x gpu_memory_ecc", "under 3 different jobs"],
        "last_at": "2026-03-01T11:00:00Z", "burst_s": 3000.0, **changes,
    }  # fmt: skip


def attempt_row(**changes: object) -> dict[str, Any]:
    return {
        "job": 101, "attempt": 1, "name": "train", "user": "ada", "partition": "train", "nodes": ["n1", "n2"],
        "started_at": "2026-03-01T11:00:00Z", "ended_at": None, "state": "running", "first_step": 201, "last_step": 250,
        "step_time_s": 2.0, "save_interval_s": 600.0, "recommended_interval_s": 412.0, "interval_verdict": "longer",
        **changes,
    }  # fmt: skip


def widest(text: str) -> int:
    return max(len(line) for line in text.splitlines())


# --- status ------------------------------------------------------------------------------------------------------------


def test_quiet_status(asked: Asked) -> None:
    asked.views["status"] = STATUS
    found = asked.run("status")
    assert found.exit_code == 0 and found.output.splitlines() == [
        "Sentinel 1.0 on lab: active; Slurm answers",
        "Nodes:  5 mixed, 2 idle",
        "Agents: 7 heard",
        "Jobs:   -",
        "No open incident.",
    ]
    assert asked.seen == [("status", {})]


def test_status_with_trouble(asked: Asked) -> None:
    slurm = {"answers": False, "problem": "slurmctld did not answer", "snapshot_at": None}
    rows = [incident_row(), incident_row(id="77aa", cause=None, confidence=None, culprit_nodes=None, state="open")]
    asked.views["status"] = STATUS | {
        "paused": True, "slurm": slurm, "drained_by_us": ["n1", "n2"], "open_incidents": rows, "recent_incidents": rows,
    }  # fmt: skip
    lines = asked.run("status").output
    assert "PAUSED: observing only; Slurm not known: slurmctld did not answer" in lines
    assert "Drained by Sentinel: n1, n2" in lines and "No open incident." not in lines
    assert "Open incidents" in lines and "95%" in lines
    assert lines.count("0f3a9c") == 1 and "Latest" not in lines  # what is open is not told twice


def test_status_names_suspects_and_what_was_latest_of_the_others(asked: Asked) -> None:
    suspects = [
        {"node": "n7", "reasons": ["4 x gpu_memory_ecc", "3 within 2 d"]},
        {"node": HOSTILE, "reasons": [HOSTILE]},
    ]
    rows = [incident_row(), incident_row(id="77aa", state="closed")]
    asked.views["status"] = STATUS | {
        "suspects": suspects,
        "open_incidents": rows[:1],
        "recent_incidents": rows,
        "cluster": "",
    }
    output = asked.run("status").output
    assert output.startswith("Sentinel 1.0: active") and "Suspect: n7: 4 x gpu_memory_ecc; 3 within 2 d" in output
    assert "Latest of the others" in output and output.count("77aa") == 1 and harmless(output)


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_and_keep_what_identifies(asked: Asked, columns: int) -> None:
    row = incident_row(outcome="restarted " * 20, cause="nccl_hang_collective_mismatch"[:24])
    asked.views["status"] = STATUS | {"open_incidents": [row]}
    asked.views["nodes"] = {"nodes": [node_row(reason="because " * 30)], "incidents": []}
    asked.views["jobs"] = {"attempts": [attempt_row(name="a-very-long-name-of-a-job" * 3)]}
    for command, word in (("status", "0f3a9c"), ("nodes", "draining"), ("jobs", "running")):
        found = asked.run(command, columns=columns)
        assert found.exit_code == 0 and widest(found.output) <= columns
        assert word in found.output
    assert ("scope" in asked.run("status", columns=columns).output) is (columns >= 110)
    assert ("step time s" in asked.run("jobs", columns=columns).output) is (columns >= 110)


# --- json --------------------------------------------------------------------------------------------------------------


def test_json_is_what_the_daemon_said(asked: Asked) -> None:
    asked.views["status"] = STATUS
    asked.views["nodes"] = {"nodes": [node_row(), node_row(node="n2", reason=HOSTILE)], "incidents": []}
    asked.views["jobs"] = {"attempts": [attempt_row(name=HOSTILE), attempt_row(attempt=2)]}
    assert objects(asked.run("status", "--json").output) == [STATUS]
    assert objects(asked.run("nodes", "--json").output) == asked.views["nodes"]["nodes"]
    assert objects(asked.run("jobs", "--json").output) == asked.views["jobs"]["attempts"]
    assert harmless(asked.run("nodes", "--json").output)


# --- nodes and jobs ----------------------------------------------------------------------------------------------------


def test_one_node_with_its_incidents(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row()], "incidents": [incident_row()]}
    output = asked.run("nodes", "n1").output
    assert asked.seen == [("nodes", {"node": "n1"})] and "Incidents of n1" in output and "0f3a9c" in output
    for words in (
        "n1: draining (sentinel:0f3a9c gpu_memory_ecc n1:3)",
        "Agent heard, clock +0.10 s; says bad",
        "Partitions train; 8 GPUs; job 101",
        "LEMON. 4 failures in 28.0 days of work",
        "(4 x gpu_memory_ecc; under 3 different jobs)",
        "That is 3.1 (1.2-16) in a month of work; the other nodes have 0.04.",
        "Suspect: remapped rows of gpu3: 0.6 a day (0.31 to 0.9), more than 0.1",
        "Counters that grow",
        "suspect, faster than before",
    ):
        assert words in output, (words, output)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_about_a_node_fit(asked: Asked, columns: int) -> None:
    long = score(reasons=["4 x gpu_memory_ecc", "under 3 different jobs", "always GPU 5", "3 within 41 min"])
    asked.views["nodes"] = {"nodes": [node_row(score=long)], "incidents": []}
    found = asked.run("nodes", "n1", columns=columns)
    assert widest(found.output) <= columns and "3 within 41 min" in " ".join(found.output.split())


def test_signals_at_a_glance(asked: Asked) -> None:
    firing = {
        "signal": "nas",
        "since": "2026-03-01T11:00:00Z",
        "text": "the NAS does not answer: 0, below 1 counts",
        "nodes": [],
    }
    heard = {"answers": True, "asked_at": None, "problem": "", "refused": {"x": HOSTILE}, "firing": [firing]}
    asked.views["status"] = STATUS | {"prometheus": heard}
    output = asked.run("status").output
    assert "the NAS does not answer: 0, below 1 counts" in output and "Signal since" in output and harmless(output)
    assert "Signal x has a wrong query" in output
    asked.views["status"] = STATUS | {"prometheus": heard | {"answers": False, "problem": "no route", "firing": []}}
    assert "Storage, switches, power: not known (no route)" in asked.run("status").output


def test_failures_in_a_month_of_work_and_in_an_hour_look_different(asked: Asked) -> None:
    month = score(failures=3, busy_days=29.0, per_month=2.1, low_per_month=0.7, high_per_month=3.9)
    hour = score(failures=3, busy_days=0.04, per_month=5.1, low_per_month=2.0, high_per_month=9.7)
    asked.views["nodes"] = {"nodes": [node_row(score=month)], "incidents": []}
    assert "3 failures in 29.0 days of work" in asked.run("nodes", "n1").output
    asked.views["nodes"] = {"nodes": [node_row(score=hour)], "incidents": []}
    assert "3 failures in 1.0 h of work" in asked.run("nodes", "n1").output
    assert "5.1 (2.0-9.7)" in asked.run("nodes").output


def test_node_without_failures_and_without_a_past(asked: Asked) -> None:
    quiet = node_row(score=score(failures=0, lemon=False, reasons=[]), trends=[], suspect=False, suspect_reasons=[])
    asked.views["nodes"] = {"nodes": [quiet], "incidents": []}
    output = asked.run("nodes", "n1").output
    assert "No failure in 28.0 days of work" in output and "LEMON" not in output and "Counters" not in output
    asked.views["nodes"] = {"nodes": [quiet | {"score": None}], "incidents": []}
    assert "No failure and no work in 30 days that we know of." in asked.run("nodes", "n1").output


def test_only_suspects(asked: Asked) -> None:
    quiet = node_row(node="n2", suspect=False, suspect_reasons=[], score=None, trends=[], failures_30d=0)
    asked.views["nodes"] = {"nodes": [node_row(), quiet], "incidents": []}
    assert [row["node"] for row in objects(asked.run("nodes", "--suspects", "--json").output)] == ["n1"]
    output = asked.run("nodes", "--suspects").output
    assert "n1" in output and "n2" not in output and "LEMON" in output
    asked.views["nodes"] = {"nodes": [quiet], "incidents": []}
    assert asked.run("nodes", "--suspects").output == "No suspect node.\n"
    asked.views["nodes"] = {"nodes": [], "incidents": []}
    assert asked.run("nodes").output == "Slurm knows no node.\n"


def test_reason_is_cut_where_the_terminal_ends(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row(suspect_reasons=["because " * 40])], "incidents": []}
    lines = asked.run("nodes", columns=80).output.rstrip().splitlines()
    assert lines[-1].rstrip().endswith("…") and max(map(len, lines)) <= 80


def test_no_jobs(asked: Asked) -> None:
    asked.views["jobs"] = {"attempts": []}
    assert asked.run("jobs").output == "No job in the last 30 days.\n"
    assert "Nothing is known of job 7" in asked.run("jobs", "7").output


def test_what_is_not_known_is_a_dash(asked: Asked) -> None:
    row = node_row(gpus=None, job=None, verdict={}, reason="", agent="unknown", failures_30d=0, suspect_reasons=[],
                   suspect=False, score=None, trends=[])  # fmt: skip
    asked.views["nodes"] = {"nodes": [row], "incidents": []}
    line = asked.run("nodes").output.rstrip().splitlines()[-1]
    assert line.split() == ["n1", "draining", "unknown", "-", "-", "0", "-", "-", "-"]


def test_verdict_of_a_torn_agent(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row(verdict="torn")], "incidents": []}
    assert asked.run("nodes").exit_code == 0


def test_one_job(asked: Asked) -> None:
    finished = attempt_row(attempt=0, state="failed", save_interval_s=None)
    del finished["recommended_interval_s"], finished["interval_verdict"]
    asked.views["jobs"] = {"attempts": [finished, attempt_row()]}
    output = asked.run("jobs", "101").output
    assert asked.seen == [("jobs", {"job": 101})] and "412" in output and "600" in output and "failed" in output


def test_advice_in_words_where_there_is_no_number(asked: Asked) -> None:
    asked.views["jobs"] = {"attempts": [attempt_row(recommended_interval_s=None, interval_verdict="unknown")]}
    assert "unknown" in asked.run("jobs").output


def test_many_nodes_are_folded(asked: Asked) -> None:
    asked.views["jobs"] = {"attempts": [attempt_row(nodes=[f"n{i}" for i in range(500)])]}
    output = asked.run("jobs", columns=200).output
    assert "+494" in output and "n499" not in output


# --- hostile text, and what goes wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 140])
def test_hostile_text_is_shown_and_does_nothing(asked: Asked, columns: int) -> None:
    row = incident_row(cause=HOSTILE, outcome=HOSTILE, culprit_nodes=[HOSTILE], state=HOSTILE, scope=HOSTILE)
    asked.views["status"] = STATUS | {
        "cluster": HOSTILE, "drained_by_us": [HOSTILE], "open_incidents": [row], "nodes": {HOSTILE: 1},
        "slurm": {"answers": False, "problem": HOSTILE},
    }  # fmt: skip
    asked.views["nodes"] = {"nodes": [node_row(node=HOSTILE, reason=HOSTILE, verdict={"state": HOSTILE})],
                            "incidents": [row]}  # fmt: skip
    asked.views["jobs"] = {"attempts": [attempt_row(name=HOSTILE, user=HOSTILE, nodes=[HOSTILE])]}
    for words in (["status"], ["nodes", HOSTILE], ["jobs"]):
        found = asked.run(*words, columns=columns)
        assert found.exit_code == 0 and harmless(found.output)
    assert "[red]x[/red]·" in asked.run("status", columns=columns).output


@pytest.mark.parametrize("error", [Unavailable("away"), Denied("no"), UserError("ghost", fix="sinfo")])
def test_errors_of_the_daemon_reach_the_root(asked: Asked, error: Exception) -> None:
    asked.views["nodes"] = error
    assert asked.run("nodes").exception is error


@pytest.mark.parametrize("words", [("jobs", "x"), ("jobs", "1", "2"), ("status", "now"), ("nodes", "--what")])
def test_wrong_words_are_told_before_anybody_is_asked(asked: Asked, words: tuple[str, ...]) -> None:
    found = asked.run(*words)
    assert found.exit_code == 2 and "Usage:" in found.output and asked.seen == []
