"""Sessions: MUNGE once, then a key. Who may open one, what its marks are good for, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from in_memory.server import NODE, OPERATOR, RESEARCHER, Answer, Served, serving
from in_memory.world import World

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.adapters.session import ClientSession
from sentinel.daemon.api.sessions import NoSession, Sessions
from sentinel.errors import Denied, ProtocolError, SentinelError
from sentinel.ports import Signed

BEAT = {"node": "n1"}
PATIENCE_S = 20.0
RAW = json.dumps(BEAT).encode()


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        yield made


async def opened(served: Served, uid: int = NODE) -> ClientSession:
    """A session as an agent opens it."""
    answer = await served.post(protocol.SESSION, uid=uid)
    assert answer.status == 200, answer.body
    signed = served.signers[uid].decode(answer.signature)
    digest, _, key = signed.payload.partition(b" ")
    assert signed.uid == 0 and digest == protocol.digest_of(answer.credential, answer.raw)
    return ClientSession(answer.body["session"], bytes.fromhex(key.decode()), 0)


async def beat(served: Served, mark: str, path: str = protocol.HEARTBEAT, raw: bytes = RAW) -> Answer:
    return await served.post(path, raw=raw, credential=mark)


async def asked(client: DaemonClient, path: str = protocol.HEARTBEAT, body: Any = None) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.get_running_loop().run_in_executor(None, client.post, path, BEAT if body is None else body)


# --- what a session is good for ----------------------------------------------------------------------------------------


async def test_a_session_signs_requests_and_answers_without_munge(served: Served) -> None:
    session = await opened(served)
    served.credentials.answers = False
    mark = session.mark(protocol.HEARTBEAT, RAW)
    answer = await beat(served, mark)
    assert answer.status == 200 and served.daemon.live.nodes["n1"].state == "heard"
    assert session.signs(mark, 200, answer.raw, answer.signature)
    assert not session.signs(mark, 409, answer.raw, answer.signature)
    assert not session.signs(mark, 200, answer.raw + b" ", answer.signature)
    refused = await beat(served, mark := session.mark(protocol.HEARTBEAT, b"[]"), raw=b"[]")
    assert refused.status == 400 and session.signs(mark, 400, refused.raw, refused.signature)


async def test_the_key_is_for_the_senders_uid_alone(served: Served) -> None:
    answer = await served.post(protocol.SESSION)
    for other in (OPERATOR, RESEARCHER):
        with pytest.raises(Denied, match="unauthorized"):
            served.signers[other].decode(answer.signature)


@pytest.mark.parametrize("uid", [OPERATOR, RESEARCHER])
async def test_only_trusted_accounts_open_one(served: Served, uid: int) -> None:
    assert (await served.post(protocol.SESSION, uid=uid)).status == 403 and len(served.server._sessions) == 0


@pytest.mark.parametrize("path", [protocol.VIEW, protocol.CHANGE, protocol.EVENT, protocol.SESSION])
async def test_people_hooks_and_new_sessions_need_a_credential(served: Served, path: str) -> None:
    session = await opened(served)
    assert (await beat(served, session.mark(path, RAW), path)).status == 403 and len(served.server._sessions) == 1


async def test_a_mark_is_good_once_and_not_after_a_later_one(served: Served) -> None:
    session = await opened(served)
    first, second = (session.mark(protocol.HEARTBEAT, RAW) for _ in range(2))
    assert [(await beat(served, mark)).status for mark in (second, second, first)] == [200, 401, 401]
    assert (await beat(served, session.mark(protocol.HEARTBEAT, RAW))).status == 200  # the session goes on


async def test_a_mark_is_for_one_path_and_one_body(served: Served) -> None:
    session = await opened(served)
    other_path = await beat(served, session.mark(protocol.ORDER_RESULT, RAW))
    other_body = await beat(served, session.mark(protocol.HEARTBEAT, b"{}"))
    for answer in (other_path, other_body):
        assert answer.status == 403 and "another request" in answer.body["error"]
    assert served.daemon.live.nodes == {}


async def test_forged_marks_are_refused_before_the_body(served: Served) -> None:
    session = await opened(served)
    words = session.mark(protocol.HEARTBEAT, RAW).split(" ")
    stranger = ClientSession(words[1], b"k" * 32, 0).mark(protocol.HEARTBEAT, RAW)
    later = " ".join([*words[:2], str(int(words[2]) + 1), *words[3:]])
    for mark in (stranger, later, *(" ".join(words[:count]) for count in range(1, 5)), "session " + "x" * 5000):
        answer = await served.post(protocol.HEARTBEAT, raw=b"not even JSON", credential=mark)
        assert answer.status in (401, 403) and not answer.signature
    for odd in ("-1", "\u0663", "9" * 400, ""):
        assert (await beat(served, " ".join([*words[:2], odd, *words[3:]]))).status == 401
    assert served.daemon.live.nodes == {} and served.daemon.bugs() == 0


async def test_a_daemon_started_again_knows_none(world: Callable[..., World]) -> None:
    async with serving(world()) as before:
        session = await opened(before)
    async with serving(world()) as after:
        answer = await beat(after, session.mark(protocol.HEARTBEAT, RAW))
        assert answer.status == 401 and "not known" in answer.body["error"] and after.daemon.live.nodes == {}


# --- the table ---------------------------------------------------------------------------------------------------------


class Table:
    def __init__(self, lives_s: float = 100.0, most: int = 4) -> None:
        self.now_s = 0.0
        self.sessions = Sessions(lives_s, most, lambda: self.now_s)

    def open(self, peer: str = "10.0.0.1") -> tuple[str, bytes]:
        return self.sessions.open(Signed(b"", NODE, 7, "10.1.0.1"), peer)

    def send(self, session: tuple[str, bytes], stamp_s: float, peer: str = "10.0.0.1") -> Signed:
        mark = protocol.session_mark(session[1], session[0], int(stamp_s * 1e6), "d" * 64)
        return self.sessions.check(mark, peer)[1]


def test_a_mark_says_who_opened_the_session() -> None:
    table = Table()
    assert table.send(table.open(), 0.0) == Signed(b"d" * 64, NODE, 7, "10.1.0.1")


def test_another_address_is_refused() -> None:
    table = Table()
    session = table.open()
    with pytest.raises(NoSession, match="opened from"):
        table.send(session, 0.0, "10.0.0.2")
    table.send(session, 0.0)  # what was refused did not use it up


def test_a_session_ends() -> None:
    table = Table()
    session = table.open()
    table.now_s = 100.0
    table.send(session, 100.0)
    table.now_s = 100.5
    with pytest.raises(NoSession, match="ended"):
        table.send(session, 100.5)
    with pytest.raises(NoSession, match="not known"):
        table.send(session, 100.5)
    assert len(table.sessions) == 0


@pytest.mark.parametrize("stamp_s", [19.0, 90.5])
def test_what_was_held_back_or_is_ahead_is_refused(stamp_s: float) -> None:
    table = Table()
    session = table.open()
    table.now_s = 80.0
    with pytest.raises(NoSession, match="just now"):
        table.send(session, stamp_s)
    table.send(session, 80.0)


def test_the_address_that_has_most_makes_room() -> None:
    table = Table()
    mine = table.open("10.0.0.1")
    flood = [table.open("10.0.0.9") for _ in range(5)]
    assert len(table.sessions) == 4
    table.send(mine, 0.0)
    table.send(flood[-1], 0.0, "10.0.0.9")
    with pytest.raises(NoSession):
        table.send(flood[0], 0.0, "10.0.0.9")
    table.now_s = 200.0
    table.open()
    assert len(table.sessions) == 1  # the others have ended


# --- agents ------------------------------------------------------------------------------------------------------------


Agent = Callable[..., DaemonClient]


@pytest.fixture
def agent() -> Iterator[Agent]:
    with contextlib.ExitStack() as clients:

        def made(served: Served, wire: str = "") -> DaemonClient:
            client = DaemonClient(served.url, served.signers[NODE], sessions=True, wire=wire)
            return clients.enter_context(contextlib.closing(client))

        yield made


@pytest.mark.parametrize("wire", ["clear", "munge"])
async def test_an_agent_asks_munge_once(world: Callable[..., World], agent: Agent, wire: str) -> None:
    async with serving(world(), wire=wire) as served:
        client = agent(served, wire=wire)
        for _ in range(3):
            assert "at" in await asked(client)
        if wire == "clear":  # else the bodies are MUNGE's
            assert served.signers[NODE].made == served.credentials.made == 1
        assert len(served.server._sessions) == 1


async def test_refusals_in_a_session_are_the_daemons_own(served: Served, agent: Agent) -> None:
    client = agent(served)
    await asked(client)
    with pytest.raises(ProtocolError) as caught:
        await asked(client, protocol.EVIDENCE, {"node": "n1", "first": "x"})
    assert caught.value.signed


async def test_an_agent_whose_session_is_not_known_opens_another(served: Served, agent: Agent) -> None:
    client = agent(served)
    await asked(client)
    served.server._sessions._all.clear()
    assert "at" in await asked(client)
    assert len(served.server._sessions) == 1 and served.signers[NODE].made == 2


async def test_an_agent_whose_sessions_are_refused_goes_on_with_munge(
    served: Served, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: Any) -> Any:
        raise NoSession("never")

    monkeypatch.setattr(served.server._sessions, "verified", check)
    client = agent(served)
    for _ in range(2):
        assert "at" in await asked(client)
    assert served.signers[NODE].made == 3  # the session that was refused, and two requests


@pytest.mark.parametrize("wire", ["clear", "munge"])
async def test_an_agent_of_this_release_talks_to_a_daemon_without_sessions(
    world: Callable[..., World], agent: Agent, wire: str
) -> None:
    """As to one of the release before: it does not answer that path."""
    async with serving(world(), session_s=0.0, wire=wire) as served:
        client = agent(served, wire=wire)
        for _ in range(2):
            assert "at" in await asked(client)
        assert (await served.post(protocol.SESSION)).status == 404


async def test_who_has_no_sessions_at_one_address_speaks_for_no_other(served: Served) -> None:
    """Where a daemon is away, anybody may listen at its port: all agents would ask MUNGE at each request to the other."""

    async def stranger(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(stranger, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        urls = f"http://127.0.0.1:{port},{served.url}"
        with contextlib.closing(DaemonClient(urls, served.signers[NODE], sessions=True)) as client:
            with pytest.raises(SentinelError):
                await asked(client)
            assert "at" in await asked(client)
            assert len(served.server._sessions) == 1


async def test_a_session_of_a_stranger_is_refused(served: Served, agent: Agent) -> None:
    served.credentials.uid = 4242
    with pytest.raises(Denied, match="uid 4242"):
        await asked(agent(served))


async def test_an_answer_that_the_session_did_not_sign_is_refused(
    served: Served, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = agent(served)
    await asked(client)
    monkeypatch.setattr(protocol, "answer_mark", lambda *_: "0" * 64)
    with pytest.raises(Denied, match="not signed by our session"):
        await asked(client)
