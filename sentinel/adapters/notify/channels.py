"""Builds the receivers of messages from the settings and the files that these name: addresses, keys, templates."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from sentinel.adapters.notify.alertmanager import Alertmanager
from sentinel.adapters.notify.chat import Chat
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.mail import Mail, MailServer
from sentinel.adapters.notify.webhook import Webhook
from sentinel.adapters.notify.wording import Wording, template_of
from sentinel.config.alerts import Alerts, Channel
from sentinel.errors import FileError, Unavailable, UserError
from sentinel.given_files import MadeOfFiles, opened
from sentinel.model.records import Notice
from sentinel.ports import Sink, StandingSink

_LEAST_KEY = 16  # bytes: a shorter one can be found by trying


def receivers(alerts: Alerts, threads: DeliveryThreads) -> list[Sink]:
    """One receiver for each webhook and channel, except those of kind ``users``, which need agents.

    Raises:
        FileError: a file that cannot be read, that others may read, or that does not hold what it should.
    """
    plain: list[Sink] = [Webhook(url, deadline_s=alerts.deadline_s, threads=threads) for url in alerts.webhooks]
    own = [(name, one) for name, one in alerts.channels.items() if one.kind != "users"]
    return plain + [_kept_up(name, one, alerts, threads) for name, one in own]


def _kept_up(name: str, settings: Channel, alerts: Alerts, threads: DeliveryThreads) -> Sink:
    """The receiver of one channel, whose secrets may be changed without a restart."""
    files = [settings.url_file, settings.authorization_file, settings.keys_file]
    files += [alerts.mail.password_file] if settings.kind == "mail" else []
    made = partial(channel, name, settings, alerts, threads)
    if not any(files):
        return made()
    kept = _KeptUpStanding if settings.kind == "alertmanager" else _KeptUp
    sink = MadeOfFiles(filter(None, files), made)
    return kept(name, partial(threads.call, f"files of {name}", alerts.deadline_s, sink.now))


class _KeptUp:
    """A channel that is made anew when one of its files has changed."""

    def __init__(self, name: str, made: Callable[[], Awaitable[Sink]]) -> None:
        self.name, self._made = name, made

    async def send(self, notice: Notice) -> None:
        await (await self._now()).send(notice)

    async def _now(self) -> Sink:
        try:
            return await self._made()
        except TimeoutError as error:
            raise Unavailable(f"channel {self.name}: its files cannot be read in time") from error
        except UserError as error:  # half of a change
            raise Unavailable(f"channel {self.name}: {error.message}", fix=error.fix) from error


class _KeptUpStanding(_KeptUp):
    async def repeat(self, notices: Sequence[Notice], now: datetime) -> None:
        """See ``sentinel.ports.StandingSink``."""
        sink = await self._now()
        if isinstance(sink, StandingSink):
            await sink.repeat(notices, now)


def channel(name: str, settings: Channel, alerts: Alerts, threads: DeliveryThreads, user: str = "") -> Sink:
    """The receiver of one channel; ``user``: whose own it is. Raises as ``receivers``."""
    own = f"{name} of {user}" if user else name
    key = f"alerts.channels.{name}"
    template = template_of(Path(settings.template)) if settings.template else ""
    wording = Wording(settings.audience, alerts.link, template)
    if settings.kind == "mail":
        return Mail(
            mail_server(alerts),
            settings.to,
            wording,
            name=name,
            deadline_s=alerts.deadline_s,
            threads=threads,
            turn=own,
        )
    url = settings.url or secret(Path(settings.url_file), f"{key}.url_file")
    authorization = ""
    if settings.authorization_file:
        authorization = secret(Path(settings.authorization_file), f"{key}.authorization_file")
        authorization = authorization if " " in authorization else f"Bearer {authorization}"
    made: dict[str, Callable[[], Sink]] = {
        "alertmanager": lambda: Alertmanager(
            url, name=name, deadline_s=alerts.deadline_s, authorization=authorization, link=alerts.link, threads=threads
        ),
        "webhook": lambda: Webhook(
            url, name=name, deadline_s=alerts.deadline_s, authorization=authorization,
            keys=_keys(Path(settings.keys_file), f"{key}.keys_file") if settings.keys_file else (),
            threads=threads, turn=own,
        ),
        "apprise": lambda: Chat(
            url, wording, name=name, deadline_s=alerts.deadline_s, threads=threads, turn=own
        ),
    }  # fmt: skip
    return made[settings.kind]()


def secret(path: Path, key: str) -> str:
    """Read a one-line secret from a file that only the daemon's account and its group may read.

    Raises:
        FileError: unreadable, readable by others, empty or of several lines.
    """
    lines = _lines(path, key)
    if len(lines) != 1 or not lines[0].isprintable():
        raise FileError(path, f"holds {len(lines)} lines", key=key, fix="write one line")
    return lines[0]


def _keys(path: Path, key: str) -> list[bytes]:
    lines = _lines(path, key)
    short = next((number for number, line in enumerate(lines, 1) if len(line.encode()) < _LEAST_KEY), None)
    if short is not None or not lines:
        message = f"a key has at least {_LEAST_KEY} characters" if lines else "holds no key"
        raise FileError(path, message, line=short, key=key, fix="write one key a line, e.g. from: openssl rand -hex 32")
    return [line.encode() for line in lines]


def _lines(path: Path, key: str) -> list[str]:
    try:
        with opened(path) as file:
            mode, text = file.status.st_mode, file.whole().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise FileError(path, f"cannot be read: {reason}", key=key, fix="create it for the daemon's account") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise FileError(path, "others may read it, and it holds a secret", key=key, fix=f"chmod 640 {path}")
    return [line.strip() for line in text.splitlines() if line.strip()]


def mail_server(alerts: Alerts) -> MailServer:
    """The server of ``[alerts.mail]``. Raises as ``receivers``."""
    mail = alerts.mail
    host, _, port = mail.server.rpartition(":")
    password = secret(Path(mail.password_file), "alerts.mail.password_file") if mail.password_file else ""
    return MailServer(host.strip("[]"), int(port), mail.security, mail.sender, mail.user, password, mail.accept_s)
