"""install: the daemon's account, its uid and its group, in every file that names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.cli import cli
from sentinel.cli.install import host
from sentinel.config.settings import Settings, load

CONF = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\nAccountingStorageType=accounting_storage/slurmdbd\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(CONF)
    (tmp_path / "etc/passwd").write_text("slurm:x:64030:64030::/:/bin/sh\nsentinel:x:991:980::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("slurm:x:64030:\nservices:x:980:\n")
    return tmp_path


def install(root: Path, *words: str) -> Result:
    found = CliRunner().invoke(cli, ["install", *words, "--root", str(root), "--yes"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found


def daemon_of(root: Path) -> tuple[int, list[int]]:
    made = load(root / "etc/sentinel/sentinel.toml", Settings).daemon
    return made.uid, made.trusted_uids


def test_settings_name_the_uid_of_the_daemon_which_commands_believe(root: Path) -> None:
    install(root, "--controller")
    assert daemon_of(root) == (991, [64030])  # and SlurmUser's, whose hook speaks


def test_daemon_that_runs_as_slurm_user_is_named_too(root: Path) -> None:
    install(root, "--controller", "--account", "slurm")
    assert daemon_of(root) == (64030, [])


def test_settings_that_were_there_without_it_are_told(root: Path) -> None:
    settings = root / "etc/sentinel/sentinel.toml"
    settings.parent.mkdir()
    settings.write_text('[daemon]\nurl = "http://head:9478"\n')
    assert "write uid = 991 under [daemon]" in install(root, "--controller").output
    settings.write_text('[daemon]\nurl = "http://head:9478"\ntrusted_uids = [991]\n')
    assert "write uid" not in install(root, "--controller").output


def test_uid_that_is_not_the_account_s_is_told(root: Path) -> None:
    assert "sentinel has uid 991 here, not 5" in install(root, "--controller", "--daemon-uid", "5").output


def test_files_are_planned_again_after_the_command_that_makes_the_account(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    actions = host.Actions([host.Write(path, "without\n", 0o644, "new")], before=[["true"]])
    actions.again = lambda: [host.Write(path, "with its uid\n", 0o644, "new")]
    actions.carry_out()
    assert path.read_text() == "with its uid\n"


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away: only root can")
def test_settings_are_of_the_daemon_s_group_which_reads_them_once_they_are_closed(root: Path) -> None:
    install(root, "--controller", "--node")
    status = (root / "etc/sentinel/sentinel.toml").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 980, 0o644)
    assert (root / "etc/sentinel/hook.conf").stat().st_gid == os.getgid()


def test_daemon_runs_in_the_first_group_of_its_account(root: Path) -> None:
    """systemd starts nothing in a group that is not there, and `install -g` makes no folder for it."""
    install(root, "--controller")
    for name in ("daemon", "report"):
        unit = (root / f"etc/systemd/system/sentinel-{name}.service").read_text()
        assert "\nUser=sentinel\nGroup=services\n" in unit
    assert "2770 slurm services -" in (root / "etc/tmpfiles.d/sentinel.conf").read_text()
    (root / "etc/group").write_text("")
    install(root, "--controller")
    assert "\nGroup=980\n" in (root / "etc/systemd/system/sentinel-daemon.service").read_text()
