"""What waits for nothing but a person's yes is let go when nobody wanted it for a month, and nothing speaks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, answer, fail, outcomes, states
from in_memory.world import World
from made_records import lost_gpu

from sentinel.config.settings import Limits, Mode, Modes
from sentinel.detect.cluster_view import NodeSeen

Worlds = Callable[..., World]
DAY_S = 86_400.0


async def wanted(there: World, sink: FakeSink, how: str) -> Daemon:
    """A daemon whose drain of n1 was refused, not answered, or only observed; its job is restarted elsewhere."""
    modes = Modes(default=Mode("observe" if how == "observed" else "suggest", "act"))
    daemon = Daemon(
        there, [sink], settings=dataclasses.replace(SETTINGS, modes=modes, limits=Limits(drain_fraction=0.5))
    )
    await fail(daemon, lost_gpu("n1"))
    if how == "refused":
        await answer(daemon, "refuse", note="known")
    await daemon.pass_time(8000.0)
    assert states(there) == ["waiting"]
    return daemon


async def days_pass(daemon: Daemon, days: int, word: str = "OK") -> None:
    for _ in range(days):
        await daemon.pass_time(DAY_S)
        if word:
            seen = daemon.live.nodes.setdefault("n1", NodeSeen())
            seen.state, seen.verdict = "heard", {"word": word}
        await daemon.housekeeping()
        await daemon.quiet()


@pytest.mark.parametrize("how", ["refused", "unanswered", "observed"])
async def test_after_a_month_it_is_closed_told_and_forgotten_as_what_is_over(world: Worlds, how: str) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = await wanted(there, sink, how)
    await days_pass(daemon, 29)
    assert states(there) == ["waiting"]
    await days_pass(daemon, 2)
    assert states(there) == ["closed"] and there.store.open_plans() == []
    (words,) = outcomes(there)
    assert "drain n1: not wanted any more. For 30 days nobody had it done" in words
    assert sink.all[-1].data["final"] and not there.slurm.nodes["n1"].drained and daemon.bugs() == 0
    told = len(sink.all)
    second = Daemon(there, [sink], settings=daemon.settings)
    await second.start()
    await days_pass(second, 1)
    assert states(there) == ["closed"] and len(sink.all) == told
    there.store.forget(there.slurm.clock.now() + timedelta(days=1))
    assert states(there) == []


@pytest.mark.parametrize("word", ["BAD", ""])
async def test_not_where_the_agent_is_silent_or_calls_its_node_bad(world: Worlds, word: str) -> None:
    there = world(nodes=6)
    daemon = await wanted(there, FakeSink(), "refused")
    await days_pass(daemon, 40, word)
    assert states(there) == ["waiting"]


async def test_not_before_a_month_after_the_last_answer(world: Worlds) -> None:
    there = world(nodes=6)
    daemon = await wanted(there, FakeSink(), "refused")
    await days_pass(daemon, 25)
    await answer(daemon, "refuse", note="still")
    await days_pass(daemon, 10)
    assert states(there) == ["waiting"], "who answers wants it in sight"


async def test_not_what_a_budget_keeps_waiting(world: Worlds) -> None:
    there = world(nodes=6)
    limits = Limits(drain_count=1, drain_fraction=1.0)
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    daemon = Daemon(there, settings=dataclasses.replace(SETTINGS, limits=limits))
    await fail(daemon, lost_gpu("n1"))
    await days_pass(daemon, 40)
    assert "waiting" in states(there)
