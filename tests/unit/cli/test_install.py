"""install and uninstall: shown first, the site's own kept, every file whole, and Slurm working at every moment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.agent.settings import AgentSettings, require_sound
from sentinel.cli import cli
from sentinel.cli.install import host
from sentinel.cli.install.slurm_conf import hook_folder, needs_hook, planned
from sentinel.config.settings import Settings, load
from sentinel.errors import FileError, Unavailable, UserError

BARE = (
    "ClusterName=c\nSlurmctldHost=head(10.0.0.1)\nSlurmUser=slurm\nAccountingStorageType=accounting_storage/slurmdbd\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(BARE)
    return tmp_path


def run(root: Path, *words: str, says: str | None = None) -> Result:
    return CliRunner().invoke(cli, [*words, "--root", str(root)], input=says, env={"COLUMNS": "200"})


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


NODE = {
    "etc/systemd/system/sentinel-agent.service", "etc/slurm/prolog.d/10-sentinel", "etc/slurm/epilog.d/10-sentinel",
    "etc/slurm/sentinel/task-sentinel", "etc/sentinel/agent.toml", "etc/sentinel/hook.conf",
}  # fmt: skip
CONTROLLER = {
    "etc/systemd/system/sentinel-daemon.service", "etc/tmpfiles.d/sentinel.conf",
    "etc/systemd/system/sentinel-report.service", "etc/systemd/system/sentinel-report.timer",
    "etc/slurm/sentinel/slurmctld-sentinel", "etc/sentinel/sentinel.toml", "etc/sentinel/hook.conf",
}  # fmt: skip
CONF = {"etc/slurm/slurm.conf"}


@pytest.mark.parametrize(("role", "written"), [("--node", NODE), ("--controller", CONTROLLER)])
def test_dry_run_names_every_file_and_writes_none(root: Path, role: str, written: set[str]) -> None:
    found = run(root, "install", role, "--dry-run")
    assert found.exit_code == 0, found.output
    assert files(root) == CONF and found.output.endswith("Nothing was changed: --dry-run.\n")
    for name in written:
        assert f"write   {root}/{name}" in found.output


def test_without_a_yes_nothing_is_written(root: Path) -> None:
    assert run(root, "install", "--node", says="n\n").exit_code == 1 and files(root) == CONF


def test_node_with_settings_that_its_agent_reads(root: Path) -> None:
    found = run(root, "install", "--node", "--yes", "--daemon-uid", "991", "--resume", "/shared/sentinel")
    assert found.exit_code == 0 and files(root) == CONF | NODE, found.output
    made = load(root / "etc/sentinel/agent.toml", AgentSettings)
    require_sound(made)
    assert (made.url, made.trusted_uids, made.resume) == ("http://head:9478", [991], "/shared/sentinel")
    for hook in ("prolog.d/10-sentinel", "epilog.d/10-sentinel", "sentinel/task-sentinel"):
        path = root / "etc/slurm" / hook
        assert path.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    unit = (root / "etc/systemd/system/sentinel-agent.service").read_text()
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=/") and "/usr/bin/env" not in start and "agent --config" in start
    assert "SENTINEL_URL=http://head:9478\n" in (root / "etc/sentinel/hook.conf").read_text()


def test_controller_with_settings_that_its_daemon_reads(root: Path) -> None:
    found = run(root, "install", "--controller", "--yes", "--resume", "/shared/sentinel")
    assert found.exit_code == 0 and files(root) == CONF | CONTROLLER, found.output
    made = load(root / "etc/sentinel/sentinel.toml", Settings)
    assert made.daemon.resume == "/shared/sentinel" and made.modes.default.drain == "observe"
    unit = (root / "etc/systemd/system/sentinel-daemon.service").read_text()
    assert "\nUser=sentinel\nGroup=sentinel\n" in unit and "ReadWritePaths=-/shared/sentinel\n" in unit
    assert "d /run/sentinel-events 2770 slurm sentinel -" in (root / "etc/tmpfiles.d/sentinel.conf").read_text()
    assert "needs these changes" in found.output
    assert "+EpilogSlurmctld=/etc/slurm/sentinel/slurmctld-sentinel" in found.output
    assert (root / "etc/slurm/slurm.conf").read_text() == BARE  # it is the site's


def test_without_slurmdbd_nobody_but_slurm_user_may_drain(root: Path) -> None:
    (root / "etc/slurm/slurm.conf").write_text("SlurmctldHost=head\nSlurmUser=slurm\n")
    run(root, "install", "--controller", "--yes")
    assert "\nUser=slurm\n" in (root / "etc/systemd/system/sentinel-daemon.service").read_text()


def test_controller_that_is_a_node_too_keeps_the_two_states_apart(root: Path) -> None:
    assert run(root, "install", "--controller", "--node", "--yes").exit_code == 0
    assert load(root / "etc/sentinel/agent.toml", AgentSettings).state == "/var/lib/sentinel-agent"
    assert "StateDirectory=sentinel-agent\n" in (root / "etc/systemd/system/sentinel-agent.service").read_text()
    assert "SENTINEL_EVENTS=" in (root / "etc/sentinel/hook.conf").read_text()


def test_upgrade_replaces_what_is_ours_and_keeps_what_is_the_site_s(root: Path) -> None:
    run(root, "install", "--node", "--yes")
    hook, settings = root / "etc/slurm/prolog.d/10-sentinel", root / "etc/sentinel/agent.toml"
    text = hook.read_text()
    hook.write_text("#!/bin/sh\n# of an earlier release\n")
    settings.write_text('url = "http://other:1"\n')
    found = run(root, "install", "--node", "--yes")
    assert hook.read_text() == text and settings.read_text() == 'url = "http://other:1"\n'
    assert f"change  {hook}" in found.output and f"keep    {settings}" in found.output
    again = run(root, "install", "--node", "--yes")
    assert f"same    {hook}" in again.output and "change  " not in again.output


def test_refresh_replaces_only_hooks_that_are_installed(root: Path) -> None:
    run(root, "install", "--node", "--yes")
    hook, unit = root / "etc/slurm/prolog.d/10-sentinel", root / "etc/systemd/system/sentinel-agent.service"
    text = hook.read_text()
    hook.write_text("old")
    unit.write_text("of the site")
    before = files(root)
    assert run(root, "install", "--refresh", "--yes").exit_code == 0
    assert hook.read_text() == text and unit.read_text() == "of the site" and files(root) == before


def test_slurm_conf_is_changed_only_when_asked_and_a_copy_is_kept(root: Path) -> None:
    found = run(root, "install", "--controller", "--yes", "--write-slurm-conf")
    conf = root / "etc/slurm/slurm.conf"
    assert found.exit_code == 0 and (root / "etc/slurm/slurm.conf.before-sentinel").read_text() == BARE
    text = conf.read_text()
    assert "Prolog=/etc/slurm/prolog.d/*\n" in text and planned(text).changed == text
    assert "has all that Sentinel needs" in run(root, "install", "--controller", "--yes").output


@pytest.mark.parametrize("words", [(), ("--resume", "shared")])
def test_what_is_missing_is_told(root: Path, words: tuple[str, ...]) -> None:
    role = ("--controller",) if words else ()
    found = run(root, "install", *role, *words, "--yes")
    assert isinstance(found.exception, UserError) and found.exception.fix and files(root) == CONF


def test_node_that_cannot_know_the_controller_asks_for_it(tmp_path: Path) -> None:
    found = run(tmp_path, "install", "--node", "--dry-run")
    assert isinstance(found.exception, UserError) and "--daemon http://HOST:9478" in found.exception.fix


def test_file_that_cannot_be_written_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        host.write_file(tmp_path / "file" / "below", "x", 0o644)


@pytest.mark.parametrize(("command", "words"), [(["false"], "ended with 1"), (["/no/such/program"], "No such file")])
def test_command_that_fails_stops_the_rest_and_says_why(command: list[str], words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        host.run(command)


# --- uninstall -----------------------------------------------------------------------------------------------------------


def test_uninstall_takes_what_is_ours_and_leaves_settings(root: Path) -> None:
    run(root, "install", "--controller", "--node", "--yes")
    found = run(root, "uninstall", "--controller", "--node", "--yes")
    assert found.exit_code == 0
    assert files(root) == CONF | {f"etc/sentinel/{name}" for name in ("sentinel.toml", "agent.toml", "hook.conf")}


def test_hook_that_slurm_conf_still_names_stays_as_one_that_does_nothing(root: Path) -> None:
    run(root, "install", "--controller", "--node", "--yes", "--write-slurm-conf")
    found = run(root, "uninstall", "--controller", "--node", "--yes")
    for name in (
        "sentinel/task-sentinel",
        "sentinel/slurmctld-sentinel",
        "prolog.d/10-sentinel",
        "epilog.d/10-sentinel",
    ):
        path = root / "etc/slurm" / name
        assert "Take" in path.read_text() and os.access(path, os.X_OK)
        assert subprocess.run([str(path)], check=False, timeout=10).returncode == 0
        assert f"slurm.conf still names /etc/slurm/{name}" in " ".join(found.output.split())
    (root / "etc/slurm/slurm.conf").write_text(BARE)
    run(root, "uninstall", "--controller", "--node", "--yes")
    assert not (root / "etc/slurm/sentinel/task-sentinel").exists()
    assert not (root / "etc/slurm/epilog.d/10-sentinel").exists()


def test_a_script_in_a_folder_that_has_others_goes(root: Path) -> None:
    """A folder that is empty is a failed prolog for Slurm 24.11, and drains the node; a hidden file is none for it."""
    run(root, "install", "--node", "--controller", "--yes", "--write-slurm-conf")
    (root / "etc/slurm/prolog.d/90-site").write_text("#!/bin/sh\n")
    (root / "etc/slurm/epilog.d/.90-site.swp").write_text("")
    run(root, "uninstall", "--node", "--yes")
    assert not (root / "etc/slurm/prolog.d/10-sentinel").exists()
    assert (root / "etc/slurm/epilog.d/10-sentinel").exists()


# --- slurm.conf ----------------------------------------------------------------------------------------------------------


def changed(text: str) -> dict[str, str]:
    lines = planned(text).changed.splitlines()
    parts = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return {key: value.partition(" #")[0] for key, _, value in parts}


def test_bare_slurm_conf_gets_every_line_once() -> None:
    assert changed("ClusterName=c\n") == {
        "ClusterName": "c", "Prolog": "/etc/slurm/prolog.d/*", "Epilog": "/etc/slurm/epilog.d/*",
        "TaskProlog": "/etc/slurm/sentinel/task-sentinel", "EpilogSlurmctld": "/etc/slurm/sentinel/slurmctld-sentinel",
        "PrologFlags": "Alloc", "SchedulerParameters": "nohold_on_prolog_fail", "PrologEpilogTimeout": "120",
        "BatchStartTimeout": "60", "MinJobAge": "600", "JobFileAppend": "1",
    }  # fmt: skip


def test_what_the_site_has_stays() -> None:
    text = (
        "# a comment\nprolog = /site/check.sh # ours\nEpilog=/site/epilog.d/*\nPrologFlags=Contain,X11\n"
        "SchedulerParameters=bf_window=60\nMinJobAge=30\nTaskProlog=/site/task\nBatchStartTimeout=90\nJobRequeue=0\n"
    )
    conf = planned(text)
    made = changed(text)
    assert made["Prolog"] == "/etc/slurm/prolog.d/*"
    assert conf.links == {"/etc/slurm/prolog.d/50-site": "/site/check.sh"}
    assert made["Epilog"] == "/site/epilog.d/*" and hook_folder(text, "Epilog", "epilog.d") == "/site/epilog.d"
    assert made["PrologFlags"] == "Contain,X11,Alloc" and made["TaskProlog"] == "/site/task"
    assert made["SchedulerParameters"] == "bf_window=60,nohold_on_prolog_fail"
    assert made["MinJobAge"] == "600" and made["BatchStartTimeout"] == "90"
    assert conf.changed.startswith("# a comment\n") and len(conf.notes) == 3
    assert any("TaskProlog=/site/task is yours" in note for note in conf.notes)
    assert any("JobRequeue=0" in note and "whose comment asks for it" in note for note in conf.notes)


def test_planned_changes_need_no_further_change() -> None:
    once = planned(BARE).changed
    assert planned(once).changed == once
    assert needs_hook(once, "/etc/slurm/sentinel/task-sentinel")
    assert not needs_hook(BARE, "/etc/slurm/sentinel/task-sentinel")


def test_continued_line_is_one_line_and_is_replaced_whole() -> None:
    text = "A=1\nSchedulerParameters=bf_max_job_test=500,\\\ndefer # why\nMinJobAge=\\\n900\n#PrologFlags=X11 \\\nB=2\n"
    made = planned(text).changed
    assert made.startswith(
        "A=1\nSchedulerParameters=bf_max_job_test=500,defer,nohold_on_prolog_fail # why\nMinJobAge=\\\n900\n"
    )
    assert "\ndefer" not in made and "\nPrologFlags=Alloc\n" in made and "\n#PrologFlags=X11 \\\nB=2\n" in made
    assert planned(made).changed == made


def test_trailing_comment_of_a_changed_line_stays() -> None:
    assert "\nMinJobAge=600 # asked by ada\n" in planned("A=1\nminjobage = 30   # asked by ada\n").changed


def test_jobs_that_are_never_forgotten_stay_so() -> None:
    assert changed("MinJobAge=0\n")["MinJobAge"] == "0"
    assert changed("MinJobAge=299\n")["MinJobAge"] == "600"


@pytest.mark.parametrize("key", ["PrologEpilogTimeout", "BatchStartTimeout"])
@pytest.mark.parametrize(("value", "told"), [("10", True), ("20", True), ("21", False), ("", False)])
def test_limit_that_ends_before_the_prolog_s_own_is_noted(key: str, value: str, told: bool) -> None:
    conf = planned(f"{key}={value}\n" if value else "")
    assert any(f"{key}={value}" in note and "20 s" in note for note in conf.notes) == told


# --- Include -------------------------------------------------------------------------------------------------------------


def including(root: Path, text: str, name: str = "site/sentinel.conf") -> Path:
    path = root / "etc/slurm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(f"{conf.read_text()}include {name} # ours\n")
    return path


def test_included_file_is_read_and_nothing_is_set_twice(root: Path) -> None:
    including(root, planned("").changed)
    found = run(root, "install", "--controller", "--dry-run")
    assert found.exit_code == 0 and "slurm.conf has all that Sentinel needs" in found.output, found.output


def test_hook_named_in_an_included_file_stays_as_one_that_does_nothing(root: Path) -> None:
    including(root, "TaskProlog=/etc/slurm/sentinel/task-sentinel\nEpilog=/site/e/*\n")
    assert run(root, "install", "--node", "--yes").exit_code == 0
    assert (root / "site/e/10-sentinel").exists()
    run(root, "uninstall", "--node", "--yes")
    for name in ("etc/slurm/sentinel/task-sentinel", "site/e/10-sentinel"):
        assert "Take" in (root / name).read_text(), name


def test_key_to_be_changed_in_an_included_file_is_told_and_refused(root: Path) -> None:
    path = including(root, "# flags\nPrologFlags=\\\nX11\n")
    before = (root / "etc/slurm/slurm.conf").read_text()
    found = run(root, "install", "--controller", "--dry-run")
    assert f"{path}:2: " in found.output and "PrologFlags=X11,Alloc" in found.output and found.exit_code == 0
    assert "+PrologFlags" not in found.output
    found = run(root, "install", "--controller", "--yes", "--write-slurm-conf")
    assert isinstance(found.exception, FileError) and "PrologFlags=X11,Alloc" in found.exception.fix
    assert str(found.exception).startswith(f"{path}:2: PrologFlags: ") and "\n" not in str(found.exception)
    assert (root / "etc/slurm/slurm.conf").read_text() == before and not (root / "etc/sentinel").exists()


def test_line_of_the_main_file_that_comes_after_the_included_one_counts(root: Path) -> None:
    including(root, "PrologFlags=X11\n")
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text() + "PrologFlags=Contain\n")
    assert run(root, "install", "--controller", "--yes", "--write-slurm-conf").exit_code == 0
    assert "\nPrologFlags=Contain,Alloc\n" in conf.read_text()


def test_included_files_below_the_image_and_of_the_cluster_s_name(root: Path) -> None:
    (root / "opt").mkdir()
    (root / "opt/c.conf").write_text("PrologFlags=Alloc\n")
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(BARE + "Include /opt/%c.conf\n")
    found = run(root, "install", "--controller", "--dry-run")
    assert found.exit_code == 0 and "+PrologFlags" not in found.output, found.output


def test_included_file_that_cannot_be_read_or_includes_itself_is_told(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(BARE + "Include gone.conf\n")
    found = run(root, "install", "--controller", "--dry-run")
    assert isinstance(found.exception, FileError) and f"{conf}:5: Include: " in str(found.exception)
    assert run(root, "install", "--refresh", "--yes").exit_code == 0  # a package's upgrade goes on
    conf.write_text(BARE + "Include slurm.conf\n")
    found = run(root, "install", "--controller", "--dry-run")
    assert isinstance(found.exception, FileError) and "deep" in str(found.exception)


# --- --daemon and --daemon-uid --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *(("--daemon", url) for url in (
            "foo", "foo:9478", "http://head", "ftp://head:9478", "http://:9478", "http://head:0", "http://head:70000",
            "http://head:x", 'http://he"ad:9478', "http://head:9478\nx=1", "http://a@head:9478", "http://head:9478/?q",
            "http://[::1:9478", "",
        )),
        *(("--daemon-uid", uid) for uid in ("-5", "4294967295")),
    ],
)  # fmt: skip
def test_daemon_that_cannot_be_one_is_refused(root: Path, words: tuple[str, str]) -> None:
    found = run(root, "install", "--node", "--yes", *words)
    assert isinstance(found.exception, UserError) and found.exception.exit_status == 2, found.output
    assert found.exception.fix and words[0] in str(found.exception) and files(root) == CONF


@pytest.mark.parametrize(
    "url", ["http://head:9478", "https://head.site.org:443/", "http://10.0.0.1:1", "http://[::1]:9478"]
)
def test_daemon_s_address_and_root_s_uid_are_taken(root: Path, url: str) -> None:
    assert run(root, "install", "--node", "--yes", "--daemon", url, "--daemon-uid", "0").exit_code == 0
    assert load(root / "etc/sentinel/agent.toml", AgentSettings).url == url.rstrip("/")
