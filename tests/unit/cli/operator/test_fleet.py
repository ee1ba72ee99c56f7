"""status, nodes and jobs: what machines read is whole, what people read fits, and no text of users acts."""

from __future__ import annotations

import pytest
from in_memory.cli_asked import (
    HOSTILE,
    STATUS,
    Asked,
    attempt_row,
    harmless,
    incident_row,
    node_row,
    objects,
    score,
)

from sentinel.errors import Denied, Unavailable, UserError


def widest(text: str) -> int:
    return max(len(line) for line in text.splitlines())


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_tables_fit_and_keep_what_identifies(asked: Asked, columns: int) -> None:
    row = incident_row(outcome="restarted " * 20, cause="nccl_hang_collective_mismatch"[:24])
    asked.views["status"] = STATUS | {"open_incidents": [row]}
    asked.views["incidents"] = {"incidents": [row]}
    asked.views["nodes"] = {"nodes": [node_row(reason="because " * 30)], "incidents": []}
    asked.views["jobs"] = {"attempts": [attempt_row(name="a-very-long-name-of-a-job" * 3)]}
    for command, word in (("status", "0f3a9c"), ("nodes", "draining"), ("jobs", "running")):
        found = asked.run(command, columns=columns)
        assert found.exit_code == 0 and widest(found.output) <= columns
        assert word in found.output
    if columns == 80:  # at 40 each row is a block of lines
        for command, missing in (("incidents", "confidence"), ("jobs", "started")):
            found = asked.run(command, columns=columns)
            assert missing not in found.stdout and missing in found.stderr


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
        "n1: draining (by Sentinel: 0f3a9c gpu_memory_ecc n1:3)",
        "Agent heard, clock +0.10 s; says bad",
        "Partitions train; 8 GPUs; job 101",
        "LEMON. 4 failures in 28.0 days of work",
        "(4 x gpu_memory_ecc; under 3 different jobs)",
        "Worse than others? Yes: 3.1 (1.2-16) in a month of work; the other nodes have 0.04.",
        "Suspect: remapped rows of gpu3: 0.6 a day (0.31 to 0.9), more than 0.1",
        "Counters that grow",
        "suspect, faster than before",
    ):
        assert words in output, (words, output)


@pytest.mark.parametrize(
    ("runs", "words"), [(False, "7, 8, 9, the last "), (None, "too few to tell whether it runs here.")]
)
def test_a_node_without_the_prolog(asked: Asked, runs: bool | None, words: str) -> None:
    row = node_row(prolog={"runs": runs, "without": [7, 8, 9], "last_at": "2026-03-01T12:00:00+00:00"})
    asked.views["nodes"] = {"nodes": [row], "incidents": []}
    said = asked.run("nodes", "n1", columns=300).output
    assert "No report of the prolog of job 7, 8, 9, the last " in said and words in said
    assert ("no prolog" in asked.run("nodes", columns=300).output) is (runs is False)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_about_a_node_fit(asked: Asked, columns: int) -> None:
    long = score(reasons=["4 x gpu_memory_ecc", "under 3 different jobs", "always GPU 5", "3 within 41 min"])
    asked.views["nodes"] = {"nodes": [node_row(score=long)], "incidents": []}
    found = asked.run("nodes", "n1", columns=columns)
    assert widest(found.output) <= columns and "3 within 41 min" in " ".join(found.output.split())


UNKNOWN = {"compared": "not known", "lemon": False, "reasons": []} | dict.fromkeys(
    ("per_month", "low_per_month", "high_per_month", "others_per_month")
)


def test_a_lemon_may_be_told_before_its_rate_is(asked: Asked) -> None:
    """Two failures in minutes are more than chance explains; how many that is in a month, nobody can say yet."""
    early = score(failures=2, busy_days=0.01, others_busy_days=0.2, **(UNKNOWN | {"lemon": True}))
    asked.views["nodes"] = {"nodes": [node_row(score=early)], "incidents": []}
    told = asked.run("nodes", "n1", columns=300).output
    assert "LEMON. 2 failures in 14 min of work" in told and "Not known" not in told
    assert "Worse than others? More often than chance explains; how much is told after 30 days of others' work" in told
    said = " ".join(asked.run("nodes", "--help", columns=200).output.split())
    assert "LEMON: it failed more often than chance explains" in said and "before its rate is" in said


def test_a_rate_from_minutes_of_work_is_not_told(asked: Asked) -> None:
    month = score(failures=3, busy_days=29.0, per_month=2.1, low_per_month=0.7, high_per_month=3.9)
    young = score(failures=1, busy_days=0.01, others_busy_days=0.2, **UNKNOWN)
    asked.views["nodes"] = {"nodes": [node_row(score=month)], "incidents": []}
    assert "3 failures in 29.0 days of work" in asked.run("nodes", "n1").output
    told = {"nodes": [node_row(score=score(told=2))], "incidents": []}
    asked.views["nodes"] = told
    assert (
        "4 failures (and 2 that only programs' words tell of) in 28.0 days of work" in asked.run("nodes", "n1").output
    )
    asked.views["nodes"] = {"nodes": [node_row(score=young, failures_30d=1)], "incidents": []}
    told = asked.run("nodes", "n1").output
    assert "1 failure in 14 min of work" in told and "in a month" not in told
    assert "Worse than others? Not known: that takes a day of its own work and 30 of others' (0.2 so far)." in told
    asked.views["nodes"] = {"nodes": [node_row(score=young), node_row(node="n2", score=month)], "incidents": []}
    first, second = asked.run("nodes").output.splitlines()[1:]
    assert first.split()[:6] == ["n1", "draining", "heard", "101", "4", "-"] and "2.1 (0.7-3.9)" in second


@pytest.mark.parametrize(("compared", "answer"), [("worse", "Yes: 3.1"), ("not worse", "Not that one could tell: 3.1")])
def test_whether_a_node_is_worse_than_others(asked: Asked, compared: str, answer: str) -> None:
    asked.views["nodes"] = {"nodes": [node_row(score=score(compared=compared))], "incidents": []}
    assert f"Worse than others? {answer}" in asked.run("nodes", "n1").output


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("drained", "sentinel:0f3a pcie", "n1: drained (by Sentinel: 0f3a pcie)"),
        ("drained", "fan broken", "n1: drained (not by Sentinel: fan broken)"),
        ("idle", "reboot", "n1: idle (reboot)"),
        ("idle", "", "n1: idle"),
    ],
)
def test_who_drained_a_node(asked: Asked, state: str, reason: str, words: str) -> None:
    asked.views["nodes"] = {"nodes": [node_row(state=state, reason=reason)], "incidents": []}
    assert asked.run("nodes", "n1").output.splitlines()[0] == words


def test_several_nodes_are_a_table(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row(), node_row(node="n2")], "incidents": [incident_row()]}
    output = asked.run("nodes", "n[1-2]", "--since", "2026-03-01T00:00:00+00:00").output
    assert asked.seen == [("nodes", {"node": "n[1-2]", "since": "2026-03-01T00:00:00+00:00"})]
    assert "Incidents of n[1-2]" in output and "Partitions" not in output


# --- repairs -----------------------------------------------------------------------------------------------------------

REPAIR = {
    "node": "n1", "why": "drained", "state": "idle", "incident": "0f3a9c", "since": "2026-03-01T12:00:00Z",
    "cause": "gpu_fallen_off_bus", "gpu": "5", "gpu_uuid": "GPU-7", "serial": "1650522003820",
    "advice": "reboot the node", "evidence": ["NVRM: Xid 79"], "reasons": [],
}  # fmt: skip


def test_which_node_to_pull(asked: Asked) -> None:
    suspect = dict.fromkeys(REPAIR) | {"node": "n7", "why": "suspect", "evidence": [], "reasons": ["4 x pcie"]}
    asked.views["repairs"] = {"repairs": [REPAIR, suspect]}
    said = asked.run("repairs").output
    for words in (
        "n1 GPU 5 drained since", "a GPU fell off the bus", "sentinel release NODE",
        "Serial number 1650522003820; UUID GPU-7", "Advice: reboot",
        "Seen: NVRM: Xid 79", "sentinel why 0f3a9c", "n7 suspect\n  Why: 4 x pcie",
    ):  # fmt: skip
        assert words in said
    assert objects(asked.run("repairs", "--json").output) == [REPAIR, suspect]
    asked.views["repairs"] = {"repairs": [REPAIR | {"serial": None, "gpu_uuid": None}]}
    assert "Serial number not known\n" in asked.run("repairs").output
    asked.views["repairs"] = {"repairs": [REPAIR | {"readable": False}], "own_only": True}
    assert "More, for operators: sentinel why 0f3a9c" in asked.run("repairs").output
    asked.views["repairs"] = {"repairs": []}
    assert asked.run("repairs").output.startswith("Nothing to repair")


def test_a_node_that_is_at_fault_no_more_is_not_to_be_pulled(asked: Asked) -> None:
    told = {"was": "gpu_fallen_off_bus", "at": "2026-03-01T12:00:00Z", "no_machine": True}
    corrected = REPAIR | {
        "cause": "user_code", "gpu": None, "gpu_uuid": None, "serial": None, "advice": "", "evidence": [], "corrected": told,
    }  # fmt: skip
    asked.views["repairs"] = {"repairs": [corrected]}
    said = asked.run("repairs").output
    assert "n1 drained since" in said and "it had been judged gpu_fallen_off_bus." in said
    assert "No machine is at fault, nothing is to be pulled: sentinel release n1" in said and "Serial" not in said
    asked.views["repairs"] = {"repairs": [REPAIR | {"cause": "pcie", "corrected": told | {"no_machine": False}}]}
    said = asked.run("repairs").output
    assert "n1 GPU 5 drained since" in said and "No machine" not in said


def test_node_without_failures_and_without_a_past(asked: Asked) -> None:
    quiet = node_row(score=score(failures=0, lemon=False, reasons=[]), trends=[], suspect=False, suspect_reasons=[])
    asked.views["nodes"] = {"nodes": [quiet], "incidents": []}
    output = asked.run("nodes", "n1").output
    assert (
        "No failure in 28.0 days of work" in output
        and "Worse than others? No: the others have 0.04" in output
        and "LEMON" not in output
        and "Counters" not in output
    )
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
    lines = asked.run("nodes", columns=80).stdout.rstrip().splitlines()
    assert lines[-1].rstrip().endswith("…") and max(map(len, lines)) <= 80


def test_a_clock_that_agrees_is_not_behind(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row(clock_offset_s=-0.001)], "incidents": []}
    assert "clock +0.00 s" in asked.run("nodes", "n1").output


def test_what_is_not_known_is_a_dash(asked: Asked) -> None:
    row = node_row(gpus=None, job=None, verdict={}, reason="", agent="unknown", failures_30d=0, suspect_reasons=[],
                   suspect=False, score=None, trends=[])  # fmt: skip
    asked.views["nodes"] = {"nodes": [row], "incidents": []}
    line = asked.run("nodes").output.rstrip().splitlines()[-1]
    assert line.split() == ["n1", "draining", "unknown", "-", "0", "-", "-", "-", "-"]


def test_verdict_of_a_torn_agent(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [node_row(verdict="torn")], "incidents": []}
    assert asked.run("nodes").exit_code == 0


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


def test_a_drained_node_says_how_far_it_is_on_its_way_back(asked: Asked) -> None:
    back = {
        "incident": "0f3a9c", "stage": "waiting", "level": 2, "acted": "none", "jobs": [101],
        "waits": "tried again at 12:30 UTC",
        "changed_at": "2026-03-01T12:00:00+00:00", "failures": ["2026-03-01T12:00:00+00:00"],
        "failed": "level 2: GPU 3: memory",
        "missing": "a reset (returns.reset_command)", "ticket": "",
    }  # fmt: skip
    asked.views["nodes"] = {"nodes": [node_row(**{"return": back})], "incidents": []}
    output = asked.run("nodes", "n1").output
    for words in ("waits: tried again at 12:30", "1 failure", "GPU 3: memory", "returns.reset_command"):
        assert words in output
    asked.views["nodes"] = {
        "nodes": [node_row(**{"return": back | {"stage": "repair", "ticket": "sent"}})],
        "incidents": [],
    }
    output = asked.run("nodes", "n1").output
    assert "sentinel bundle n1" in output and "Ticket: sent" in output
    assert "return: repair" in asked.run("nodes", columns=200).output
