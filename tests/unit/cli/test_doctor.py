"""doctor: every finding is good, bad or not known; one that cannot be had stops none of the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cli_asked import HOSTILE, Asked, harmless, objects

from sentinel.adapters import munge, slurm, slurm_conf
from sentinel.errors import ProtocolError, Unavailable

CONF = {
    "SlurmUser": ["root(0)"], "Prolog[0]": ["x"], "Prolog": ["/etc/sentinel/prolog.sh"], "Epilog": ["/etc/epilog.sh"],
    "TaskProlog": ["/etc/task.sh"], "EpilogSlurmctld": ["/etc/ended.sh"], "PrologFlags": ["Alloc,Contain"],
    "SchedulerParameters": ["nohold_on_prolog_fail"], "MinJobAge": ["300 sec"],
}  # fmt: skip
HEARD = {"agent": "heard", "clock_offset_s": 0.2}
DAEMON = {"version": "1.0", "slurm_problem": "", "modes": {}, "resume": "", "nodes": {"n1": HEARD, "n2": HEARD}}


class FakeMunge:
    error: Exception | None = None

    def __init__(self, _socket: str = "") -> None:
        self.payload = b""

    def encode(self, payload: bytes) -> str:
        if FakeMunge.error is not None:
            raise FakeMunge.error
        return payload.decode()

    def decode(self, credential: str) -> tuple[bytes, int, int]:
        return credential.encode(), os.getuid(), 0


class Cluster:
    def __init__(self) -> None:
        self.conf: dict[str, list[str]] = dict(CONF)
        self.error: Exception | None = None

    async def version(self) -> str:
        if self.error is not None:
            raise self.error
        return "22.05.8"

    async def config(self, _settings: object) -> dict[str, list[str]]:
        return self.conf


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(munge, "Munge", FakeMunge)
    monkeypatch.setattr(FakeMunge, "error", None)
    monkeypatch.setattr(slurm, "connect", lambda _settings: (made, made, "commands"))
    monkeypatch.setattr(slurm_conf, "slurm_config", made.config)
    asked.views["doctor"] = DAEMON
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    resume = tmp_path / "resume"
    resume.mkdir()
    path = tmp_path / "sentinel.toml"
    path.write_text(f'[daemon]\nresume = "{resume}"\n[modes.default]\ndrain = "act"\n')
    return path


def examine(asked: Asked, config: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    found = asked.run("doctor", "--config", str(config), "--json")
    return found.exit_code, {row["what"]: row for row in objects(found.stdout)}


@pytest.mark.parametrize("columns", [80, 140])
def test_everything_is_in_place(asked: Asked, cluster: Cluster, config: Path, columns: int) -> None:
    status, found = examine(asked, config)
    bad = {name: row for name, row in found.items() if row["answer"] != "good"}
    if os.getuid() != 0:
        bad.pop("rights")  # whoever runs this test may not be Slurm's account
    assert status == 0 and bad == {} and len(found) == 16
    assert found["modes"]["seen"] == "acts on default: drain" and found["agents"]["seen"] == "2 of 2 heard"
    shown = asked.run("doctor", "--config", str(config), columns=columns)
    assert shown.exit_code == 0 and max(len(line) for line in shown.output.splitlines()) <= columns


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
    from sentinel.cli import doctor

    cluster.conf["SlurmUser"] = ["slurm(64030)"]
    monkeypatch.setattr(doctor.pwd, "getpwuid", lambda _uid: type("Entry", (), {"pw_name": "sentinel"}))  # type: ignore[attr-defined]
    status, found = examine(asked, config)
    assert status == 0 and found["rights"]["answer"] == "not known" and "AdminLevel" in found["rights"]["fix"]


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
    assert status == 1 and list(found) == ["settings"] and "--config" in found["settings"]["fix"]


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
    assert status == 1 and found["agents"]["seen"] == "2 of 10 heard; not n0, n1, n2, n3, n4 and 3 more"
    assert (found["clocks"]["answer"], found["clocks"]["seen"]) == ("bad", "off by more than 1 s: m1")
    assert found["daemon and Slurm"]["answer"] == "bad"


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
