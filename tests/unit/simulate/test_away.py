"""A daemon that was away takes in what happened meanwhile before it judges: one failure, one incident, one message."""

from __future__ import annotations

from functools import cache

import pytest

from sentinel.model.records import Cause
from sentinel.simulate.explore import same_end
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.world import World

BUS = Happening("gpu-off-bus", 60.0, "job0/1")


def away(*happenings: Happening) -> History:
    return History(1, 0, "killed", Setup(), (BUS, *happenings), 1200.0)


@cache
def never_away() -> World:
    world = World(away())
    world.run()
    return world


def ended_well(history: History, cause: Cause = Cause.GPU_FALLEN_OFF_BUS) -> None:
    world = World(history)
    assert world.run() == []
    if any(one.what == "kill" for one in history.happenings):
        assert same_end(world, never_away()) == []
    assert [verdict.cause for verdict in world.store.verdicts.values()] == [cause]
    assert len(world.observer.notices) == 1  # incidents that people were told of
    job = world.slurm.jobs[101]
    assert (job.state, job.restarts) == ("RUNNING", 1) and world.slurm.nodes["n2"].drained


@pytest.mark.parametrize("down_s", [20.0, 120.0, 150.0, 240.0])
@pytest.mark.parametrize("nth", [0, 1, 2, 4])
def test_killed_before_it_has_judged_and_started_again_minutes_later(nth: int, down_s: float) -> None:
    ended_well(away(Happening("kill", 60.0, data={"nth": nth, "after": True, "down_s": down_s})))


@pytest.mark.parametrize("from_s", [59.0, 60.15, 60.4, 64.2])
def test_stopped_for_minutes(from_s: float) -> None:
    ended_well(away(Happening("freeze", from_s, data={"for_s": 200.0})))


def test_killed_again_before_it_has_judged_what_it_found() -> None:
    """What was found after the first absence is still looked back to after the second."""
    killed = Happening("kill", 60.0, data={"nth": 2, "after": True, "down_s": 150.0})
    again = Happening("kill", 211.0, data={"nth": 4, "after": True, "down_s": 20.0})
    ended_well(away(killed, again))


def test_slurm_has_forgotten_a_job_that_failed_while_nobody_looked() -> None:
    """MinJobAge is over: it cannot be restarted, and people are told so."""
    failed = Happening("program-error", 60.0, "job0")
    history = History(
        1, 0, "killed", Setup(), (failed, Happening("kill", 60.0, data={"nth": 6, "down_s": 400.0})), 1400.0
    )
    world = World(history)
    assert world.run() == []
    assert 101 not in world.slurm.jobs and len(world.observer.arrived) == 1
    (plan,) = world.store.plans.values()
    assert "no longer knows job 101" in plan.explanation


@pytest.mark.parametrize("full_s", [119.5, 121.0, 122.5])
def test_evidence_that_was_refused_while_the_store_was_full_is_taken_in_before_a_job_is_judged(full_s: float) -> None:
    """Slurm's word of the end comes at once, the line that says why comes with the agent's next try."""
    full, storage = Happening("store-full", 59.5, data={"for_s": full_s}), Happening("storage", 60.0, "job0")
    world = World(History(1, 0, "store", Setup(), (full, storage), 1200.0))
    assert world.run() == []
    (verdict,) = world.store.verdicts.values()
    assert verdict.cause is Cause.FILESYSTEM_STORAGE
