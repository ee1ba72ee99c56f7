"""install: a link is written through and stays, and slurm.conf stays whose it is, byte for byte where nothing changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.cli import cli
from sentinel.cli.install import host
from sentinel.cli.install.slurm_conf import planned
from sentinel.errors import FileError

CONF = b"ClusterName=c\nSlurmctldHost=head\nSlurmUser=slurm\n# gepflegt von J\xf6rg\x0c \xe2\x80\xa8 und Ada\nNodeName=n1\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """slurm.conf as all hosts have it; /etc/slurm/slurm.conf leads to it."""
    conf = tmp_path / "shared/slurm.conf"
    conf.parent.mkdir()
    conf.write_bytes(CONF)
    if os.getuid() == 0:
        os.chown(conf, 64030, 64031)
    conf.chmod(0o640)
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").symlink_to("../../shared/slurm.conf")
    return conf


def run(root: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--yes", "--root", str(root)], env={"COLUMNS": "200"})


def test_slurm_conf_is_written_through_the_link_and_stays_whose_it_is(tmp_path: Path, shared: Path) -> None:
    found = run(tmp_path, "install", "--controller", "--write-slurm-conf")
    assert found.exit_code == 0, found.output
    link, kept = tmp_path / "etc/slurm/slurm.conf", tmp_path / "etc/slurm/slurm.conf.before-sentinel"
    assert link.is_symlink() and b"\nTaskProlog=" in shared.read_bytes() and shared.read_bytes().startswith(CONF)
    assert kept.read_bytes() == CONF
    for path in (shared, kept):
        status = path.stat()
        assert status.st_mode & 0o777 == 0o640
        assert (status.st_uid, status.st_gid) == ((64030, 64031) if os.getuid() == 0 else (os.getuid(), os.getgid()))


def test_only_a_newline_ends_a_line() -> None:
    text = "# a\x0bb\x0cc\x1cd\x85e\u2028f\nPrologFlags=X11 # \u2029g\n"
    made = planned(text).changed
    assert made.startswith("# a\x0bb\x0cc\x1cd\x85e\u2028f\nPrologFlags=X11,Alloc # \u2029g\n")
    assert planned(made).changed == made


def test_hook_that_is_a_link_is_written_where_it_leads(tmp_path: Path, shared: Path) -> None:
    hook, target = tmp_path / "etc/slurm/prolog.d/10-sentinel", tmp_path / "shared/10-sentinel"
    hook.parent.mkdir()
    target.write_text("#!/bin/sh\n# of an earlier release\n")
    hook.symlink_to(target)
    assert run(tmp_path, "install", "--node").exit_code == 0
    assert hook.is_symlink() and "Sentinel" not in hook.readlink().name and "Slurm Prolog" in target.read_text()
    text = target.read_text()
    (tmp_path / "shared/slurm.conf").write_text("Prolog=/etc/slurm/prolog.d/10-sentinel\n")
    assert run(tmp_path, "uninstall", "--node").exit_code == 0
    assert target.read_text() == text  # other hosts go on running it
    assert not hook.is_symlink() and "Sentinel was removed" in hook.read_text()


def test_link_that_leads_nowhere_is_told_and_stays(tmp_path: Path, shared: Path) -> None:
    settings = tmp_path / "etc/sentinel/agent.toml"
    settings.parent.mkdir()
    settings.symlink_to(tmp_path / "away/agent.toml")
    found = run(tmp_path, "install", "--node")
    assert isinstance(found.exception, FileError) and "is a link to" in str(found.exception)
    assert settings.is_symlink() and not (tmp_path / "away").exists()


def test_masked_unit_stays_masked(tmp_path: Path, shared: Path) -> None:
    unit = tmp_path / "etc/systemd/system/sentinel-agent.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/dev/null")
    found = run(tmp_path, "install", "--node")
    assert found.exit_code == 0 and f"keep    {unit}" in found.output and unit.is_symlink()
    with pytest.raises(FileError, match="no file"):
        host.write_file(unit, "x", 0o644)


@pytest.mark.parametrize("target", ["host/slurm.conf", "host"])
def test_image_whose_link_leads_out_of_it_changes_nothing_of_this_host(tmp_path: Path, target: str) -> None:
    """An absolute link in an image means a file of the image, and leads to one of this host."""
    conf, image = tmp_path / "host/slurm.conf", tmp_path / "image"
    conf.parent.mkdir()
    conf.write_bytes(CONF)
    link = image / ("etc/slurm" if target == "host" else "etc/slurm/slurm.conf")
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / target)
    for words in (
        ["install", "--controller", "--write-slurm-conf"],
        ["install", "--controller", "--write-slurm-conf", "--dry-run"],
    ):
        found = run(image, *words)
        assert isinstance(found.exception, FileError) and "leads out of" in str(found.exception)
    assert conf.read_bytes() == CONF and list(conf.parent.iterdir()) == [conf] and link.is_symlink()


def test_hook_of_an_image_that_leads_out_of_it_is_removed_alone(tmp_path: Path, shared: Path) -> None:
    image, target = tmp_path / "image", tmp_path / "shared/10-sentinel"
    target.write_text("#!/bin/sh\n")
    hook = image / "etc/slurm/prolog.d/10-sentinel"
    hook.parent.mkdir(parents=True)
    hook.symlink_to(target)
    assert run(image, "uninstall", "--node").exit_code == 0
    assert target.read_text() == "#!/bin/sh\n" and not hook.is_symlink()
    hook.unlink()
    hook.symlink_to(target)
    assert isinstance(run(image, "install", "--refresh").exception, FileError) and target.read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("named", [True, False], ids=["a link that is replaced", "a hook that goes"])
def test_who_may_not_change_it_is_told_so(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    hook = tmp_path / "etc/slurm/prolog.d/10-sentinel"
    hook.parent.mkdir()
    (tmp_path / "shared/10-sentinel").write_text("#!/bin/sh\n")
    hook.symlink_to("../../../shared/10-sentinel")
    shared.write_text(f"Prolog=/etc/slurm/prolog.d/{'10-sentinel' if named else '*'}\n")
    (hook.parent / "20-site").write_text("#!/bin/sh\n")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host, "replace_file", denied)
    monkeypatch.setattr(Path, "unlink", denied)
    found = run(tmp_path, "uninstall", "--node")
    assert isinstance(found.exception, FileError) and found.exception.fix == "run it as root"
