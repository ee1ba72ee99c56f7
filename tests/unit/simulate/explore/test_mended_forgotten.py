"""Histories that tests/bench/forgotten.py found: slurmctld is killed and forgets."""

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
    History(  # its user's requeue: the job has failed again
        993, 1304, "people", Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))),
        (
            Happening("disk-full", 88.48695837428863, "job1/0"),
            Happening("requeue", 90.03919477662099, "job1"),
            Happening("slurmctld-crash", 91.02192157089226, data={"for_s": 30.0}),
        ),
        990.039194776621,
    ),
    History(  # the comment that says why our hold is on the second component
        993, 4598, "crowded", Setup(jobs=(JobSpec(kind="het"),)),
        (
            Happening("program-error", 71.11028127034787, "job0/1"),
            Happening("slurmctld-crash", 78.74472066557031, data={"for_s": 2.0}),
        ),
        973.1220668967878,
    ),
    History(  # a drain, during a pause that outlasts the memory of what is closed
        993, 4697, "paused", Setup(),
        (
            Happening("gpu-lost-silently", 49.61683887493428, "n6"),
            Happening("slurmctld-crash", 54.27078401476329, data={"for_s": 30.0}),
            Happening("pause", 54.48000169335177),
            Happening("resume", 254.48000169335177),
        ),
        1154.9800016933518,
    ),
    History(  # that the second attempt began: only the second one's incident lets the job go
        993, 5746, "many-nodes", Setup(
            nodes=16, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(user="eve")),
            limits={"drain_fraction": 0.1, "drain_per_hour": 4},
            switch_nodes=4,
        ),
        (
            Happening("gpu-firmware", 88.10235300251509, "job0/1"),
            Happening("gpu-off-bus", 88.60235300251509, "job0/1"),
            Happening("gpu-firmware", 91.60235300251509, "job0/1"),
            Happening("slurmctld-crash", 93.60967149466214, data={"for_s": 2.0}),
        ),
        991.6023530025151,
    ),
    History(  # a drain, while the job is being stopped: it is drained again before the job is let go
        991, 1174, "crowded", Setup(jobs=(JobSpec(nodes=6),)),
        (
            Happening("gpu-off-bus", 40.75860189093369, "job0/1"),
            Happening("slurmctld-crash", 41.51543135195352, data={"for_s": 2.0}),
        ),
        940.7586018909337,
    ),
    History(  # the whole second attempt: its incident does not stop the first one
        990, 142, "many-nodes", Setup(
            nodes=16, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(user="eve")),
            limits={"drain_fraction": 0.1, "drain_per_hour": 4},
        ),
        (
            Happening("gpu-memory", 60.893079382565645, "job2/1"),
            Happening("node-lost", 61.893079382565645, "job0/1"),
            Happening("gpu-off-bus", 62.393079382565645, "job0/0"),
            Happening("gpu-firmware", 63.393079382565645, "job2/0"),
            Happening("slurmctld-crash", 64.82391235140996, data={"for_s": 5.0}),
        ),
        1360.8930793825657,
    ),
    History(  # it answers nothing any more to what was on its way when it died
        990, 279, "requeue-held", Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))),
        (
            Happening("gpu-memory", 74.6366536333655, "job0/1"),
            Happening("slurmctld-crash", 76.28584646242211, data={"for_s": 30.0}),
        ),
        978.1901414989749,
    ),
    History(  # an attempt, whose program trains no more beside the one that follows
        992, 3559, "in-turn", Setup(nodes=5),
        (
            Happening("drain", 1.0, "n4"),
            Happening("drain", 1.0, "n5"),
            Happening("fails-each", 64.3109378349821, "n2"),
            Happening("fails-each", 64.3109378349821, "n1"),
            Happening("gpu-memory-contained", 65.3109378349821, "n2"),
            Happening("slurmctld-crash", 68.06104281262216, data={"for_s": 2.0}),
        ),
        965.310937834982,
    ),
    History(  # a drain, during an outage of the store that outlasts the memory of what is closed
        995, 5885, "anything", Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))),
        (
            Happening("program-error", 40.20926127697372, "job0/0"),
            Happening("kill", 40.20926127697372, data={"nth": 2, "after": False, "down_s": 2.0}),
            Happening("gpu-lost-silently", 81.26002514320315, "job0/1"),
            Happening("slurmctld-crash", 84.13347564465977, data={"for_s": 30.0}),
            Happening("store-full", 93.7761116685511, data={"for_s": 120.0}),
        ),
        1515.776111668551,
    ),
    History(  # an attempt, which does not count as one that gained steps since the one before it gained fewer
        995, 1653, "many-nodes", Setup(
            nodes=16, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(user="eve")),
            limits={"drain_fraction": 0.1, "drain_per_hour": 2},
        ),
        (
            Happening("node-lost", 54.9439544741006, "job2/0"),
            Happening("gpu-firmware", 84.9439544741006, "job2/1"),
            Happening("gpu-firmware", 114.9439544741006, "job2/1"),
            Happening("slurmctld-crash", 119.3452684953222, data={"for_s": 30.0}),
            Happening("gpu-off-bus", 144.9439544741006, "job2/0"),
            Happening("gpu-off-bus", 204.9439544741006, "job2/0"),
            Happening("gpu-memory", 234.9439544741006, "job2/1"),
        ),
        1134.9439544741006,
    ),
    History(  # the node list of a job that it has requeued itself, while the daemon is away
        996, 5365, "observe", Setup(mode="observe", restart_mode="act"),
        (
            Happening("gpu-memory", 54.74596355278386, "job0/1"),
            Happening("kill", 54.74596355278386, data={"nth": 33, "after": True, "down_s": 400.0}),
            Happening("slurmctld-crash", 58.8416092704021, data={"for_s": 2.0}),
        ),
        1354.745963552784,
    ),
    History(  # not killed here: a node convicted when a restart in the allocation fails is drained
        995, 4549, "in-allocation", Setup(nodes=8, jobs=(JobSpec(nodes=4, trains_on=3), JobSpec(user="bob"))),
        (
            Happening("gpu-lost-silently", 86.59950431734404, "job0/2"),
            Happening("kill", 86.59950431734404, data={"nth": 21, "after": False, "down_s": 150.0}),
            Happening("gpu-off-bus", 87.4088407440755, "job0/3"),
        ),
        1137.4088407440754,
    ),
    History(  # the same comment: what it had saved is that of the restart before
        998, 4923, "crowded", Setup(jobs=(JobSpec(kind="het"),)),
        (
            Happening("gpu-off-bus", 74.94194515302307, "job0/1"),
            Happening("program-error", 80.88066551989299, "job0/0"),
            Happening("slurmctld-crash", 88.03677909332917, data={"for_s": 30.0}),
        ),
        980.880665519893,
    ),
]  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: f"{history.seed}-{history.number}")
def test_a_history_that_broke_a_promise_breaks_none(history: History) -> None:
    assert World(history).run() == []
