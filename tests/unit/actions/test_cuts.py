"""Promise 3: a plan that is killed at any call and carried out again ends as if it had not been, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon
from in_memory.world import ECC, LOST, SUSPECTED, USER, Fate, Killed, World
from prometheus_client import CollectorRegistry

from sentinel.errors import Unavailable
from sentinel.model.records import Incident, Plan, Result, Verdict
from sentinel.telemetry import Telemetry

Worlds = Callable[..., World]

# One for a thousand daemons: its series take longer to make than their start.
TELEMETRY = Telemetry(CollectorRegistry())
PLANS = {"ecc": ECC, "lost": LOST, "suspected": SUSPECTED, "user": USER}


def _ready(world: World, case: str, job: str) -> None:
    """What the cluster is like when the plan begins."""
    if case == "lost":
        world.slurm.lose("n1")
        if job == "requeued":
            world.slurm.notice("n1")  # Slurm was quicker: NODE_FAIL, back in the queue, not held
            return
    if job == "failed":
        world.slurm.end(world.job, exit_code=1)


async def _carry(world: World, fate: Fate) -> None:
    """A daemon starts and carries on with the plan, until nothing is left or it is killed."""
    try:
        daemon = Daemon(world, fate=fate, telemetry=TELEMETRY)
        await daemon.start()
    except Killed:
        return
    except Unavailable:
        pass  # it is saved as soon as the store answers
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said


async def _begin(world: World, case: str, job: str) -> tuple[Incident, Verdict, Plan]:
    decided = await world.decide(PLANS[case])
    assert decided[2].steps
    _ready(world, case, job)
    return decided


async def _uncut(world: World, case: str, job: str) -> tuple[int, dict[str, Any], dict[str, int]]:
    fate = Fate()
    await _begin(world, case, job)
    await _carry(world, fate)
    return fate.count, world.end_state(), world.effects()


CASES = [
    ("ecc", "running"),
    ("ecc", "failed"),
    ("lost", "running"),
    ("lost", "requeued"),
    ("suspected", "running"),
    ("user", "running"),
    ("user", "failed"),
]


@pytest.mark.parametrize(("case", "job"), CASES)
async def test_uncut_plan_reaches_its_goal(world: Worlds, case: str, job: str) -> None:
    there = world()
    _, state, _ = await _uncut(there, case, job)
    assert set(state["results"].values()) == {Result.DONE}
    this = there.slurm.jobs[there.job]
    if case == "user":
        assert this.held and this.state == "PENDING" and this.restarts == 1
        return
    assert this.state == "RUNNING" and this.restarts == 1 and not this.held
    bad = "n2" if case == "suspected" else "n1"
    assert bad not in this.on and this.excluded == (bad,)
    assert there.slurm.nodes["n1"].drained is (case != "suspected")
    assert not there.slurm.nodes["n2"].drained
    assert state["resume"][there.job]["SENTINEL_RESUME_STEP"] == "200"
    assert there.checkpoints.moved == ["/shared/run/step-300"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("case", "job"), CASES)
async def test_killed_at_every_call_and_carried_out_again(world: Worlds, case: str, job: str, after: bool) -> None:
    calls, state, effects = await _uncut(world(), case, job)
    assert calls >= 6
    for cut in range(calls):
        there = world()
        await _begin(there, case, job)
        fate = Fate(kill_at=cut, after=after)
        await _carry(there, fate)
        assert fate.dead
        await _carry(there, Fate())
        where = f"killed {'after' if after else 'before'} call {cut}, {fate.names[-1]}"
        assert there.end_state() == state, where
        assert there.effects() == effects, where


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("case", "job"), [("ecc", "running"), ("lost", "requeued"), ("user", "failed")])
async def test_killed_twice(world: Worlds, case: str, job: str, after: bool) -> None:
    calls, state, effects = await _uncut(world(), case, job)
    for first in range(0, calls, 3):
        for second in range(0, 6, 2):
            there = world()
            await _begin(there, case, job)
            for cut in (first, second):
                await _carry(there, Fate(kill_at=cut, after=after))
            await _carry(there, Fate())
            assert there.end_state() == state, (first, second)
            assert there.effects() == effects, (first, second)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fails", [1, 7])
@pytest.mark.parametrize(("case", "job"), CASES)
async def test_no_answer_at_every_call(world: Worlds, case: str, job: str, fails: int, after: bool) -> None:
    """The plan goes on by itself once there are answers again; what happened unseen is not done twice.

    Seven calls in a row without an answer outlast what is tried again at once; they begin at every third call.
    """
    calls, state, effects = await _uncut(world(), case, job)
    for cut in range(0, calls, 1 if fails == 1 else 3):
        there = world()
        await _begin(there, case, job)
        fate = Fate(fail_at=cut, fails=fails, after=after)
        await _carry_through(there, fate)
        called = (
            fate.names[cut] if cut < fate.count else "not reached"
        )  # how often is asked depends on how fast it goes
        where = f"no answer {'after' if after else 'before'} call {cut}, {called}"
        assert there.end_state() == state, where
        assert there.effects() == effects, where


async def _carry_through(world: World, fate: Fate) -> None:
    """A daemon that finds no store does not start; it is started again."""
    for _ in range(12):
        try:
            await _carry(world, fate)
        except Unavailable:
            continue
        return
    raise AssertionError("did not come to an end")
