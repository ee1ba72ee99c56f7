"""uninstall: slurm.conf never names a hook that is gone, wherever it lies and whatever is known of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.cli import cli
from sentinel.cli.install.slurm_conf import needs_hook, planned

BARE = "ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n"
HOOKS = ("sentinel/task-sentinel", "sentinel/slurmctld-sentinel", "prolog.d/10-sentinel", "epilog.d/10-sentinel")


def run(root: Path, *words: str) -> Result:
    found = CliRunner().invoke(cli, [*words, "--yes", "--root", str(root)], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found


def is_nothing(path: Path) -> bool:
    if "Sentinel was removed" not in path.read_text():
        return False
    return os.access(path, os.X_OK) and subprocess.run([str(path)], check=False, timeout=10).returncode == 0


def test_where_no_slurm_conf_is_found_every_hook_stays_and_does_nothing(tmp_path: Path) -> None:
    run(tmp_path, "install", "--controller", "--node", "--daemon", "http://head:9478")
    found = run(tmp_path, "uninstall", "--controller", "--node")
    assert all(is_nothing(tmp_path / "etc/slurm" / name) for name in HOOKS)
    assert "no slurm.conf was found" in found.output and "--slurm-conf" in found.output
    assert not list((tmp_path / "etc/systemd/system").glob("sentinel-*"))
    (tmp_path / "etc/slurm/slurm.conf").write_text(BARE)  # it does not name them
    run(tmp_path, "uninstall", "--controller", "--node")
    assert not any((tmp_path / "etc/slurm" / name).exists() for name in HOOKS)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A host whose Slurm is built into /opt, with a folder of prologs there."""
    conf = tmp_path / "opt/slurm/etc/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(planned(f"{BARE}Prolog=/opt/slurm/etc/prolog.d/*\n").changed)
    run(tmp_path, "install", "--node", "--controller", "--slurm-conf", str(conf))
    assert (tmp_path / "opt/slurm/etc/prolog.d/10-sentinel").exists()
    return conf


def test_slurm_conf_that_the_installation_was_given_is_remembered(tmp_path: Path, elsewhere: Path) -> None:
    run(tmp_path, "uninstall", "--node", "--controller")  # as a package does it: without any option
    assert is_nothing(tmp_path / "opt/slurm/etc/prolog.d/10-sentinel")
    assert is_nothing(tmp_path / "etc/slurm/sentinel/task-sentinel")
    elsewhere.write_text(BARE.replace("slurm", "other"))
    run(tmp_path, "uninstall", "--node", "--controller")
    assert not (tmp_path / "etc/slurm/sentinel/task-sentinel").exists()


def test_upgrade_finds_hooks_in_the_site_s_own_folder(tmp_path: Path, elsewhere: Path) -> None:
    hook = tmp_path / "opt/slurm/etc/prolog.d/10-sentinel"
    text = hook.read_text()
    hook.write_text("old")
    run(tmp_path, "install", "--refresh")
    assert hook.read_text() == text


def test_remembered_slurm_conf_that_is_away_is_not_known(tmp_path: Path, elsewhere: Path) -> None:
    """Its file system is not mounted now; what another slurm.conf says does not count."""
    elsewhere.unlink()
    (tmp_path / "etc/slurm/slurm.conf").write_text(BARE)
    run(tmp_path, "uninstall", "--node", "--controller")
    assert is_nothing(tmp_path / "etc/slurm/sentinel/task-sentinel")


def test_installation_with_another_slurm_conf_forgets_the_first(tmp_path: Path, elsewhere: Path) -> None:
    usual = tmp_path / "etc/slurm/slurm.conf"
    usual.write_text(BARE)
    run(tmp_path, "install", "--node", "--slurm-conf", str(usual))
    run(tmp_path, "uninstall", "--node", "--controller")
    assert not (tmp_path / "etc/slurm/sentinel/task-sentinel").exists()


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("Prolog=/p/10-sentinel\nProlog=/site/other", True),  # Slurm 24.05 runs both
        ("Prolog=/p/*-sentinel", True),
        ("Prolog=/p/*\n", False),  # others are there
        ("Prolog=/*/*", False),
        ("PrologSlurmctld=/p/10-sentinel", True),
        ('Prolog="/p/10-sentinel"', True),
        ("Prolog=/p/1*", True),
        ("#Prolog=/p/10-sentinel", False),
    ],
)
def test_every_value_and_pattern_counts(tmp_path: Path, line: str, needed: bool) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/10-sentinel").write_text("")
    (tmp_path / "p/90-site").write_text("")
    assert needs_hook(line, "/p/10-sentinel", tmp_path) is needed


def test_package_that_is_installed_again_leaves_hooks_that_do_nothing(tmp_path: Path) -> None:
    """dpkg hands the old version over, as for an upgrade; but no agent is here, and nobody said that one should be."""
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(planned(BARE).changed)
    run(tmp_path, "install", "--node", "--controller")
    run(tmp_path, "uninstall", "--node", "--controller")
    run(tmp_path, "install", "--refresh")
    assert all(is_nothing(tmp_path / "etc/slurm" / name) for name in HOOKS)
    run(tmp_path, "install", "--node")
    assert not is_nothing(tmp_path / "etc/slurm/prolog.d/10-sentinel")
