"""Slurm may refuse what is asked of it, for reasons that nobody foresaw: it is asked again.

A drain within the limits, until it is done or nobody wants it any more; a change of a job for some minutes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, silent, states
from in_memory.world import Fate, World
from made_records import AT, evidence, lost_gpu

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.config.settings import Limits
from sentinel.errors import RefusedForNow
from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]


def refuse(there: World, times: int) -> list[str]:
    """Let Slurm refuse the next drains of n1; the returned list is of the nodes that it was asked for."""
    asked: list[str] = []
    drain = there.slurm.drain

    async def refused(node: str, reason: str) -> None:
        asked.append(node)
        if node == "n1" and asked.count(node) <= times:
            raise RefusedForNow(f"Slurm does not set {node} to DRAIN: Unspecified error")
        await drain(node, reason)

    there.slurm.drain = refused  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("times", [1, 3])
async def test_a_refused_drain_is_asked_for_again(world: Worlds, times: int) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    asked = refuse(there, times)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, "its restart does not wait for that"
    assert not there.slurm.nodes["n1"].drained and asked == ["n1"]
    waits = [wait for plan in daemon.state.plans.values() for wait in plan.waits]
    assert [(wait.kind, wait.what) for wait in waits] == [("drain-refused", ("drain n1",))]
    assert "Unspecified error" in waits[0].explanation
    told = len(sink.stages)
    for number in range(times):
        await daemon.pass_time(70.0 * 2**number)
    assert there.slurm.nodes["n1"].drained and asked == ["n1"] * (times + 1), daemon.said
    assert not any(plan.waits for plan in daemon.state.plans.values())
    assert len(sink.stages) <= told + 1, "one refusal is told once"


async def test_a_person_who_drains_or_releases_the_node_ends_the_wait(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    asked = refuse(there, 1)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.person_drains("n1", "fan broken")
    await daemon.pass_time(70.0)
    assert asked == ["n1"] and there.slurm.nodes["n1"].reason == "fan broken"
    assert not any(plan.waits for plan in daemon.state.plans.values()) and "waiting" not in states(there)


async def test_what_was_refused_is_judged_by_the_budget_of_now(world: Worlds) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0, drain_per_hour=1)))
    asked = refuse(there, 1)
    await fail(daemon, lost_gpu("n1"))
    await fail(daemon, lost_gpu("n6", at_s=(there.slurm.clock.now() - AT).total_seconds()))
    assert there.slurm.nodes["n6"].drained
    await daemon.pass_time(70.0)
    assert not there.slurm.nodes["n1"].drained and asked == ["n1", "n6"]
    waits = {wait.kind for plan in daemon.state.plans.values() for wait in plan.waits}
    assert waits == {"drain-budget"}


@pytest.mark.parametrize("refused_s", [100.0, 200.0])
async def test_a_job_that_slurm_refuses_to_requeue_is_requeued_once_it_may_be(world: Worlds, refused_s: float) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    until_s = there.slurm.refused_until_s["jobs"] = there.slurm.time_s() + refused_s
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert until_s <= job.submitted < until_s + 10.0, "asked again every few seconds"
    assert job.restarts == 1 and job.state == "RUNNING" and "n1" not in job.on, daemon.said
    assert "held" not in states(there) and sink.stages[0] == "restarting"


async def test_a_job_that_slurm_goes_on_refusing_to_requeue_is_left_to_a_person(world: Worlds) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    there.slurm.refused_until_s["jobs"] = there.slurm.time_s() + 3600.0
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(310.0)
    assert states(there) == ["held"] and sink.stages[-1] == "failed"
    assert "Unspecified error" in sink.all[-1].body


async def test_a_stopped_job_that_slurm_refuses_to_change_goes_on_once_it_may_be(world: Worlds) -> None:
    """It is deferred by then: left so, it would wait for a month."""
    there = silent(world())
    daemon = Daemon(there)
    write = there.resume.write

    async def refused_from_now(job: int, values: Any) -> None:
        there.slurm.refused_until_s.setdefault("jobs", there.slurm.time_s() + 60.0)
        await write(job, values)

    there.resume.write = refused_from_now  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert there.slurm.time_s() > there.slurm.refused_until_s["jobs"]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said


async def test_it_is_asked_after_longer_and_longer_pauses_whatever_else_comes(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink])
    times: list[float] = []

    async def refused(node: str, reason: str) -> None:
        times.append(there.slurm.time_s())
        raise RefusedForNow(f"Slurm does not set {node} to DRAIN: Unspecified error")

    there.slurm.drain = refused  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n6"))
    for number in range(240):
        await daemon.pass_time(2.0)
        if number % 10 == 0:  # the kernel says so again and again
            await fail(daemon, lost_gpu("n6", at_s=(there.slurm.clock.now() - AT).total_seconds()))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) >= 2 and all(gap >= 60.0 * 2**number for number, gap in enumerate(gaps)), gaps
    rows = [step.key(plan.incident) for plan in daemon.state.plans.values() for step in plan.steps]
    assert rows == [] and states(there) == ["waiting"]
    since = {wait.since for plan in daemon.state.plans.values() for wait in plan.waits}
    assert [(at - AT).total_seconds() < 60.0 for at in since] == [True], "since the first refusal"


async def test_what_slurm_refuses_takes_no_place_from_what_it_would_do(world: Worlds) -> None:
    there = silent(world(nodes=8))
    limits = Limits(drain_fraction=1.0, drain_count=1, drain_per_hour=9)
    daemon = Daemon(there, settings=dataclasses.replace(SETTINGS, limits=limits))
    refuse(there, 10**6)
    await fail(daemon, lost_gpu("n1"), lost_gpu("n2"))
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert there.slurm.nodes["n2"].drained


@pytest.mark.parametrize("node", ["n1", "n6"])  # under the job, and idle
async def test_people_are_told_what_slurm_said(world: Worlds, node: str) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink])
    there.slurm.refused_until_s["nodes"] = there.slurm.time_s() + 3600.0
    await fail(daemon, lost_gpu(node))
    told = [notice for notice in sink.all if "Unspecified error" in notice.body]
    assert told and all(notice.data["severity"] == "critical" for notice in told)
    assert f"Failed: drain {node}: " in str(told[-1].data["operator_text"])


async def test_a_daemon_started_meanwhile_asks_again(world: Worlds) -> None:
    there, fate = silent(world(nodes=6)), Fate()
    there.slurm.refused_until_s["nodes"] = there.slurm.time_s() + 30.0
    await fail(Daemon(there, fate=fate), lost_gpu("n6"))
    fate.dead = True
    daemon = Daemon(there)
    await daemon.start()
    for _ in range(6):
        await daemon.pass_time(20.0)
    assert there.slurm.nodes["n6"].drained and states(there) == ["closed"]


async def test_a_lost_node_that_is_drained_and_not_set_down_is_asked_for_again(world: Worlds) -> None:
    """Its job stays in COMPLETING until it is."""
    there = silent(world(nodes=6))
    daemon = Daemon(there)
    set_node, refused = there.verbs.set_node, []

    async def not_down(node: str, state: str, reason: str | None) -> None:
        if state == "DOWN" and len(refused) < 3:
            refused.append(node)
            raise SlurmSaidNo(Answer.OTHER, "Unspecified error")
        await set_node(node, state, reason)

    there.verbs.set_node = not_down  # type: ignore[method-assign]
    there.slurm.lose("n6")
    gone = evidence(Kind.NODE_UNREACHABLE, node="n6", source=Source.PROBE, text="slurmd does not answer")
    await fail(daemon, gone)
    await daemon.pass_time(60.0)
    assert there.slurm.nodes["n6"].down and refused == ["n6"] * 3


async def test_a_job_that_goes_on_while_slurm_refuses_is_left_alone(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    until_s = there.slurm.refused_until_s["jobs"] = there.slurm.time_s() + 100.0
    last_step = there.progress.last_step
    there.progress.last_step = (  # type: ignore[method-assign]
        lambda job, attempt: 260 if there.slurm.time_s() > until_s - 50.0 else last_step(job, attempt)
    )
    where: dict[str, Any] = {"source": Source.PROGRESS, "job": there.job, "attempt": 0}
    await fail(daemon, evidence(Kind.STALL, data={"step": 250, "silent_s": 60.0}, **where))
    await daemon.pass_time(160.0)
    assert there.slurm.jobs[there.job].restarts == 0 and states(there) == ["closed"], daemon.said


async def test_a_hold_that_a_person_puts_on_a_job_while_slurm_refuses_stays(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.slurm.refused_until_s["jobs"] = there.slurm.time_s() + 100.0

    async def person() -> None:
        await asyncio.sleep(50.0)
        there.slurm.person_requeues_and_holds(there.job)

    acts = asyncio.create_task(person())
    await fail(daemon, lost_gpu("n1"))
    await acts
    await daemon.pass_time(300.0)
    assert there.slurm.jobs[there.job].held


async def test_a_stopped_job_that_slurm_refuses_to_change_for_long_is_not_left_deferred(world: Worlds) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    write = there.resume.write

    async def refused_from_now(job: int, values: Any) -> None:
        there.slurm.refused_until_s.setdefault("jobs", there.slurm.time_s() + 1800.0)
        await write(job, values)

    there.resume.write = refused_from_now  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    for _ in range(10):
        await daemon.pass_time(200.0)
    job = there.slurm.jobs[there.job]
    assert job.held or job.state == "RUNNING", (job.eligible - there.slurm.time_s(), daemon.said[-2000:])
