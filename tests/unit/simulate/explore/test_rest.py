"""A history that has come to rest is ended, and ends as it would have later."""

from __future__ import annotations

import pytest

from sentinel.simulate import rest
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.stories import history_of
from sentinel.simulate.world import World

BUS = Happening("gpu-off-bus", 60.0, "job0/1")


def ran(history: History) -> World:
    world = World(history)
    assert world.run() == []
    return world


@pytest.mark.parametrize("story", ["killed", "people", "crowded", "suggest", "two-faults", "again"])
def test_it_ends_as_it_would_have_later(monkeypatch: pytest.MonkeyPatch, story: str) -> None:
    early = ran(history_of(5, 1, story))
    monkeypatch.setattr(rest, "FULL", 1)
    whole = ran(history_of(5, 1, story))
    assert early.now_s + 200.0 < whole.now_s == whole.history.ends_s
    assert early.end_state() == whole.end_state()


def test_one_in_a_few_goes_on_to_its_end() -> None:
    whole = ran(history_of(5, 2 * rest.FULL, "killed"))
    assert whole.now_s == whole.history.ends_s


@pytest.mark.parametrize(
    ("happening", "until_s"),
    [
        (Happening("slurmctld-gone", 200.0, data={"for_s": 150.0}), 350.0),
        (Happening("kill", 60.0, data={"nth": 3, "down_s": 200.0}), 260.0),
        (Happening("node-lost", 200.0, "n5"), 500.0),  # Slurm itself sets it down after 300 s
        (Happening("program-error", 500.0, "job0"), 500.0),
    ],
    ids=lambda what: what.what if isinstance(what, Happening) else "",
)
def test_what_is_still_to_come_is_no_rest(happening: Happening, until_s: float) -> None:
    world = ran(History(1, 1, "anything", Setup(), (BUS, happening), 1500.0))
    assert until_s < world.now_s < 1500.0


def test_a_job_that_hangs_unseen_is_no_rest() -> None:
    world = World(History(1, 1, "anything", Setup(), (), 700.0))
    world.later(50.0, lambda: world.programs.hang(world.programs.newest[101], "n1"))
    world.run()
    assert world.now_s == 700.0


def test_daemons_killed_one_after_the_other_leave_the_last_one_its_time() -> None:
    often = history_of(8023, 5050, "killed-often")  # four kills, with 400 s down after three of them
    assert ran(often).lives == 5
