"""How long nodes are waited for that list and move checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from in_memory.checkpoints import SHARED, Case, Nodes, failed, shared
from in_memory.daemon import FakeOrders
from in_memory.watch import Seconds
from in_memory.world import World
from made_records import verdict

from sentinel.daemon.effects.patience import Patience
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Cause

Worlds = Callable[..., World]
EVERY = ("n1", "n2", "n3", "n4")


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


async def chosen_again(case: Case, tries: int) -> dict[str, Any]:
    """As slurmctld forgot what was made of the choice before."""
    task = case.task()
    again = replace(task, step=replace(task.step, tries=tries))
    return dict(await case.checkpoints.choose(again, await case.view()))


async def test_each_choice_has_its_own_patience(world: Worlds, clock: Seconds) -> None:
    """A node that was silent for a moment two hours ago must not make this choice give up at its first failure."""
    nodes = Nodes(shared(200), silent=EVERY)
    case = await failed(world(), nodes, comment=SHARED, seconds=clock.monotonic, storage_s=600.0)
    with pytest.raises(Unavailable):
        await case.choose()
    nodes.silent = ()
    assert (await case.choose())["step"] == 200
    clock.now_s += 7200.0
    nodes.silent = EVERY
    for again in (0, 1):
        with pytest.raises(Unavailable):
            await chosen_again(case, again)
    clock.now_s += 600.0
    for again in (0, 1):
        assert (await chosen_again(case, again))["by_script"]
        with pytest.raises(Unavailable):
            await chosen_again(case, again)


async def test_a_choice_that_is_refused_has_ended(world: Worlds, clock: Seconds) -> None:
    bad = verdict(Cause.GPU_MEMORY_ECC, onset_step=200)
    case = await failed(world(), Nodes(silent=EVERY), comment=SHARED, seconds=clock.monotonic, storage_s=600.0)
    with pytest.raises(Unavailable):
        await case.choose(bad)
    clock.now_s += 600.0
    with pytest.raises(Refused, match="numbers went bad"):
        await case.choose(bad)
    with pytest.raises(Unavailable):
        await case.choose(bad)


async def test_each_move_has_its_own_patience_and_looks_anew(world: Worlds, clock: Seconds) -> None:
    nodes = Nodes(shared(200), shared(300, valid=False))
    case = await failed(world(), nodes, comment=SHARED, seconds=clock.monotonic, quarantine_s=60.0)
    chosen = await case.choose()
    nodes.stuck = {"n1"}
    with pytest.raises(Unavailable):
        await case.quarantine(chosen)
    nodes.stuck = set()
    assert (await case.quarantine(chosen))["moved"] == 1
    nodes.parts = (shared(200),)
    assert await case.quarantine(chosen) == {"moved": 0}, "what was moved is not there any more"
    nodes.parts, nodes.stuck = (shared(200), shared(400, valid=False)), {"n1"}
    clock.now_s += 3600.0
    with pytest.raises(Unavailable):
        await case.quarantine(chosen)


async def test_the_restart_goes_on_where_nobody_lists_what_would_be_moved(world: Worlds, clock: Seconds) -> None:
    """As on a file system that hangs for longer than the choice has waited for it."""
    case = await failed(world(), FakeOrders(), comment=SHARED, seconds=clock.monotonic, quarantine_s=60.0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no node could list"):
            await case.quarantine({})
        clock.now_s += 59.0
    with pytest.raises(Refused, match=r"not moved after 60 s: no node could list"):
        await case.quarantine({})


def test_what_is_remembered_of_steps_that_nobody_tries_any_more_is_bounded(clock: Seconds) -> None:
    patience = Patience(clock.monotonic)
    assert all(patience.lasts(f"step {number}", 600.0) for number in range(5000))
    clock.now_s += 600.0
    assert [patience.lasts(f"step {number}", 600.0) for number in (0, 4999)] == [True, False]
