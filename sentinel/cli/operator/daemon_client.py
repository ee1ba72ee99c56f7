"""How commands find the settings and ask the daemon."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sentinel.errors import Denied, Unavailable, UserError

if TYPE_CHECKING:  # commands that ask no daemon do not pay for the settings
    from sentinel.config.settings import Daemon, Settings

DEADLINE_S = 15.0  # of one answer: a listing of a large cluster takes seconds
_FIND_S = 2.0  # for each of several daemons to say whether it is the active one
_TAKEOVER_S = 8.0  # for one of them to take over from one that does not answer
CONFIG = "/etc/sentinel/sentinel.toml"
HOOK_CONF = "/etc/sentinel/hook.conf"
F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="SENTINEL_CONFIG",
        default=CONFIG,
        show_default=True,
        show_envvar=True,
        help="The settings file.",
    )(command)


def settings_of(config: Path) -> Settings:
    """Settings for asking: a login node without the file needs only $SENTINEL_URL."""
    from sentinel.config.settings import Settings, load

    if _counts_environment(config):
        return Settings(daemon=_daemon_of_environment(os.environ["SENTINEL_URL"]))
    return load(config, Settings)


def _counts_environment(config: Path) -> bool:
    """Whether $SENTINEL_URL counts: where there is no settings file, or only the daemon may read it."""
    return bool(os.environ.get("SENTINEL_URL")) and not os.access(config, os.R_OK)


def _daemon_of_environment(url: str) -> Daemon:
    from sentinel.config.settings import Daemon

    given = os.environ.get
    uid, wire = (
        given("SENTINEL_DAEMON_USER", "0"),
        given("SENTINEL_WIRE", "tls" if url.startswith("https:") else "clear"),
    )
    return Daemon(
        url=url, munge_socket=given("SENTINEL_MUNGE_SOCKET", ""), wire=wire, ca_file=given("SENTINEL_CA_FILE", ""),
        uid=_uid_of(uid),
    )  # fmt: skip


def _uid_of(account: str) -> int:
    if account.isdecimal():
        return int(account)
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError as error:
        raise UserError(f"SENTINEL_DAEMON_USER: no account {account!r:.40} here", fix="write its uid") from error


def trusted_uids(config: Path, settings: Settings) -> set[int]:
    """The uids besides root's and our own that may answer for the daemon.

    They stand in a file that root wrote, or the asker: the settings, or the hooks' where there are none. Never in the
    environment alone, which may be that of a shared profile or of a job.
    """
    if not _counts_environment(config):
        return {settings.daemon.uid, *settings.daemon.trusted_uids} - {0} if _is_believed(config) else set()
    hooks = Path(HOOK_CONF)
    try:
        if not _is_believed(hooks):
            return set()
        lines = [line.partition("=") for line in hooks.read_text(encoding="utf-8", errors="replace").splitlines()]
        named = [value.strip("\"'") for name, _, value in lines if name == "SENTINEL_DAEMON_USER"]
        return {_uid_of(named[-1])} - {0} if named else set()
    except (OSError, UserError):  # another account's name may be unknown here: then its uid is
        return set()


def _is_believed(path: Path) -> bool:
    """Whether root or the asker decides what stands in the file: it is theirs, or lies where only root can put one."""
    status, folder = path.stat(), path.resolve().parent.stat()
    roots_folder = folder.st_uid == 0 and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not status.st_mode & stat.S_IWOTH and (status.st_uid in (0, os.getuid()) or roots_folder)


def ask(config: Path, path: str, body: Mapping[str, object], *, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """One signed request to the daemon."""
    from sentinel.adapters.client import DaemonClient
    from sentinel.adapters.munge import Munge
    from sentinel.protocol import CHANGE

    settings = settings_of(config)
    client = DaemonClient(
        settings.daemon.url,
        Munge(settings.daemon.munge_socket),
        trusted_uids=trusted_uids(config, settings),
        deadline_s=deadline_s,
        wire=settings.daemon.wire,
        ca_file=settings.daemon.ca_file,
        daemon_uid=settings.daemon.uid,
    )
    try:
        client.find_active(_FIND_S, _TAKEOVER_S)
        return client.post(path, body)
    except Denied as error:
        if error.signed:
            raise
        # Whoever answered had the request first, the daemon it may be.
        said = "; whether it was carried out is not known" if path == CHANGE else ""
        raise Denied(f"{error.message}{said}", fix=_trust_fix(config) or error.fix) from error
    except Unavailable as error:
        if not error.fix:
            error.fix = "is the daemon running? systemctl status sentinel-daemon; sentinel doctor"
        raise
    finally:
        client.close()


def _trust_fix(config: Path) -> str:
    """What keeps the uids that the settings name from counting; empty if nothing does."""
    if _counts_environment(config) or _is_believed(config):
        return ""
    return f"uids in {config} do not count: it must be root's or yours, and not writable by everybody"


def view(config: Path, name: str, *, deadline_s: float = DEADLINE_S, **arguments: object) -> dict[str, Any]:
    from sentinel.protocol import VIEW

    return ask(config, VIEW, {"view": name, "arguments": arguments}, deadline_s=deadline_s)
