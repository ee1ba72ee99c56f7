"""install: a host that becomes controller and node by two commands is as one that became both by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.agent.settings import AgentSettings
from sentinel.cli import cli
from sentinel.config.settings import load

CONF = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n"
UNIT, SETTINGS = "etc/systemd/system/sentinel-agent.service", "etc/sentinel/agent.toml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(CONF)
    return tmp_path


def install(root: Path, *words: str) -> Result:
    found = CliRunner().invoke(cli, ["install", *words, "--root", str(root), "--yes"], env={"COLUMNS": "250"})
    assert found.exit_code == 0, found.output
    return found


@pytest.mark.parametrize("roles", [("--node", "--controller"), ("--controller", "--node"), ("--node", "--node")])
def test_agent_keeps_its_state_beside_the_daemon_s(root: Path, roles: tuple[str, str]) -> None:
    for role in roles:
        install(root, role)
    both = set(roles) == {"--node", "--controller"}
    made = load(root / SETTINGS, AgentSettings)
    assert (made.state == "/var/lib/sentinel-agent") is both
    assert ("StateDirectory=sentinel-agent\n" in (root / UNIT).read_text()) is both
    again = install(root, roles[0])
    assert "change  " not in again.output and "write  " not in again.output


def test_what_the_site_wrote_stays(root: Path) -> None:
    install(root, "--node")
    settings = root / SETTINGS
    settings.write_text('# ours\nurl = "http://head:9478"\n[dcgm]\naccount = "ada"\n')
    settings.chmod(0o640)
    found = install(root, "--controller")
    assert f"change  {settings}" in found.output and settings.stat().st_mode & 0o777 == 0o640
    assert settings.read_text().endswith('# ours\nurl = "http://head:9478"\n[dcgm]\naccount = "ada"\n')
    made = load(settings, AgentSettings)
    assert (made.state, made.dcgm.account) == ("/var/lib/sentinel-agent", "ada")


@pytest.mark.parametrize("text", ['state = "/data/agent"\n', "not TOML"])
def test_state_that_the_site_chose_and_what_cannot_be_read_stay(root: Path, text: str) -> None:
    install(root, "--node")
    (root / SETTINGS).write_text(text)
    install(root, "--controller")
    assert (root / SETTINGS).read_text() == text


def test_hooks_that_do_not_know_the_folder_of_events_are_told(root: Path) -> None:
    install(root, "--node")
    assert "SENTINEL_EVENTS=/run/sentinel-events in it" in install(root, "--controller").output
