"""doctor's fixes and repairs: each mends what it names, and locks nobody out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_memory.cli_asked import Asked, objects

from sentinel.cli.install.accounts import Account
from sentinel.cli.install.files import File, nothing_hook, shipped
from sentinel.cli.operator import doctor, doctor_host
from sentinel.cli.operator.doctor_daemon import Finding, findings_of
from sentinel.cli.operator.doctor_host import hook, repairs, settings_file
from sentinel.config.settings import Settings, load
from sentinel.errors import Denied


def found_of(asked: Asked, config: Path) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in objects(asked.run("doctor", "--config", str(config), "--json").stdout)}


class Slurm:
    async def version(self) -> str:
        return "22.05.8"


@pytest.fixture
def rights_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The accounts whose rights were looked at; Slurm answers, and has nothing set."""
    from sentinel.adapters.slurm import conf, connect

    async def config(_settings: object) -> dict[str, list[str]]:
        return {}

    looked_at: list[str] = []

    def rights(_settings: Settings, _conf: object, account: str) -> Finding:
        looked_at.append(account)
        return Finding("rights", "good", account)

    monkeypatch.setattr(connect, "connect", lambda _settings: (Slurm(), Slurm(), "commands"))
    monkeypatch.setattr(conf, "slurm_config", config)
    monkeypatch.setattr(doctor, "_rights", rights)
    return looked_at


@pytest.mark.parametrize(("uid", "account"), [("", None), ("uid = 4294000000\n", "4294000000")])
def test_rights_of_a_daemon_that_does_not_answer_are_not_those_of_whoever_asks(
    asked: Asked, rights_of: list[str], tmp_path: Path, uid: str, account: str | None
) -> None:
    config = tmp_path / "sentinel.toml"
    config.write_text(f"[daemon]\n{uid}")
    asked.views["doctor"] = Denied("the answer comes from uid 991", fix="name it")
    found = found_of(asked, config)
    assert rights_of == ([account] if account else [])
    assert found["rights"]["answer"] == ("good" if account else "not known")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that users can enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("closed", ["sentinel", "sentinel/task-sentinel"])
def test_task_prolog_that_users_cannot_run_is_opened(open_folder: Path, closed: str) -> None:
    path = open_folder / "sentinel/task-sentinel"
    path.parent.mkdir()
    path.write_text(shipped("prolog/task-sentinel"))
    path.parent.chmod(0o755)
    path.chmod(0o755)
    assert hook("TaskProlog", str(path)).answer == "good"
    (open_folder / closed).chmod(0o700)
    found = hook("TaskProlog", str(path))
    assert (
        found.answer == "bad" and found.fix == f"chmod o+rx {open_folder / closed}" and "users cannot run" in found.seen
    )
    repairs([found]).carry_out()
    assert hook("TaskProlog", str(path)).answer == "good"


def test_folder_of_the_site_above_the_task_prolog_is_told_and_left(open_folder: Path) -> None:
    path = open_folder / "slurm/sentinel/task-sentinel"
    path.parent.mkdir(parents=True)
    path.write_text(shipped("prolog/task-sentinel"))
    path.chmod(0o755)
    path.parent.chmod(0o755)
    path.parents[1].chmod(0o750)
    found = hook("TaskProlog", str(path))
    assert found.answer == "bad" and not found.repair and found.fix == f"chmod o+rx {path.parents[1]}"


# --- the settings file ----------------------------------------------------------------------------------------------------

SECRET = '[alerts]\nwebhooks = ["https://chat.example.org/hook/7f3a"]\n'


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As an earlier installation left them: root's, with a secret put in."""
    monkeypatch.setattr(
        doctor_host, "account_of", lambda name: Account(991, 980, "#980") if name == "sentinel" else None
    )
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid])
    config = tmp_path / "sentinel.toml"
    config.write_text(SECRET)
    config.chmod(0o644)
    return config


def test_settings_are_given_to_the_daemon_s_group_before_they_are_closed(settings: Path) -> None:
    found = settings_file(settings, load(settings, Settings), "sentinel")
    assert repairs([found]).lines() == [f"run     chgrp #980 {settings}", f"run     chmod g+r,o-r {settings}"]
    assert found.answer == "bad" and found.fix == f"chgrp #980 {settings}; chmod g+r,o-r {settings}"


def test_a_database_s_password_is_a_secret_wherever_it_stands_in_the_url(settings: Path) -> None:
    for url in ("postgresql+psycopg://a:b@db1/c", "postgresql+psycopg:///c?host=db1&user=a&password=b"):
        settings.write_text(f'[daemon]\ndatabase = "{url}"\n')
        assert settings_file(settings, load(settings, Settings), "sentinel").answer == "bad"


def test_nothing_is_closed_where_it_is_not_known_who_must_read_it(settings: Path) -> None:
    for account in ("", "nobody-of-this-name"):
        found = settings_file(settings, load(settings, Settings), account)
        assert found.answer == "bad" and not found.repair and "group of the daemon's account" in found.fix


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away: only root can")
@pytest.mark.parametrize(
    ("mode", "gid", "answer", "fix"),
    [
        (0o640, 980, "good", ""),
        (0o640, 0, "bad", "chgrp #980 {}; chmod g+r,o-r {}"),  # what an earlier doctor --fix made
        (0o600, 980, "bad", "chmod g+r,o-r {}"),
        (0o644, 980, "bad", "chmod g+r,o-r {}"),
    ],
)
def test_settings_that_the_daemon_cannot_read_are_bad(
    settings: Path, mode: int, gid: int, answer: str, fix: str
) -> None:
    os.chown(settings, 0, gid)
    settings.chmod(mode)
    found = settings_file(settings, load(settings, Settings), "sentinel")
    assert (found.answer, found.fix) == (answer, fix.replace("{}", str(settings)))
    if gid == 980:  # a group that this host has by number only: `chgrp` itself is not run here
        repairs([found]).carry_out()
        assert settings.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("level", "verb"), [("", "create user"), ("None", "modify user where"), ("Operator", "modify")]
)
def test_right_is_given_by_what_works_for_that_account(monkeypatch: pytest.MonkeyPatch, level: str, verb: str) -> None:
    """``create`` leaves the level of an account that slurmdbd knows."""
    from sentinel.adapters.slurm import conf

    async def admin_level(_settings: object, _account: str) -> str:
        return level

    monkeypatch.setattr(conf, "admin_level", admin_level)
    of_slurm = {"SlurmUser": ["slurm(64030)"], "AccountingStorageType": ["accounting_storage/slurmdbd"]}
    found = doctor._rights(Settings(), of_slurm, "sentinel")
    assert found.answer == "bad" and found.fix.startswith(f"sacctmgr -i {verb}") and "name=sentinel" in found.fix


@pytest.mark.parametrize(
    ("read_only", "fix"), [(True, "sentinel install --controller"), (False, "install -d -m 755 -o")]
)
def test_folder_that_is_read_only_is_not_made_once_more(read_only: bool, fix: str, tmp_path: Path) -> None:
    """systemd mounts what the unit does not allow read-only; right owner and mode change nothing about that."""
    seen: dict[str, Any] = {
        "version": "1", "slurm_problem": "", "nodes": {}, "account": "root", "uid": 0, "database": "sqlite",
        "settings": "", "modes": {}, "operators_unknown": [], "resume": str(tmp_path / "resume"),
        "resume_writable": False, "resume_read_only": read_only,
    }  # fmt: skip
    (found,) = [one for one in findings_of(seen, Settings()) if one.what == "resume folder"]
    assert found.answer == "bad" and found.fix.startswith(fix) and ("read-only" in found.seen) is read_only
    assert not (read_only and found.repair)


@pytest.mark.parametrize(
    ("key", "name", "role"),
    [("Prolog", "10-sentinel", "node"), ("EpilogSlurmctld", "slurmctld-sentinel", "controller")],
)
def test_hook_that_does_nothing_is_mended_by_a_command_that_runs(
    asked: Asked, tmp_path: Path, key: str, name: str, role: str
) -> None:
    path = tmp_path / name
    path.write_text(nothing_hook(File(str(path), "")))
    path.chmod(0o755)
    fix = hook(key, str(path)).fix
    assert fix == f"sentinel install --{role}"
    done = asked.run(*fix.split()[1:], "--dry-run", "--root", str(tmp_path), "--daemon", "http://head:9478")
    assert done.exit_code == 0, done.output
