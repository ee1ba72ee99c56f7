"""Evidence of many requests in one batch: acknowledged together, refused together, lost never."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from sentinel.daemon.ingest.intake import Intake
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Evidence, Kind, Source, Where

AT = datetime(2026, 1, 1, tzinfo=UTC)


def item(name: str) -> Evidence:
    return Evidence(id=name, at=AT, seen_at=AT, source=Source.DCGM, kind=Kind.XID, where=Where(node=name))


def hard(one: Evidence) -> bool:
    return one.id.startswith("hard")


class Judge:
    """Stores a batch only when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.fails: Exception | None = None

    async def observe(self, items: Sequence[Evidence]) -> None:
        self.batches.append([one.id for one in items])
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_while_one_batch_is_stored_is_the_next_one() -> None:
    judge = Judge()
    intake = Intake(judge.observe, hard)
    first = asyncio.create_task(intake.take([item("a")]))
    await _turns()
    rest = [asyncio.create_task(intake.take([item(name)])) for name in "bcd"]
    await _turns()
    assert judge.batches == [["a"]] and not first.done(), "nothing is acknowledged before it is stored"
    judge.gate.set()
    await asyncio.gather(first, *rest)
    assert judge.batches == [["a"], ["b", "c", "d"]]


async def test_a_request_is_never_split_and_a_large_one_goes_alone() -> None:
    judge = Judge()
    judge.gate.set()
    intake = Intake(judge.observe, hard)
    large = [item(f"l{number}") for number in range(700)]
    await asyncio.gather(intake.take([item("a")]), intake.take(large), intake.take([item("b")]))
    assert [len(batch) for batch in judge.batches] == [1, 700, 1]


async def test_a_store_that_fails_fails_every_request_of_the_batch_and_no_later_one() -> None:
    judge = Judge()
    judge.gate.set()
    judge.fails = Unavailable("the store does not answer")
    intake = Intake(judge.observe, hard)
    answers = await asyncio.gather(intake.take([item("a")]), intake.take([item("b")]), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    judge.fails = None
    await intake.take([item("c")])
    assert judge.batches[-1] == ["c"]


async def test_a_node_that_hangs_up_loses_nothing_and_disturbs_nobody() -> None:
    judge = Judge()
    intake = Intake(judge.observe, hard)
    gone = asyncio.create_task(intake.take([item("a")]))
    await _turns()
    other = asyncio.create_task(intake.take([item("b")]))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    judge.gate.set()
    await other
    assert judge.batches == [["a"], ["b"]]


async def test_hard_evidence_overtakes_what_waits_and_not_what_is_being_stored() -> None:
    judge = Judge()
    intake = Intake(judge.observe, hard)
    tasks = [asyncio.create_task(intake.take([item("a")]))]
    await _turns()
    tasks += [asyncio.create_task(intake.take([item(name)])) for name in ("b", "hard 1", "c")]
    await _turns()
    tasks.append(asyncio.create_task(intake.take([item("d"), item("hard 2")])))
    await _turns()
    judge.gate.set()
    await asyncio.gather(*tasks)
    assert judge.batches == [["a"], ["hard 1", "d", "hard 2"], ["b", "c"]]


async def test_a_storm_of_hard_evidence_starves_nobody() -> None:
    judge = Judge()
    judge.gate.set()
    intake = Intake(judge.observe, hard)
    large = [[item(f"hard {at} {number}") for number in range(400)] for at in range(5)]
    rest = [[item(f"{at} {number}") for number in range(400)] for at in range(2)]
    await asyncio.gather(*(intake.take(items) for items in (*rest, *large)))
    first = [batch[0].split()[0] for batch in judge.batches]
    assert first == ["hard", "0", "hard", "1", "hard", "hard", "hard"]


async def test_what_the_store_refuses_of_one_node_refuses_no_other() -> None:
    stored: list[str] = []

    async def observe(items: Sequence[Evidence]) -> None:
        if any(one.id == "poison" for one in items):
            raise Refused("the store refuses it")
        stored.extend(one.id for one in items)

    intake = Intake(observe, hard)
    taken = [asyncio.create_task(intake.take([item(name)])) for name in ("a", "poison", "b")]
    results = await asyncio.gather(*taken, return_exceptions=True)
    assert stored == ["a", "b"] and [isinstance(one, Refused) for one in results] == [False, True, False]
