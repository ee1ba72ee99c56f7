"""Histories that explore found, as ``test_mended``: slurmctld forgot what was done, or nobody heard an agent."""

from __future__ import annotations

import pytest

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

BEGUN_AND_FORGOTTEN = History(
    8185, 7993, "spares", Setup(nodes=8, jobs=(JobSpec(nodes=3), JobSpec(nodes=3, user="bob")), spares=2),
    (
        Happening("storage", 44.770581946422226, "job1/0"),
        Happening("gpu-memory-contained", 50.217444458453684, "n8"),
        Happening("slurmctld-crash", 52.93968446905133, data={"for_s": 90.0}),
    ),
    1042.9,
)  # fmt: skip
RETURN_AND_DRAIN_FORGOTTEN = History(
    8192, 8631, "put-back",
    Setup(
        nodes=16, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(nodes=3, user="eve")),
        limits={"drain_fraction": 0.1, "drain_per_hour": 2},
    ),
    (
        Happening("gpu-memory", 78.41753687915386, "job1/0"),
        Happening("gpu-firmware", 78.91753687915386, "n4"),
        Happening("node-lost", 79.41753687915386, "job1/0"),
        Happening("gpu-firmware", 169.41753687915386, "job2/0"),
        Happening("node-lost", 171.41753687915386, "job0/0"),
        Happening("repair", 471.4175368791539),
        Happening("slurmctld-crash", 472.4175368791539),
    ),
    1386.4,
)  # fmt: skip
BAD_NUMBERS_NOT_HEARD = History(
    8193, 9939, "anything", Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))),
    (
        Happening("cut-off", 34.65841350801863, "n1", data={"for_s": 150.0}),
        Happening("bad-numbers", 36.65841350801863, "job0/0"),
        Happening("node-lost", 85.15288146376598, "job0/0"),
        Happening("prints-xid", 206.9872091707361, "job0"),
    ),
    1277.0,
)  # fmt: skip

ANSWERED_TWICE_AFTER_A_FREEZE = History(
    8195, 5048, "watched", Setup(nodes=6, jobs=(JobSpec(),), watched=True),
    (
        Happening("cut-off", 75.32510982233629, "job0/0", data={"for_s": 10.0}),
        Happening("hang", 78.85749102339199, "job0/0", data={"for_s": 60.0}),
        Happening("freeze", 85.04420306736928, data={"for_s": 20.0}),
    ),
    595.0,
)  # fmt: skip

REQUEUEHOLD_FORGOTTEN = History(
    8199, 1655, "put-back",
    Setup(
        nodes=16, jobs=(JobSpec(nodes=3), JobSpec(nodes=3, user="bob"), JobSpec(nodes=1, user="eve")), returns=True,
        limits={"drain_fraction": 0.1, "drain_per_hour": 4},
    ),
    (
        Happening("gpu-off-bus", 109.82234014477434, "job1/1"),
        Happening("node-lost", 140.32234014477433, "job1/1"),
        Happening("gpu-firmware", 142.32234014477433, "n1"),
        Happening("requeue-hold", 442.32234014477433, "job1"),
        Happening("slurmctld-crash", 443.32234014477433),
    ),
    1392.3,
)  # fmt: skip

HELD_BEFORE_A_FORGOTTEN_REQUEUEHOLD = History(
    8203, 9783, "put-back",
    Setup(
        nodes=8, jobs=(JobSpec(nodes=2), JobSpec(user="bob"), JobSpec(nodes=2, user="eve")), returns=True,
        limits={"drain_fraction": 0.5, "drain_per_hour": 2},
    ),
    (
        Happening("hold", 227.4797021859914, "job0"),
        Happening("requeue-hold", 247.4797021859914, "job0"),
        Happening("slurmctld-crash", 248.4797021859914),
    ),
    1148.4797021859913,
)  # fmt: skip

RELEASED_AFTER_ANOTHER_WROTE = History(
    8216, 626, "anything", Setup(nodes=8, jobs=(JobSpec(nodes=2), JobSpec(nodes=2, user="bob"))),
    (
        Happening("gpu-lost-silently", 68.03515549158095, "job0/1"),
        Happening("gpu-memory-contained", 71.8425496832836, "job0/1"),
        Happening("kill", 71.8425496832836, data={"nth": 13, "after": False, "down_s": 400.0}),
        Happening("slurmctld-crash", 73.3198625842552, data={"for_s": 200.0}),
    ),
    1725.9427170771228,
)  # fmt: skip

SAVED_BY_AN_ATTEMPT_THAT_IS_FORGOTTEN = History(
    8225, 1352, "anything", Setup(nodes=8, jobs=(JobSpec(nodes=2), JobSpec(nodes=2, user="bob"))),
    (
        Happening("gpu-off-bus", 30.981068647556498, "job0/0"),
        Happening("slurmctld-crash", 34.09899855638818, data={"for_s": 90.0}),
        Happening("bad-numbers", 76.02928742056918, "job0/1"),
    ),
    1466.0292874205693,
)  # fmt: skip

CANCELLED_AND_FORGOTTEN = History(
    8227, 721, "anything", Setup(nodes=8, jobs=(JobSpec(nodes=2), JobSpec(nodes=2, user="bob"))),
    (
        Happening("gpu-off-bus", 68.68870025135121, "job0/1"),
        Happening("cancel", 71.33079342738716, "job0"),
        Happening("slurmctld-crash", 73.7424992482463, data={"for_s": 2.0}),
    ),
    1098.9588787082978,
)  # fmt: skip

BEGUN_BEFORE_ITS_NODE_WAS_JUDGED = History(
    2026, 4317, "anything", Setup(nodes=8, jobs=(JobSpec(nodes=2), JobSpec(nodes=2, user="bob"))),
    (
        Happening("gpu-memory-contained", 31.10232427758191, "job0/0"),
        Happening("store-full", 31.77824819921876, data={"for_s": 120.0}),
        Happening("gpu-off-bus", 64.52276056620371, "job1/0"),
    ),
    1192.628935125579,
)  # fmt: skip


@pytest.mark.parametrize(
    "history",
    [
        BEGUN_AND_FORGOTTEN,
        RETURN_AND_DRAIN_FORGOTTEN,
        BAD_NUMBERS_NOT_HEARD,
        ANSWERED_TWICE_AFTER_A_FREEZE,
        REQUEUEHOLD_FORGOTTEN,
        HELD_BEFORE_A_FORGOTTEN_REQUEUEHOLD,
        RELEASED_AFTER_ANOTHER_WROTE,
        SAVED_BY_AN_ATTEMPT_THAT_IS_FORGOTTEN,
        CANCELLED_AND_FORGOTTEN,
        BEGUN_BEFORE_ITS_NODE_WAS_JUDGED,
    ],
    ids=lambda history: f"{history.seed}-{history.number}",
)
def test_a_history_that_broke_a_promise_breaks_none(history: History) -> None:
    assert World(history).run() == []
