"""How commands find the settings and ask the daemon."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sentinel.errors import Unavailable, UserError

if TYPE_CHECKING:  # commands that ask no daemon do not pay for the settings
    from sentinel.config.settings import Daemon, Settings

DEADLINE_S = 15.0  # of one answer: a listing of a large cluster takes seconds
_FIND_S = 2.0  # for each of several daemons to say whether it is the active one
CONFIG = "/etc/sentinel/sentinel.toml"
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

    url = os.environ.get("SENTINEL_URL")
    if url and not config.exists():
        return Settings(daemon=_daemon_of_environment(url))
    return load(config, Settings)


def _daemon_of_environment(url: str) -> Daemon:
    from sentinel.config.settings import Daemon

    given = os.environ.get
    uid, wire = (
        given("SENTINEL_DAEMON_USER", "0"),
        given("SENTINEL_WIRE", "tls" if url.startswith("https:") else "clear"),
    )
    if not uid.isdecimal():
        try:
            uid = str(pwd.getpwnam(uid).pw_uid)
        except KeyError as error:
            raise UserError(f"SENTINEL_DAEMON_USER: no account {uid!r:.40} here", fix="write its uid") from error
    return Daemon(
        url=url, munge_socket=given("SENTINEL_MUNGE_SOCKET", ""), wire=wire, ca_file=given("SENTINEL_CA_FILE", ""),
        uid=int(uid),
    )  # fmt: skip


def ask(config: Path, path: str, body: Mapping[str, object], *, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """One signed request to the daemon."""
    from sentinel.adapters.client import DaemonClient
    from sentinel.adapters.munge import Munge

    settings = settings_of(config)
    client = DaemonClient(
        settings.daemon.url,
        Munge(settings.daemon.munge_socket),
        trusted_uids=settings.daemon.trusted_uids,
        deadline_s=deadline_s,
        wire=settings.daemon.wire,
        ca_file=settings.daemon.ca_file,
        daemon_uid=settings.daemon.uid,
    )
    try:
        client.find_active(_FIND_S)
        return client.post(path, body)
    except Unavailable as error:
        if not error.fix:
            error.fix = "is the daemon running? systemctl status sentinel-daemon; sentinel doctor"
        raise
    finally:
        client.close()


def view(config: Path, name: str, *, deadline_s: float = DEADLINE_S, **arguments: object) -> dict[str, Any]:
    from sentinel.protocol import VIEW

    return ask(config, VIEW, {"view": name, "arguments": arguments}, deadline_s=deadline_s)
