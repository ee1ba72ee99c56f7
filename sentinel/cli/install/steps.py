"""The commands of an installation: the account first, then the units, then what may fail. Each may be run again."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from sentinel.cli.install import host
from sentinel.cli.install.accounts import account_of, is_group
from sentinel.cli.install.files import EVENTS, REPORT_TIMER, UNITS, Choice
from sentinel.errors import SentinelError


def unit_names(controller: bool, node: bool) -> list[str]:
    return [*(["sentinel-daemon"] if controller else []), *(["sentinel-agent"] if node else [])]


def add_commands(actions: host.Actions, choice: Choice, root: Path, *, controller: bool, units: list[str]) -> None:
    """Commands around the files: the account first, the units, then what may fail without harm. For an image none is run,
    and what is left to enable in it is said."""
    started = [*(f"{unit}.service" for unit in units), *([REPORT_TIMER] if controller else [])]
    if root != Path("/"):
        if left := [unit for unit in started if not enabled(unit, root)]:
            command = f"systemctl --root={shlex.quote(str(root))} enable {' '.join(left)}"
            actions.notes.append(f"no command is run for an image: its hosts start what is enabled in it, {command}")
        return
    if controller and account_of(choice.account) is None:
        uid = [] if choice.daemon_uid is None else ["--uid", str(choice.daemon_uid)]
        actions.before.append(
            ["useradd", "--system", *uid, *_group_option(choice.account), "--home-dir", "/var/lib/sentinel",
             "--no-create-home", "--shell", "/usr/sbin/nologin", choice.account]
        )  # fmt: skip
    if controller:
        actions.after.append(["install", "-d", "-m", "2770", "-o", choice.slurm_user, "-g", choice.group_name, EVENTS])
    if controller and choice.resume and _makes_resume_folder(choice):
        actions.after.append(["install", "-d", "-m", "755", "-o", choice.account, choice.resume])
    if host.has_systemd():
        actions.after += [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", *units],
            ["systemctl", "restart", *units],
            *([["systemctl", "enable", "--now", REPORT_TIMER]] if controller else []),
        ]
    else:
        command = f"systemctl enable {' '.join(started)}"
        actions.notes.append(f"systemd does not run here: {command}, if this boots with it; else start these yourself")
    if controller and choice.account not in (choice.slurm_user, "root"):
        _right(actions, choice.account)


def enabled(unit: str, root: Path) -> list[Path]:
    """The links that start a unit of an image; they lead to what is at that place only in there."""
    places = [wants / unit for wants in host.below(root, UNITS).glob("*.wants")]
    return [place for place in places if place.is_symlink()]


def _group_option(account: str) -> list[str]:
    """``useradd`` does not make a group that is there."""
    return ["--gid", account] if is_group(account) else ["--user-group"]


def _makes_resume_folder(choice: Choice) -> bool:
    """Not where it is the daemon's already: on a file system that gives root no rights, it cannot be made once more."""
    folder = Path(choice.resume)
    if folder.is_dir() and folder.stat().st_uid == choice.daemon_uid and not folder.stat().st_mode & 0o022:
        return False
    return folder.parent.is_dir()


def _right(actions: host.Actions, account: str) -> None:
    """The account's right in Slurm, if it does not have it. Last: without slurmdbd the daemon runs all the same."""
    from sentinel.adapters.slurm.conf import admin_level, administrator_command
    from sentinel.config.settings import Slurm

    try:
        level = asyncio.run(admin_level(Slurm(), account))
    except SentinelError as error:  # also of a Slurm without slurmdbd, in which only SlurmUser may drain
        actions.notes.append(
            f"whether {account} may drain and requeue is not known: {error.message}. See `sentinel doctor`"
        )
        return
    if level != "Administrator":
        actions.after.append(administrator_command(account, level))
