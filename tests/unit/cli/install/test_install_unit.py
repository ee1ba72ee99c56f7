"""install: the daemon's unit allows the folders that its settings name, also those that they have named since."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli import cli


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n")
    return tmp_path


def allowed(root: Path, *words: str) -> list[str]:
    found = CliRunner().invoke(cli, ["install", "--controller", "--root", str(root), "--yes", *words])
    assert found.exit_code == 0, found.output
    unit = (root / "etc/systemd/system/sentinel-daemon.service").read_text().splitlines()
    return [line.removeprefix("ReadWritePaths=") for line in unit if line.startswith("ReadWritePaths=")]


def test_folder_of_the_installation(root: Path) -> None:
    assert allowed(root, "--resume", "/shared/sentinel") == ["-/shared/sentinel", "-/run/sentinel-events"]


def test_folders_that_the_settings_name_since(root: Path) -> None:
    allowed(root)
    settings = root / "etc/sentinel/sentinel.toml"
    text = '[daemon]\nresume = "/other/resume"\nstate = "/data/sentinel"\nevents = "/run/sentinel-events"\n'
    settings.write_text(text)
    assert allowed(root) == ["-/other/resume", "-/data/sentinel", "-/run/sentinel-events"]
    settings.write_text(text.replace("/run/sentinel-events", "/data/events"))
    assert "-/data/events" in allowed(root)
    both = allowed(root, "--resume", "/shared/sentinel")
    assert both[:2] == ["-/shared/sentinel", "-/other/resume"] and len(both) == len(set(both))


def test_name_of_a_folder_is_one_word(root: Path) -> None:
    allowed(root)
    (root / "etc/sentinel/sentinel.toml").write_text('[daemon]\nresume = "/shared files/100%"\n')
    assert allowed(root)[0] == '"-/shared files/100%%"'


@pytest.mark.parametrize("text", ["not TOML", ""])
def test_settings_that_name_none(root: Path, text: str) -> None:
    allowed(root)
    (root / "etc/sentinel/sentinel.toml").write_text(text)
    assert allowed(root) == ["-/shared/sentinel/resume", "-/run/sentinel-events"]
