"""status and watch: what Sentinel may do, does, and would have done; hostile text acts nowhere."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, STATUS, Asked, harmless, incident_row, objects

from sentinel.cli.operator import status
from sentinel.errors import Unavailable


def test_status_names_records_that_cannot_be_read(asked: Asked) -> None:
    unread = [{"what": "job", "name": "7", "reason": f"spoiled {HOSTILE}"}, {"what": "node", "name": "", "reason": "x"}]
    asked.views["status"] = STATUS | {"slurm": STATUS["slurm"] | {"unread": unread, "unread_count": 9}}
    said = asked.run("status", columns=300).output
    assert "Not known: job 7, node without a name and 7 more: Slurm's record cannot be read (spoiled" in said
    assert harmless(said)


def test_status_says_that_nothing_is_done_while_the_store_cannot_be_written(asked: Asked) -> None:
    asked.views["status"] = STATUS | {"outage": {"since": "2026-03-01T11:59:00Z", "reason": f"disk full {HOSTILE}"}}
    said = asked.run("status", columns=300).output
    assert "Store:  cannot be written since" in said and "nothing is judged or done (disk full" in said
    assert harmless(said)


def test_status_names_jobs_whose_comment_is_not_understood(asked: Asked) -> None:
    asked.views["status"] = STATUS | {"comment_problems": list(range(8801, 8812))}
    said = asked.run("status", columns=300).output
    assert (
        "Comment not understood of 11 jobs: 8801, 8802, 8803, 8804, 8805 and 6 more; sentinel jobs JOB says why" in said
    )


def test_quiet_status(asked: Asked) -> None:
    asked.views["status"] = STATUS
    found = asked.run("status")
    lines = found.output.splitlines()
    assert found.exit_code == 0 and lines[0].startswith("Sentinel 1.0 on lab: ACT: it drains and restarts. ")
    assert lines[1].startswith("Slurm:  answers, seen ") and lines[2:] == [
        "Breaker: closed (opens at 5 nodes failing within 1 min or 3 jobs hung within 2 min)",
        "Budget: 0 of 8 drained now, 0 of 6 drains in an hour, 0 of 100 restarts and holds in an hour",
        "Nodes:  5 mixed, 2 idle",
        "Agents: 7 heard",
        "Jobs:   -",
        "No open incident.",
    ]
    assert asked.seen == [("status", {})] and objects(asked.run("status", "--json").output) == [STATUS]
    asked.views["status"] = STATUS | {"own_only": True}
    assert asked.run("status").output.endswith("No open incident of your jobs.\n")


@pytest.mark.parametrize(("ahead_s", "words"), [(300.0, "300.0 s ahead of"), (-4.5, "4.5 s behind")])
def test_a_daemon_whose_own_clock_is_off_says_so(asked: Asked, ahead_s: float, words: str) -> None:
    asked.views["status"] = STATUS | {"clock_ahead_s": ahead_s}
    said = f"Clock:  the daemon's is {words} its nodes': check NTP or chrony on its host"
    assert said in asked.run("status", columns=200).output.splitlines()


def test_nodes_without_the_prolog(asked: Asked) -> None:
    asked.views["status"] = STATUS | {"without_prolog": ["n1", "n2", "n3"]}
    said = "Prolog: does not run on n[1-3], where jobs begin unchecked: see sentinel doctor"
    assert said in asked.run("status", columns=200).output.splitlines()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("act", "ACT: it drains and restarts"),
        ("observe", "OBSERVE: it judges and tells, and changes nothing"),
        ("paused", "PAUSED: it observes"),
        ("mixed", "MIXED: not the same everywhere"),
    ],
)
def test_mode_is_the_first_thing_said(asked: Asked, mode: str, words: str) -> None:
    asked.views["status"] = STATUS | {"mode": mode}
    assert f"Sentinel 1.0 on lab: {words}" in asked.run("status").output.splitlines()[0]


def test_modes_by_partition_where_they_differ(asked: Asked) -> None:
    modes = {
        "train": {"mode": "act", "drain": "act", "restart": "act", "known": True},
        "debug": {"mode": "mixed", "drain": "observe", "restart": "act", "known": True},
        "gone": {"mode": "observe", "drain": "observe", "restart": "observe", "known": False},
    }
    asked.views["status"] = STATUS | {"mode": "mixed", "modes": modes}
    said = asked.run("status").output
    assert "  train: ACT\n" in said and "  debug: MIXED: drains OBSERVE, restarts ACT\n" in said
    assert "  gone: OBSERVE; Slurm has no such partition" in said


def test_breaker_that_is_open_with_its_incident(asked: Asked) -> None:
    opened = STATUS["breakers"]["breaker"] | {"open": True, "last_at": "2026-03-01T12:00:00Z", "incident": "0f3a9c"}
    asked.views["status"] = STATUS | {"breakers": STATUS["breakers"] | {"breaker": opened}}
    said = asked.run("status", columns=200).output
    assert (
        "Breaker OPEN since" in said and "nothing is drained or restarted (why 0f3a9c)" in said and "closed" not in said
    )


def test_what_is_done_now_and_what_observe_mode_would_have_done(asked: Asked) -> None:
    step = {"step": "requeue_hold", "incident": "0f3a9c", "node": None, "job": 101, "since": "2026-03-01T12:00:00Z"}
    plan = {
        "incident": "77aa", "at": "2026-03-01T12:00:00Z", "why": "Observe mode: nothing is done.",
        "steps": [{"step": "drain", "node": "n1", "job": None}, {"step": "release", "node": None, "job": 7}],
    }  # fmt: skip
    asked.views["status"] = STATUS | {"under_way": [step], "would_have_done": [plan] * 5}
    said = asked.run("status", columns=200).output
    assert "Now: requeue job 101 and keep it waiting (incident 0f3a9c), since" in said
    assert "tried again" not in said
    assert said.count("Would have done: drain n1, release job 7 (incident 77aa, ") == 3 and "and 2 plans more" in said


def test_a_request_that_was_answered_is_not_called_asked(asked: Asked) -> None:
    kinds = {"approval": "Asked", "approval-lapsed": "Lapsed", "refused": "Refused"}
    waits = [
        {"incident": "77aa", "kind": kind, "since": "2026-03-01T12:00:00Z", "explanation": "drain n1"} for kind in kinds
    ]
    asked.views["status"] = STATUS | {"asked": waits}
    said = asked.run("status", columns=200).output
    assert all(f"\n{word} (incident 77aa, " in said for word in kinds.values())


def test_why_a_step_is_tried_again(asked: Asked) -> None:
    step = {"step": "hold", "incident": "0f3a9c", "node": None, "job": 101, "since": "2026-03-01T12:00:00Z"}
    asked.views["status"] = STATUS | {"under_way": [step | {"reason": "Slurm refuses job 101: \x1bUnspecified error"}]}
    said = asked.run("status", columns=200).output
    assert "Now: hold job 101 (incident 0f3a9c), since" in said and "\x1b" not in said
    assert "; tried again: Slurm refuses job 101: " in said


def test_status_with_trouble(asked: Asked) -> None:
    slurm = {"answers": False, "problem": "slurmctld did not answer", "snapshot_at": None}
    rows = [incident_row(), incident_row(id="77aa", cause=None, confidence=None, culprit_nodes=None, state="open")]
    asked.views["status"] = STATUS | {
        "paused": True, "mode": "paused", "slurm": slurm, "drained_by_us": ["n1", "n2"], "open_incidents": rows,
        "recent_incidents": rows,
    }  # fmt: skip
    lines = asked.run("status").output
    assert "PAUSED: it observes" in lines and "Slurm:  not known: slurmctld did not answer" in lines
    assert "Drained by Sentinel: n[1-2]" in lines and "No open incident." not in lines
    assert "Open incidents" in lines and "95%" in lines
    assert lines.count("0f3a9c") == 1 and "Latest" not in lines  # what is open is not told twice


def test_what_an_incident_waits_for_stands_beside_its_state(asked: Asked) -> None:
    waits = [
        {"kind": kind, "since": "2026-03-01T12:00:00Z", "explanation": "x", "what": []}
        for kind in ("paused", "paused", "breaker")
    ]
    row = incident_row(state="waiting", waits=waits)
    asked.views["status"] = STATUS | {"open_incidents": [row]}
    assert "waiting: paused, breaker" in asked.run("status").output


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
    assert output.startswith("Sentinel 1.0: ACT") and "Suspect: n7: 4 x gpu_memory_ecc; 3 within 2 d" in output
    assert "Latest of the others" in output and output.count("77aa") == 1 and harmless(output)


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


# --- watch ---------------------------------------------------------------------------------------------------------------


def test_watch_in_a_pipe_says_what_to_do(asked: Asked) -> None:
    found = asked.run("watch")
    assert found.exception is not None and getattr(found.exception, "exit_status", 0) == 2 and asked.seen == []


def test_watch_shows_each_look_and_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    looks: list[Any] = [STATUS, Unavailable("the daemon is away"), STATUS | {"mode": "paused"}, KeyboardInterrupt()]
    pauses: list[float] = []
    monkeypatch.setattr(status.time, "sleep", pauses.append)

    def look() -> dict[str, Any]:
        found = looks.pop(0)
        if isinstance(found, BaseException):
            raise found
        return dict(found)

    with pytest.raises(KeyboardInterrupt):
        status.follow(look, 2.0)
    said = out.getvalue()
    assert "ACT: it drains" in said and "the daemon is away" in said and "PAUSED" in said and pauses == [2.0] * 3


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140, 300])
def test_of_an_open_incident_nothing_that_matters_is_left_out(asked: Asked, columns: int) -> None:
    """On a narrow terminal less of the closed ones is shown, and not of those that are open."""
    opened = incident_row(
        id="0f3a9c", state="open", cause="user_code", culprit_nodes=["n17"], job=8842, confidence=0.85
    )
    closed = incident_row(id="1e2d3c", state="closed", cause="checkpoint_corrupt", outcome="job 101 makes steps again")
    asked.views["status"] = STATUS | {"open_incidents": [opened], "recent_incidents": [opened, closed]}
    said = asked.run("status", columns=columns).output
    ours = said[said.index("Open incidents") : said.index("Latest of the others")]
    for word in ("0f3a9c", "open", "user_code", "n17", "8842", "85%"):
        assert word in ours, (columns, word, ours)
    assert max(map(len, ours.splitlines())) <= columns
