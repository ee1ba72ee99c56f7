"""Histories in which the clock of the daemon's host is wrong, or set: each broke a promise once."""

from __future__ import annotations

from datetime import datetime

import pytest

from sentinel.daemon import clock
from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

THREE = tuple(JobSpec(user=user) for user in ("ada", "bob", "eve"))


def set_by(by_s: float, at_s: float) -> Happening:
    return Happening("own-clock", at_s, data={"by_s": by_s})


SET_BACK = History(1, 24, "own-clock", Setup(), (Happening("prints-xid", 72.0, "job0/1"), set_by(-3600.0, 74.1)), 974.1)
NEXT_DAEMON_BEHIND = History(
    3, 571, "own-clock", Setup(),
    (
        Happening("gpu-firmware", 72.3, "job0/0"),
        Happening("kill", 72.3, data={"nth": 32, "after": True, "down_s": 60.0}),
        set_by(-3600.0, 79.2),
    ),
    1039.2,
)  # fmt: skip
SET_FORWARD = History(
    1, 1060, "many-nodes", Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.5, "drain_per_hour": 2}),
    (
        Happening("gpu-memory", 49.0, "job1/0"),
        Happening("node-lost", 79.0, "n15"),
        Happening("node-lost", 109.0, "job1/0"),
        set_by(3600.0, 167.5),
    ),
    1350.0,
)  # fmt: skip
AHEAD_OF_SLURM = History(
    1, 1095, "in-turn", Setup(nodes=4),
    (
        Happening("drain", 1.0, "n4"),
        Happening("fails-each", 35.9, "n1"),
        Happening("fails-each", 35.9, "n2"),
        Happening("gpu-memory-contained", 36.9, "n1"),
        Happening("kill", 36.9, data={"nth": 10, "after": False, "down_s": 150.0}),
        set_by(290.0, 39.5),
    ),
    1086.9,
)  # fmt: skip
ALL = (SET_BACK, NEXT_DAEMON_BEHIND, SET_FORWARD, AHEAD_OF_SLURM)


@pytest.mark.parametrize("history", ALL, ids=lambda history: f"{history.story}-{history.number}")
def test_a_history_that_broke_a_promise_breaks_none(history: History) -> None:
    assert World(history).run() == []


@pytest.mark.parametrize(
    ("history", "promise"),
    [(SET_BACK, "brought-back"), (NEXT_DAEMON_BEHIND, "comes-to-rest"), (SET_FORWARD, "blast-radius")],
)
def test_the_promises_see_a_clock_that_jumps(history: History, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def host(self: clock.SteadyClock) -> datetime:
        return self._host()

    monkeypatch.setattr(clock.SteadyClock, "now", host)
    assert {violation.promise for violation in World(history).run()} == {promise}
