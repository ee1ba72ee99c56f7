"""Histories that tests/bench/forgotten.py found: slurmctld, killed in the middle of two recoveries of one job, forgets."""

from __future__ import annotations

import pytest

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

HISTORIES = [
    History(  # the second attempt's incident restarts it beside the first one's, which does its restart again
        991, 3379, "again", Setup(nodes=10, jobs=(JobSpec(nodes=2),)),
        (
            Happening("gpu-off-bus", 34.947075752509434, "job0/0"),
            Happening("slurmctld-crash", 39.528110461051455, data={"for_s": 2.0}),
            Happening("gpu-off-bus", 39.947075752509434, "job0/1"),
        ),
        959.9470757525095,
    ),
    History(
        990, 2087, "in-turn", Setup(nodes=4, jobs=(JobSpec(nodes=2),)),
        (
            Happening("fails-each", 50.15245475668716, "n2"),
            Happening("gpu-memory-contained", 51.15245475668716, "n1"),
            Happening("slurmctld-crash", 54.52642601899838, data={"for_s": 30.0}),
        ),
        951.1524547566871,
    ),
    History(  # what it forgets itself is nobody's fault: a reservation, a scancel of a job that it calls failed again
        990, 322, "reserved", Setup(nodes=8, jobs=(JobSpec(nodes=2), JobSpec(nodes=2, user="bob"))),
        (
            Happening("maintenance", 55.178183800952404, "job0/0", data={"for_s": 300.0}),
            Happening("slurmctld-crash", 57.42410491075354, data={"for_s": 30.0}),
            Happening("gpu-memory", 61.58153101690428, "job0/0"),
        ),
        1462.0815310169041,
    ),
]  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: f"{history.seed}-{history.number}")
def test_a_history_that_broke_a_promise_breaks_none(history: History) -> None:
    assert World(history).run() == []
