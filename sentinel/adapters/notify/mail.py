"""Mail by SMTP, as plain text: the messages of an incident are one thread in a mail program (References)."""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime
from functools import cache

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
        executor: Executor,
    ) -> None:
        """
        Args:
            to: addresses; ``{user}`` stands for the account of the job's owner.
            deadline_s: of each answer of the server.
        """
        self.name = name
        self._server = server
        self._to = tuple(to)
        self._wording = wording
        self._deadline_s = deadline_s
        self._executor = executor

    @property
    def sender(self) -> str:
        """The address in From. Blocking where the settings name none, see ``own_name``."""
        return self._server.sender or f"sentinel@{own_name()}"

    async def send(self, notice: Notice) -> None:
        loop = asyncio.get_running_loop()
        sending = loop.run_in_executor(self._executor, self._send, notice)
        try:
            await asyncio.wait_for(sending, self._deadline_s * _EXCHANGES)
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
        try:
            with self._connected() as server:
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

    def _connected(self) -> smtplib.SMTP:
        server, deadline_s = self._server, self._deadline_s
        name = own_name() if "." in own_name() else None  # smtplib would look it up for each mail
        if server.security == "tls":
            context = ssl.create_default_context()
            made: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, name, timeout=deadline_s, context=context)
        else:
            made = smtplib.SMTP(server.host, server.port, name, timeout=deadline_s)
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
