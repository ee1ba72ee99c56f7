"""Saves of running jobs: what nodes are asked to watch, and what is told of their answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon, FakeSink, incidents_of
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence, fleet, job, later

from sentinel.daemon.ingest.watched_folders import watch_list
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Cause, Evidence, Kind, Source

Worlds = Callable[..., World]
BOTH = '{"sentinel": {"global": ["/shared/run"], "local": ["/nvme/%N/run"]}}'


def watching(comment: str, **more: object) -> ClusterView:
    live = ClusterView()
    live.see_fleet(fleet(3, [job(nodes=("n1", "n2"), comment=comment, **more)]))  # type: ignore[arg-type]
    return live


def asked(live: ClusterView, node: str, attempt: int = 0) -> list[tuple[bool, list[str]]]:
    found = watch_list(live, node, [{"job": 101, "attempt": attempt}])
    return [(entry["first"], [f"{root['tier']} {root['path']}" for root in entry["roots"]]) for entry in found]


def test_shared_folders_on_one_node_and_its_own_on_each() -> None:
    live = watching(BOTH)
    assert asked(live, "n1") == [(True, ["local /nvme/n1/run", "global /shared/run"])]
    assert asked(live, "n2") == [(False, ["local /nvme/n2/run"])]
    assert asked(live, "n3") == asked(live, "n1", attempt=1) == []
    assert asked(watching(OPTED_IN), "n2") == asked(watching("hello"), "n1") == []
    assert (
        watch_list(live, "n1", "jobs") == watch_list(live, "n1", [None, 3]) == watch_list(ClusterView(), "n1", []) == []
    )


def finding(kind: str, step: int = 20, at_s: float = 0.0) -> Evidence:
    return evidence(
        kind, at_s=at_s, source=Source.CHECKPOINT, job=101, attempt=0, id=f"{kind}{step}", text="no good",
        data={"step": step, "watched": True, "reason": "cut short"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Kind.CHECKPOINT_INVALID, Cause.CHECKPOINT_CORRUPT),
        ("saves_stopped", Cause.FILESYSTEM_STORAGE),
        ("saves_shrank", Cause.CHECKPOINT_CORRUPT),
        ("saves_no_room", Cause.DISK_FULL),
    ],
)
async def test_people_are_told_once_and_the_job_goes_on(world: Worlds, kind: str, cause: Cause) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    for _ in range(2):
        await daemon.observe([finding(kind)])
        await daemon.quiet()
    (notice,) = sink.got
    assert notice.data["cause"] == cause
    assert notice.data["job"] == there.job
    assert there.slurm.jobs[there.job].state == "RUNNING"
    assert not any(node.drained for node in there.slurm.nodes.values())
    assert there.store.open_plans() == []
    assert daemon.bugs() == 0


async def test_a_failure_after_it_is_judged_by_itself(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    await daemon.observe([finding(Kind.CHECKPOINT_INVALID)])
    await daemon.quiet()
    there.slurm.end(there.job, exit_code=1)
    xid = evidence(Kind.XID, node="n1", at_s=1.0, data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")
    await daemon.observe([xid, ended(there.job)])
    await daemon.quiet()
    assert [notice.data["cause"] for notice in sink.all] == [Cause.CHECKPOINT_CORRUPT, *[Cause.GPU_FALLEN_OFF_BUS] * 2]
    assert {name for name, node in there.slurm.nodes.items() if node.drained} == {"n1"}
    # What else is wrong with the saves of an attempt that failed, nobody needs to hear.
    await daemon.observe([finding("saves_stopped")])
    await daemon.quiet()
    assert len(sink.all) == 3
    assert len(incidents_of(there.store)) == 2


def test_saves_seen_in_files_give_the_interval_once_for_each_step() -> None:
    live = watching(BOTH)
    for step, at_s in ((10, 0.0), (10, 1.0), (20, 60.0), (30, 120.0)):
        live.note(
            evidence(
                Kind.CHECKPOINT_SAVED,
                at_s=at_s,
                source=Source.CHECKPOINT,
                job=101,
                attempt=0,
                data={"step": step, "time_s": 2.5},
            )
        )
    seen = live.attempts[101, 0]
    assert (seen.save_interval_s(), seen.save_s()) == (60.0, 2.5)
    assert list(seen.pool) == []
    assert seen.rhythm.announced_at is None
    assert live.recent(101, 0, [], later(-1)) == []
