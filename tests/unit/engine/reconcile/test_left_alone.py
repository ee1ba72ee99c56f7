"""A job that was to be stopped and went on may fail later in the same attempt: that is another failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink, fail, silent, states
from in_memory.world import World
from made_records import AT, evidence

from sentinel.model.records import Evidence, Kind, Source

Worlds = Callable[..., World]


def stall(there: World, step: int | None) -> Evidence:
    at_s = (there.slurm.clock.now() - AT).total_seconds()
    where: dict[str, Any] = {"source": Source.PROGRESS, "job": there.job, "attempt": 0}
    return evidence(Kind.STALL, at_s=at_s, data={"step": step, "silent_s": 60.0}, text=f"after {step}", **where)


@pytest.mark.parametrize("first", [None, 4])  # before its first step, or later
async def test_a_hang_after_one_that_was_over_is_judged(world: Worlds, first: int | None) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    there.progress.last_step = lambda *_: 5  # type: ignore[method-assign]
    await fail(daemon, stall(there, first))
    assert states(there) == ["closed"] and there.slurm.jobs[there.job].restarts == 0
    await daemon.pass_time(3600.0)
    there.progress.last_step = lambda *_: 500  # type: ignore[method-assign]
    await fail(daemon, stall(there, 500))
    assert there.slurm.jobs[there.job].restarts == 1 and len(states(there)) == 2


async def test_its_end_long_after_that_is_judged(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.progress.last_step = lambda *_: 5  # type: ignore[method-assign]
    await fail(daemon, stall(there, 4))
    await daemon.pass_time(3600.0)
    bus = {"node": "n1", "data": {"xid": 79, "pci": "0000:3b:00"}, "text": "NVRM: Xid 79"}
    await fail(daemon, evidence(Kind.XID, at_s=(there.slurm.clock.now() - AT).total_seconds(), **bus))
    assert there.slurm.jobs[there.job].restarts == 1 and there.slurm.nodes["n1"].drained
