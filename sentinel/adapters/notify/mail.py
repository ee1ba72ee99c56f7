"""Mail by SMTP, as plain text: the messages of an incident are one thread in a mail program (References)."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime, getaddresses
from functools import cache
from typing import Any, BinaryIO

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.turns import urgency_of
from sentinel.adapters.notify.wording import Wording
from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model.records import Notice
from sentinel.text import plain

_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")  # what may stand before the @ unquoted
_EXCHANGES = 8  # of one mail: greeting, EHLO, STARTTLS, AUTH, MAIL, RCPT, DATA, QUIT; its content has its own deadline


@dataclass(frozen=True, slots=True)
class MailServer:
    host: str
    port: int
    security: str = "none"  # none, starttls, tls
    sender: str = ""
    user: str = ""
    password: str = ""
    accept_s: float = 60.0  # until it says whether it has taken a mail


@cache
def own_name() -> str:
    """This host's full name. Blocking, once: without an answer of a name server for up to half a minute."""
    return socket.getfqdn()


def _header(text: str) -> str:
    """Text for a header. What begins as an encoded word (RFC 2047) would be decoded when it is set: to line breaks, behind
    which are headers and a body of the user's choice, or to what cannot be sent."""
    return text.replace("=?", "= ?")


class _Deadline:
    """Ends what waits for the server: one that sends a byte now and then never runs into a socket's deadline."""

    def __init__(self, within_s: float) -> None:
        self.opened: list[_Plain] = []
        self.late = threading.Event()
        self._timer = threading.Timer(within_s, self._shut_down)
        self._start()

    def begin(self, within_s: float) -> None:
        """Count anew: from now on there is so much time."""
        self.end()
        self._timer = threading.Timer(within_s, self._shut_down)
        self._start()

    def end(self) -> None:
        self._timer.cancel()

    def _start(self) -> None:
        self._timer.daemon = True
        self._timer.start()

    def _shut_down(self) -> None:
        self.late.set()
        for server in self.opened:
            if server.sock is not None:
                with suppress(OSError):
                    server.sock.shutdown(socket.SHUT_RDWR)

    @property
    def content_sent(self) -> bool:
        """Whether a mail was sent to its end: the server may have taken it, whatever is heard then."""
        return any(server.content_sent for server in self.opened)


class _WholeLines:
    """What the server says, line by line. Half a line is the end of it: smtplib would take that for an answer."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readline(self, most: int) -> bytes:
        line = self._file.readline(most)
        return line if line.endswith(b"\n") or len(line) >= most else b""

    def close(self) -> None:
        self._file.close()


class _Plain(smtplib.SMTP):
    content_sent = False

    def __init__(self, deadline: _Deadline, accept_s: float, *arguments: Any, **named: Any) -> None:
        deadline.opened.append(self)
        self._deadline, self._accept_s = deadline, accept_s
        super().__init__(*arguments, **named)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _WholeLines(self.sock.makefile("rb"))
        return super().getreply()

    def send(self, s: Any) -> None:
        super().send(s)
        if isinstance(s, bytes) and self.sock is not None:  # commands are text
            self.content_sent = True
            self.sock.settimeout(self._accept_s)
            self._deadline.begin(self._accept_s)


class _Tls(_Plain, smtplib.SMTP_SSL):
    pass


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
            deadline_s: of each answer of the server but the last; a whole delivery has eight times as much, and
                ``server.accept_s``.
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
            most_s = self._deadline_s * (_EXCHANGES + 1) + self._server.accept_s
            await self._threads.call(self._turn, most_s, self._send, notice, urgency=urgency_of(notice))
        except TimeoutError as error:
            raise Timeout(f"channel {self.name}: the mail server did not answer in time") from error

    def _send(self, notice: Notice) -> None:
        mail = self.mail_of(notice)
        to = [address for _, address in getaddresses([mail["To"]])]
        took = [address for address in to if address in notice.delivery.took]
        if len(took) < len(to):
            self.deliver(mail, [address for address in to if address not in took])

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
        mail["Subject"] = _header(plain(escaped(f"[Sentinel] {title}", Markup.PLAIN)))
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

    def deliver(self, mail: EmailMessage, to: Sequence[str] | None = None) -> None:
        """Send a mail through the server. Blocking.

        Args:
            to: addresses; None: those in its header.

        Raises:
            Refused: the server takes it never. Unavailable: it may take it later. ``took``: who has it all the same.
                ``unsure``: the server had all of it, and did not say whether it takes it.
        """
        deadline = _Deadline(self._deadline_s * _EXCHANGES)
        try:
            self._exchange(mail, to or [address for _, address in getaddresses([mail["To"]])], deadline)
        finally:
            deadline.end()

    def _silent(self, deadline: _Deadline, error: Unavailable) -> Unavailable:
        """The error, as one of this channel's, that says whether the mail may have been taken."""
        error.unsure = deadline.content_sent
        said = " after the whole mail: it may have taken it" if error.unsure else ""
        error.message = f"channel {self.name}: {error.message}{said}"
        return error

    def _exchange(self, mail: EmailMessage, to: Sequence[str], deadline: _Deadline) -> None:
        """As ``deliver``, without its deadline."""
        try:
            server = self._connected(deadline)
            try:
                refused = server.send_message(mail, to_addrs=to)
            finally:
                self._end(server)
        except smtplib.SMTPRecipientsRefused as error:
            self._refused(error.recipients, ())
        except smtplib.SMTPResponseException as error:
            if deadline.content_sent and not 400 <= error.smtp_code < 600:  # it does not say that it was not taken
                what = Unavailable(f"{self._server.host} answered what is no answer")
                raise self._silent(deadline, what) from error
            self._answered(error.smtp_code, error.smtp_error)
        except (smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError) as error:
            fix = "correct [alerts.mail] security and server"
            raise Refused(f"channel {self.name}: {self._server.host}: {error!s:.200}", fix=fix) from error
        except (OSError, smtplib.SMTPException) as error:
            if deadline.late.is_set():
                raise self._silent(deadline, Timeout("the mail server did not answer in time")) from error
            raise self._silent(deadline, Unavailable(f"{self._server.host}: {error!s:.200}")) from error
        else:
            self._refused(refused, tuple(address for address in to if address not in refused))

    def _end(self, server: _Plain) -> None:
        """Take leave. What becomes of that says nothing about the mail."""
        with suppress(OSError, smtplib.SMTPException):
            if server.sock is not None:
                server.sock.settimeout(self._deadline_s)
                server.quit()
        server.close()

    def _refused(self, refused: Mapping[str, tuple[int, bytes]], took: tuple[str, ...]) -> None:
        """Raises as ``_answered`` if addresses were refused: as for one that may be taken later, if there is one."""
        for address, (code, text) in sorted(refused.items(), key=lambda one: not 400 <= one[1][0] < 500):
            try:
                self._answered(code, text, f" for {plain(address)}")
            except (Unavailable, Refused) as error:
                error.took = took
                raise

    def _connected(self, deadline: _Deadline) -> _Plain:
        server, deadline_s, address = self._server, self._deadline_s, (self._server.host, self._server.port)
        name = own_name() if "." in own_name() else None  # smtplib would look it up for each mail
        if server.security == "tls":
            context = ssl.create_default_context()
            made: _Plain = _Tls(deadline, server.accept_s, *address, name, timeout=deadline_s, context=context)
        else:
            made = _Plain(deadline, server.accept_s, *address, name, timeout=deadline_s)
        try:
            if server.security == "starttls":
                made.starttls(context=ssl.create_default_context())
            if server.user:
                made.login(server.user, server.password)
        except BaseException:
            made.close()
            raise
        return made

    def _answered(self, code: int, text: bytes | str, about: str = "") -> None:
        """
        Raises:
            Unavailable: a transient answer (4xx).
            Refused: a lasting one.
        """
        words = text.decode(errors="replace") if isinstance(text, bytes) else text
        message = f"channel {self.name}: the mail server answered {code} {plain(words)!r:.200}{about}"
        if 400 <= code < 500:
            raise Unavailable(message)
        raise Refused(message, fix="correct [alerts.mail], or the addresses of the channel")
