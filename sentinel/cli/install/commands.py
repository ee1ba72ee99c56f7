"""``sentinel install`` and ``sentinel uninstall``."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from sentinel.cli.install import conf_lines, host
from sentinel.cli.install.accounts import account_of
from sentinel.cli.install.conf_lines import Line
from sentinel.cli.install.daemon_account import daemon_account, slurm_user
from sentinel.cli.install.existing import (
    agent_beside_daemon,
    daemon_settings,
    does_nothing,
    is_installed,
    open_folders,
    recorded_slurm_conf,
    slurm_conf_record,
    two_roles,
    writable_folders,
)
from sentinel.cli.install.files import REPORT_TIMER, Choice, controller_files, node_files
from sentinel.cli.install.slurm_conf import SlurmConf, hook_folder, needs_hook, planned
from sentinel.cli.install.steps import add_commands, enabled, unit_names
from sentinel.cli.operator.output import echo, say, shown
from sentinel.errors import UserError
from sentinel.protocol import PORT

F = TypeVar("F", bound=Callable[..., Any])
_ACCOUNT = "sentinel"
_LAST_UID = 2**32 - 2  # the one after it means "none"
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})(?:/[A-Za-z0-9._~/-]*)?")
_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def _role_options(command: F) -> F:
    below = "Below this folder, for an image; no command is run."
    folder = click.Path(path_type=Path)
    for option in (
        click.option("--root", type=folder, default=Path("/"), help=below),
        click.option("--slurm-conf", type=folder, help="Slurm's configuration.  [default: where Slurm has it]"),
        click.option("--yes", is_flag=True, help="Do it without a question."),
        click.option("--dry-run", is_flag=True, help="Only say what would be written and run."),
        click.option("--node", "node", is_flag=True, help="A compute node: agent and hooks."),
        click.option("--controller", is_flag=True, help="The controller: the daemon and its hook."),
    ):
        command = option(command)
    return command


@click.command()
@_role_options
@click.option(
    "--daemon",
    "daemon_url",
    help="Address of the daemon, or several.  [default: the controller of slurm.conf, port 9478]",
)
@click.option("--daemon-uid", type=int, help="As whom the daemon runs.  [default: its account's uid on this host]")
@click.option("--account", help="Account of the daemon.  [default: sentinel; SlurmUser where there is no slurmdbd]")
@click.option("--resume", default="", help="Folder on the shared file system for resume points.")
@click.option("--write-slurm-conf", is_flag=True, help="Also change slurm.conf; a copy is kept beside it.")
@click.option("--refresh", is_flag=True, help="Only replace the hooks that are installed here by this release's.")
def install(
    controller: bool,
    node: bool,
    dry_run: bool,
    yes: bool,
    slurm_conf: Path | None,
    root: Path,
    daemon_url: str | None,
    daemon_uid: int | None,
    account: str | None,
    resume: str,
    write_slurm_conf: bool,
    refresh: bool,
) -> None:
    """Install Sentinel's units, hooks and settings on this host, or upgrade them. Settings that are there are kept.

    Install the nodes first, then the controller; change slurm.conf last, since it names hooks that must be there. Every
    file is replaced in one go, so Slurm works at every moment.

    \b
    Examples:
      sentinel install --node --dry-run
      sentinel install --node --daemon http://head:9478 --resume /shared/sentinel
      sentinel install --controller --resume /shared/sentinel
    """
    conf_path = _slurm_conf(slurm_conf, root)
    text = _text(conf_path)
    lines = conf_lines.read(text, conf_path, root, lenient=refresh)  # an upgrade must not fail by a line of the site's
    if refresh:
        _refresh(lines, root, dry_run=dry_run, yes=yes)
        return
    _require_role(controller, node)
    daemon_url = _checked_url(daemon_url) if daemon_url is not None else None
    _require_uid(daemon_uid)
    conf = planned(lines)
    if write_slurm_conf and conf.elsewhere:
        raise conf.elsewhere[0]
    other = _other_role(root, controller, node)
    as_whom, taken = daemon_account(conf, conf_path, root, controller=controller, named=account, uid=daemon_uid)
    choose = partial(_choice, conf, lines, root, controller, other, node, daemon_url, daemon_uid, as_whom, resume)
    choice = choose()
    record = slurm_conf_record(conf_path, root, _CONFS)
    actions = host.Actions(writes=[*_writes(choice, root, controller, node, other), *record])
    if node:
        actions.links = [
            (host.below(root, link), target)
            for link, target in conf.links.items()
            if not host.below(root, link).is_symlink()
        ]
    open_folders(actions, choice, root)
    add_commands(actions, choice, root, controller=controller, units=unit_names(controller or other, node or other))
    last = _slurm_conf_writes(conf_path, text, conf) if controller and write_slurm_conf else []
    actions.writes += last
    actions.again = lambda: [*_writes(choose(), root, controller, node, other), *record, *last]
    _show(actions, root)
    if controller:
        _show_slurm_conf(conf_path, text, conf, written=write_slurm_conf)
    for note in [*conf.elsewhere, *conf.notes, *actions.notes, *taken, *_notes(choice, controller, root)]:
        say(f"Note: {note}")
    _do(actions, dry_run=dry_run, yes=yes, question="Install this?")


@click.command()
@_role_options
def uninstall(controller: bool, node: bool, dry_run: bool, yes: bool, slurm_conf: Path | None, root: Path) -> None:
    """Remove Sentinel's units and hooks from this host. Settings and history stay.

    A hook that slurm.conf still names, or the only one in a folder that it names, is replaced by one that does nothing, so
    Slurm goes on working: take those lines out, run "scontrol reconfigure", then uninstall again. Where no slurm.conf is
    found, every hook is replaced by one that does nothing.

    \b
    Examples:
      sentinel uninstall --node --dry-run
      sentinel uninstall --controller --yes
    """
    _require_role(controller, node)
    conf_path = _slurm_conf(slurm_conf, root)
    lines = conf_lines.read(_text(conf_path), conf_path, root)
    choice = _only_paths(lines)
    files = [*(controller_files(choice) if controller else ()), *(node_files(choice) if node else ())]
    hooks = [file.path for file in files if file.mode & 0o111]
    needed = [path for path in hooks if conf_path is None or needs_hook(lines, path, root)]
    actions = host.removals(files, root, needed)
    units = [*(f"{unit}.service" for unit in unit_names(controller, node)), *([REPORT_TIMER] if controller else [])]
    if root != Path("/"):
        actions.removals += [link for unit in units for link in enabled(unit, root)]
    elif host.has_systemd():
        there = [unit for unit in units if (Path("/etc/systemd/system") / unit).exists()]
        actions.before = [["systemctl", "disable", "--now", *there]] if there else []
        actions.after = [["systemctl", "daemon-reload"]]
    _show(actions, root)
    if conf_path is None and actions.writes:
        say(
            "Note: no slurm.conf was found, so it may still name these hooks: they do nothing from now on. Where it "
            "does not, delete them, or run this again with --slurm-conf."
        )
    for path in needed if conf_path is not None else ():
        say(
            f"Note: slurm.conf still names {path} or its folder: it does nothing from now on. Take that line out, "
            "then run this again or delete the file."
        )
    _do(actions, dry_run=dry_run, yes=yes, question="Remove this?")


def _refresh(lines: Sequence[Line], root: Path, *, dry_run: bool, yes: bool) -> None:
    """What a package does on upgrade: hooks are the same for every choice, units and settings are not.

    A hook that does nothing stays so: Sentinel was removed here, and without agent and unit a prolog that checks is worse.
    """
    choice = _only_paths(lines)
    files = [file for file in (*controller_files(choice), *node_files(choice)) if file.mode & 0o111]
    there = [file for file in files if (path := host.below(root, file.path)).exists() and not does_nothing(path)]
    actions = host.Actions(writes=host.writes(there, root))
    _show(actions, root)
    _do(actions, dry_run=dry_run, yes=yes, question="Replace them?")


def _only_paths(lines: Sequence[Line]) -> Choice:
    """A choice that says where the files lie, for those whose text does not matter."""
    return Choice(
        program=("sentinel",),
        python=sys.executable,
        account=_ACCOUNT,
        slurm_user="slurm",
        daemon_url="",
        prolog_folder=hook_folder(lines, "Prolog", "prolog.d"),
        epilog_folder=hook_folder(lines, "Epilog", "epilog.d"),
    )


def _require_role(controller: bool, node: bool) -> None:
    if not controller and not node:
        raise UserError("which host is this?", fix="name --controller, --node, or both")


def _slurm_conf(asked: Path | None, root: Path) -> Path | None:
    """The slurm.conf of this host, if it has one: the one that is asked for, of the environment, of the last installation,
    or where Slurm has it."""
    if asked is not None:
        if not asked.is_file():
            raise UserError(f"{asked} is no file", fix="name Slurm's configuration with --slurm-conf")
        return asked.absolute()
    here = os.environ.get("SLURM_CONF", "") if root == Path("/") else ""
    if here and Path(here).is_file():
        return Path(here).absolute()
    if recorded := recorded_slurm_conf(
        root
    ):  # one that is not there now (not mounted) is not known, rather than another
        return recorded if recorded.is_file() else None
    return next((path for place in _CONFS if (path := host.below(root, place)).is_file()), None)


def _text(path: Path | None) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path is not None else ""


def _other_role(root: Path, controller: bool, node: bool) -> bool:
    """Whether an earlier command made this host what this one does not name."""
    return (not controller and is_installed("sentinel-daemon", root)) or (
        not node and is_installed("sentinel-agent", root)
    )


def _writes(choice: Choice, root: Path, controller: bool, node: bool, other: bool) -> list[host.Write]:
    files = [*(controller_files(choice) if controller else ()), *(node_files(choice) if node else ())]
    if other and controller:  # the agent keeps its state elsewhere from now on
        files += [file for file in node_files(choice) if file.path.endswith((".service", "/agent.toml"))]
    found = host.writes(files, root)
    return [agent_beside_daemon(write) for write in found] if choice.both else found


def _slurm_conf_writes(path: Path | None, text: str, conf: SlurmConf) -> list[host.Write]:
    if path is None or conf.changed == text:
        return []
    kept = host.Write(Path(f"{path}.before-sentinel"), text, 0o644, "new", like=path)
    return [kept, host.Write(path, conf.changed, 0o644, "changed", like=path)]


def _choice(
    conf: SlurmConf,
    lines: Sequence[Line],
    root: Path,
    controller: bool,
    other: bool,
    node: bool,
    daemon_url: str | None,
    daemon_uid: int | None,
    account: str,
    resume: str,
) -> Choice:
    head = conf.get("SlurmctldHost") or conf.get("ControlMachine")
    where = head.partition("(")[0] or (socket.gethostname() if controller else "")
    if not daemon_url and not where:
        raise UserError("where does the daemon run?", fix=f"name it: --daemon http://HOST:{PORT}")
    if resume and not resume.startswith("/"):
        raise UserError(f"--resume {resume!r} is not absolute", fix="write the path from /")
    known, slurm = account_of(account, root), account_of(slurm_user(conf), root)
    return Choice(
        program=_program(),
        python=sys.executable,
        account=account,
        slurm_user=slurm_user(conf),
        daemon_url=daemon_url or f"http://{where}:{PORT}",
        daemon_uid=daemon_uid if daemon_uid is not None else known.uid if known else None,
        group=known.group if known else "",
        daemon_gid=known.gid if known else -1,
        slurm_uid=slurm.uid if slurm else None,
        resume=resume,
        writable=writable_folders(root) if controller else (),
        prolog_folder=hook_folder(lines, "Prolog", "prolog.d"),
        epilog_folder=hook_folder(lines, "Epilog", "epilog.d"),
        both=other or (controller and node),
    )


def _checked_url(urls: str) -> str:
    """The daemon's address as agents and hooks read it, of several daemons all: they are given it as it is written."""
    for url in urls.split(","):
        match = _URL.fullmatch(url)
        if not match or not 0 < int(match[1]) < 65536:
            raise UserError(
                f"--daemon {url!r:.80} is no address of a daemon",
                fix=f"write http://HOST:{PORT} or https://HOST:{PORT}, several separated by commas",
            )
    return ",".join(url.rstrip("/") for url in urls.split(","))


def _require_uid(uid: int | None) -> None:
    if uid is not None and not 0 <= uid <= _LAST_UID:
        raise UserError(f"--daemon-uid {uid} is no uid", fix="on the controller, `id -u sentinel` says it")


def _program() -> tuple[str, ...]:
    """How this Sentinel is started, with absolute paths: a unit has no PATH of an environment."""
    called = Path(sys.argv[0])
    if called.name == "sentinel" and called.is_file():
        return (str(called.absolute()),)
    return (sys.executable, "-m", "sentinel")


def _notes(choice: Choice, controller: bool, root: Path) -> list[str]:
    notes = []
    there, known = daemon_settings(root) if controller else None, account_of(choice.account, root)
    if controller and known and choice.daemon_uid != known.uid:
        notes.append(f"{choice.account} has uid {known.uid} here, not {choice.daemon_uid}, which --daemon-uid says")
    made_now = known is None and choice.daemon_uid is None and root == Path("/")
    unnamed = choice.daemon_uid and there and choice.daemon_uid not in (there.daemon.uid, *there.daemon.trusted_uids)
    if there and (made_now or unnamed):
        uid = f"`id -u {choice.account}`" if made_now else choice.daemon_uid
        notes.append(
            f"/etc/sentinel/sentinel.toml is kept as it is: write uid = {uid} under [daemon], or commands do not believe "
            "the daemon's answers"
        )
    if choice.daemon_uid is None and not controller:
        notes.append(
            f"the account {choice.account} is not known on this host: set trusted_uids in /etc/sentinel/agent.toml and "
            "SENTINEL_DAEMON_USER in hook.conf to its uid on the controller, or agent and hooks believe no answer of the "
            "daemon (--daemon-uid does it in new files)"
        )
    notes += two_roles(choice, root)
    if not choice.resume:
        notes.append("no --resume folder: restarted jobs are told no checkpoint, and resume as their script does")
    return notes


def _show(actions: host.Actions, root: Path) -> None:
    actions.require_inside(root)
    for line in actions.lines():
        echo(shown(line))


def _show_slurm_conf(path: Path | None, text: str, conf: SlurmConf, *, written: bool) -> None:
    if path is None:
        echo("slurm.conf was not found here. It needs these lines:")
        lines: Sequence[str] = conf.changed.splitlines()
    else:
        lines = host.difference(text, conf.changed, str(path))
        if not lines:
            said = (
                "needs no change, files that it includes do: see the notes"
                if conf.elsewhere
                else "has all that Sentinel needs"
            )
            echo(f"{path} {said}.")
            return
        echo(f"{path} changes by:" if written else f"{path} needs these changes (--write-slurm-conf makes them):")
    for line in lines:
        echo(f"  {shown(line) if line else ''}")
    echo("Then: scontrol reconfigure; sentinel doctor")


def _do(actions: host.Actions, *, dry_run: bool, yes: bool, question: str) -> None:
    if dry_run:
        echo("Nothing was changed: --dry-run.")
        return
    if not yes:
        click.confirm(question, abort=True)
    actions.carry_out()
    echo("Done.")
