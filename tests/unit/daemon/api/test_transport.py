"""How requests and answers travel: by TLS, encrypted by MUNGE, or in clear; and who cannot read or slow them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from in_memory.server import NODE, OPERATOR, RESEARCHER, FakeCredentials, Served, serving
from in_memory.world import World
from servers.certificates import Authority, authority

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.adapters.encrypted_bodies import decrypted, encrypted
from sentinel.adapters.tls import ServerCertificate, certificate_ends
from sentinel.daemon.api import transport
from sentinel.errors import Denied, ProtocolError, Refused, Unavailable, UserError

PATIENCE_S = 20.0
STATUS = {"view": "status"}
BEAT = {"node": "n1"}
Worlds = Callable[..., World]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return authority(tmp_path_factory.mktemp("site"))


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))


async def asked(client: DaemonClient, path: str, body: dict[str, Any]) -> Any:
    try:
        return await in_thread(client.post, path, body)
    finally:
        client.close()


def address(served: Served) -> tuple[str, int]:
    return served.server.address


# --- bodies that MUNGE encrypts ----------------------------------------------------------------------------------------


@pytest.fixture
async def sealed(world: Worlds) -> AsyncIterator[Served]:
    async with serving(world(), wire="munge") as made:
        yield made


def sealing(served: Served, uid: int, daemon_uid: int = 0) -> DaemonClient:
    return DaemonClient(served.url, served.signers[uid], wire="munge", daemon_uid=daemon_uid)


async def test_encrypted_requests_of_nodes_and_people_are_answered(sealed: Served) -> None:
    assert "at" in await asked(sealing(sealed, NODE), protocol.HEARTBEAT, BEAT)
    assert (await asked(sealing(sealed, OPERATOR), protocol.VIEW, STATUS))["open_incidents"] == []
    with pytest.raises(Refused, match="n1 is not drained"):
        await asked(sealing(sealed, OPERATOR), protocol.CHANGE, {"change": "release", "arguments": {"node": "n1"}})
    with pytest.raises(UserError, match="no change") as caught:
        await asked(sealing(sealed, OPERATOR), protocol.CHANGE, {"change": "explode"})
    assert caught.value.signed


async def test_nothing_of_a_request_or_an_answer_is_on_the_wire_in_clear(sealed: Served) -> None:
    """The parts are for the receiver's uid alone; what FakeCredentials writes in base64, MUNGE encrypts."""
    signer = sealed.signers[OPERATOR]
    body = encrypted(signer, json.dumps(STATUS).encode(), 0)
    mark = signer.encode(protocol.digest_of(protocol.VIEW, body))
    headers = {protocol.HEADER: mark, "Content-Type": protocol.ENCRYPTED}
    for sent, status in ((body, 200), (b"x", 403)):
        mark = signer.encode(protocol.digest_of(protocol.VIEW, sent))
        async with sealed.session.post(
            sealed.url + protocol.VIEW, data=sent, headers=headers | {protocol.HEADER: mark}
        ) as answer:
            raw = await answer.read()
            assert answer.status == status and answer.headers[protocol.HEADER]
            parts = raw.decode().split("\n")
            assert all(part.split(":")[3] == str(OPERATOR) for part in parts)
            with pytest.raises(Denied, match="unauthorized"):
                decrypted(FakeCredentials(RESEARCHER), raw, 0, 1 << 20)


async def test_a_request_in_clear_is_refused_and_its_sender_keeps_what_it_has(sealed: Served) -> None:
    """Denied is no verdict about the message: an agent does not give it up."""
    with pytest.raises(Denied, match="in clear") as caught:
        await asked(DaemonClient(sealed.url, sealed.signers[NODE]), protocol.HEARTBEAT, BEAT)
    assert isinstance(caught.value, Unavailable)


async def test_a_request_for_another_uid_is_refused(sealed: Served) -> None:
    with pytest.raises(Denied, match="unauthorized"):
        await asked(sealing(sealed, NODE, daemon_uid=1234), protocol.HEARTBEAT, BEAT)


@pytest.mark.parametrize("wire", ["clear", "munge"])
async def test_a_daemon_takes_encrypted_requests_whatever_it_wants(world: Worlds, wire: str) -> None:
    """So that the agents change first, and the daemon last."""
    async with serving(world(), wire=wire) as served:
        assert "at" in await asked(sealing(served, NODE), protocol.HEARTBEAT, BEAT)


def part(uid: int, payload: bytes, to: int = 0) -> bytes:
    return FakeCredentials(uid).encrypt(payload, to).encode()


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], ProtocolError),
        ([b""], ProtocolError),
        ([part(NODE, b"{}")], ProtocolError),
        ([part(NODE, b"sentinel body 2/2\n{}")], ProtocolError),
        ([part(NODE, b"sentinel body 1/2\n{")], ProtocolError),
        ([part(NODE, b"sentinel body 2/2\n}"), part(NODE, b"sentinel body 1/2\n{")], ProtocolError),
        ([part(NODE, b"sentinel body 1/1\n{}"), b""], ProtocolError),
        ([part(OPERATOR, b"sentinel body 1/1\n{}")], Denied),
        ([part(NODE, b"sentinel body 1/1\n{}", to=5)], Denied),
        ([b"\xff\xfe"], Denied),
        ([b"x" * (1 << 21)], ProtocolError),
        ([part(NODE, b"sentinel body 1/1\n" + b"x" * 2000)], ProtocolError),  # packed: more than the request may have
    ],
)
def test_odd_encrypted_bodies(lines: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        decrypted(FakeCredentials(0), b"\n".join(lines), NODE, 1000)


def test_a_body_of_very_many_parts_costs_munged_nothing() -> None:
    credentials = FakeCredentials(0)
    lines = [part(NODE, b"sentinel body %d/100\n" % number) for number in range(1, 101)]
    with pytest.raises(ProtocolError, match="parts"):
        decrypted(credentials, b"\n".join(lines), NODE, 16 << 10)
    assert not credentials.used


@pytest.mark.parametrize(
    "length", [0, 1, protocol.PART_BYTES - 1, protocol.PART_BYTES, protocol.PART_BYTES + 1, 1 << 20]
)
def test_bodies_of_all_lengths(length: int) -> None:
    body = os.urandom(length)
    sent = encrypted(FakeCredentials(NODE), body, 0)
    assert decrypted(FakeCredentials(0), sent, NODE, length) == body
    assert len(sent) <= protocol.encrypted_bytes(length)


async def test_a_packed_body_takes_no_more_than_its_kind_may(sealed: Served) -> None:
    """MUNGE packs on request: a megabyte of zeros is a credential of a kilobyte."""
    signer = sealed.signers[RESEARCHER]
    body = encrypted(signer, b" " * (17 << 10), 0)
    headers = {
        protocol.HEADER: signer.encode(protocol.digest_of(protocol.VIEW, body)),
        "Content-Type": protocol.ENCRYPTED,
    }
    async with sealed.session.post(sealed.url + protocol.VIEW, data=body, headers=headers) as answer:
        assert answer.status in (400, 413)


# --- TLS ---------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def by_tls(world: Worlds, site: Authority, name: str = "daemon", **settings: Any) -> AsyncIterator[Served]:
    certificate, key = site.sign(name)
    async with serving(world(), wire="tls", certificate_file=certificate, key_file=key, **settings) as made:
        yield made


def secure(served: Served, uid: int, ca_file: str, host: str = "127.0.0.1") -> DaemonClient:
    return DaemonClient(f"https://{host}:{address(served)[1]}", served.signers[uid], wire="tls", ca_file=ca_file)


async def test_nodes_and_people_are_answered_by_tls(world: Worlds, site: Authority) -> None:
    async with by_tls(world, site) as served:
        client = secure(served, NODE, site.file)
        for _ in range(3):  # one connection
            assert "at" in await in_thread(client.post, protocol.HEARTBEAT, BEAT)
        assert len(served.server.connections) == 1
        client.close()
        seen = await asked(secure(served, OPERATOR, site.file, "localhost"), protocol.VIEW, STATUS)
        assert seen["open_incidents"] == []
        ends = await in_thread(certificate_ends, *address(served), site.file, 10.0)
        assert 28 < (ends.timestamp() - time.time()) / 86400 < 31


async def test_a_client_in_clear_gets_nothing_by_tls(world: Worlds, site: Authority) -> None:
    async with by_tls(world, site) as served:
        client = DaemonClient(served.url, served.signers[NODE])
        with pytest.raises(Unavailable):
            await asked(client, protocol.HEARTBEAT, BEAT)


async def test_a_certificate_of_another_authority_or_name_is_refused(
    world: Worlds, site: Authority, tmp_path: Path
) -> None:
    other = authority(tmp_path / "other")
    async with by_tls(world, site) as served:
        with pytest.raises(Unavailable, match="refused") as caught:
            await asked(secure(served, NODE, other.file), protocol.HEARTBEAT, BEAT)
        assert "ca_file" in caught.value.fix
        assert served.signers[NODE].made == 1  # signed, and never sent
    certificate, key = site.sign("elsewhere", where="DNS:another.host")
    async with serving(world(), wire="tls", certificate_file=certificate, key_file=key) as served:
        with pytest.raises(Unavailable, match="refused"):
            await asked(secure(served, NODE, site.file), protocol.HEARTBEAT, BEAT)


async def test_a_changed_certificate_is_taken_and_a_broken_one_is_not(
    world: Worlds, site: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = site.sign("renewed", days=5)
    made = ServerCertificate(certificate, key)
    first = made.context
    assert not made.reload() and made.context is first
    broken = Path(key).read_text()
    Path(key).write_text("no key")
    with pytest.raises(UserError, match="cannot be used"):
        made.reload()
    assert made.context is first and not made.reload()  # said once
    Path(key).write_text(broken)
    assert made.reload() and made.context is not first
    Path(key).unlink()
    with pytest.raises(UserError):
        made.reload()


async def test_a_running_daemon_takes_a_renewed_certificate(
    world: Worlds, site: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.daemon.api.transport._RENEW_S", 0.01)
    async with by_tls(world, site, "renewal") as served:
        before = await in_thread(certificate_ends, *address(served), site.file, 10.0)
        site.sign("renewal", days=300)
        async with asyncio.timeout(PATIENCE_S):
            while (now := await in_thread(certificate_ends, *address(served), site.file, 10.0)) == before:
                await asyncio.sleep(0)
        assert now > before


def test_what_is_no_certificate_is_an_error(tmp_path: Path, site: Authority) -> None:
    odd = tmp_path / "odd.pem"
    odd.write_text("rubbish")
    certificate, key = site.sign("one")
    other = site.sign("two")[1]
    for files in (("", ""), ("/nowhere", key), (str(odd), key), (certificate, str(odd)), (certificate, other)):
        with pytest.raises(UserError):
            ServerCertificate(*files)
    with pytest.raises(UserError, match="authority"):
        DaemonClient("https://h:1", FakeCredentials(0), ca_file=str(odd)).post(protocol.VIEW, {})


@pytest.mark.parametrize(("url", "wire"), [("http://d:1", "tls"), ("https://d:1", "munge"), ("https://d:1", "clear")])
def test_an_address_that_does_not_fit_is_an_error(url: str, wire: str) -> None:
    with pytest.raises(UserError, match="does not fit"):
        DaemonClient(url, FakeCredentials(0), wire=wire)


HELLO = bytes.fromhex("1603010200010001fc0303")  # a record that says it goes on, and does not


@pytest.mark.parametrize("first", [b"", HELLO])
async def test_handshakes_that_do_not_end_are_counted_and_closed(
    world: Worlds, site: Authority, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.daemon.api.transport._DEFER_ACCEPT_S", 1)
    async with by_tls(world, site, header_s=60.0, waiting_per_address=8) as served:
        made = [socket.create_connection(address(served)) for _ in range(40)]
        try:
            for one in made:
                with contextlib.suppress(OSError):
                    one.sendall(first)
            async with asyncio.timeout(PATIENCE_S):
                while len(select.select(made, [], [], 0)[0]) < 40 - 8:  # closed
                    await asyncio.sleep(0.01)
            assert "at" in await asked(secure(served, NODE, site.file), protocol.HEARTBEAT, BEAT)
            assert len(served.server.connections) <= 8 + 1
            served.server.connections._header_s = 0.0
            async with asyncio.timeout(PATIENCE_S):
                while len(served.server.connections):
                    await asyncio.sleep(0.01)
        finally:
            for one in made:
                one.close()
    assert "bug" not in served.daemon.said


async def test_a_handshake_that_is_cut_off_leaves_nothing(world: Worlds, site: Authority) -> None:
    context = ssl.create_default_context(cafile=site.file)
    async with by_tls(world, site) as served:
        for _ in range(20):
            with socket.create_connection(address(served)) as plain:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                shaking = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
                with contextlib.suppress(ssl.SSLWantReadError):
                    shaking.do_handshake()
                plain.sendall(outgoing.read())
        assert "at" in await asked(secure(served, NODE, site.file), protocol.HEARTBEAT, BEAT)
        async with asyncio.timeout(PATIENCE_S):
            while len(served.server.connections):
                await asyncio.sleep(0.01)
    assert "bug" not in served.daemon.said


async def test_a_host_without_descriptors_accepts_again_later(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.acceptor._EXHAUSTED_S", 0.01)
    told: list[dict[str, Any]] = []
    async with serving(world()) as served:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
        acceptor = served.server._listener._acceptor
        assert acceptor is not None
        bound = acceptor._bound

        class Exhausted:
            """Out of descriptors twice."""

            def accept(self) -> Any:
                if len(told) < 2:
                    raise OSError(errno.EMFILE, "Too many open files")
                return bound.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(bound, name)

        acceptor._loop.remove_reader(bound)
        acceptor._bound = Exhausted()  # type: ignore[assignment]
        acceptor._listen()
        client = DaemonClient(served.url, served.signers[NODE], deadline_s=PATIENCE_S)
        assert "at" in await asked(client, protocol.HEARTBEAT, BEAT)
        assert [context["exception"].errno for context in told] == [errno.EMFILE] * 2


# --- the end ------------------------------------------------------------------------------------------------------------


async def polling(served: Served) -> asyncio.Task[Any]:
    """An agent's poll that the server has."""
    poll = asyncio.create_task(served.post(protocol.ORDERS, {"node": "n1"}))
    async with asyncio.timeout(PATIENCE_S):
        while not served.orders._polling.get("n1"):
            await asyncio.sleep(0)
    return poll


async def test_a_server_that_stops_answers_polls_at_once(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents always have one open; whoever waited for them would keep the lease, and decide nothing, for as long."""
    monkeypatch.setattr(protocol, "LONG_POLL_S", 3600.0)
    monkeypatch.setattr(transport, "STOP_S", 3600.0)
    async with serving(world()) as served:
        poll = await polling(served)
        async with asyncio.timeout(PATIENCE_S):
            await served.server.stop()
        assert (await poll).body == {"orders": []}


async def test_a_server_that_stops_waits_for_no_slow_request(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STOP_S", 0.01)
    async with serving(world(), body_s=3600.0) as served:
        poll = await polling(served)
        monkeypatch.setattr(served.nodes, "end_polls", lambda: None)
        async with asyncio.timeout(PATIENCE_S):
            await served.server.stop()
        with pytest.raises(aiohttp.ClientError):
            await poll
