"""Only a daemon that has the lease writes to Slurm, and no longer than it has it."""

from __future__ import annotations

import asyncio

import pytest
from in_memory.slurm import FakeSlurm

from sentinel.adapters.slurm.fenced import FencedVerbs
from sentinel.adapters.slurm.writer import Writer
from sentinel.errors import Superseded, Unavailable


class Fence:
    """``left``: what each look at the clock finds, the last one for ever."""

    def __init__(self, *left: float, error: Unavailable | None = None) -> None:
        self.left, self.error, self.asked = list(left), error, 0

    async def confirm(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error

    def left_s(self) -> float:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def fenced(slurm: FakeSlurm, fence: Fence) -> Writer:
    return Writer(FencedVerbs(slurm.verbs, fence))


async def test_each_request_that_changes_something_asks_first(fake_slurm: FakeSlurm) -> None:
    fence = Fence(60.0)
    await fenced(fake_slurm, fence).down("n1", "sentinel: test")  # two requests: DRAIN, then DOWN
    assert fence.asked == 2


async def test_one_that_was_superseded_changes_nothing(fake_slurm: FakeSlurm) -> None:
    writer = fenced(fake_slurm, Fence(60.0, error=Superseded("b is the active daemon")))
    with pytest.raises(Superseded):
        await writer.drain("n1", "sentinel: test")
    seen = await fake_slurm.node("n1")
    assert seen is not None and not seen.drained and not seen.reason


async def test_a_request_ends_with_the_lease(fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed once while slurmctld does not answer, and then it is not."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(fake_slurm.verbs, "set_node", never)
    with pytest.raises(Unavailable, match="ran out during a request"):
        await fenced(fake_slurm, Fence(0.01, 0.01, 0.0)).drain("n1", "sentinel: test")
    assert began.is_set() and ended.is_set()


def test_a_request_under_way_can_be_closed_when_the_event_loop_is_gone(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(fake_slurm.verbs, "set_node", never)
    request = FencedVerbs(fake_slurm.verbs, Fence(60.0)).set_node("n1", "DRAIN", None)

    async def begin() -> None:
        request.send(None)

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(begin())
        request.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
