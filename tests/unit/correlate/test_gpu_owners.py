"""Several jobs on one node: news of a GPU is news of the job that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from in_memory.daemon import Daemon
from in_memory.world import World
from made_records import AT, OPTED_IN, evidence, job, later

from sentinel.correlate.gpu_owners import held_gpus, job_of, of_another_job
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, Fleet, Kind, Source, Where

Worlds = Callable[..., World]
SMALL, LARGE = 11, 12


def told(job: int, gpus: object, attempt: int = 0) -> dict[str, object]:
    return {"job": job, "attempt": attempt, "gpus": gpus}


def xid(gpu: int | None, at_s: float = 10.0, number: int = 94) -> Evidence:
    made = evidence(Kind.XID, at_s=at_s, source=Source.KERNEL, node="n1", data={"xid": number}, id=f"{gpu} {at_s}")
    return Evidence(**{name: getattr(made, name) for name in made.__slots__ if name != "where"}, where=Where("n1", gpu))


@pytest.fixture
def live() -> ClusterView:
    made = ClusterView()
    small, large = job(SMALL, nodes=("n1",), started_s=0.0), job(LARGE, nodes=("n1", "n2"), started_s=0.0)
    made.see_fleet(Fleet(at=AT, nodes={}, jobs={SMALL: small, LARGE: large}))
    made.node("n1").gpus = held_gpus([told(SMALL, "0,1"), told(LARGE, "2,3")])
    return made


@pytest.mark.parametrize(("gpu", "whose"), [(0, SMALL), (3, LARGE), (None, None), (7, None)])
def test_whose_gpu_it_is(live: ClusterView, gpu: int | None, whose: int | None) -> None:
    found = job_of(xid(gpu), live)
    assert (found.id if found else None) == whose


def test_news_of_a_whole_node_is_of_its_largest_job(live: ClusterView) -> None:
    found = job_of(evidence(Kind.NODE_DOWN, node="n1"), live)
    assert found is not None and found.id == LARGE


def test_news_from_before_the_jobs_there_began_is_of_none_of_them(live: ClusterView) -> None:
    for item in (xid(0, at_s=-600.0), evidence(Kind.NODE_DOWN, at_s=-600.0, node="n1")):
        assert job_of(item, live) is None
    live.node("n1").clock_offset_s = -610.0
    found = job_of(xid(0, at_s=-600.0), live)
    assert found is not None and found.id == SMALL, "the node's clock is behind"


def test_an_earlier_attempt_of_a_job_was_there_where_it_had_the_node() -> None:
    live = ClusterView()
    for attempt, nodes in enumerate([("n1", "n2"), ("n2", "n3"), ("n1", "n3")]):
        view = job(SMALL, nodes=nodes, restarts=attempt, started_s=1000.0 * attempt)
        live.see_fleet(Fleet(at=later(1000.0 * attempt + 10.0), nodes={}, jobs={SMALL: view}))
    assert [job_of(xid(None, at_s), live) is not None for at_s in (500.0, 1500.0, 2500.0)] == [True, False, True]


@pytest.mark.parametrize("gpu", [None, 5])
def test_where_several_jobs_may_hold_the_gpu_it_is_of_none_of_them(live: ClusterView, gpu: int | None) -> None:
    live.node("n1").gpus = {}
    assert job_of(xid(gpu), live) is None
    live.see_fleet(Fleet(at=later(30.0), nodes={}, jobs={SMALL: job(SMALL, nodes=("n1",), started_s=0.0)}))
    found = job_of(xid(gpu), live)
    assert found is not None and found.id == SMALL, "alone there"


def test_a_job_whose_gpus_are_not_known_may_hold_any(live: ClusterView) -> None:
    live.node("n1").gpus = held_gpus([told(SMALL, "0,1"), told(LARGE, "")])
    assert [found.id for gpu in (1, 5) if (found := job_of(xid(gpu), live))] == [SMALL, LARGE]
    assert not of_another_job(SMALL, xid(5), live)


def test_news_of_another_jobs_gpu(live: ClusterView) -> None:
    assert of_another_job(SMALL, xid(2), live)
    assert not of_another_job(LARGE, xid(2), live)
    assert not of_another_job(SMALL, xid(None), live), "of the whole node"
    assert not of_another_job(SMALL, xid(7), live), "nobody's"
    assert not of_another_job(SMALL, xid(2, at_s=-60.0), live), "from before that job began"


def test_the_process_that_a_line_names_does_not_say_whose_gpu_it_is(live: ClusterView) -> None:
    """An SM exception belongs to no channel: the driver prints the process on whose turn it came, which may be of a job
    that has nothing on that GPU."""
    made = xid(0, number=13)
    text = (
        "NVRM: Xid (PCI:0000:00:06): 13, pid=1995, name=pt_elastic, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 1)"
    )
    named = replace(made, text=text, data={**made.data, "pid": 1995})
    assert job_of(named, live) == job_of(made, live)
    assert of_another_job(LARGE, named, live)
    assert not of_another_job(SMALL, named, live)


@pytest.mark.parametrize("jobs", [None, 7, [None], [told(SMALL, None)], [told(SMALL, "0,x")], [{"gpus": "0"}]])
def test_what_is_not_known_is_left_out(jobs: Any) -> None:
    assert held_gpus(jobs) == {}


async def shared_node(world: Worlds, *gpus: str | None) -> tuple[World, Daemon, list[int]]:
    """A job of two nodes and one of one node share n1; ``gpus``: what Slurm gave each there, None: not known."""
    there = world(nodes=6)
    there.slurm.cancel(there.job)
    daemon = Daemon(there)
    jobs = [there.slurm.submit(nodes=nodes, comment=OPTED_IN) for nodes in (2, 1)]
    there.slurm.jobs[jobs[0]].on, there.slurm.jobs[jobs[1]].on = ("n1", "n2"), ("n1",)
    await daemon.fleets.take()
    told_gpus = [told(job, held) for job, held in zip(jobs, gpus, strict=True)]
    daemon.live.node("n1").gpus = held_gpus(told_gpus)
    return there, daemon, jobs


async def lost(there: World, daemon: Daemon, gpu: int | None) -> dict[int | None, list[str]]:
    """GPUs at fault by the job of the incident, once that GPU of n1 fell off the bus."""
    at_s = (there.slurm.clock.now() - later(0.0)).total_seconds()
    await daemon.observe([xid(gpu, at_s, number=79)])
    await daemon.quiet()
    assert there.slurm.nodes["n1"].drained, daemon.said
    assert daemon.bugs() == 0, daemon.said
    return {row["job"]: row["culprit_gpus"] for row in there.store.incident_rows()}


async def test_a_lost_gpu_stops_the_job_that_holds_it_and_the_others_finish_on_the_drained_node(world: Worlds) -> None:
    there, daemon, (large, small) = await shared_node(world, "0,1,2,3", "4,5,6,7")
    assert await lost(there, daemon, 6) == {small: ["n1:6"]}
    daemon.live.node("n1").gpus = held_gpus([told(large, "0,1,2,3")])
    await daemon.fleets.take()
    await daemon.quiet()
    assert [(there.slurm.jobs[job].restarts, there.slurm.jobs[job].on[:1]) for job in (large,)] == [(0, ("n1",))]
    assert there.slurm.jobs[small].restarts == 1


@pytest.mark.parametrize(("gpu", "held"), [(None, ("0,1", "2,3")), (6, (None, None)), (6, ("0,1", "2,3"))])
async def test_a_lost_gpu_that_nobody_is_known_to_hold_stops_nobody(
    world: Worlds, gpu: int | None, held: tuple[str | None, str | None]
) -> None:
    there, daemon, jobs = await shared_node(world, *held)
    assert list(await lost(there, daemon, gpu)) == [None]
    assert [there.slurm.jobs[job].restarts for job in jobs] == [0, 0]


async def test_jobs_that_share_the_lost_gpu_are_both_restarted(world: Worlds) -> None:
    there, daemon, jobs = await shared_node(world, "6", "6")
    assert set(await lost(there, daemon, 6)) == set(jobs)
    assert [there.slurm.jobs[job].restarts for job in jobs] == [1, 1]


async def test_two_jobs_of_one_node_are_two_failures(world: Worlds) -> None:
    """A contained error under each: each is restarted for its own, and nobody for the other's."""
    there = world(nodes=6)
    there.slurm.cancel(there.job)
    daemon = Daemon(there)
    first, second = (there.slurm.submit(nodes=1, comment=OPTED_IN) for _ in range(2))
    there.slurm.jobs[second].on = there.slurm.jobs[first].on = ("n1",)
    await daemon.fleets.take()
    daemon.live.node("n1").gpus = held_gpus([told(first, "0"), told(second, "1")])
    at_s = (there.slurm.clock.now() - later(0.0)).total_seconds()
    await daemon.observe([xid(0, at_s), xid(1, at_s)])
    await daemon.quiet()
    rows = {row["job"]: row["culprit_gpus"] for row in there.store.incident_rows()}
    assert rows == {first: ["n1:0"], second: ["n1:1"]}
    assert daemon.bugs() == 0, daemon.said
