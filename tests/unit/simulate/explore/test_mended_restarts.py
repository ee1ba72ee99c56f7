"""Histories of restarts that explore found and that broke a promise once, as ``test_mended``: two at once, and late news."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

TWO = (JobSpec(), JobSpec(user="bob"))


def kill(at_s: float, nth: int, *, after: bool) -> Happening:
    return Happening("kill", at_s, data={"nth": nth, "after": after, "down_s": 400.0})


def lose(at_s: float, nth: int) -> Happening:
    return Happening("lose", at_s, data={"nth": nth, "after": True, "times": 1})


RELEASE_WITHOUT_ANSWER = History(
    8001, 719, "doubled", Setup(nodes=8, jobs=TWO, daemons=2),
    (
        Happening("gpu-firmware", 42.980588906511755, "job1/1"),
        lose(42.980588906511755, 37),
        Happening("gpu-memory-contained", 54.15885039604348, "job1/1"),
    ),
    963.3,
)  # fmt: skip
TWO_OF_THREE_NODES = History(
    8002, 9838, "crowded",
    Setup(
        nodes=6, partitions=("train", "short"),
        jobs=(JobSpec(nodes=3), JobSpec(nodes=3, user="bob", partition="short")),
    ),
    (Happening("node-lost", 77.73202414095095, "job1/0"), Happening("gpu-memory", 88.75818808809748, "n4")),
    988.8,
)  # fmt: skip
LAPSED_APPROVAL = History(
    8003, 4524, "suggest",
    Setup(nodes=6, jobs=(JobSpec(kind="het"),), mode="suggest", restart_mode="suggest", approval_s=60.0),
    (
        Happening("gpu-memory", 49.31738242773922, "n3"),
        Happening("approve", 127.43841061435337, data={"part": False, "late_s": 0.0}),
    ),
    1036.1,
)  # fmt: skip
SUSPECT_CONVICTED_LATE = History(
    8005, 8390, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("link-down", 43.95284339507687, "job0/0"),
        kill(43.95284339507687, 25, after=True),
        lose(64.2289552168292, 17),
        Happening("gpu-lost-silently", 88.27619981603588, "job0/0"),
    ),
    1397.8,
)  # fmt: skip
REBOOTED_MEANWHILE = History(
    8005, 1470, "in-allocation", Setup(nodes=8, jobs=(JobSpec(nodes=4, trains_on=3),)),
    (
        Happening("link-down", 32.952950513877184, "job0/0"),
        kill(32.952950513877184, 64, after=False),
        Happening("reboot", 105.6316628821728, "job0/0"),
    ),
    1405.6,
)  # fmt: skip

SUSPECT_SPARE = History(
    8008, 3510, "suggest",
    Setup(nodes=8, jobs=(JobSpec(nodes=4, trains_on=2), JobSpec(user="bob")), mode="suggest", restart_mode="act"),
    (
        Happening("gpu-memory-contained", 74.3883769169659, "job0/2"),
        Happening("kill", 74.3883769169659, data={"nth": 2, "after": True, "down_s": 10.0}),
        Happening("slurmctld-crash", 78.28812510938963, data={"for_s": 15.0}),
    ),
    986.3,
)  # fmt: skip

LIMIT_FORGOTTEN = History(
    8009, 152, "watched", Setup(nodes=6, jobs=(JobSpec(),), watched=True),
    (Happening("time-limit", 90.33883341257464, "job0"), Happening("slurmctld-crash", 93.7029887, data={"for_s": 2.0})),
    515.7,
)  # fmt: skip
LENT_AS_IT_BEGAN = History(
    8009, 8566, "spares", Setup(nodes=7, jobs=(JobSpec(nodes=3), JobSpec(nodes=3, user="bob")), spares=1),
    (
        Happening("gpu-lost-silently", 56.403008893140715, "job1/0"),
        Happening("kill", 56.403008893140715, data={"nth": 37, "after": False, "down_s": 10.0}),
    ),
    979.7,
)  # fmt: skip

HELD_BEFORE_OUR_REQUEST_CAME = History(
    8010, 6023, "requeue-held", Setup(nodes=8, jobs=TWO),
    (
        Happening("gpu-memory", 40.962, "job0/1"),
        Happening("lose", 40.962, data={"nth": 10, "after": False, "times": 2}),
        Happening("requeue-hold", 50.859, "job0"),
    ),
    420.0,
)  # fmt: skip
BACKLOG_OUT_OF_ORDER = History(
    8010, 4221, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("store-full", 41.576, data={"for_s": 120.0}),
        Happening("gpu-firmware", 44.337, "job0/1"),
        Happening("reboot", 45.311, "job1/0"),
        Happening("bad-numbers", 49.765, "job0/1"),
    ),
    1300.0,
)  # fmt: skip
REPAIRED_BETWEEN_TWO_REQUESTS = History(
    8011, 5790, "returned", Setup(nodes=8, jobs=TWO, returns=True),
    (Happening("node-lost", 88.94287683738804, "job0/0"), Happening("repair", 97.49265316010941)),
    1057.5,
)  # fmt: skip
ENDED_BY_ITSELF_IN_A_PAUSE = History(
    8012, 2595, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("pause", 23.194),
        Happening("gpu-memory-contained", 42.216, "job0/1"),
        Happening("node-lost", 58.706, "job0/1"),
        Happening("resume", 223.194),
    ),
    1123.7,
)  # fmt: skip


# Made up: the kernel's line is read after the daemon has found that the node is there again.
BROKEN_ON_ITS_RETURN = History(
    12, 1, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("reboot", 44.0, "job0/0"),
        kill(44.0, 3, after=True),
        Happening("gpu-lost-silently", 106.0, "n1"),
    ),
    1300.0,
)  # fmt: skip

ENDED_WHILE_NO_DAEMON_COULD_SEE = History(
    15101, 339, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("prints-xid", 77.65912580766465, "job1/1"),
        Happening("slurmctld-gone", 85.53740652677315, data={"for_s": 200.0}),
        Happening("kill", 87.70303733962172, data={"nth": 22, "after": True, "down_s": 2.0}),
        Happening("out-of-memory", 89.68464853555915, "job1/1"),
    ),
    1338.1,
)  # fmt: skip

# As on a real Slurm, in a chaos story: slurmctld had saved the release, and a person holds the job after the restart.
HELD_AFTER_SLURMCTLD_CAME_BACK = History(
    1503, 2, "slurmctld", Setup(nodes=2, jobs=(JobSpec(),)),
    (
        Happening("gpu-off-bus", 42.0, "job0/1"),
        Happening("slurmctld-crash", 55.0, data={"for_s": 5.0}),
        Happening("hold", 63.0, "job0"),
    ),
    400.0,
)  # fmt: skip

# The same, where the held job was requeued later: its node died, and Slurm leaves the time of the first requeue.
HELD_ON_A_NODE_THAT_DIES = History(
    1513, 2, "slurmctld", Setup(nodes=4, jobs=(JobSpec(),)),
    (
        Happening("gpu-off-bus", 42.0, "job0/1"),
        Happening("slurmctld-crash", 85.0, data={"for_s": 5.0}),
        Happening("node-lost", 110.0, "job0/0"),
        Happening("requeue-hold", 111.0, "job0"),
    ),
    600.0,
)  # fmt: skip

RETURNED_BEFORE_WE_LOOKED = History(
    8021, 17, "in-allocation", Setup(nodes=8, jobs=(JobSpec(nodes=3, trains_on=3),)),
    (
        Happening("gpu-firmware", 30.357, "job0/0"),
        Happening("lose", 30.357, data={"nth": 6, "after": True, "times": 2}),
        Happening("resume-node", 35.3, "job0/0"),
    ),
    900.0,
)  # fmt: skip

LEFT_ALONE_ON_ANOTHER_BAD_NODE = History(
    8024, 2098, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("gpu-lost-silently", 34.86377579464142, "job0/1"),
        Happening("reboot", 35.55472452919626, "job1/0"),
        Happening("store-full", 41.17271864620966, data={"for_s": 120.0}),
        Happening("gpu-lost-silently", 41.58972785338517, "job0/1"),
        Happening("pause", 49.70973193974021),
        Happening("gpu-memory", 59.70973193974021, "job0/0"),
        Happening("resume", 249.7097319397402),
    ),
    1269.7,
)  # fmt: skip

STARTED_IN_A_FREEZE = History(
    8025, 3552, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("bad-numbers", 54.63167418121122, "job1/1"),
        Happening("prints-xid", 65.55167700024879, "job0/1"),
        Happening("kill", 65.55167700024879, data={"nth": 26, "after": True, "down_s": 60.0}),
        Happening("freeze", 92.90661535100197, data={"for_s": 100.0}),
    ),
    1092.9,
)  # fmt: skip
CANCELLED_AS_IT_WAS_LENT = History(
    8025, 5430, "spares", Setup(nodes=7, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=1),
    (Happening("gpu-firmware", 39.21178010412283, "job0/1"), Happening("cancel", 41.598637283474616, "job0")),
    953.4,
)  # fmt: skip
ONE_BAD_LINE_SEEN_BY_THE_NEXT_DAEMON = History(
    8024, 8047, "doubled", Setup(nodes=8, jobs=TWO, daemons=2),
    (
        Happening("bad-numbers", 52.341, "job1/0"),
        Happening("freeze", 60.777, data={"for_s": 6.0}),
        Happening("link-down", 61.506, "job1/1"),
    ),
    968.5,
)  # fmt: skip

SET_DOWN_AFTER_ITS_DRAIN = History(
    8029, 9189, "many-nodes",
    Setup(
        nodes=16, jobs=(JobSpec(), JobSpec(user="bob"), JobSpec(user="eve")), switch_nodes=8,
        limits={"drain_fraction": 0.5, "drain_per_hour": 6},
    ),
    (
        Happening("gpu-off-bus", 49.1, "job1/0"),
        Happening("gpu-firmware", 79.1, "job0/0"),
        Happening("gpu-firmware", 109.1, "job0/0"),
        Happening("gpu-firmware", 139.1, "job1/0"),
        Happening("node-lost", 169.1, "job1/0"),
        Happening("node-lost", 199.1, "n1"),
        Happening("gpu-memory", 229.1, "job2/0"),
        Happening("repair", 449.1),
        Happening("repair", 450.1),
    ),
    1350.0,
)  # fmt: skip

REPAIRED_AS_SLURMCTLD_CAME_BACK = History(
    8030, 5296, "spares", Setup(nodes=7, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=1),
    (
        Happening("hang", 48.1, "job1/1"),
        Happening("diagnostic-failed", 198.0, "n7"),
        Happening("slurmctld-crash", 210.3, data={"for_s": 90.0}),
        Happening("repair", 248.1),
    ),
    1300.0,
)  # fmt: skip

REPAIRED_UNDER_A_COMPLETING_JOB = History(
    8032, 8853, "spares", Setup(nodes=8, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=2),
    (
        Happening("gpu-memory", 39.807, "job1/1"),
        Happening("node-lost", 40.73, "n7"),
        Happening("repair", 239.8),
    ),
    1139.8,
)  # fmt: skip

BAD_FROM_ITS_FIRST_STEP_ON = History(
    9501, 893, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("lossy", 50.404, data={"for_s": 120.0}),
        Happening("bad-numbers", 55.404, "job0/0"),
        Happening("reboot", 59.894, "job0/0"),
        Happening("reboot", 201.552, "job0/1"),
    ),
    1300.0,
)  # fmt: skip

CANCELLED_AS_IT_WAITS_FOR_A_NODE = History(
    8033, 14, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("reboot", 72.3, "job1/0"),
        Happening("program-error", 72.9, "job1/1"),
        Happening("cancel", 75.4, "job1"),
    ),
    1176.9,
)  # fmt: skip

REPORTED_MINUTES_LATE = History(
    8078, 8390, "anything", Setup(nodes=8, jobs=TWO),
    (
        Happening("cut-off", 36.21405474632807, "n5", data={"for_s": 150.0}),
        Happening("gpu-lost-silently", 38.21405474632807, "n5"),
        Happening("silence", 81.49762861321257, "job0/1"),
        Happening("kill", 81.49762861321257, data={"nth": 66, "after": True, "down_s": 10.0}),
    ),
    1131.5,
)  # fmt: skip
LENT_BY_AN_OLD_SNAPSHOT = History(
    8078, 8452, "spares", Setup(nodes=7, jobs=(JobSpec(nodes=3), JobSpec(nodes=3, user="bob")), spares=1),
    (
        Happening("application-xid", 56.86761993026402, "job0/1"),
        Happening("gpu-off-bus", 60.67257005775546, "n7"),
        Happening("slurmctld-slow", 62.70677718838403, data={"for_s": 90.0}),
    ),
    1052.706777188384,
)  # fmt: skip


@pytest.mark.parametrize(
    "history",
    [
        BROKEN_ON_ITS_RETURN,
        RELEASE_WITHOUT_ANSWER,
        TWO_OF_THREE_NODES,
        LAPSED_APPROVAL,
        SUSPECT_CONVICTED_LATE,
        REBOOTED_MEANWHILE,
        SUSPECT_SPARE,
        LIMIT_FORGOTTEN,
        LENT_AS_IT_BEGAN,
        HELD_BEFORE_OUR_REQUEST_CAME,
        BACKLOG_OUT_OF_ORDER,
        REPAIRED_BETWEEN_TWO_REQUESTS,
        ENDED_BY_ITSELF_IN_A_PAUSE,
        ENDED_WHILE_NO_DAEMON_COULD_SEE,
        RETURNED_BEFORE_WE_LOOKED,
        LEFT_ALONE_ON_ANOTHER_BAD_NODE,
        STARTED_IN_A_FREEZE,
        CANCELLED_AS_IT_WAS_LENT,
        SET_DOWN_AFTER_ITS_DRAIN,
        REPAIRED_AS_SLURMCTLD_CAME_BACK,
        REPAIRED_UNDER_A_COMPLETING_JOB,
        BAD_FROM_ITS_FIRST_STEP_ON,
        CANCELLED_AS_IT_WAITS_FOR_A_NODE,
        HELD_AFTER_SLURMCTLD_CAME_BACK,
        ONE_BAD_LINE_SEEN_BY_THE_NEXT_DAEMON,
        HELD_ON_A_NODE_THAT_DIES,
        REPORTED_MINUTES_LATE,
        LENT_BY_AN_OLD_SNAPSHOT,
    ],
    ids=lambda history: f"{history.seed}-{history.number}",
)
def test_a_history_that_broke_a_promise_breaks_none(history: History) -> None:
    assert World(history).run() == []


def test_the_promises_see_a_node_set_down_that_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["sentinel.actions.drain"], "_STALE", timedelta(days=1))
    broken = World(REBOOTED_MEANWHILE).run()
    assert broken[0].promise == "unknown-drains-nobody" and "n2 is set down, and answers again" in broken[0].why


def test_a_node_that_came_back_while_no_daemon_lived_keeps_the_job_that_slurm_began_there() -> None:
    world = World(REBOOTED_MEANWHILE)
    assert world.run() == []
    assert not world.slurm.nodes["n2"].out and world.slurm.jobs[101].restarts == 2


def test_a_node_that_comes_back_broken_is_drained_and_its_job_restarted() -> None:
    world = World(BROKEN_ON_ITS_RETURN)
    assert world.run() == []
    assert world.slurm.nodes["n1"].drained and not world.slurm.nodes["n1"].down
    assert "n1" not in world.slurm.jobs[101].on


def test_a_job_is_not_stopped_for_a_suspicion_against_a_node_that_it_only_holds() -> None:
    world = World(SUSPECT_SPARE)
    assert world.run() == []
    assert world.slurm.jobs[101].on == ("n1", "n2", "n4") and world.programs.newest[101].run == 0
