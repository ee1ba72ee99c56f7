"""Promise 3 for the daemon as a whole: killed at any call, from the first evidence to the last notice, and started again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink, incidents_of
from in_memory.world import Fate, Killed, World
from made_records import ended, evidence
from prometheus_client import CollectorRegistry

from sentinel.model.records import Evidence, Kind, Source
from sentinel.telemetry import Telemetry

Worlds = Callable[..., World]

# One for hundreds of daemons: its series take longer to make than their start.
TELEMETRY = Telemetry(CollectorRegistry())
BUS = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid (PCI:0000:3b:00): 79, pid=7")
ERROR = dataclasses.replace(
    evidence("x", source=Source.JOB_LOG, job=101, attempt=0, text="IndexError: list index out of range", at_s=0.5),
    rule="python-bug",
)


STALL = evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0, data={"step": 250, "silent_s": 60.0})
STOPPED = evidence(
    Kind.TASK_STATE, source=Source.PROCESS, node="n2", job=101, attempt=0, rank=1, text="rank 1 is stopped",
    data={"state": "T", "pid": 4, "cpu_s": 1.0},
)  # fmt: skip
GONE = evidence(Kind.NODE_UNREACHABLE, source=Source.PROBE, node="n1", text="slurmd does not answer")
TORN = evidence(
    "checkpoint_unreadable", source=Source.JOB_LOG, job=101, attempt=0, at_s=0.5,
    text="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
)  # fmt: skip
STORM = [
    evidence(
        Kind.XID, node=f"n{n}", data={"xid": 79, "pci": "0000:3b:00"}, text=f"NVRM: Xid (PCI:0000:3b:00): 79, n{n}"
    )
    for n in range(3, 9)
]
CASES = ["bus", "user", "hang", "lost", "torn", "storm"]


def _ready(world: World, case: str) -> list[Evidence]:
    """What the cluster is like, and what is heard of it."""
    if case == "user":
        world.slurm.end(world.job, exit_code=1)
        return [ERROR, ended(world.job)]
    if case == "torn":
        world.slurm.end(world.job, exit_code=1)
        return [dataclasses.replace(TORN, rule="checkpoint-torch"), ended(world.job)]
    if case == "lost":
        world.slurm.lose("n1")
        return [GONE]
    return {"bus": [BUS], "hang": [STALL, STOPPED], "storm": STORM}[case]


async def _happen(world: World, case: str, daemon: Daemon) -> bool:
    return await daemon.observe(_ready(world, case))


async def _uncut(world: World, case: str) -> tuple[Fate, dict[str, Any]]:
    sink = FakeSink()
    daemon = Daemon(world, [sink], telemetry=TELEMETRY)
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
        "open plans": sorted(plan.incident for plan in world.store.open_plans()),
        # Of a storm one message tells, whichever of its incidents is judged first.
        "told": len({notice.id for notice in sink.all}),
    }


def _world(world: Worlds, case: str) -> World:
    return world(nodes=20) if case == "storm" else world()


@pytest.mark.parametrize("case", CASES)
async def test_uncut(world: Worlds, case: str) -> None:
    there = _world(world, case)
    _, end = await _uncut(there, case)
    job, drained = there.slurm.jobs[there.job], {name for name, node in there.slurm.nodes.items() if node.drained}
    states = {(state, cause) for state, _, cause in end["incidents"].values()}
    assert end["told"] == (1 if case in ("user", "storm") else 2) and (end["open plans"] == []) is (case != "storm")
    if case == "bus":
        assert drained == {"n1"} and job.state == "RUNNING" and "n1" not in job.on
        assert states == {("closed", "gpu_fallen_off_bus")}
    elif case == "user":
        assert job.held and drained == set() and states == {("held", "user_code")}
    elif case == "hang":
        assert job.restarts == 1 and job.state == "RUNNING" and drained == set() and "n2" not in job.on
    elif case == "lost":
        assert there.slurm.nodes["n1"].down and job.state == "RUNNING" and "n1" not in job.on
    elif case == "torn":
        assert job.restarts == 1 and drained == set() and states == {("closed", "checkpoint_corrupt")}
        assert there.checkpoints.moved == ["/shared/run/step-300"]
    else:
        assert drained == set() and job.restarts == 0 and {state for state, _ in states} == {"waiting"}
        assert len(end["incidents"]) == len(STORM)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", CASES)
async def test_killed_at_every_call_and_started_again(world: Worlds, case: str, after: bool) -> None:
    """Every call crosses into the store, into Slurm, to a node or to a receiver: between any two effects lies a cut."""
    whole, end = await _uncut(_world(world, case), case)
    wrong = []
    for cut in range(whole.count):
        there, sink = _world(world, case), FakeSink()
        fate = Fate(kill_at=cut, after=after)
        first = Daemon(there, [sink], fate=fate, telemetry=TELEMETRY)
        items: list[Evidence] | None = None
        acknowledged = False
        try:
            await first.start()
            items = _ready(there, case)
            acknowledged = await first.observe(items)
        except Killed:
            items = items or _ready(there, case)
        await first.quiet()
        second = Daemon(there, [sink], telemetry=TELEMETRY)
        await second.start()
        if not acknowledged:
            await second.observe(items or [])  # the node sends it again
        await second.quiet()
        assert second.bugs() == 0, second.said
        found = _end(there, sink)
        if found != end:
            different = {key: (found[key], end[key]) for key in end if found[key] != end[key]}
            wrong.append((cut, fate.names[-1], acknowledged, different))
    assert not wrong, wrong[:3]
