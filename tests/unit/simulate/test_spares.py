"""Nodes that are kept in a reservation are lent to jobs that lost a node, until they run again."""

from __future__ import annotations

import pytest
from planted_faults import lends_to_anybody, loans_never_end

from sentinel.daemon.effects.perform import Effects
from sentinel.engine.events import SparesLent
from sentinel.engine.reconcile import spares
from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

FAULT = Happening("gpu-off-bus", 60.0, "job0/1")
JOBS = (JobSpec(nodes=3), JobSpec(nodes=3, user="bob"))


def ran(*happenings: Happening, kept: int = 1, jobs: tuple[JobSpec, ...] = JOBS) -> World:
    world = World(History(7, 1, "spares", Setup(nodes=6 + kept, jobs=jobs, spares=kept), happenings, 900.0))
    assert world.run() == []
    return world


def writes(world: World) -> list[tuple[str, ...]]:
    about = ("Users", "ReservationName")
    return [(one[0], one[1], text) for one in world.slurm.calls for text in one[2:] if text.startswith(about)]


def test_a_job_that_lost_a_node_starts_on_a_spare_one_where_all_others_are_busy() -> None:
    world = ran(FAULT)
    assert [(one.job, one.attempt, one.nodes) for one in world.observer.attempts if one.attempt] == [
        (101, 1, ("n1", "n2", "n4"))
    ]
    assert writes(world) == [
        ("set_reservation", "spares", "Users+=ada"),
        ("set_job", "101", "ReservationName=spares"),
        ("set_job", "101", "ReservationName="),
        ("set_reservation", "spares", "Users-=ada"),
    ]
    (plan,) = world.store.plans.values()
    assert "Job 101 lost a node: it may start on the 1 node of reservation spares, too." in plan.explanation


def test_a_repaired_node_takes_the_place_of_the_one_that_was_lent() -> None:
    world = ran(FAULT, Happening("repair", 300.0))
    assert world.slurm.kept is not None and world.slurm.kept.nodes == ("n3",)


def test_two_jobs_do_not_get_one_node() -> None:
    world = ran(FAULT, Happening("gpu-off-bus", 62.0, "job1/1"))
    one, other = world.slurm.jobs.values()
    assert sorted([one.state, other.state]) == ["PENDING", "RUNNING"]
    assert world.slurm.kept is not None and world.slurm.kept.users == {
        "root",
        str((one if one.state == "PENDING" else other).record["user_name"]),
    }


def test_a_job_whose_one_requeue_slurm_counts_twice_keeps_what_it_was_lent() -> None:
    happenings = (FAULT, Happening("gpu-off-bus", 62.0, "job1/1"))
    world = World(History(7, 1, "spares", Setup(nodes=7, jobs=JOBS, spares=1), happenings, 900.0))
    counted = []

    def count_again() -> None:
        for job in world.slurm.jobs.values():
            if job.state == "PENDING":
                job.restarts += 1
                counted.append(job)

    world.later(140.0, count_again)
    world.run()
    (job,) = counted
    assert job.state == "PENDING" and job.reservation == "spares"
    assert world.slurm.kept is not None and job.record["user_name"] in world.slurm.kept.users


def test_who_fails_by_his_own_program_is_lent_nothing() -> None:
    world = ran(Happening("storage", 60.0, "job0"))
    assert [one.attempt for one in world.observer.attempts if one.job == 101] == [0, 1] and writes(world) == []


def test_a_spare_node_that_breaks_is_drained_as_any_other_and_nobody_is_restarted() -> None:
    world = ran(Happening("gpu-off-bus", 60.0, "n1"), kept=2)
    assert world.slurm.nodes["n1"].drained and not [one for one in world.observer.attempts if one.attempt]


def test_access_ends_when_the_job_is_cancelled_or_held() -> None:
    world = ran(FAULT, Happening("gpu-off-bus", 61.0, "n4"), Happening("cancel", 200.0, "job0"))
    assert world.slurm.kept is not None and world.slurm.kept.users == {"root"}
    world = ran(FAULT, Happening("gpu-off-bus", 61.0, "n4"), Happening("hold", 200.0, "job0"))
    assert world.slurm.kept is not None and world.slurm.kept.users == {"root"}
    assert not world.slurm.jobs[101].reservation


def test_the_promises_notice_a_loan_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    loans_never_end(monkeypatch)
    world = World(History(7, 1, "spares", Setup(nodes=7, jobs=JOBS, spares=1), (FAULT,), 900.0))
    assert {one.promise for one in world.run()} == {"loans-end"}


def test_the_promises_notice_a_loan_to_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    lends_to_anybody(monkeypatch)
    storage = Happening("storage", 60.0, "job0")
    world = World(History(7, 1, "spares", Setup(nodes=7, jobs=JOBS, spares=1), (storage,), 900.0))
    assert "lends-to-who-lost-a-node" in {one.promise for one in world.run()}


def test_requests_that_are_refused_are_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_self: Effects, effect: spares.LendSpares) -> SparesLent:
        calls.append(effect.id)
        return SparesLent(_self._clock.now(), effect.id, "no right")

    calls: list[str] = []
    monkeypatch.setattr(Effects, "_lend", refused)
    world = World(History(7, 0, "spares", Setup(nodes=7, jobs=JOBS, spares=1), (FAULT,), 400.0))
    world.run()
    assert 2 <= len(calls) <= 400 / 60
