"""What an earlier installation, or the site, left on this host: read before anything is planned."""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from sentinel.cli.install.files import (
    AGENT_STATE_BESIDE_DAEMON,
    EVENTS,
    REMOVED,
    SETTINGS,
    SLURM_CONF,
    STATE,
    UNITS,
    Choice,
    File,
)
from sentinel.cli.install.host import FOLDER_MODE, Actions, Write, below, writes
from sentinel.config.settings import Settings, load
from sentinel.errors import SentinelError


def daemon_settings(root: Path) -> Settings | None:
    """The daemon's settings of this host; None: there are none, or they cannot be read, which their own check says."""
    path = below(root, f"{SETTINGS}/sentinel.toml")
    try:
        return load(path, Settings) if path.exists() else None
    except SentinelError:
        return None


def writable_folders(root: Path) -> tuple[str, ...]:
    """The folders that the daemon of this host writes by its settings, except where its unit allows it in any case."""
    settings = daemon_settings(root)
    if settings is None:
        return ()
    named = (settings.daemon.resume, settings.daemon.events, settings.daemon.state)
    return tuple(folder for folder in named if folder and folder not in (EVENTS, STATE))


def unit_account(root: Path = Path("/")) -> str:
    """As whom the daemon's unit of this host or image runs it; empty: there is none, or it does not say it."""
    path = below(root, f"{UNITS}/sentinel-daemon.service")
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("User=") for line in reversed(lines) if line.startswith("User=")), "")


def recorded_slurm_conf(root: Path) -> Path | None:
    """The slurm.conf that the last installation was given; None: it lay where Slurm has it."""
    try:
        text = below(root, SLURM_CONF).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    place = next((line for line in text.splitlines() if line.startswith("/")), "")
    return below(root, place) if place else None


def slurm_conf_record(path: Path | None, root: Path, usual: Sequence[str]) -> list[Write]:
    """What an upgrade or a removal by the package, which are given no option, must know later: where slurm.conf lies."""
    if path is None or not path.is_relative_to(root.absolute()):
        return []
    place = f"/{path.relative_to(root.absolute())}"
    if place in usual and not below(root, SLURM_CONF).exists():
        return []
    text = f"# Written by `sentinel install`: the slurm.conf that names the hooks of this host.\n{place}\n"
    return writes([File(SLURM_CONF, text)], root)


_HERE = ("127.0.0.1", "::1", "localhost")  # an address on this host opens nothing to others


def holds_secrets(settings: Settings) -> bool:
    """Whether the settings hold addresses of webhooks, channels or tickets, or a password."""
    channels = (one.url for one in settings.alerts.channels.values())
    addresses = [*settings.alerts.webhooks, *channels, settings.returns.ticket_url]
    secret = any(address and urlsplit(address).hostname not in _HERE for address in addresses)
    return secret or any(sign in settings.daemon.database for sign in ("@", "password"))


def open_folders(actions: Actions, choice: Choice, root: Path) -> None:
    """Folders of ours that are there already, as an installation under a umask of 077 made them: their readers must enter
    them. What else keeps users from the TaskProlog is the site's, and told."""
    hooks, settings = below(root, f"{choice.slurm_etc}/sentinel"), below(root, SETTINGS)
    if hooks.is_dir() and (mode := _mode(hooks)) & 0o055 != 0o055:
        actions.modes.append((hooks, mode | FOLDER_MODE))
    if settings.is_dir() and not _mode(settings) & stat.S_IXOTH:
        # The folder may be what keeps secrets of its files from others.
        if _keeps_secrets(root):
            actions.notes.append(
                f"users cannot enter {settings} (mode {_mode(settings):o}), which may hold secrets: their commands and "
                "TaskProlog do not see what is set there. See `sentinel doctor`, then chmod 755"
            )
        else:
            actions.modes.append((settings, _mode(settings) | FOLDER_MODE))
    for folder in hooks.parents:
        if folder != root and folder.is_relative_to(root) and folder.is_dir() and not _mode(folder) & stat.S_IXOTH:
            actions.notes.append(
                f"users cannot enter {folder} (mode {_mode(folder):o}), and Slurm runs TaskProlog as them: chmod o+x"
            )


def _keeps_secrets(root: Path) -> bool:
    """Whether a settings file that others could read, if they could enter its folder, holds secrets, or might."""
    path = below(root, f"{SETTINGS}/sentinel.toml")
    if not path.exists() or not path.stat().st_mode & stat.S_IROTH:
        return False
    settings = daemon_settings(root)
    return settings is None or holds_secrets(settings)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def does_nothing(hook: Path) -> bool:
    """Whether uninstalling left it in the place of one of ours."""
    return hook.is_file() and REMOVED in hook.read_text(encoding="utf-8", errors="replace")


def is_installed(unit: str, root: Path) -> bool:
    return below(root, f"{UNITS}/{unit}.service").exists()


def agent_beside_daemon(write: Write) -> Write:
    """The settings of an agent that was here before the daemon: without a state folder of its own it does not start."""
    if write.path.name != "agent.toml" or write.state != "yours":
        return write
    text = write.path.read_text(encoding="utf-8", errors="surrogateescape")
    try:
        if "state" in tomllib.loads(text):
            return write
    except (ValueError, RecursionError):
        return write  # the agent says what is wrong with it
    line = f'state = "{AGENT_STATE_BESIDE_DAEMON}"   # /var/lib/sentinel is the daemon\'s, which runs here, too\n'
    return replace(write, text=line + text, state="changed", like=write.path)


def two_roles(choice: Choice, root: Path) -> list[str]:
    """What is told of a host that is controller and node, where its settings were there before."""
    path = below(root, f"{SETTINGS}/hook.conf")
    if not choice.both or not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if any(line.startswith("SENTINEL_EVENTS=") for line in lines):
        return []
    said = f"with SENTINEL_EVENTS={EVENTS} in it the end of a job is told without a process for each"
    return [f"{path} is kept as it is: {said}"]
