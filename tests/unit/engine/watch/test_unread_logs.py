"""A record of Slurm's that cannot be read: its job or node is not known, neither ended nor healthy, and hides no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon
from in_memory.watch import Scene
from in_memory.world import World
from made_records import fleet, job

from sentinel.daemon.api.scores import running
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.events import SlurmReported
from sentinel.engine.watch import jobs
from sentinel.errors import Unavailable
from sentinel.model.records import Fleet, Unread

Worlds = Callable[..., World]


async def test_a_running_job_is_not_ended_by_it(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    before = await daemon.fleets.take()
    nodes = before.jobs[there.job].nodes
    there.slurm.unreadable.add(there.job)
    after = await daemon.fleets.take()
    assert there.job not in after.jobs and after.may_have_job(there.job)
    seen = daemon.live.attempts[there.job, 0]
    assert not seen.ended and seen.view.state == "running" and seen.view.ended_at is None
    assert daemon.live.job_on(nodes[0]) == before.jobs[there.job], "its nodes are not free"
    assert running(daemon.live) == {(there.job, 0)}
    assert daemon.live.job(after, there.job, 0) == before.jobs[there.job]
    there.slurm.purge(there.job)
    await daemon.fleets.take()
    assert daemon.live.attempts[there.job, 0].ended


def test_one_without_an_id_may_be_any_job() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    live.see_fleet(dataclasses.replace(fleet(2), unread=(Unread("job", "", "job without an id"),)))
    assert not live.attempts[101, 0].ended
    live.see_fleet(dataclasses.replace(fleet(2), unread=(Unread("job", "7", "why"), Unread("node", "n9", "why"))))
    assert live.attempts[101, 0].ended


async def test_a_hang_is_not_called_while_its_record_cannot_be_read(world: Worlds) -> None:
    scene = Scene(world())
    await scene.fleets.take()
    key = (scene.world.job, 0)
    assert jobs._still_runs(scene.state, key, scene.now)
    scene.world.slurm.unreadable.add(scene.world.job)
    await scene.reconcile()
    assert not jobs._still_runs(scene.state, key, scene.now)


async def test_a_node_that_is_down_does_not_go_down_again_by_it(world: Worlds) -> None:
    there = world()
    scene = Scene(there)
    await scene.reconcile()
    there.slurm.notice("n4")
    for unreadable in (set(), {"n4"}, set()):
        there.slurm.unreadable = set(unreadable)
        there.slurm.clock.advance(20.0)
        await scene.reconcile()
    assert [item.where.node for item in scene.reported] == ["n4"]
    there.slurm.unreadable.add("n3")
    await scene.reconcile()
    assert len(scene.reported) == 1, "n3 is not known: not down"


async def test_the_end_of_a_job_is_told_when_its_record_can_be_read_again(world: Worlds) -> None:
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    there.slurm.end(there.job, exit_code=5)
    there.slurm.unreadable.add(there.job)
    await scene.handle(SlurmReported(scene.now, "job_ended", frozenset({there.job})))
    await scene.advance(0.6)
    assert scene.reported == []
    there.slurm.unreadable.clear()
    await scene.settle()
    assert [item.where.job for item in scene.reported] == [there.job]


async def test_each_is_logged_once_and_counted(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    value = daemon.telemetry.registry.get_sample_value
    assert value("sentinel_slurm_records_unreadable", {"what": "node"}) == 0.0
    there.slurm.unreadable |= {there.job, "n2", "n3"}
    for _ in range(3):
        await daemon.fleets.take()
    assert daemon.said.count("slurm-record-unreadable") == 3 and f"what=job name={there.job}" in daemon.said
    assert value("sentinel_slurm_records_unreadable", {"what": "job"}) == 1.0
    assert value("sentinel_slurm_records_unreadable", {"what": "node"}) == 2.0
    there.slurm.unreadable.clear()
    await daemon.fleets.take()
    assert value("sentinel_slurm_records_unreadable", {"what": "node"}) == 0.0
    there.slurm.unreadable.add("n2")
    await daemon.fleets.take()
    assert daemon.said.count("slurm-record-unreadable") == 4, "it is news again"


async def test_that_the_switches_are_not_known_is_logged_and_counted(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(world())
    value = daemon.telemetry.registry.get_sample_value
    assert value("sentinel_slurm_records_unreadable", {"what": "switches"}) == 0.0
    read = daemon.fleets._reader.fleet

    async def without_switches() -> Fleet:
        return dataclasses.replace(await read(), unread=(Unread("switches", "of the nodes", "timed out"),))

    monkeypatch.setattr(daemon.fleets._reader, "fleet", without_switches)
    for _ in range(3):
        await daemon.fleets.take()
    assert daemon.said.count("slurm-record-unreadable") == 1 and "what=switches" in daemon.said
    assert value("sentinel_slurm_records_unreadable", {"what": "switches"}) == 1.0


async def test_who_asks_for_one_is_told_that_it_is_not_known(world: Worlds) -> None:
    there = world()
    there.slurm.unreadable |= {there.job, "n1"}
    with pytest.raises(Unavailable):
        await there.slurm.job(there.job)
    with pytest.raises(Unavailable):
        await there.slurm.drain("n1", "sentinel:x")
    assert not there.slurm.calls
