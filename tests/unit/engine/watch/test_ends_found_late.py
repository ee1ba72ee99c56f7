"""What no event told: ends of jobs and nodes that reconciliation finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from in_memory.watch import Scene
from in_memory.world import World
from made_records import job

from sentinel.correlate.incidents import opens
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import OURS, Fleet, Kind, Source

Worlds = Callable[..., World]


async def test_end_that_no_event_told_is_found_once(world: Worlds) -> None:
    scene = Scene(world())
    await scene.reconcile()
    assert scene.reported == []
    scene.world.slurm.end(scene.world.job, exit_code=9)
    for _ in range(2):
        await scene.reconcile()
    (item,) = scene.reported
    assert item.kind == Kind.JOB_ENDED and item.where.job == scene.world.job and item.data["nodes"] == "n1,n2"
    assert (item.data["state"], item.data["exit_code"]) == ("failed", 9)


@pytest.mark.parametrize(
    ("state", "before_s", "found"),
    [("FAILED", 60, True), ("FAILED", 600, False), ("COMPLETED", 60, False), ("NODE_FAIL", 60, True)],
)
async def test_what_ended_while_the_daemon_was_away(world: Worlds, state: str, before_s: float, found: bool) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=int(state == "FAILED"), state=state)
    there.slurm.clock.advance(before_s)
    scene = Scene(there)
    await scene.reconcile()
    assert scene.kinds == [Kind.JOB_ENDED] * found


@pytest.mark.parametrize(("ahead_s", "before_s", "found"), [(0, 600, False), (600, 600, True), (-600, 60, False)])
async def test_what_ended_is_news_by_slurmctlds_clock(
    world: Worlds, ahead_s: float, before_s: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This host's clock is so much ahead of its nodes'."""
    there = world()
    there.slurm.end(there.job, exit_code=1)
    there.slurm.clock.advance(before_s)
    scene = Scene(there)
    monkeypatch.setattr(ClusterView, "own_clock_ahead_s", lambda _: float(ahead_s))
    await scene.reconcile()
    assert scene.kinds == [Kind.JOB_ENDED] * found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, 0),
        ({"nodes": ("n1",)}, 1),
        ({"reason": "NonZeroExitCode"}, 1),
        ({"state": "cancelled"}, 1),
        ({"restarts": 1}, 1),
    ],
    ids=str,
)
async def test_a_submission_that_slurm_refused_is_no_failure(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: int
) -> None:
    """sbatch has said so to its user, and Slurm keeps a record of a job that has failed (22.05)."""
    there = world()
    real = there.slurm.fleet

    async def fleet() -> Fleet:
        seen, at = await real(), there.slurm.clock.now()
        refused = replace(job(999, state="failed", nodes=()), reason="BadConstraints", started_at=at, ended_at=at)
        return replace(seen, jobs={**seen.jobs, 999: replace(refused, **changes)})

    monkeypatch.setattr(there.slurm, "fleet", fleet)
    scene = Scene(there)
    await scene.reconcile()
    assert [item.where.job for item in scene.reported] == [999] * told


async def test_job_that_completes_while_watched_is_told(world: Worlds) -> None:
    scene = Scene(world())
    await scene.reconcile()
    scene.world.slurm.end(scene.world.job)
    await scene.reconcile()
    assert [item.data["state"] for item in scene.reported] == ["completed"]


async def test_node_that_goes_down_is_told_once_and_one_that_was_down_never(world: Worlds) -> None:
    there = world()
    there.slurm.nodes["n4"].down = True
    scene = Scene(there)
    await scene.reconcile()
    there.slurm.lose("n3")
    there.slurm.notice("n3")
    for _ in range(2):
        await scene.reconcile()
    (item,) = scene.reported
    assert (item.kind, item.where.node, item.source) == (Kind.NODE_DOWN, "n3", Source.SLURM)
    assert "Not responding" in item.text and item.data == {"reason": "Not responding"}
    there.slurm.revive("n3")
    await scene.reconcile()
    there.slurm.notice("n3")
    await scene.reconcile()
    assert len(scene.reported) == 2  # a node may go down again


@pytest.mark.parametrize("why", ["maintenance", "rebooting"])
async def test_a_node_that_goes_down_in_a_maintenance_reservation_or_reboot_is_news_only_when_it_stays_down(
    world: Worlds, why: str
) -> None:
    scene = Scene(world())
    await scene.reconcile()
    setattr(scene.world.slurm.nodes["n3"], why, True)
    scene.world.slurm.lose("n3")
    scene.world.slurm.notice("n3")
    await scene.reconcile()
    assert scene.reported == []
    setattr(scene.world.slurm.nodes["n3"], why, False)
    await scene.reconcile()
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_DOWN, "n3")]


async def test_the_end_of_a_job_whose_node_people_work_on_is_no_fault(world: Worlds) -> None:
    for maintenance in (True, False):
        scene = Scene(world())
        await scene.reconcile()
        scene.world.slurm.nodes["n1"].maintenance = maintenance
        scene.world.slurm.end(scene.world.job, state="NODE_FAIL")
        await scene.reconcile()
        (item,) = scene.reported
        assert item.data["state"] == "node_fail" and opens(item) is not maintenance


async def test_node_that_we_set_down_is_no_news(world: Worlds) -> None:
    scene = Scene(world())
    await scene.reconcile()
    this = scene.world.slurm.nodes["n3"]
    this.down, this.reason = True, f"{OURS}inc1 node_failure"
    await scene.reconcile()
    assert scene.reported == []


async def test_reconciliation_without_slurm_does_nothing(world: Worlds) -> None:
    scene = Scene(world())
    scene.world.slurm.answers = False
    await scene.reconcile()
    assert scene.reported == [] and scene.live.fleet is None and scene.world.store.attempts() == []
