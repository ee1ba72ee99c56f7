"""Found as an attack: what one node states fills the daemon's memory no further than what is kept of a node is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.server import Served, serving
from in_memory.world import World
from made_records import evidence

from sentinel import protocol
from sentinel.model.records import Kind, Source
from sentinel.wire import MOST_DATA, MOST_LISTED, MOST_PATH, size_of, to_json


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world(), request_bytes=4 << 20) as made:
        yield made


async def send(served: Served, *items: dict[str, Any]) -> None:
    answer = await served.post(protocol.EVIDENCE, {"node": "n1", "epoch": "e", "first": 1, "items": list(items)})
    assert answer.body == {"acknowledged": len(items)}


def item(number: int, **parts: Any) -> dict[str, Any]:
    return {**to_json(evidence("odd", source=Source.HOST, node="n1", id=f"i{number}")), **parts}


async def test_what_is_kept_of_a_node_is_bounded_in_size_and_not_only_in_number(served: Served) -> None:
    """400 items of 4 MiB each were kept; those that said that they were read in the year 2190 for ever."""
    live, future = served.daemon.live, "2190-01-01T00:00:00Z"
    value = "y" * 8000
    for part in range(10):
        data = {f"x{n}": value for n in range(3)}
        await send(served, *(item(number, data=data, seen_at=future) for number in range(part * 30, part * 30 + 30)))
    pool = live.nodes["n1"].pool
    assert pool[-1].id == "i299", "the newest stay"
    assert 20 < len(pool) < 50 and sum(size_of(one.data) for one in pool) <= 1 << 20
    live.forget(served.world.slurm.clock.now() + timedelta(hours=2))
    assert not pool


async def test_of_one_item_too_much_data_is_refused_and_longer_texts_are_cut(served: Served) -> None:
    text, key = "y" * 60_000, "k" * (MOST_DATA // 2)
    await send(
        served,
        item(1, data={"a": text}, rule=text, where={"node": "n1", "path": text, "nic": text, "gpu_uuid": text}),
        item(2, data={f"{n}{key}": 1 for n in range(3)}),
        item(3, data={f"{n}": text for n in range(5)}),
    )
    (kept,) = live.pool if (live := served.daemon.live.nodes["n1"]) else ()
    assert (kept.id, kept.data["a"]) == ("i1", "y" * 8191 + "…")
    assert [len(name or "") for name in (kept.rule, kept.where.nic, kept.where.gpu_uuid)] == [255] * 3
    assert len(kept.where.path or "") == MOST_PATH


async def test_a_listing_of_checkpoints_is_taken_as_long_as_agents_send_it(served: Served) -> None:
    listings = [
        item(n, kind=Kind.CHECKPOINTS_HELD, data={"listing": "x" * size})
        for n, size in enumerate((96 << 10, MOST_LISTED))
    ]
    await send(served, *listings)
    assert [one.id for one in served.daemon.live.nodes["n1"].pool] == ["i0"]
