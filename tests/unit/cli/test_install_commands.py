"""install: each command that it runs may be run again, and is run only where it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.adapters.slurm import conf
from sentinel.cli import cli
from sentinel.cli.install import host
from sentinel.errors import Unavailable

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
