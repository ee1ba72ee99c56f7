"""What a daemon that starts knows of attempts: hangs that began before, ends that nobody watched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from in_memory.standing import look, steps, waiting
from in_memory.watch import Scene
from in_memory.world import World

from sentinel.model.changes import AttemptSeen
from sentinel.model.records import Kind
from sentinel.model.stored import JUDGED_UNTIL
from sentinel.model.vocabulary import END_NOT_SEEN

Worlds = Callable[..., World]


async def test_hang_that_began_while_nobody_watched_is_noticed(world: Worlds) -> None:
    there = world()
    before = Scene(there)
    await steps(before, 30, last=37, gap_s=2.0)
    before.live.attempts[there.job, 0].step_time_s = 2.0
    await before.reconcile()
    scene = Scene(there, orders=waiting())
    await scene.start()
    seen = scene.live.attempts[there.job, 0]
    assert (seen.first_step, seen.last_step, seen.step_time_s, seen.nodes) == (8, 37, 2.0, ("n1", "n2"))
    assert seen.rhythm.gap_s == 2.0 and not seen.ended
    assert await look(scene, 12.0) == []
    assert Kind.STALL in await look(scene, 1.0)


async def test_ended_attempts_are_remembered_as_ended(world: Worlds) -> None:
    there = world()
    before = Scene(there)
    await steps(before, 30, last=37)
    there.slurm.end(there.job, exit_code=1)
    await before.reconcile()
    (row,) = there.store.attempts()
    assert row["state"] == "failed" and row["ended_at"] is not None
    scene = Scene(there)
    await scene.start()
    assert scene.live.ended(there.job, 0) and scene.live.nodes_of(there.job, 0) == ("n1", "n2")


async def test_attempt_without_steps_is_remembered_without_a_rhythm(world: Worlds) -> None:
    there = world()
    await Scene(there).reconcile()
    scene = Scene(there)
    await scene.start()
    assert scene.live.attempts[there.job, 0].rhythm.lines == 0


@pytest.mark.parametrize("last", [0, 3])
async def test_few_steps_are_remembered_from_the_first(world: Worlds, last: int) -> None:
    there = world()
    before = Scene(there)
    await steps(before, last + 1, last=last)
    await before.reconcile()
    scene = Scene(there)
    await scene.start()
    rhythm = scene.live.attempts[there.job, 0].rhythm
    assert (rhythm.last_step, rhythm.lines, rhythm.last_at) == (last, last + 1, there.slurm.clock.now())


async def test_job_that_slurm_purged_meanwhile_is_over(world: Worlds) -> None:
    """Nobody can tell how it ended; but it must not be asked about for ever, nor count as running."""
    there = world()
    await Scene(there).reconcile()
    there.slurm.end(there.job)
    there.slurm.purge(there.job)
    scene = Scene(there)
    await scene.start()
    await scene.reconcile()
    assert scene.live.ended(there.job, 0) and scene.reported == []
    (row,) = there.store.attempts()
    assert (row["state"], row["ended_at"]) == (
        END_NOT_SEEN,
        there.slurm.clock.now(),
    )  # no daemon noted when it was alive


@pytest.mark.parametrize(("away_s", "state"), [(60.0, "unknown"), (5 * 86400.0, END_NOT_SEEN)])
async def test_whether_an_end_was_seen_is_known_by_how_long_nobody_looked(
    world: Worlds, away_s: float, state: str
) -> None:
    """Of one that ended at some time in five days nobody knows how long it worked."""
    there = world()
    before = Scene(there)
    await before.reconcile()
    there.store.put(JUDGED_UNTIL, (there.slurm.clock.now() - before.engine.state.window).isoformat())
    there.slurm.end(there.job)
    there.slurm.purge(there.job)
    there.slurm.clock.at += timedelta(seconds=away_s)
    scene = Scene(there)
    await scene.start()
    await scene.reconcile()
    (row,) = there.store.attempts()
    assert (row["state"], row["ended_at"] is None) == (state, False)


async def test_a_component_that_is_gone_is_still_one_of_its_job(world: Worlds) -> None:
    there = world()
    before = Scene(there)
    await before.reconcile()
    seen = before.live.attempts[there.job, 0]
    there.store.commit([AttemptSeen(dataclasses.replace(seen.view, het=there.job))])
    assert there.store.components(there.job) == {there.job}
    there.slurm.end(there.job)
    there.slurm.purge(there.job)
    scene = Scene(there)
    await scene.start()
    await scene.reconcile()
    (row,) = there.store.attempts()
    assert row["ended_at"] is not None and there.store.components(there.job) == {there.job}
