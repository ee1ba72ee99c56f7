"""install where systemd does not run (the folder of an image, a chroot): what is left to enable is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli import cli
from sentinel.cli.install import host

UNITS = "etc/systemd/system"


def install(root: Path, *words: str) -> str:
    given = ["install", "--daemon", "http://head:9478", "--daemon-uid", "991", "--yes", *words]
    found = CliRunner().invoke(cli, [*given, "--root", str(root)], env={"COLUMNS": "250"})
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize(
    ("role", "units"),
    [("--node", "sentinel-agent.service"), ("--controller", "sentinel-daemon.service sentinel-report.timer")],
)
def test_units_of_an_image_that_nothing_enables_are_told(tmp_path: Path, role: str, units: str) -> None:
    assert f"systemctl --root={tmp_path} enable {units}\n" in install(tmp_path, role)


def enable_agent(root: Path) -> Path:
    """As systemctl does it: the link leads to what is at that place only in the image."""
    wanted = root / UNITS / "multi-user.target.wants/sentinel-agent.service"
    wanted.parent.mkdir(parents=True)
    wanted.symlink_to(f"/{UNITS}/sentinel-agent.service")
    return wanted


def test_units_of_an_image_that_are_enabled_are_not_told(tmp_path: Path) -> None:
    enable_agent(tmp_path)
    assert "enable" not in install(tmp_path, "--node")


def test_unit_that_is_removed_from_an_image_is_not_left_enabled(tmp_path: Path) -> None:
    wanted = enable_agent(tmp_path)
    install(tmp_path, "--node")
    found = CliRunner().invoke(cli, ["uninstall", "--node", "--yes", "--root", str(tmp_path)], env={"COLUMNS": "250"})
    assert found.exit_code == 0 and f"remove  {wanted}\n" in found.output, found.output
    assert not wanted.is_symlink()


def test_chroot_is_told_how_its_units_start_at_the_next_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_systemd", lambda: False)
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=head\n")
    given = ["install", "--node", "--dry-run", "--slurm-conf", str(conf)]
    said = CliRunner().invoke(cli, given, env={"COLUMNS": "250"}).output
    assert "systemctl enable sentinel-agent.service" in said
