"""A node that its agent calls BAD by evidence that the store has not: it is asked for, and judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from in_memory.server import Served, serving
from in_memory.world import World
from made_records import evidence

from sentinel import protocol
from sentinel.errors import Unavailable
from sentinel.model.records import Kind, Source
from sentinel.wire import to_json

XID = evidence(
    Kind.XID, node="n3", source=Source.KERNEL, at_s=-600.0, data={"xid": 79}, text="NVRM: Xid 79", id="xid79"
)
BAD = {"word": "BAD", "code": "xid_79", "sentence": "Xid 79", "evidence": [XID.id]}


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        yield made


async def asked_for(served: Served, verdict: dict[str, Any], after_s: float) -> list[Any]:
    """What the answers to two heartbeats after that time ask for."""
    served.world.slurm.clock.advance(after_s)
    answers = []
    for _ in range(2):
        answers.append((await served.post(protocol.HEARTBEAT, {"node": "n3", "verdict": verdict})).body)
        while served.nodes._convictions._looks:
            await asyncio.sleep(0)
    return [answer.get("send_again") for answer in answers]


async def test_it_is_asked_for_once_a_while_until_it_is_there_and_then_judged(served: Served) -> None:
    assert await asked_for(served, BAD, 0.0) == [None, None], "it may be on its way"
    assert await asked_for(served, BAD, 11.0) == [None, [XID.id]]
    assert await asked_for(served, BAD, 1.0) == [None, None]
    assert await asked_for(served, BAD, 61.0) == [None, [XID.id]]
    body = {"node": "n3", "epoch": "e", "first": 1, "items": [to_json(XID)]}
    assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": 1}
    assert await asked_for(served, BAD, 61.0) == [None, None]
    assert await asked_for(served, BAD, 61.0) == [None, None]
    while not served.world.slurm.nodes["n3"].drained:
        await asyncio.sleep(0)
    await served.daemon.runner.stop()


@pytest.mark.parametrize(
    "verdict",
    [{**BAD, "word": "OK"}, {**BAD, "evidence": []}, {**BAD, "evidence": [7]}, {**BAD, "evidence": "xid79"}, {}],
)
async def test_nothing_is_asked_of_others(served: Served, verdict: dict[str, Any]) -> None:
    await asked_for(served, verdict, 0.0)
    assert await asked_for(served, verdict, 11.0) == [None, None]


async def test_nothing_is_asked_for_that_is_there_or_of_a_node_out_of_service(served: Served) -> None:
    served.world.store.append([XID])
    await asked_for(served, BAD, 0.0)
    assert await asked_for(served, BAD, 11.0) == [None, None]
    lost = {**BAD, "evidence": ["gone"]}
    served.world.slurm.nodes["n3"].drained = True
    await served.daemon.fleets.take()
    await asked_for(served, lost, 0.0)
    assert await asked_for(served, lost, 11.0) == [None, None]


async def test_a_store_that_does_not_answer_is_asked_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_ids: object) -> set[str]:
        raise Unavailable("the store does not answer")

    await asked_for(served, BAD, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(served.nodes._convictions, "_known", away)
        assert await asked_for(served, BAD, 11.0) == [None, None]
    assert await asked_for(served, BAD, 61.0) == [None, [XID.id]]
