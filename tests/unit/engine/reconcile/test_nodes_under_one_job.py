"""Nodes that break under one job in attempt after attempt, and suspects that break under the next one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, silent, states
from in_memory.held_job import drained, now_s
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence, lost_gpu, step_line

from sentinel.model.records import Kind
from sentinel.simulate.slurm.records import SimulatedJob

Worlds = Callable[..., World]


async def break_one_more(there: World, daemon: Daemon) -> str:
    there.slurm.clock.advance(600.0)
    await daemon.fleets.take()
    job = there.slurm.jobs[there.job]
    node = job.on[0]
    reached = step_line(job.id, job.restarts, 1000 * (job.restarts + 1), 0.0)
    await fail(daemon, dataclasses.replace(reached, at=there.slurm.clock.now()), lost_gpu(node, at_s=now_s(there)))
    await daemon.pass_time(20.0)
    return node


async def test_a_job_under_which_a_node_breaks_in_each_attempt_is_held_and_gets_no_more(world: Worlds) -> None:
    there, sink = world(nodes=12), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    broken = [await break_one_more(there, daemon) for _ in range(2)]
    job = there.slurm.jobs[there.job]
    assert job.restarts == 2 and job.state == "RUNNING"
    daemon = Daemon(there, [sink], settings=WIDE)  # history is in the store
    await daemon.start()
    broken.append(await break_one_more(there, daemon))
    assert job.held and job.restarts == 3 and drained(there) == set(broken), daemon.said
    notice = sink.all[-1]
    for text in ("owner_text", "operator_text"):
        assert "may break them" in str(notice.data[text]), notice.data[text]
    assert states(there) == ["closed", "closed", "held"] and daemon.bugs() == 0


async def test_nodes_that_break_together_or_for_different_causes_are_not_the_jobs_doing(world: Worlds) -> None:
    there = world(nodes=12, wide=4)
    daemon = Daemon(there, settings=WIDE)
    there.slurm.clock.advance(600.0)
    await fail(daemon, *(lost_gpu(node, at_s=600.0) for node in ("n1", "n2", "n3")))
    assert there.slurm.jobs[there.job].restarts == 1 and there.slurm.jobs[there.job].state == "RUNNING"
    await break_one_more(there, daemon)
    assert there.slurm.jobs[there.job].restarts == 2 and there.slurm.jobs[there.job].state == "RUNNING", daemon.said


@pytest.mark.parametrize("after_s", [60.0, 7200.0])
async def test_a_job_that_slurm_requeues_itself_loses_exclusions_of_ours_that_are_over(
    world: Worlds, after_s: float
) -> None:
    there = world(nodes=4)
    daemon = Daemon(there, settings=WIDE)
    job = there.slurm.jobs[there.job]
    await fail(daemon, lost_gpu("n1"))
    assert job.excluded == ("n1",) and job.restarts == 1 and states(there) == ["closed"]
    await daemon.pass_time(after_s)
    there.slurm.person_resumes("n1")
    await daemon.pass_time(20.0)
    await daemon.housekeeping()
    assert job.state == "RUNNING" and job.excluded == ("n1",), "Slurm changes it of a waiting job only"
    spare = {"n2", "n3", "n4"} - set(job.on)
    for name in spare:
        there.slurm.person_drains(name, "ticket 7")
    lost = job.on[0]
    there.slurm.lose(lost)
    there.slurm.notice(lost)
    await daemon.pass_time(10.0)
    assert job.state == "PENDING" and job.restarts == 2
    await daemon.pass_time(200.0)
    await daemon.pass_time(20.0)
    assert job.excluded == () and job.state == "RUNNING" and "n1" in job.on, daemon.said


async def test_what_breaks_on_a_suspect_under_its_next_job_is_a_failure_of_that_job(world: Worlds) -> None:
    """The first job waits for its first step elsewhere; the node that it left was kept out of its retry only."""
    there = silent(world(nodes=6))
    daemon, first = Daemon(there, settings=WIDE), there.slurm.jobs[there.job]
    started, told = there.slurm.started, []

    async def breaks() -> None:
        there.slurm.submit(nodes=6 - len(first.on), comment=OPTED_IN)
        there.slurm.clock.advance(5.0)
        await daemon.fleets.take()
        told.append(first.restarts)
        await daemon.runner.observe(
            [evidence(Kind.XID, node="n1", at_s=now_s(there), data={"xid": 48}, text="NVRM: Xid 48")]
        )

    def begins(job: SimulatedJob) -> None:
        started(job)
        if job is first and job.restarts == 1:
            told.append(asyncio.create_task(breaks()))

    there.slurm.started = begins  # type: ignore[method-assign]
    there.slurm.end(there.job, exit_code=1)
    await fail(daemon, evidence(Kind.XID, node="n1", data={"xid": 94}, text="NVRM: Xid 94"), ended(there.job))
    assert told[1:] == [1] and "n1" not in first.on, daemon.said
    assert drained(there) == {"n1"} and len(states(there)) == 2, daemon.said
