"""install: what it writes can be read by whom it is for, whatever the umask is and whatever was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.cli import cli

CONF = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n"


@pytest.fixture(params=[0o077, 0o027, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("etc", "etc/slurm"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    (tmp_path / "etc/slurm/slurm.conf").write_text(CONF)
    return tmp_path


def install(root: Path, *words: str) -> Result:
    words = ("install", "--node", "--controller", "--root", str(root), "--yes", *words)
    found = CliRunner().invoke(cli, words, env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_are_open_whatever_the_umask_is(root: Path, umask: int) -> None:
    (root / "etc/slurm/slurm.conf").write_text(f"{CONF}Prolog=/site/check.sh\n")
    install(root)
    folders = [path for path in root.rglob("*") if path.is_dir()]
    assert len(folders) >= 8 and {mode(path) for path in folders} == {0o755}


def test_folders_of_an_earlier_installation_are_opened(root: Path) -> None:
    for name in ("etc/slurm/sentinel", "etc/sentinel"):
        (root / name).mkdir()
        (root / name).chmod(0o700)
    found = install(root, "--dry-run")
    assert f"change  {root}/etc/sentinel (mode 755)" in found.output
    install(root)
    assert mode(root / "etc/slurm/sentinel") == mode(root / "etc/sentinel") == 0o755
    assert "(mode" not in install(root).output


@pytest.mark.parametrize("text", ['[alerts]\nwebhooks = ["https://chat.example.org/7f3a"]\n', "not TOML"])
def test_folder_that_keeps_secrets_is_not_opened(root: Path, text: str) -> None:
    settings = root / "etc/sentinel/sentinel.toml"
    settings.parent.mkdir()
    settings.write_text(text)
    settings.chmod(0o644)
    settings.parent.chmod(0o750)
    assert "may hold secrets" in install(root).output and mode(settings.parent) == 0o750
    settings.chmod(0o640)
    install(root)
    assert mode(settings.parent) == 0o755


def test_folder_of_the_site_that_keeps_users_from_the_task_prolog_is_told(root: Path) -> None:
    (root / "etc/slurm").chmod(0o750)
    assert f"users cannot enter {root}/etc/slurm (mode 750)" in install(root).output
    assert mode(root / "etc/slurm") == 0o750
