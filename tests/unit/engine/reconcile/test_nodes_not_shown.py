"""A convicted node whose record a snapshot lacks stays convicted: it is drained once its record is there again, and no job
gets it meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import SETTINGS, Daemon, fail, states
from in_memory.world import World
from made_records import evidence

from sentinel.config.settings import Limits, Settings
from sentinel.model.records import Evidence, Kind

Worlds = Callable[..., World]


def limited(**how: float) -> Settings:
    limits = {"drain_fraction": 1.0, "drain_count": 99, "drain_per_hour": 99, "breaker_nodes": 99, **how}
    return dataclasses.replace(SETTINGS, limits=Limits(**limits))  # type: ignore[arg-type]


def bus(node: str, at_s: float = 0.0) -> Evidence:
    text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    return evidence(Kind.XID, node=node, at_s=at_s, data={"xid": 79, "pci": "0000:3b:00"}, text=text)


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


def waits(there: World) -> list[str]:
    return [wait.kind for plan in there.store.open_plans() for wait in plan.waits]


def out_already(there: World, name: str) -> None:
    there.slurm.nodes[name].drained, there.slurm.nodes[name].reason = True, "sentinel:old gpu_memory_ecc"


@pytest.mark.parametrize("when", ["as it is judged", "while it waits", "for long"])
async def test_one_whose_record_cannot_be_read_is_drained_once_it_can(world: Worlds, when: str) -> None:
    there = world(nodes=8, wide=1)
    out_already(there, "n8")
    daemon = Daemon(there, settings=limited(drain_count=1))
    if when == "as it is judged":
        there.slurm.unreadable.add("n4")
    await fail(daemon, bus("n4"))
    await daemon.pass_time(20.0)
    there.slurm.unreadable.add("n4")
    await daemon.pass_time(7300.0 if when == "for long" else 20.0)
    assert states(there) == ["waiting"] and waits(there) == ["unread-node"]
    there.slurm.unreadable.clear()
    there.slurm.nodes["n8"].drained = False
    await daemon.pass_time(30.0)
    assert drained(there) == {"n4"} and states(there) == ["closed"] and daemon.bugs() == 0


async def test_a_restarted_job_does_not_get_it_again(world: Worlds) -> None:
    there = world(nodes=4, wide=2)
    daemon = Daemon(there, settings=limited())
    await daemon.fleets.take()
    there.slurm.unreadable.add("n1")
    await fail(daemon, bus("n1"))
    await daemon.pass_time(30.0)
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and job.on and "n1" not in job.on and job.excluded == ("n1",)
    there.slurm.unreadable.clear()
    await daemon.pass_time(60.0)
    assert drained(there) == {"n1"} and states(there) == ["closed"] and job.restarts == 1


async def test_a_job_that_cannot_do_without_it_waits(world: Worlds) -> None:
    there = world(nodes=2, wide=2)
    daemon = Daemon(there, settings=limited(keep_healthy=0))
    await daemon.fleets.take()
    there.slurm.unreadable.add("n1")
    await fail(daemon, bus("n1"))
    await daemon.pass_time(30.0)
    assert waits(there) == ["unread-node", "no-node"] and there.slurm.jobs[there.job].restarts == 0


async def test_another_job_that_runs_there_is_restarted_elsewhere(world: Worlds) -> None:
    there = world(nodes=4, wide=2)
    daemon = Daemon(there, settings=limited())
    await daemon.fleets.take()
    there.slurm.unreadable.add("n1")
    await daemon.pass_time(20.0)
    await daemon.observe([bus("n1", 20.0)])
    await daemon.pass_time(60.0)
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and "n1" not in job.on


async def test_one_that_is_missing_from_the_listing_is_drained_if_it_is_back_soon(world: Worlds) -> None:
    there = world(nodes=8, wide=1)
    out_already(there, "n8")
    daemon = Daemon(there, settings=limited(drain_count=1))
    await fail(daemon, bus("n4"))
    gone = there.slurm.nodes.pop("n4")
    await daemon.pass_time(600.0)
    assert states(there) == ["waiting"] and waits(there) == ["missing-node"]
    there.slurm.nodes["n4"], there.slurm.nodes["n8"].drained = gone, False
    await daemon.pass_time(30.0)
    assert drained(there) == {"n4"} and states(there) == ["closed"]


async def test_one_that_stays_missing_was_removed(world: Worlds) -> None:
    there = world(nodes=8, wide=1)
    daemon = Daemon(there, settings=limited(drain_count=0))
    await fail(daemon, bus("n4"))
    del there.slurm.nodes["n4"]
    for _ in range(2):
        await daemon.pass_time(1800.0)
    assert waits(there) == ["missing-node"]
    there.slurm.unreadable.add("n5")  # of another node: changes nothing
    await daemon.pass_time(1810.0)
    assert states(there) == ["closed"] and "does not know n4" in next(iter(daemon.state.plans.values())).explanation


async def test_an_open_breaker_does_not_let_go_by_records_that_cannot_be_read(world: Worlds) -> None:
    there = world(nodes=14, wide=1)
    daemon = Daemon(there, settings=limited(breaker_nodes=5))
    await fail(daemon, *(bus(f"n{i}") for i in range(4, 9)))
    for _ in range(6):
        await daemon.pass_time(30.0)
    assert waits(there) == ["breaker"] * 5
    there.slurm.unreadable |= {"n7", "n8"}
    for _ in range(3):
        await daemon.pass_time(30.0)
    assert drained(there) == set() and waits(there) == ["breaker"] * 5
    there.slurm.unreadable.clear()
    for name in ("n7", "n8"):
        there.slurm.nodes[name].drained = True  # by a person
    await daemon.pass_time(30.0)
    assert drained(there) == {f"n{i}" for i in range(4, 9)}
