"""Mail by SMTP, as plain text: the messages of an incident are one thread in a mail program (References)."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime
from functools import cache
from typing import Any

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.wording import Wording
from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model.records import Notice
from sentinel.text import plain

_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")  # what may stand before the @ unquoted
_EXCHANGES = 8  # of one mail: greeting, EHLO, STARTTLS, AUTH, MAIL, RCPT, DATA, QUIT


@dataclass(frozen=True, slots=True)
class MailServer:
    host: str
    port: int
    security: str = "none"  # none, starttls, tls
    sender: str = ""
    user: str = ""
    password: str = ""


@cache
def own_name() -> str:
    """This host's full name. Blocking, once: without an answer of a name server for up to half a minute."""
    return socket.getfqdn()


class _Plain(smtplib.SMTP):
    def __init__(self, opened: list[smtplib.SMTP], *arguments: Any, **named: Any) -> None:
        opened.append(self)
        super().__init__(*arguments, **named)


class _Tls(smtplib.SMTP_SSL):
    def __init__(self, opened: list[smtplib.SMTP], *arguments: Any, **named: Any) -> None:
        opened.append(self)
        super().__init__(*arguments, **named)


def _shut_down(opened: list[smtplib.SMTP], late: threading.Event) -> None:
    """End what waits for the server: one that sends a byte now and then never runs into a socket's deadline."""
    late.set()
    for server in opened:
        if server.sock is not None:
            with suppress(OSError):
                server.sock.shutdown(socket.SHUT_RDWR)


class Mail:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(
        self,
        server: MailServer,
        to: Sequence[str],
        wording: Wording,
        *,
        name: str,
        deadline_s: float,
        threads: DeliveryThreads,
        turn: str = "",
    ) -> None:
        """
        Args:
            to: addresses; ``{user}`` stands for the account of the job's owner.
            deadline_s: of each answer of the server; a whole delivery has eight times as much.
            turn: with whose deliveries it takes turns; empty: with those of its name.
        """
        self.name = name
        self._server = server
        self._to = tuple(to)
        self._wording = wording
        self._deadline_s = deadline_s
        self._threads, self._turn = threads, turn or name

    @property
    def sender(self) -> str:
        """The address in From. Blocking where the settings name none, see ``own_name``."""
        return self._server.sender or f"sentinel@{own_name()}"

    async def send(self, notice: Notice) -> None:
        try:  # own_name() comes before the delivery, which ends by itself
            await self._threads.call(self._turn, self._deadline_s * (_EXCHANGES + 1), self._send, notice)
        except TimeoutError as error:
            raise Timeout(f"channel {self.name}: the mail server did not answer in time") from error

    def _send(self, notice: Notice) -> None:
        self.deliver(self.mail_of(notice))

    def mail_of(self, notice: Notice) -> EmailMessage:
        """Blocking, as ``sender``.

        Raises:
            Refused: the owner's account cannot stand in an address.
        """
        title, text = self._wording.of(notice)
        link = self._wording.link_of(notice)
        mail, sender = EmailMessage(), self.sender
        mail["From"] = sender
        mail["To"] = ", ".join(self._address(address, notice) for address in self._to)
        mail["Date"] = format_datetime(notice.at)
        mail["Subject"] = plain(escaped(f"[Sentinel] {title}", Markup.PLAIN))
        domain = sender.partition("@")[2]
        mail["Message-ID"] = f"<{notice.id}.{self.name}@{domain}>"
        if notice.incident:
            mail["References"] = mail["In-Reply-To"] = f"<incident.{notice.incident}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer by a machine
        mail["X-Auto-Response-Suppress"] = "All"
        shown = plain(escaped(text, Markup.PLAIN)) + (f"\n\n{link}" if link else "")
        mail.set_content(f"{shown}\n")
        return mail

    def _address(self, address: str, notice: Notice) -> str:
        if "{user}" not in address:
            return address
        user = str(notice.data.get("user") or "")
        if not _ACCOUNT.fullmatch(user):
            raise Refused(f"channel {self.name}: {user!r:.80} cannot stand in an address", fix="correct [alerts] to")
        return address.replace("{user}", user)

    def deliver(self, mail: EmailMessage) -> None:
        """Send a mail through the server. Blocking.

        Raises:
            Refused: the server takes it never. Unavailable: it may take it later.
        """
        opened: list[smtplib.SMTP] = []
        late = threading.Event()
        overdue = threading.Timer(self._deadline_s * _EXCHANGES, _shut_down, [opened, late])
        overdue.daemon = True
        overdue.start()
        try:
            self._exchange(mail, opened)
        except Refused:
            if late.is_set():  # the half of a line was taken for an answer
                raise Timeout(f"channel {self.name}: the mail server did not answer in time") from None
            raise
        finally:
            overdue.cancel()

    def _exchange(self, mail: EmailMessage, opened: list[smtplib.SMTP]) -> None:
        """As ``deliver``, without its deadline."""
        try:
            with self._connected(opened) as server:
                refused = server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            self._answered(*next(iter(error.recipients.values())))
        except smtplib.SMTPResponseException as error:
            self._answered(error.smtp_code, error.smtp_error)
        except (smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError) as error:
            fix = "correct [alerts.mail] security and server"
            raise Refused(f"channel {self.name}: {self._server.host}: {error!s:.200}", fix=fix) from error
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"channel {self.name}: {self._server.host}: {error!s:.200}") from error
        else:
            for code, text in refused.values():
                self._answered(code, text)

    def _connected(self, opened: list[smtplib.SMTP]) -> smtplib.SMTP:
        """``opened``: gets the connection before its first answer is awaited."""
        server, deadline_s = self._server, self._deadline_s
        name = own_name() if "." in own_name() else None  # smtplib would look it up for each mail
        if server.security == "tls":
            context = ssl.create_default_context()
            made: smtplib.SMTP = _Tls(opened, server.host, server.port, name, timeout=deadline_s, context=context)
        else:
            made = _Plain(opened, server.host, server.port, name, timeout=deadline_s)
        try:
            if server.security == "starttls":
                made.starttls(context=ssl.create_default_context())
            if server.user:
                made.login(server.user, server.password)
        except BaseException:
            made.close()
            raise
        return made

    def _answered(self, code: int, text: bytes | str) -> None:
        """
        Raises:
            Unavailable: a transient answer (4xx).
            Refused: a lasting one.
        """
        words = text.decode(errors="replace") if isinstance(text, bytes) else text
        message = f"channel {self.name}: the mail server answered {code} {plain(words)!r:.200}"
        if 400 <= code < 500:
            raise Unavailable(message)
        raise Refused(message, fix="correct [alerts.mail], or the addresses of the channel")
