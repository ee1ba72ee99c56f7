"""Promise 3 for the daemon as a whole: killed at any call, from the first evidence to the last notice, and started again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from core_daemon import Daemon, FakeSink, incidents_of
from core_records import ended, evidence
from core_world import Fate, World

from sentinel.model import Evidence, Kind, Source

Worlds = Callable[..., World]

BUS = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid (PCI:0000:3b:00): 79, pid=7")
ERROR = dataclasses.replace(
    evidence("x", source=Source.JOB_LOG, job=101, attempt=0, text="IndexError: list index out of range", at_s=0.5),
    rule="python-bug",
)


async def _happen(world: World, case: str, daemon: Daemon) -> bool:
    items: Sequence[Evidence] = [BUS]
    if case == "user":
        world.slurm.end(world.job, exit_code=1)
        items = [ERROR, ended(world.job)]
    return await daemon.observe(items)


async def _uncut(world: World, case: str) -> tuple[Fate, dict[str, Any]]:
    sink = FakeSink()
    daemon = Daemon(world, [sink])
    await daemon.start()
    assert await _happen(world, case, daemon)
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said
    return daemon.fate, _end(world, sink)


def _end(world: World, sink: FakeSink) -> dict[str, Any]:
    state = world.end_state()
    results = {
        (row["kind"], row["node"] or row["job"]): row["result"]
        for incident in world.store.incident_ids()
        for row in world.store.steps_of(incident)
    }
    return {
        **state,
        "results": results,
        "effects": world.effects(),
        "incidents": incidents_of(world.store),
        "open plans": world.store.open_plans(),
        "told": sorted({notice.id for notice in sink.got}),
    }


@pytest.mark.parametrize("case", ["bus", "user"])
async def test_uncut(world: Worlds, case: str) -> None:
    there = world()
    _, end = await _uncut(there, case)
    job = there.slurm.jobs[there.job]
    assert len(end["incidents"]) == 1 and len(end["told"]) == 1 and end["open plans"] == []
    ((state, _, cause),) = end["incidents"].values()
    if case == "bus":
        assert there.slurm.nodes["n1"].drained and job.state == "RUNNING" and "n1" not in job.on
        assert (state, cause) == ("closed", "gpu_fallen_off_bus")
    else:
        assert job.held and not any(node.drained for node in there.slurm.nodes.values())
        assert state == "held"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", ["bus", "user"])
async def test_killed_at_every_call_and_started_again(world: Worlds, case: str, after: bool) -> None:
    whole, end = await _uncut(world(), case)
    wrong = []
    for cut in range(whole.count):
        there, sink = world(), FakeSink()
        fate = Fate(kill_at=cut, after=after)
        first = Daemon(there, [sink], fate=fate)
        try:
            await first.start()
            acknowledged = await _happen(there, case, first)
        except BaseException:  # noqa: BLE001 - killed at its start
            acknowledged = False
            if case == "user" and there.slurm.jobs[there.job].state == "RUNNING":
                there.slurm.end(there.job, exit_code=1)
        await first.quiet()
        second = Daemon(there, [sink])
        await second.start()
        if not acknowledged:
            await second.observe([BUS] if case == "bus" else [ERROR, ended(there.job)])  # the node sends it again
        await second.quiet()
        assert second.bugs() == 0, second.said
        found = _end(there, sink)
        if found != end:
            different = {key: (found[key], end[key]) for key in end if found[key] != end[key]}
            wrong.append((cut, fate.names[-1], acknowledged, different))
    assert not wrong, wrong[:3]
