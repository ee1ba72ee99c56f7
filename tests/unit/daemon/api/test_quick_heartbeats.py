"""Heartbeats of good sessions are answered at once; whatever else comes on a connection is answered as ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from in_memory.server import NODE, OPERATOR, Served, serving
from in_memory.world import World

from sentinel import protocol
from sentinel.adapters.session import ClientSession
from sentinel.daemon.ingest.quick_heartbeats import MOST_BYTES, QuickHeartbeats, WholeRequest, is_one_request, whole

Connect = Callable[[Served], Awaitable["Raw"]]
BODY = json.dumps({"node": "n1", "boot_id": "b", "jobs": []}).encode()


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        made.daemon.live.see_fleet(await made.world.slurm.fleet())
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each heartbeat that may go the quick way, whether it did."""
    seen: list[bool] = []
    answer = QuickHeartbeats.answer

    def noted(self: QuickHeartbeats, request: WholeRequest, peer: str) -> bytes | None:
        made = answer(self, request, peer)
        seen.append(made is not None)
        return made

    monkeypatch.setattr(QuickHeartbeats, "answer", noted)
    return seen


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Served], Awaitable[Raw]]]:
    made: list[Raw] = []

    async def connected(served: Served) -> Raw:
        made.append(Raw(served))
        return await made[-1].open()

    yield connected
    for one in made:
        one.writer.close()
        await one.writer.wait_closed()


class Raw:
    """A connection on which bytes are written as the test says."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def open(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection(*self.served.server.address)
        signer = self.served.signers[NODE]
        mark = signer.encode(protocol.digest_of(protocol.SESSION, b"{}"))
        _, said, head = await self.exchange(request(mark, b"{}", path=protocol.SESSION))
        _, _, key = FakeKey.of(head)
        self.session = ClientSession(said["session"], key, 0)
        return self

    async def exchange(self, *pieces: bytes) -> tuple[int, dict[str, object], str]:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, object], str]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode()
        length = int(next(x for x in head.split("\r\n") if x.lower().startswith("content-length:")).split(":")[1])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length)), head

    def beat(self, body: bytes = BODY, **how: str) -> bytes:
        return request(self.session.mark(protocol.HEARTBEAT, body), body, **how)


class FakeKey:
    @staticmethod
    def of(head: str) -> tuple[str, str, bytes]:
        import base64

        mark = next(x for x in head.split("\r\n") if x.startswith(protocol.HEADER)).partition(": ")[2]
        payload = base64.b64decode(mark.split(":")[2])
        return mark, payload.decode(), bytes.fromhex(payload.split()[1].decode())


def request(mark: str, body: bytes, *, path: str = protocol.HEARTBEAT, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: d\r\n{protocol.HEADER}: {mark}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


async def test_whole_and_in_pieces_it_is_answered_at_once(served: Served, quick: list[bool], connect: Connect) -> None:
    one = await connect(served)
    status, said, head = await one.exchange(one.beat())
    assert status == 200 and "at" in said and "Server:" not in head and quick == [True]
    mark = next(x for x in head.split("\r\n") if x.startswith(protocol.HEADER)).partition(": ")[2]
    assert len(mark) == 64
    whole_one = one.beat()
    cut = whole_one.index(b"\r\n\r\n") + 4
    for at in (30, cut, cut + 3):
        data = one.beat()
        status, _, _ = await one.exchange(data[:at], data[at:])
        assert status == 200
    assert quick == [True] * 4
    assert served.daemon.live.node("n1").state == "heard"


async def test_a_request_is_good_once_whichever_way_it_goes(
    served: Served, quick: list[bool], connect: Connect
) -> None:
    one = await connect(served)
    data = one.beat()
    assert (await one.exchange(data))[0] == 200
    assert (await one.exchange(data))[0] == protocol.NO_SESSION
    odd = one.beat(more="X-Odd: 1\r\n")
    assert (await one.exchange(odd))[0] == 200
    assert (await one.exchange(odd))[0] == protocol.NO_SESSION
    assert quick == [True, False]


@pytest.mark.parametrize("what", ["forged", "other body", "not JSON", "no node", "too long"])
async def test_what_is_wrong_is_refused_as_ever_and_changes_nothing(
    served: Served, quick: list[bool], connect: Connect, what: str
) -> None:
    one = await connect(served)
    bodies = {"not JSON": b"{", "no node": b'{"node": 7}', "too long": b'{"node": "' + b"n" * MOST_BYTES + b'"}'}
    data = one.beat(bodies.get(what, BODY))
    if what == "forged":
        data = request("session " + "0" * 32 + " 5 " + "0" * 64 + " " + "0" * 64, BODY)
    if what == "other body":
        data = data.replace(b'"boot_id": "b"', b'"boot_id": "c"')
    expected = {"forged": protocol.NO_SESSION, "other body": 403}.get(what, 400)
    assert (await one.exchange(data))[0] == expected
    assert not any(quick) and served.daemon.live.node("n1").state != "heard"


@pytest.mark.parametrize(
    "said",
    [
        '"sent_s": HUGE',
        '"logs": [{"job": 7, "attempt": 0, "looked_ago_s": HUGE}]',
        '"jobs": [{"job": 7, "attempt": 0, "gpus": "\u00b2"}]',
        '"jobs": [{"job": 7, "attempt": 0, "gpus": "HUGE"}]',
    ],
)
async def test_numbers_that_are_none_are_left_out_of_a_heartbeat(
    served: Served, quick: list[bool], connect: Connect, said: str
) -> None:
    body = f'{{"node": "n1", {said}}}'.replace("HUGE", "9" * 4200).encode()
    one = await connect(served)
    assert (await one.exchange(one.beat(body)))[0] == 200 and quick == [True]
    assert (await served.post(protocol.HEARTBEAT, raw=body)).status == 200
    assert served.daemon.bugs() == 0 and served.daemon.live.node("n1").state == "heard"


async def test_a_session_speaks_for_no_node_at_another_address(
    served: Served, quick: list[bool], connect: Connect
) -> None:
    fleet = await served.world.slurm.fleet()
    nodes = {
        name: replace(node, address=f"198.51.100.{place}") for place, (name, node) in enumerate(fleet.nodes.items(), 1)
    }
    served.daemon.live.see_fleet(replace(fleet, nodes=nodes | {"n1": replace(nodes["n1"], address="127.0.0.1")}))
    one = await connect(served)
    assert (await one.exchange(one.beat()))[0] == 200
    assert (await one.exchange(one.beat(b'{"node": "n2"}')))[0] == 403
    assert quick == [True, False] and served.daemon.live.node("n2").state != "heard"


async def test_of_requests_in_one_piece_each_gets_its_answer_in_turn(served: Served, connect: Connect) -> None:
    one = await connect(served)
    await one.exchange(one.beat())
    beats = [one.beat() for _ in range(3)]
    one.writer.write(b"".join(beats))
    for _ in beats:
        assert (await one.answer())[0] == 200
    orders = request(one.session.mark(protocol.ORDER_RESULT, BODY), BODY, path=protocol.ORDER_RESULT)
    one.writer.write(orders)
    one.writer.write(one.beat())
    assert (await one.answer())[0] in (200, 400) and (await one.answer())[0] == 200


async def test_an_own_error_is_counted_and_the_heartbeat_answered_all_the_same(
    served: Served, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    """A broken connection would have the agent try again for ever, and its node look silent."""
    one = await connect(served)
    monkeypatch.setattr(QuickHeartbeats, "answer", lambda *_: 1 // 0)
    for _ in range(2):
        assert (await one.exchange(one.beat()))[0] == 200
    assert served.daemon.bugs() == 2 and "quick heartbeats" in served.daemon.said
    assert served.daemon.live.node("n1").state == "heard"


@pytest.mark.parametrize("depth", [101, 946, 990, 2000])
@pytest.mark.parametrize("key", ["verdict", "spool"])
async def test_what_is_nested_to_the_edge_is_refused_and_breaks_no_view(
    served: Served, connect: Connect, depth: int, key: str
) -> None:
    """Reading it worked, and writing it in a view, from deeper in the stack, did not: `sentinel nodes` failed for all."""
    one = await connect(served)
    body = f'{{"node": "n1", "{key}": {{"word": "GOOD", "x": {"[" * depth}{"]" * depth}}}}}'.encode()
    assert (await one.exchange(one.beat(body)))[0] == 400
    shown = await served.post(protocol.VIEW, {"view": "nodes", "arguments": {}}, uid=OPERATOR)
    assert shown.status == 200 and served.daemon.bugs() == 0


async def test_a_session_that_ended_or_is_anothers_gets_no_answer_of_the_quick_way(
    served: Served, quick: list[bool], connect: Connect
) -> None:
    one, other = await connect(served), await connect(served)
    sessions = served.server._sessions
    for name in list(sessions._all)[:-1]:
        sessions._end(name)  # as when the table is full
    assert (await one.exchange(one.beat()))[0] == protocol.NO_SESSION
    stolen = request(other.session.mark(protocol.HEARTBEAT, BODY), BODY)
    assert (await one.exchange(stolen))[0] == 200, "a session is of an address, not of a connection"
    last = next(iter(sessions._all.values()))
    last.peer = "198.51.100.7"
    assert (await other.exchange(other.beat()))[0] == protocol.NO_SESSION
    assert quick == [False, True, False]


def test_only_headers_that_are_known_go_the_quick_way() -> None:
    good = request("m", BODY)
    assert whole(good) == WholeRequest("m", BODY) and whole(good[:-1]) is False and whole(good[:40]) is False
    for odd in (
        request("m", BODY, more="Transfer-Encoding: chunked\r\n"),
        request("m", BODY, more="Content-Encoding: gzip\r\n"),
        request("m", BODY, more="Content-Length: 4\r\n"),
        request("m", BODY, more="Connection: close\r\n"),
        request("m", BODY, more=f"Content-Type: {protocol.ENCRYPTED}\r\n"),
        request("m", BODY, more=" folded: 1\r\n"),
        good + b"x",
        good.replace(b"Content-Length: ", b"Content-Length: +"),
        request("m\u00e9", BODY),
        good.replace(b"Host: d", b"Host: d\nTransfer-Encoding: chunked"),
        good.replace(b"Host: d", b"Host: d\nContent-Length: 4"),
        good.replace(b"Host: d", b"Host: d\rX: y"),
        good.replace(b"Host: d", b"Host: d\0"),
        good.replace(b"Host: d", b"Host"),
        good.replace(b"Host: d\r\n", b""),
    ):
        assert whole(odd) is True
    assert is_one_request(good) and not is_one_request(good + b"x") and not is_one_request(good[:-1])
    assert not is_one_request(b"GET / HTTP/1.1\r\n\r\n")
