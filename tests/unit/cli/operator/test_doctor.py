"""What `sentinel doctor` finds: Slurm, settings, agents, clocks, and what the daemon says of itself."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless
from in_memory.doctor import DAEMON, GPUS_READ, HEARD, Cluster, FakeMunge, examine, own

from sentinel.adapters.slurm import conf
from sentinel.errors import ProtocolError, Unavailable


@pytest.mark.parametrize("columns", [80, 140])
def test_everything_is_in_place(asked: Asked, cluster: Cluster, config: Path, columns: int) -> None:
    status, found = examine(asked, config)
    bad = {name: row for name, row in found.items() if row["answer"] != "good"}
    if os.getuid() != 0:
        bad.pop("rights")  # whoever runs this test may not be Slurm's account
    assert status == 0 and bad == {} and len(found) == 16
    assert found["modes"]["seen"] == "acts on default: drain" and found["agents"]["seen"] == "2 of 2 heard"
    shown = asked.run("doctor", "--config", str(config), columns=columns)
    lines = [line for line in shown.output.splitlines() if "/" not in line]  # a path is not broken
    assert shown.exit_code == 0 and max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("key", "values", "word"),
    [
        ("Prolog", [], "deploy/slurm"),
        ("EpilogSlurmctld", [""], "deploy/slurm"),
        ("PrologFlags", ["Contain"], "Alloc"),
        ("SchedulerParameters", [""], "nohold_on_prolog_fail"),
        ("MinJobAge", ["299 sec"], "300"),
        ("MinJobAge", [], "300"),
        ("MinJobAge", ["soon"], "300"),
    ],
)
def test_slurm_that_lacks_something(
    asked: Asked, cluster: Cluster, config: Path, key: str, values: list[str], word: str
) -> None:
    cluster.conf[key] = values
    status, found = examine(asked, config)
    assert status == 1 and found[key]["answer"] == "bad" and word in found[key]["fix"]
    assert asked.run("doctor", "--config", str(config)).exit_code == 1


def test_rights_of_another_account_are_not_known(asked: Asked, cluster: Cluster, config: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    from sentinel.cli.operator import doctor

    cluster.conf["SlurmUser"] = ["slurm(64030)"]
    monkeypatch.setattr(doctor.pwd, "getpwuid", lambda _uid: type("Entry", (), {"pw_name": "sentinel"}))  # type: ignore[attr-defined]
    cluster.conf["AccountingStorageType"] = ["accounting_storage/slurmdbd"]

    async def away(_settings: object, _account: str) -> str:
        raise Unavailable("slurmdbd is away")

    monkeypatch.setattr(conf, "admin_level", away)
    status, found = examine(asked, config)
    assert status == 0 and found["rights"]["answer"] == "not known" and "adminlevel" in found["rights"]["fix"]


@pytest.mark.parametrize("error", [Unavailable("slurmctld did not answer"), ProtocolError("torn answer")])
def test_slurm_that_does_not_answer_stops_nothing(
    asked: Asked, cluster: Cluster, config: Path, error: Exception
) -> None:
    cluster.error = error
    status, found = examine(asked, config)
    assert status == 0 and found["Slurm"]["answer"] == "not known" and found["Slurm"]["fix"]
    assert found["daemon"]["answer"] == "good" and "Prolog" not in found


def test_munge_and_daemon_that_are_gone(asked: Asked, cluster: Cluster, config: Path) -> None:
    FakeMunge.error = Unavailable("no socket")
    asked.views["doctor"] = Unavailable("refused", fix="start it")
    status, found = examine(asked, config)
    assert status == 1 and found["MUNGE"]["answer"] == "bad" and "start munged" in found["MUNGE"]["fix"]
    assert found["daemon"]["answer"] == "bad" and found["daemon"]["fix"] == "start it" and "agents" not in found


def test_settings_that_cannot_be_read_are_the_only_finding(asked: Asked, cluster: Cluster, tmp_path: Path) -> None:
    status, found = examine(asked, tmp_path / "nothing.toml")
    assert status == 1 and list(found) == ["settings"] and "settings file" in found["settings"]["fix"]


@pytest.mark.parametrize(("text", "seen"), [("", "not set"), ('[daemon]\nresume = "/nowhere/at/all"\n', "no folder")])
def test_resume_folder(asked: Asked, cluster: Cluster, config: Path, text: str, seen: str) -> None:
    config.write_text(text)
    status, found = examine(asked, config)
    assert status == 1 and seen in found["resume folder"]["seen"] and found["resume folder"]["fix"]
    assert found["modes"]["seen"].startswith("observes only")


def test_agents_that_are_silent_and_clocks_that_are_off(asked: Asked, cluster: Cluster, config: Path) -> None:
    nodes: dict[str, object] = {f"n{i}": {"agent": "silent", "clock_offset_s": None} for i in range(8)}
    nodes |= {"m1": {"agent": "heard", "clock_offset_s": -1.5}, "m2": HEARD}
    asked.views["doctor"] = DAEMON | {"nodes": nodes, "slurm_problem": "slurmctld did not answer"}
    status, found = examine(asked, config)
    assert status == 1 and found["agents"]["seen"] == "2 of 10 heard; not n[0-7]"
    assert (found["clocks"]["answer"], found["clocks"]["seen"]) == ("bad", "off by more than 1 s: m1")
    assert found["daemon and Slurm"]["answer"] == "bad"


def test_agents_of_nodes_that_slurm_has_switched_off_are_not_missed(
    asked: Asked, cluster: Cluster, config: Path
) -> None:
    away = {"agent": "silent", "clock_offset_s": None, "switched": True}
    asked.views["doctor"] = DAEMON | {"nodes": {"n1": HEARD, "n2": HEARD, "n3": away, "n4": away}}
    status, found = examine(asked, config)
    assert status == 0 and found["agents"]["answer"] == found["clocks"]["answer"] == "good"
    assert found["agents"]["seen"] == "2 of 2 heard; beside n[3-4], which Slurm switches off or on"
    asked.views["doctor"] = DAEMON | {"nodes": {"n1": HEARD, "n2": away | {"switched": False}, "n3": away}}
    status, found = examine(asked, config)
    assert status == 1 and found["agents"]["seen"] == "1 of 2 heard; not n2; beside n3, which Slurm switches off or on"
    asked.views["doctor"] = DAEMON | {"nodes": {"n3": away, "n4": HEARD | {"switched": True}}}
    _, found = examine(asked, config)
    assert found["agents"]["seen"] == "1 of 1 heard; beside n3, which Slurm switches off or on", "heard is heard"


@pytest.mark.parametrize(("off_s", "words"), [(-300.0, "300.0 s ahead of"), (40.0, "40.0 s behind")])
def test_a_clock_that_is_off_from_most_nodes_is_the_daemons_own(
    asked: Asked, cluster: Cluster, config: Path, off_s: float, words: str
) -> None:
    nodes: dict[str, object] = {f"n{i}": {"agent": "heard", "clock_offset_s": off_s} for i in range(3)}
    asked.views["doctor"] = DAEMON | {"nodes": nodes | {"m1": HEARD}}
    _, found = examine(asked, config)
    assert found["clocks"]["answer"] == "bad" and found["clocks"]["fix"] == "check NTP or chrony on the daemon's host"
    seen = f"the daemon's own is {words} the clocks of most nodes; off by more than 1 s from those: m1"
    assert found["clocks"]["seen"] == seen


def test_clock_that_nobody_told_is_not_known(asked: Asked, cluster: Cluster, config: Path) -> None:
    nodes = {"n1": HEARD, "n2": {"agent": "heard", "clock_offset_s": None}}
    asked.views["doctor"] = DAEMON | {"nodes": nodes}
    status, found = examine(asked, config)
    assert status == 0 and found["clocks"]["answer"] == "not known" and "n2" in found["clocks"]["seen"]


def test_fleet_that_is_not_known_has_no_healthy_agents(asked: Asked, cluster: Cluster, config: Path) -> None:
    asked.views["doctor"] = DAEMON | {"nodes": {}}
    _, found = examine(asked, config)
    assert found["agents"]["answer"] == "not known" and found["clocks"]["answer"] == "not known"


def test_hostile_text_is_harmless(asked: Asked, cluster: Cluster, config: Path) -> None:
    cluster.conf["Prolog"] = [HOSTILE]
    nodes = {HOSTILE: {"agent": HOSTILE, "clock_offset_s": 9.0}}
    asked.views["doctor"] = DAEMON | {"nodes": nodes, "slurm_problem": HOSTILE, "version": HOSTILE}
    assert harmless(asked.run("doctor", "--config", str(config)).output)


def test_records_that_cannot_be_read_are_not_known(asked: Asked, cluster: Cluster, config: Path) -> None:
    asked.views["doctor"] = DAEMON | {
        "unread": [{"what": "job", "name": "7", "reason": f"spoiled {HOSTILE}"}], "unread_count": 1,
    }  # fmt: skip
    _, found = examine(asked, config)
    assert (found["records"]["answer"], "job 7" in found["records"]["seen"]) == ("not known", True)
    assert harmless(found["records"]["seen"])


WITHOUT_PROLOG = {"runs": False, "without": [7, 8, 9], "last_at": "2026-03-01T12:00:00+00:00"}


def untaken(reason: str, *, given_up: bool) -> dict[str, Any]:
    return {"receiver": "chat", "at": datetime.now(UTC).isoformat(), "given_up": given_up, "reason": reason}


def test_daemon_that_has_all_it_needs(asked: Asked, cluster: Cluster, config: Path) -> None:
    ran = {
        "n1": GPUS_READ | {"prolog": {"runs": True, "without": [], "last_at": None}},
        "n2": GPUS_READ | {"prolog": None},
    }
    asked.views["doctor"] = own(config, spares={"reservation": "kept", "nodes": ["n3", "n4"]}, nodes=ran)
    status, found = examine(asked, config)
    assert found["prolog on nodes"]["seen"] == "reported the last job on 1 node"
    assert found["spare nodes"]["seen"] == "n[3-4] in reservation kept"
    assert status == 0 and {row["answer"] for row in found.values()} == {"good"}
    assert found["daemon"]["seen"] == "release 1.0 as root (uid 0), store sqlite"
    assert found["modes"]["seen"] == "gpu ACT" and found["settings in force"]["seen"] == "those of the file"


@pytest.mark.parametrize(
    ("changes", "what", "answer", "words"),
    [
        ({"settings": "other"}, "settings in force", "bad", "not those of this file"),
        ({"settings": "other", "modes": {}}, "settings in force", "bad", "the modes differ"),
        ({"resume": ""}, "resume folder", "bad", "not set"),
        ({"resume_writable": False}, "resume folder", "bad", "the daemon cannot write"),
        ({"resume_writable": None}, "resume folder", "not known", "does not answer the daemon"),
        ({"operators_unknown": ["adda"]}, "operators", "bad", "nobody is called adda"),
        ({"partitions": {"gpuu": {"mode": "act", "known": False}}}, "partitions", "bad", "no partition gpuu"),
        (
            {"dependents": [{"job": 12, "on": 7, "kind": "afternotok"}]},
            "dependencies", "not known", "12 (afternotok:7): Slurm lets them go",
        ),
        (
            {"undelivered": [untaken("answered 404", given_up=True)]},
            "messages", "bad", "1 given up (chat: answered 404)",
        ),
        (
            {"undelivered": [untaken("answered 500", given_up=False)]},
            "messages", "not known", "1 tried again (chat: answered 500)",
        ),
        ({"spares": {"reservation": "kept", "nodes": None}}, "spare nodes", "bad", "no reservation kept"),
        ({"spares": {"reservation": "kept", "nodes": []}}, "spare nodes", "bad", "no node is left"),
        ({"nodes": {"n1": GPUS_READ, "n2": GPUS_READ | {"version": "0.9"}}}, "releases", "bad", "n2 have release 0.9"),
        (
            {"nodes": {"n1": GPUS_READ | {"verdict": {"word": "UNKNOWN", "sentence": "no host engine"}}}},
            "GPUs", "not known", "n1: no host engine",
        ),
        (
            {"nodes": {name: GPUS_READ | {"prolog": WITHOUT_PROLOG} for name in ("n1", "n2", "n3")}},
            "prolog on nodes", "bad", "n[1-3]: no report of the last jobs that began there, the latest ",
        ),
        (
            {"nodes": {"n1": GPUS_READ | {"prolog": WITHOUT_PROLOG | {"runs": None, "without": [7]}}, "n2": GPUS_READ}},
            "prolog on nodes", "not known", "n1: 1 job began without its report, too few to tell",
        ),
    ],
)  # fmt: skip
def test_what_only_the_daemon_knows(
    asked: Asked, cluster: Cluster, config: Path, changes: dict[str, Any], what: str, answer: str, words: str
) -> None:
    asked.views["doctor"] = own(config, **changes)
    status, found = examine(asked, config)
    assert (found[what]["answer"], words in found[what]["seen"]) == (answer, True), found[what]
    assert found[what]["fix"] and status == (1 if answer == "bad" else 0)


@pytest.mark.parametrize(
    ("storage", "level", "answer"),
    [
        ("accounting_storage/none", None, "bad"),
        ("accounting_storage/slurmdbd", "Administrator", "good"),
        ("accounting_storage/slurmdbd", "Operator", "bad"),
        ("accounting_storage/slurmdbd", "", "bad"),
        ("accounting_storage/slurmdbd", Unavailable("slurmdbd is away"), "not known"),
    ],
)
def test_rights_are_those_of_the_account_that_the_daemon_has(
    asked: Asked, cluster: Cluster, config: Path, monkeypatch: pytest.MonkeyPatch, storage: str, level: Any, answer: str
) -> None:
    async def asks(_settings: object, account: str) -> str:
        assert account == "sentinel"
        if isinstance(level, Exception):
            raise level
        return str(level)

    monkeypatch.setattr(conf, "admin_level", asks)
    cluster.conf |= {"SlurmUser": ["slurm(64030)"], "AccountingStorageType": [storage]}
    asked.views["doctor"] = own(config, account="sentinel")
    _, found = examine(asked, config)
    assert found["rights"]["answer"] == answer and bool(found["rights"]["fix"]) is (answer != "good")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("#!/bin/sh\n# Sentinel was removed from this host.\nexit 0\n", 0o755, "does nothing"),
        ("#!/bin/sh\n", 0o644, "cannot be run"),
        ("#!/bin/sh\n", 0o755, ""),
    ],
)
def test_hook_that_does_nothing_is_bad(
    asked: Asked, cluster: Cluster, config: Path, tmp_path: Path, text: str, mode: int, words: str
) -> None:
    folder = tmp_path / "prolog.d"
    folder.mkdir()
    hook = folder / "10-sentinel"
    hook.write_text(text)
    hook.chmod(mode)
    cluster.conf["Prolog"] = [f"{folder}/*"]
    asked.views["doctor"] = own(config)
    _, found = examine(asked, config)
    assert words in found["Prolog"]["seen"] and found["Prolog"]["answer"] == ("bad" if words else "good")


def test_what_is_bad_stands_first_and_40_columns_are_enough(asked: Asked, cluster: Cluster, config: Path) -> None:
    asked.views["doctor"] = own(config, operators_unknown=["adda"])
    lines = asked.run("doctor", "--config", str(config), columns=40).output.splitlines()
    assert lines[0].startswith("bad        operators: nobody is called") and lines[2].strip().startswith("do: correct")
    assert len(lines) < 60
