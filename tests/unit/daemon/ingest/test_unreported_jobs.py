"""Jobs that Slurm has on a node and its agent does not report: the agent is told, in time and not too often."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from in_memory.server import Served, serving
from in_memory.world import World
from made_records import AT as NOW
from made_records import fleet, job

from sentinel import protocol
from sentinel.daemon.ingest.unreported_jobs import (
    AFTER,
    AGAIN_S,
    BATCH_HOSTS_PER_S,
    MOST,
    OTHERS_PER_S,
    OVER_S,
    UnreportedJobs,
)
from sentinel.model.records import Fleet, Unread

LATE = NOW + AFTER + timedelta(seconds=1)


def running(**more: object) -> Fleet:
    return fleet(4, [job(nodes=("n1", "n2", "n3"), restarts=2, started_s=0.0, **more)])  # type: ignore[arg-type]


def test_a_job_that_is_reported() -> None:
    assert UnreportedJobs().of(running(), "n1", [(101, 2)], LATE, 0.0) == []


@pytest.mark.parametrize("reported", [[], [(101, 1)], [(7, 2)]], ids=["none", "attempt before", "another job"])
def test_a_job_that_is_not_reported(reported: list[tuple[int, int]]) -> None:
    assert UnreportedJobs().of(running(), "n1", reported, LATE, 0.0) == [[101, 2]]


def test_its_prolog_has_time_to_report_it() -> None:
    assert UnreportedJobs().of(running(), "n1", [], NOW + AFTER, 0.0) == []


@pytest.mark.parametrize("state", ["pending", "completing", "completed"])
def test_only_a_job_that_runs(state: str) -> None:
    assert UnreportedJobs().of(running(state=state), "n1", [], LATE, 0.0) == []


def test_only_on_its_nodes() -> None:
    assert UnreportedJobs().of(running(), "n4", [], LATE, 0.0) == []


def test_a_node_is_told_again_after_a_while() -> None:
    jobs = UnreportedJobs()
    told_s = [at for at in range(100) if jobs.of(running(), "n1", [], LATE, float(at))]
    assert told_s == [0, AGAIN_S, 2 * AGAIN_S, 3 * AGAIN_S]


def test_batch_hosts_are_told_at_once_and_the_others_one_after_the_other() -> None:
    """Each of them asks slurmctld: where no prolog is installed, that is each node of each job."""
    many = [f"n{number}" for number in range(1, 1001)]
    large = fleet(1000, [job(nodes=tuple(many), started_s=0.0)])
    jobs = UnreportedJobs()
    assert jobs.of(large, "n1", [], LATE, 0.0)
    told = sum(
        bool(jobs.of(large, node, [], LATE, beat / 1000)) for beat in range(10_000) for node in [many[beat % 1000]]
    )
    assert 10 * OTHERS_PER_S - 2 <= told <= 10 * OTHERS_PER_S + 1


def test_nodes_with_a_job_each_are_told_one_after_the_other() -> None:
    """Each is a batch host: after a start of the daemon where no prolog is installed, all would ask at once."""
    single = fleet(1000, [job(100 + number, nodes=(f"n{number}",), started_s=0.0) for number in range(1, 1001)])
    jobs = UnreportedJobs()
    told = sum(bool(jobs.of(single, f"n{beat % 1000 + 1}", [], LATE, beat / 1000)) for beat in range(10_000))
    assert 10 * BATCH_HOSTS_PER_S - 2 <= told <= 10 * BATCH_HOSTS_PER_S + 1


def test_a_node_with_many_jobs_counts_as_many_questions() -> None:
    many = fleet(2, [job(number, nodes=("n1",), started_s=0.0) for number in range(1, 200)]
                 + [job(500, nodes=("n2",), started_s=0.0)])  # fmt: skip
    jobs = UnreportedJobs()
    assert len(jobs.of(many, "n1", [], LATE, 0.0)) == MOST
    assert not jobs.of(many, "n2", [], LATE, 1.0)
    assert jobs.of(many, "n2", [], LATE, MOST / BATCH_HOSTS_PER_S)


@pytest.mark.parametrize(
    "now",
    [fleet(4), running(state="completed"), running(state="pending"), fleet(4, [job(nodes=("n2",), restarts=2)]),
     fleet(4, [job(nodes=("n1",), restarts=3)])],
    ids=["gone", "ended", "waits", "elsewhere", "next attempt"],
)  # fmt: skip
def test_a_reported_job_that_is_over(now: Fleet) -> None:
    jobs = UnreportedJobs()
    assert not jobs.over(now, "n1", [(101, 2)], 0.0), "its epilog has time"
    assert jobs.over(now, "n1", [(101, 2), (7, 0)], OVER_S) == [[101, 2]]
    assert not jobs.over(now, "n2", [(101, 2)], OVER_S), "told of another node"
    assert jobs.over(now, "n1", [(101, 2), (7, 0)], 2 * OVER_S) == [[101, 2], [7, 0]]
    assert not jobs.over(now, "n1", [], 2 * OVER_S)
    assert not jobs.over(now, "n1", [(101, 2)], 2 * OVER_S), "reported anew"


@pytest.mark.parametrize(
    "now",
    [running(), running(state="suspended"), running(state="completing"), running(state="unknown"),
     dataclasses.replace(fleet(4), unread=(Unread("job", "101", "torn"),))],
    ids=["running", "suspended", "completing", "unknown", "unreadable"],
)  # fmt: skip
def test_a_reported_job_that_may_be_there(now: Fleet) -> None:
    jobs = UnreportedJobs()
    assert not any(jobs.over(now, "n1", [(101, 2)], float(at)) for at in range(100))


def test_an_agents_nonsense_takes_no_memory() -> None:
    jobs = UnreportedJobs()
    assert not jobs.over(fleet(4), "n1", [(number, 0) for number in range(5000)], 0.0)
    assert len(jobs.over(fleet(4), "n1", [(number, 0) for number in range(5000)], OVER_S)) == MOST


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as server:
        yield server


async def test_the_answer_to_a_heartbeat_says_so(served: Served) -> None:
    body = {"node": "n1", "boot_id": "b", "jobs": []}
    assert "unreported" not in (await served.post(protocol.HEARTBEAT, body)).body
    served.daemon.live.see_fleet(running())
    served.world.slurm.clock.at = LATE
    assert "unreported" not in (await served.post(protocol.HEARTBEAT, {**body, "jobs": "torn"})).body
    assert (await served.post(protocol.HEARTBEAT, body)).body["unreported"] == [[101, 2]]


async def test_the_answer_says_what_is_over(served: Served) -> None:
    body = {"node": "n1", "boot_id": "b", "jobs": [{"job": 999, "attempt": 2}]}
    served.daemon.live.see_fleet(fleet(4))
    assert "over" not in (await served.post(protocol.HEARTBEAT, body)).body
    served.world.slurm.clock.at += timedelta(seconds=OVER_S + 1)
    assert (await served.post(protocol.HEARTBEAT, body)).body["over"] == [[999, 2]]
