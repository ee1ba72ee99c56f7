"""install where no slurm.conf is found (images, configless nodes, sudo without SLURM_CONF): what is then unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.agent.settings import AgentSettings
from sentinel.cli import cli
from sentinel.config.settings import Settings, load

CONF = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n"
NODE = ("--node", "--daemon", "http://head:9478")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("slurm:x:64030:64030::/:/bin/sh\nsentinel:x:991:980::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("slurm:x:64030:\nservices:x:980:\n")
    return tmp_path


def install(root: Path, *words: str) -> str:
    found = CliRunner().invoke(cli, ["install", *words, "--root", str(root), "--yes"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def unit(root: Path) -> str:
    return (root / "etc/systemd/system/sentinel-daemon.service").read_text()


def test_daemon_is_never_made_root_s_and_what_was_taken_is_told(root: Path) -> None:
    said = install(root, "--controller")
    assert "\nUser=sentinel\nGroup=services\n" in unit(root)
    assert load(root / "etc/sentinel/sentinel.toml", Settings).daemon.uid == 991
    assert "SENTINEL_DAEMON_USER=sentinel\n" in (root / "etc/sentinel/hook.conf").read_text()
    assert "no slurm.conf was found: the daemon is taken to run as sentinel" in said
    assert "SlurmUser is taken to be root" in said and "--slurm-conf" in said


def test_account_of_the_daemon_that_is_installed_is_kept(root: Path) -> None:
    conf = root / "opt/slurm/etc/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(CONF)
    install(root, "--controller", "--slurm-conf", str(conf))
    assert "\nUser=slurm\n" in unit(root)  # no slurmdbd
    conf.unlink()  # as where the file system that it lies on is not mounted
    assert "the daemon is taken to run as slurm" in install(root, "--controller")
    assert "\nUser=slurm\n" in unit(root)


def test_node_trusts_the_account_that_it_knows(root: Path) -> None:
    said = install(root, *NODE)
    assert load(root / "etc/sentinel/agent.toml", AgentSettings).trusted_uids == [991]
    assert "SENTINEL_DAEMON_USER=991\n" in (root / "etc/sentinel/hook.conf").read_text()
    assert "the daemon is taken to run as sentinel" in said and "SlurmUser" not in said


def test_node_that_does_not_know_the_account_is_told_what_to_set(root: Path) -> None:
    (root / "etc/passwd").write_text("slurm:x:64030:64030::/:/bin/sh\n")
    said = install(root, *NODE)
    assert "the account sentinel is not known on this host" in said
    assert "SENTINEL_DAEMON_USER" not in (root / "etc/sentinel/hook.conf").read_text()


@pytest.mark.parametrize("named", [("--account", "slurm"), ("--daemon-uid", "64030")])
def test_what_is_named_is_not_taken_to_be_anything(root: Path, named: tuple[str, str]) -> None:
    assert "the daemon is taken" not in install(root, *NODE, *named)
    assert load(root / "etc/sentinel/agent.toml", AgentSettings).trusted_uids == [64030]
