"""Requests are signed, answers are checked before anybody acts on them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.ports import free_ports

from sentinel.adapters import client as client_module
from sentinel.adapters.client import DaemonClient
from sentinel.adapters.daemon_addresses import Addresses
from sentinel.errors import Denied, ProtocolError, Refused, StandingBy, Timeout, Unavailable, UserError
from sentinel.protocol import EVIDENCE, digest_of


class Wire(DaemonClient):
    """What would go over the network is answered by ``reply``."""

    def __init__(self, credentials: Any, reply: Any, **rest: Any) -> None:
        super().__init__("http://daemon:1", credentials, **rest)
        self.reply = reply
        self.sent: list[tuple[str, bytes, str]] = []

    def _exchange(self, path: str, content: bytes, credential: str, deadline_s: float) -> tuple[int, str, bytes]:
        self.sent.append((path, content, credential))
        answer: tuple[int, str, bytes] = self.reply(credential)
        return answer


def honest(signer: Any, status: int = 200, content: bytes = b'{"acknowledged":3}') -> Any:
    return lambda credential: (status, signer.encode(digest_of(credential, content)), content)


def test_a_request_is_signed_for_its_path_and_body(credentials: Any) -> None:
    wire = Wire(credentials(), honest(credentials()))
    assert wire.post(EVIDENCE, {"node": "n1"}) == {"acknowledged": 3}
    path, content, credential = wire.sent[0]
    assert credentials().decode(credential).payload == digest_of(path, content)
    assert json.loads(content) == {"node": "n1"}


def test_an_answer_of_another_user_is_not_the_daemons(credentials: Any) -> None:
    with pytest.raises(Denied, match="uid 4242"):
        Wire(credentials(), honest(credentials(4242))).post(EVIDENCE, {})
    assert Wire(credentials(), honest(credentials(4242)), trusted_uids=[4242]).post(EVIDENCE, {})


def test_an_answer_signed_for_another_request_is_refused(credentials: Any) -> None:
    def reply(_credential: str) -> tuple[int, str, bytes]:
        return 200, credentials().encode(digest_of("another", b"{}")), b"{}"

    with pytest.raises(Denied):
        Wire(credentials(), reply).post(EVIDENCE, {})


def test_an_answer_changed_on_its_way_is_refused(credentials: Any) -> None:
    def reply(credential: str) -> tuple[int, str, bytes]:
        return 200, credentials().encode(digest_of(credential, b'{"orders":[]}')), b'{"orders":[{"id":"x"}]}'

    with pytest.raises(Denied):
        Wire(credentials(), reply).post(EVIDENCE, {})


def test_an_answer_without_signature_is_refused(credentials: Any) -> None:
    with pytest.raises(Denied):
        Wire(credentials(), lambda _: (200, "", b"{}")).post(EVIDENCE, {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Denied),
        (403, Denied),
        (409, Refused),
        (422, UserError),
        (400, ProtocolError),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_error_statuses_are_errors_of_ours(credentials: Any, status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="because"):
        Wire(credentials(), lambda _: (status, "", b'{"error": "because"}')).post(EVIDENCE, {})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b"\xff"])
def test_an_answer_that_is_no_object_is_refused(credentials: Any, content: bytes) -> None:
    with pytest.raises(ProtocolError):
        Wire(credentials(), honest(credentials(), content=content)).post(EVIDENCE, {})


@pytest.mark.parametrize("url", ["", "daemon", "https://", "ftp://x"])
def test_an_address_that_is_none_is_refused(credentials: Any, url: str) -> None:
    with pytest.raises(UserError):
        DaemonClient(url, credentials())


@pytest.mark.parametrize("signer", [None, 4242, 0])
def test_a_refusal_is_the_daemons_own_only_with_its_signature(credentials: Any, signer: int | None) -> None:
    content = b'{"error": "too much"}'

    def reply(credential: str) -> tuple[int, str, bytes]:
        signed = "" if signer is None else credentials(signer).encode(digest_of(credential, content))
        return 413, signed, content

    with pytest.raises(ProtocolError, match="too much") as caught:
        Wire(credentials(), reply).post(EVIDENCE, {})
    assert caught.value.signed is (signer == 0)


# --- several daemons ---------------------------------------------------------------------------------------------------


class Daemons:
    """Daemons that listen on this host; each answers what it is set to: ``active``, ``standby``, or nothing at all."""

    def __init__(self, credentials: Callable[[], Any]) -> None:
        self._signer = credentials()
        self.states: list[str] = []
        self.asked: list[int] = []
        self.urls: list[str] = []
        self._sockets: list[socket.socket] = []
        self.closed = threading.Event()
        self.silent = threading.Semaphore(0)  # released when a request gets no answer

    def start(self, state: str) -> str:
        number, listens = len(self.states), socket.create_server(("127.0.0.1", 0))
        self.states.append(state)
        self.urls.append(f"http://127.0.0.1:{listens.getsockname()[1]}")
        self._sockets.append(listens)
        threading.Thread(target=self._accept, args=(number, listens), daemon=True).start()
        return self.urls[-1]

    def close(self) -> None:
        self.closed.set()
        for one in self._sockets:
            one.close()

    def _accept(self, number: int, listens: socket.socket) -> None:
        while True:
            try:
                connection, _ = listens.accept()
            except OSError:
                return
            self._sockets.append(connection)
            threading.Thread(target=self._serve, args=(number, connection), daemon=True).start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            stream = connection.makefile("rb")
            while first := stream.readline():
                headers = {}
                while (line := stream.readline().strip()) != b"":
                    name, _, value = line.decode().partition(": ")
                    headers[name.lower()] = value
                stream.read(int(headers.get("content-length", 0)))
                self._answer(number, connection, first, headers)
        except (OSError, ValueError):
            return

    def _answer(self, number: int, connection: socket.socket, first: bytes, headers: dict[str, str]) -> None:
        state = self.states[number]
        if first.startswith(b"GET"):
            said = b"ok\n" if state == "active" else b"standby\n"
            if state == "drips":
                self._drip(connection)
            elif state != "silent":
                self.states[number] = "active" if state == "takes over" else state
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
            return
        self.asked.append(number)
        if state == "silent":
            self.silent.release()
        elif state == "closes":
            connection.shutdown(socket.SHUT_RDWR)
        elif state == "stranger":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        elif state == "trouble":
            connection.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}")
        elif state == "drips":
            self._drip(connection)
        elif state == "standby":
            said = b'{"error": "standby: the active daemon is another"}'
            connection.sendall(b"HTTP/1.1 421 Misdirected\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
        else:
            mark = self._signer.encode(digest_of(headers["x-sentinel-munge"], b"{}"))
            head = f"HTTP/1.1 200 OK\r\nX-Sentinel-Munge: {mark}\r\nContent-Length: 2\r\n\r\n"
            connection.sendall(head.encode() + b"{}")

    def _drip(self, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not self.closed.wait(0.05):
            connection.sendall(b"A: b\r\n")


@pytest.fixture
def daemons(credentials: Any) -> Iterator[Daemons]:
    made = Daemons(credentials)
    yield made
    made.close()


def unused() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


def test_the_active_one_is_found_and_asked_from_then_on(daemons: Daemons, credentials: Any) -> None:
    urls = f"{unused()}, {daemons.start('standby')} ,{daemons.start('active')}"
    client = DaemonClient(urls, credentials())
    assert [client.post(EVIDENCE, {}), client.post(EVIDENCE, {})] == [{}, {}]
    assert daemons.asked == [0, 1, 1]
    client.close()


def test_where_none_is_active_the_answer_of_a_standby_is_told(daemons: Daemons, credentials: Any) -> None:
    client = DaemonClient(f"{daemons.start('standby')},{unused()}", credentials())
    with pytest.raises(StandingBy, match="the active daemon is another"):
        client.post(EVIDENCE, {})
    client.close()


def test_what_may_have_been_carried_out_is_not_sent_to_another(daemons: Daemons, credentials: Any) -> None:
    client = DaemonClient(f"{daemons.start('silent')},{daemons.start('active')}", credentials(), deadline_s=0.3)
    with pytest.raises(Timeout):
        client.post(EVIDENCE, {})
    assert daemons.asked == [0]
    client.deadline_s = 60.0
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [0, 1]
    client.close()


@pytest.mark.parametrize("state", ["stranger", "trouble", "closes", "drips"])
def test_whoever_else_answers_at_an_address_does_not_keep_a_node(
    daemons: Daemons, credentials: Any, state: str
) -> None:
    """The daemon there is away, and any account of its host may listen at the port."""
    client = DaemonClient(f"{daemons.start(state)},{daemons.start('active')}", credentials(), deadline_s=0.6)
    with pytest.raises(Unavailable):
        client.post(EVIDENCE, {})
    assert daemons.asked == [0], "it may have been handed on to the daemon: it is not sent again from here"
    client.deadline_s = 60.0
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [0, 1]
    client.close()


def test_who_ends_each_connection_does_not_keep_a_node(credentials: Any) -> None:
    """Before TLS is agreed nothing was sent: the next is asked at once."""
    asked: list[int] = []

    def close(number: int, listens: socket.socket) -> None:
        listens.accept()[0].close()
        asked.append(number)

    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        threads = [threading.Thread(target=close, args=item, daemon=True) for item in enumerate((one, other))]
        for thread in threads:
            thread.start()
        url = ",".join(f"https://127.0.0.1:{listens.getsockname()[1]}" for listens in (one, other))
        client = DaemonClient(url, credentials(), wire="tls")
        with pytest.raises(Unavailable):
            client.post(EVIDENCE, {})
        client.close()
        for thread in threads:
            thread.join(5)
    assert asked == [0, 1]


def test_a_commands_question_who_is_active_ends(daemons: Daemons, credentials: Any) -> None:
    client = DaemonClient(f"{daemons.start('drips')},{daemons.start('active')}", credentials())
    client.find_active(0.3)
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [1]
    client.close()


def test_one_that_was_silent_is_spared_while_another_stands_by(daemons: Daemons, credentials: Any) -> None:
    """A failover: the active one was stopped, and the other has not taken over yet."""
    client = DaemonClient(f"{daemons.start('silent')},{daemons.start('standby')}", credentials(), deadline_s=0.3)
    with pytest.raises(Timeout):
        client.post(EVIDENCE, {})
    client.deadline_s = 600.0
    for _ in range(3):
        with pytest.raises(StandingBy):
            client.post(EVIDENCE, {})
    daemons.states[1] = "active"
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [0, 1, 1, 1, 1]
    client.close()


def test_who_follows_leaves_a_long_poll_when_the_leader_moves(daemons: Daemons, credentials: Any) -> None:
    addresses = Addresses(f"{daemons.start('silent')},{daemons.start('active')}")
    leader = DaemonClient(addresses, credentials(), deadline_s=0.3)
    follower = DaemonClient(addresses, credentials(), leads=False, deadline_s=600.0)
    told: list[Exception] = []

    def poll() -> None:
        try:
            follower.post(EVIDENCE, {})
        except Unavailable as error:
            told.append(error)

    waits = threading.Thread(target=poll)
    waits.start()
    assert daemons.silent.acquire(timeout=60)
    with pytest.raises(Timeout):
        leader.post(EVIDENCE, {})
    waits.join(60)
    assert not waits.is_alive() and len(told) == 1
    assert follower.post(EVIDENCE, {}) == {} and follower.address == daemons.urls[1]
    follower.close()
    leader.close()


def test_a_follower_that_waits_in_vain_moves_nobody(daemons: Daemons, credentials: Any) -> None:
    addresses = Addresses(f"{daemons.start('silent')},{daemons.start('active')}")
    follower = DaemonClient(addresses, credentials(), leads=False, deadline_s=0.3)
    with pytest.raises(Timeout):
        follower.post(EVIDENCE, {})
    assert addresses.current == daemons.urls[0]
    follower.close()


def test_commands_ask_first_who_is_active(daemons: Daemons, credentials: Any) -> None:
    client = DaemonClient(
        f"{daemons.start('silent')},{daemons.start('standby')},{daemons.start('active')}", credentials()
    )
    client.find_active(0.3)
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [2]
    client.close()


def test_commands_wait_for_one_that_takes_over_from_one_that_is_frozen(
    daemons: Daemons, credentials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_TAKEOVER_PAUSE_S", 0.0)
    client = DaemonClient(f"{daemons.start('silent')},{daemons.start('takes over')}", credentials())
    client.find_active(0.3, 600.0)
    assert client.post(EVIDENCE, {}) == {} and daemons.asked == [1]
    client.close()


@pytest.mark.parametrize("states", [("standby", "standby"), ("silent", "silent")])
def test_commands_wait_for_no_takeover_where_none_is_due(
    daemons: Daemons, credentials: Any, states: tuple[str, str]
) -> None:
    """The database is away, or all daemons are."""
    client = DaemonClient(",".join(daemons.start(state) for state in states), credentials())
    client.find_active(0.3, 600.0)
    assert client.address == daemons.urls[0]
    client.close()


@pytest.mark.parametrize("url", ["http://a:1,", "http://a:1,ftp://b", "http://a:1,https://b:2"])
def test_each_of_several_addresses_must_be_one(credentials: Any, url: str) -> None:
    if url.endswith(","):
        assert Addresses(url).all == ["http://a:1"]
        return
    with pytest.raises(UserError):
        DaemonClient(url, credentials(), wire="clear")
