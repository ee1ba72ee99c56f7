"""install: each command that it runs may be run again, and is run only where it is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.adapters.slurm import conf
from sentinel.cli import cli
from sentinel.cli.install import commands, host, steps
from sentinel.cli.install.accounts import Account
from sentinel.config.settings import Settings
from sentinel.errors import Refused, Unavailable

CONF = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\nAccountingStorageType=accounting_storage/slurmdbd\n"


def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str | Exception, *words: str) -> str:
    """What would be done on this host, under a Slurm that says this AdminLevel."""

    async def admin_level(_settings: object, _account: str) -> str:
        if isinstance(level, Exception):
            raise level
        return level

    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text(CONF)
    monkeypatch.setattr(conf, "admin_level", admin_level)
    monkeypatch.setattr(host, "has_systemd", lambda: True)
    given = ["install", "--controller", "--dry-run", "--slurm-conf", str(slurm_conf), *words]
    found = CliRunner().invoke(cli, given, env={"COLUMNS": "300"})
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize(
    ("level", "command"),
    [
        ("", "run     sacctmgr -i create user name=sentinel account=root adminlevel=Administrator"),
        ("None", "run     sacctmgr -i modify user where name=sentinel set adminlevel=Administrator"),
        ("Operator", "run     sacctmgr -i modify user where name=sentinel set adminlevel=Administrator"),
        ("Administrator", ""),
        (Unavailable("slurmdbd is away"), ""),
        (Refused("slurmdbd is away"), ""),  # there is none
    ],
)
def test_right_in_slurm_is_given_once_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str | Exception, command: str
) -> None:
    """``create`` ends with 1 for an account that is known: what came behind it, the start of the units, was never done."""
    said = planned(tmp_path, monkeypatch, level)
    runs = [line for line in said.splitlines() if line.startswith("run ")]
    assert [line for line in runs if "sacctmgr" in line] == ([command] if command else [])
    assert any("systemctl restart sentinel-daemon" in line for line in runs)
    if command:
        assert runs[-1] == command
    assert ("not known: slurmdbd is away" in said) == isinstance(level, Exception)


def runs(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("run ")]


def test_commands_name_the_first_group_of_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (commands, steps):
        monkeypatch.setattr(part, "account_of", lambda *_: Account(991, 980, "hpc"))
    said = runs(planned(tmp_path, monkeypatch, "Administrator"))
    assert "run     install -d -m 2770 -o slurm -g hpc /run/sentinel-events" in said
    assert not any("useradd" in line for line in said)


@pytest.mark.parametrize(("there", "option"), [(True, "--gid sentinel"), (False, "--user-group")])
def test_account_is_made_in_a_group_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, option: str
) -> None:
    for part in (commands, steps):
        monkeypatch.setattr(part, "account_of", lambda *_: None)
    monkeypatch.setattr(steps, "is_group", lambda _name: there)
    said = runs(planned(tmp_path, monkeypatch, "", "--daemon-uid", "991"))
    assert said[0].startswith("run     useradd --system --uid 991 " + option + " ") and said[0].endswith(" sentinel")


@pytest.mark.parametrize(("uid", "made"), [(os.getuid(), False), (12345, True)])
def test_resume_folder_that_is_the_daemon_s_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, made: bool
) -> None:
    """Root may not give it away once more on a shared file system that gives root no rights."""
    for part in (commands, steps):
        monkeypatch.setattr(part, "account_of", lambda *_: Account(uid, 980, "hpc"))
    resume = tmp_path / "resume"
    resume.mkdir()
    said = runs(planned(tmp_path, monkeypatch, "Administrator", "--resume", str(resume)))
    assert any(line.endswith(str(resume)) for line in said) is made


def test_settings_that_were_there_before_the_account_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the uid of another account, or none; that of the new one is known only once it is made."""
    for part in (commands, steps):
        monkeypatch.setattr(part, "account_of", lambda *_: None)
    monkeypatch.setattr(commands, "daemon_settings", lambda _root: Settings())
    assert "write uid = `id -u sentinel` under [daemon]" in planned(tmp_path, monkeypatch, "")
