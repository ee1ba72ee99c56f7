"""Mail, held to a real SMTP server (aiosmtpd): one thread for an incident, no markup, and what the server's answers mean."""

from __future__ import annotations

import contextlib
import dataclasses
import email
import email.policy
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from made_records import AT
from servers.ports import free_ports

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.mail import Mail, MailServer, own_name
from sentinel.adapters.notify.wording import Wording
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Delivery, Notice

controller = pytest.importorskip("aiosmtpd.controller", reason="optional: aiosmtpd is not installed")


class Box:
    """Takes mail, or answers ``says``."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.says = "250 OK"
        self.full: dict[str, str] = {}  # by address: what it answers to that one
        self.quits = "221 bye"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.full:
            return self.full[address]
        envelope.rcpt_tos.append(address)
        return self.says

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:
        return self.quits

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.got.append((envelope.rcpt_tos, message))
        return "250 OK"


@pytest.fixture
def box() -> Iterator[tuple[Box, MailServer]]:
    made = Box()
    (port,) = free_ports(1)
    server = controller.Controller(made, hostname="127.0.0.1", port=port, ready_timeout=60.0)
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.stop)
        yield made, MailServer("127.0.0.1", port, sender="sentinel@alps.example")


@pytest.fixture
def threads() -> DeliveryThreads:
    return DeliveryThreads()


def notice(number: int = 1, **data: Any) -> Notice:
    text = "A GPU fell off the bus.\nSeen: see https://evil.example <b>@all</b>"
    given = {"operator_text": text, "owner_text": "Yours runs again.", "user": "ada", **data}
    return Notice(f"note{number}", "inc1", AT, "job 8801: gpu_fallen_off_bus", "body", given)


def mail(server: MailServer, to: list[str], threads: Any, audience: str = "operators") -> Mail:
    return Mail(server, to, Wording(audience), name="ops", deadline_s=60.0, threads=threads)


async def test_messages_of_an_incident_are_one_thread(box: Any, threads: Any) -> None:
    there, server = box
    made = mail(server, ["ops@alps.example", "eve@alps.example"], threads)
    await made.send(notice(1))
    await made.send(notice(2))
    (to, first), (_, second) = there.got
    assert to == ["ops@alps.example", "eve@alps.example"] and first["From"] == "sentinel@alps.example"
    assert first["Subject"] == "[Sentinel] job 8801: gpu_fallen_off_bus"
    assert first["References"] == second["References"] == "<incident.inc1@alps.example>"
    assert first["Message-ID"] != second["Message-ID"] and first["Auto-Submitted"] == "auto-generated"


async def test_it_is_plain_text_without_links(box: Any, threads: Any) -> None:
    there, server = box
    await mail(server, ["ops@alps.example"], threads).send(notice())
    ((_, message),) = there.got
    assert message.get_content_type() == "text/plain"
    text = message.get_content()
    assert "A GPU fell off the bus." in text and "https:" not in text and "@" not in text and "<" not in text


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("=?utf-8?q?=0AReply-To:_eve=0A?=", "= ?utf-8?q?=0AReply-To:_eve=0A?="),
        ("=?utf-8?q?=0A=0AA_body?=", "= ?utf-8?q?=0A=0AA_body?="),
        ("==??us-ascii?q?=E9?= é", "== ??us-ascii?q?=E9?= é"),
        ("=?utf-8?b?YQ?= =?utf-8?b?YQ?=", "= ?utf-8?b?YQ?= = ?utf-8?b?YQ?="),
    ],
)
async def test_text_of_users_in_the_title_is_text_and_no_encoded_header(
    box: Any, threads: Any, named: str, shown: str
) -> None:
    """As a site's template makes it, with the name of a user's job."""
    there, server = box
    wording = Wording("owners", template="${owner_text}\nIt failed.")
    made = Mail(server, ["ops@alps.example"], wording, name="ops", deadline_s=60.0, threads=threads)
    await made.send(notice(owner_text=f"job {named} failed"))
    ((_, message),) = there.got
    assert message["Subject"] == f"[Sentinel] job {shown} failed" and message.get_content().strip() == "It failed."
    assert "Reply-To" not in message and message["Auto-Submitted"] == "auto-generated"


async def test_owner_gets_his_own_text(box: Any, threads: Any) -> None:
    there, server = box
    await mail(server, ["{user}@alps.example"], threads, "owners").send(notice())
    ((to, message),) = there.got
    assert to == ["ada@alps.example"] and message.get_content().strip() == "Yours runs again."


@pytest.mark.parametrize("user", ["", "a b", "x@evil.example,", "a\r\nBcc: eve@evil.example", "-x", "ü"])
async def test_account_that_cannot_stand_in_an_address(box: Any, threads: Any, user: str) -> None:
    there, server = box
    with pytest.raises(Refused, match="cannot stand in an address"):
        await mail(server, ["{user}@alps.example"], threads, "owners").send(notice(user=user))
    assert there.got == []


@pytest.mark.parametrize(("says", "kind"), [("451 try later", Unavailable), ("550 no such user", Refused)])
async def test_what_the_server_answers_decides_about_another_try(
    box: Any, threads: Any, says: str, kind: type[Exception]
) -> None:
    there, server = box
    there.says = says
    with pytest.raises(kind, match=says[:3]) as caught:
        await mail(server, ["ops@alps.example"], threads).send(notice())
    assert type(caught.value) is kind


async def test_server_without_the_encryption_that_is_asked_for_gets_nothing(box: Any, threads: Any) -> None:
    there, server = box
    safe = MailServer(server.host, server.port, "starttls", server.sender)
    with pytest.raises(Refused, match="STARTTLS"):
        await mail(safe, ["ops@alps.example"], threads).send(notice())
    assert there.got == []


async def test_server_that_is_not_there(threads: Any) -> None:
    with pytest.raises(Unavailable):
        await mail(MailServer("127.0.0.1", 9), ["ops@alps.example"], threads).send(notice())


async def test_the_name_of_this_host_is_looked_up_once_and_not_on_the_event_loop(
    box: Any, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no name server answers that takes half a minute; users' channels are made anew for each message."""
    there, server = box
    looked_up: list[str] = []

    def getfqdn(name: str = "") -> str:
        looked_up.append(threading.current_thread().name)
        return "ctl.alps.example"

    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    own_name.cache_clear()
    for number in (1, 2):
        await mail(MailServer(server.host, server.port), ["ops@alps.example"], threads).send(notice(number))
    assert [message["From"] for _, message in there.got] == ["sentinel@ctl.alps.example"] * 2
    assert there.got[0][1]["References"] == "<incident.inc1@ctl.alps.example>"
    ours = [name for name in looked_up if not name.startswith("Thread-")]  # the SMTP server asks, too
    assert len(ours) == 1 and ours[0].startswith("alerts")
    own_name.cache_clear()


def test_a_server_that_trickles_is_left_at_the_deadline(threads: Any) -> None:
    over = threading.Event()

    def trickle() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            while not over.wait(0.01):
                connection.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        to = MailServer("127.0.0.1", server.getsockname()[1], sender="s@alps.example")
        made = Mail(to, ["ops@alps.example"], Wording("operators"), name="ops", deadline_s=0.05, threads=threads)
        with pytest.raises(Unavailable):
            made.deliver(made.mail_of(notice()))
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        ({"eve": "452 mailbox full"}, Unavailable, "452 'mailbox full' for eve@"),
        ({"eve": "550 no such user"}, Refused, "550 'no such user' for eve@"),
        ({"bob": "550 no such user", "eve": "452 mailbox full"}, Unavailable, "452"),
    ],
)
async def test_who_took_a_mail_gets_it_once_whatever_the_others_do(
    box: Any, threads: Any, answers: dict[str, str], kind: type[Exception], said: str
) -> None:
    there, server = box
    there.full = {f"{name}@alps.example": text for name, text in answers.items()}
    made = mail(server, ["bob@alps.example", "ops@alps.example", "eve@alps.example"], threads)
    with pytest.raises(kind, match=said) as caught:
        await made.send(notice())
    took: tuple[str, ...] = caught.value.took  # type: ignore[attr-defined]
    there.full = {}
    await made.send(dataclasses.replace(notice(), delivery=Delivery(1, took=took)))
    everybody = sorted(address for to, _ in there.got for address in to)
    assert everybody == ["bob@alps.example", "eve@alps.example", "ops@alps.example"]
    assert len({(message["Message-ID"], message["To"]) for _, message in there.got}) == 1


async def test_what_the_server_says_to_the_farewell_is_not_about_the_mail(box: Any, threads: Any) -> None:
    there, server = box
    there.quits = "421 too busy"
    await mail(server, ["ops@alps.example"], threads).send(notice())
    assert len(there.got) == 1


class Scans:
    """A server that reads a mail to its end and answers when it may, or never."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self.socket.accept()
        with connection, connection.makefile("rwb", 0) as lines, contextlib.suppress(OSError):
            lines.write(b"220 here\r\n")
            while line := lines.readline():
                if line.upper().startswith(b"DATA"):
                    lines.write(b"354 go on\r\n")
                    while lines.readline().strip() != b".":
                        pass
                    self.may.wait(60.0)
                lines.write(b"250 ok\r\n")

    def __enter__(self) -> Scans:
        return self

    def __exit__(self, *_: object) -> None:
        self.may.set()
        self.socket.close()
        self.thread.join()

    def mail(self, deadline_s: float, accept_s: float, threads: Any) -> Mail:
        server = MailServer("127.0.0.1", self.socket.getsockname()[1], sender="s@alps.example", accept_s=accept_s)
        to = ["ops@alps.example"]
        return Mail(server, to, Wording("operators"), name="ops", deadline_s=deadline_s, threads=threads)


async def test_a_mail_that_may_have_been_taken_is_told_from_one_that_was_not(threads: Any) -> None:
    with Scans() as server:
        with pytest.raises(Unavailable, match="it may have taken it") as caught:
            await server.mail(60.0, 0.05, threads).send(notice())
    assert caught.value.unsure
    with pytest.raises(Unavailable) as other:
        await mail(MailServer("127.0.0.1", 9), ["ops@alps.example"], threads).send(notice())
    assert not other.value.unsure


def _serves_until(listener: socket.socket, verb: bytes, last: bytes) -> None:
    """One connection: answers as it should until this command (CONTENT: the whole mail), then with this, and closes."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb", 0) as lines, contextlib.suppress(OSError):
        heard, now = b"GREETING", b"220 here\r\n"
        while heard != verb:
            lines.write(now)
            if heard == b"DATA":
                while lines.readline().strip() != b".":
                    pass
                heard, now = b"CONTENT", b"250 ok\r\n"
            else:
                heard = lines.readline()[:4].strip().upper()
                now = b"354 go on\r\n" if heard == b"DATA" else b"250 ok\r\n"
        lines.write(last)
        connection.shutdown(socket.SHUT_WR)
        lines.read()  # its end: else what was not read yet resets the connection


@pytest.mark.parametrize(
    ("verb", "last", "unsure"),
    [
        (b"GREETING", b"22", False),
        (b"MAIL", b"2", False),
        (b"RCPT", b"25", False),
        (b"RCPT", b"550 no such", False),
        (b"DATA", b"35", False),
        (b"CONTENT", b"25", True),
        (b"CONTENT", b"", True),
        (b"CONTENT", b"250 o", True),
        (b"CONTENT", b"55", True),
        (b"CONTENT", b"2xx what\r\n", True),
    ],
)
async def test_half_an_answer_is_none(threads: Any, verb: bytes, last: bytes, unsure: bool) -> None:
    """Of a server, or a balancer before it, that is stopped in the middle of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serves_until, args=(listener, verb, last))
        thread.start()
        server = MailServer("127.0.0.1", listener.getsockname()[1], sender="s@alps.example")
        with pytest.raises(Unavailable) as caught:
            await mail(server, ["ops@alps.example"], threads).send(notice())
        thread.join()
    assert caught.value.unsure is unsure


async def test_a_server_may_scan_a_mail_for_longer_than_it_takes_to_answer_otherwise(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of the content's answer is its own: by the sockets, which no test has to wait for."""
    given: list[float | None] = []

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            given.append(value)
            super().settimeout(value)

    with Scans() as server:
        server.may.set()
        monkeypatch.setattr(socket, "socket", Watched)
        await server.mail(30.0, 600.0, threads).send(notice())
    assert given.index(600.0) > given.index(30.0), "after the commands"
