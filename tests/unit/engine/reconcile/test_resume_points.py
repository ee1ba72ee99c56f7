"""The resume point of an attempt that Slurm starts again, and the nodes of the job's own saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, silent, states
from in_memory.world import World
from made_records import lost_gpu, step_line

from sentinel.actions import Task
from sentinel.config.settings import Limits
from sentinel.model.records import JobView, Scalar

Worlds = Callable[..., World]


WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


@pytest.mark.parametrize("stepped", [False, True])
async def test_an_attempt_that_slurm_requeues_before_its_first_step_leaves_the_next_one_its_resume_point(
    world: Worlds, stepped: bool
) -> None:
    """As where a prolog fails at the start. What has made a step has begun from it, and goes on by its script's own rule."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    before = dict(there.resume.files[there.job])
    assert job.state == "RUNNING" and before["SENTINEL_ATTEMPT"] == "1" and before["SENTINEL_RESUME_STEP"] == "200"
    if stepped:
        await daemon.observe([step_line(there.job, 1, 201, 60.0)])
    there.slurm.back_to_queue(job, held=False)
    assert job.state == "PENDING" and job.restarts == 2
    await daemon.pass_time(20.0)
    assert there.resume.files[there.job] == before | {"SENTINEL_ATTEMPT": "1" if stepped else "2"}, daemon.said
    written = there.resume.write

    async def again(_job: int, _values: Mapping[str, str]) -> None:
        raise AssertionError("it is written once for an attempt")

    there.resume.write = again  # type: ignore[method-assign]
    await daemon.pass_time(20.0)
    there.resume.write = written  # type: ignore[method-assign]
    assert daemon.bugs() == 0


@pytest.mark.parametrize("how", ["runs without step lines", "ran long", "a component made steps"])
async def test_a_job_that_may_have_trained_since_its_restart_keeps_to_its_own_newest_checkpoint(
    world: Worlds, how: str
) -> None:
    """No step was seen where nobody reads the job's steps, or nobody was there."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    if how == "a component made steps":
        part = there.slurm.submit(nodes=1, het=there.job)
        there.slurm.jobs[there.job].record["het_job_id"] = there.job
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert there.resume.files[there.job]["SENTINEL_ATTEMPT"] == "1"
    if how == "a component made steps":
        await daemon.observe([step_line(part, 1, 201, 60.0)])
        await daemon.quiet()
    else:
        longer_s = SETTINGS.recovery.confirm_s + 60.0
        if how == "runs without step lines":
            await daemon.pass_time(longer_s)
        else:
            there.slurm.clock.advance(longer_s)
    there.slurm.back_to_queue(job, held=False)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert there.resume.files[there.job]["SENTINEL_ATTEMPT"] == "1", daemon.said
    assert daemon.bugs() == 0


async def test_each_attempt_that_slurm_requeues_before_its_first_step_leaves_the_resume_point_to_the_next(
    world: Worlds,
) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    for attempt in range(2, 9):
        there.slurm.back_to_queue(job, held=False)
        await daemon.pass_time(20.0)
        assert there.resume.files[there.job]["SENTINEL_ATTEMPT"] == f"{attempt}", daemon.said
        there.slurm.clock.advance(150.0)
        there.slurm.schedule()
        assert job.state == "RUNNING"
        await daemon.pass_time(2.0)
    assert daemon.bugs() == 0


@pytest.mark.parametrize("how", ["taken", "drained", "down"])
async def test_a_job_whose_nodes_are_gone_before_its_release_does_not_wait_for_them(world: Worlds, how: str) -> None:
    """Its own saves lay there. Another job that had waited in the queue got one, or a person took one out: for days."""
    there = silent(world())
    shared = there.checkpoints.chosen
    there.checkpoints.chosen = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
    daemon = Daemon(there, settings=WIDE)
    write = there.resume.write

    async def taken_meanwhile(job: int, values: Any) -> None:
        if how == "drained":
            there.slurm.person_drains("n3", "ticket 7")
        elif how == "down":  # and not drained: limits may not allow it, or nobody needs the node
            there.slurm.set_down("n3")
        elif len(there.slurm.jobs) == 1:
            other = there.slurm.submit(nodes=1, required=["n3"])
            assert there.slurm.jobs[other].on == ("n3",)
        await write(job, values)

    there.resume.write = taken_meanwhile  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.required == ("n2", "n3"), daemon.said
    there.checkpoints.chosen = shared
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.required == () and job.on == ("n2", "n4"), daemon.said
    assert there.resume.files[there.job]["SENTINEL_RESUME_TIER"] == "global"


async def test_a_job_that_slurm_never_starts_on_the_nodes_of_its_own_saves_goes_on_from_shared_ones(
    world: Worlds,
) -> None:
    """A range of nodes, tasks per node and a shorter node list (22.05)."""
    there, sink = silent(world(nodes=6)), FakeSink()
    job, asked = there.slurm.jobs[there.job], list[bool]()
    choose, job.most = there.checkpoints.choose, 3

    async def chosen(task: Task, view: JobView) -> Mapping[str, Scalar]:
        asked.append(task.step.data.get("anywhere") is True)
        local = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
        return await choose(task, view) if asked[-1] else local

    there.checkpoints.choose = chosen  # type: ignore[method-assign]
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.required == () and "n1" not in job.on, daemon.said
    assert asked == [False, True] and there.resume.files[there.job]["SENTINEL_RESUME_TIER"] == "global"
    assert job.excluded == ("n1",) and sink.stages == ["restarting"] and states(there) == ["watching"]


async def test_the_nodes_that_its_user_requires_are_required_again_after_a_start_on_those_of_its_own_saves(
    world: Worlds,
) -> None:
    there = world(nodes=6)
    job, shared = there.slurm.jobs[there.job], there.checkpoints.chosen
    job.required = ("n2",)
    there.checkpoints.chosen = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.required == ("n2", "n3") and states(there) == ["closed"], daemon.said
    there.checkpoints.chosen = shared
    await daemon.observe([lost_gpu("n3", 600.0)])
    await daemon.quiet()
    assert job.required == ("n2",) and job.restarts == 2 and "n2" in job.on, daemon.said


@pytest.mark.parametrize("whose", ["alice", "bo"])
async def test_a_job_that_waits_while_its_run_goes_on_in_another_job_is_not_sent_back(
    world: Worlds, whose: str
) -> None:
    """The next task of an array of which one runs at a time, or the next job of a chain, takes its turn and saves."""
    there = silent(world(nodes=3))
    job = there.slurm.jobs[there.job]
    following = there.slurm.submit(nodes=2, comment=str(job.record["comment"]), user=whose)
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    assert there.slurm.jobs[following].state == "RUNNING" and job.state == "PENDING", daemon.said
    for _ in range(3):
        await daemon.pass_time(20.0)
    sent_back = there.resume.files[there.job].get("SENTINEL_RESUME_STEP")
    assert sent_back == ("200" if whose == "bo" else None), daemon.said
    assert whose == "bo" or "it resumes as its script does" in daemon.said
    assert daemon.said.count("choose_checkpoint") < 6, "it is not done again with each snapshot"
    there.slurm.end(following)
    assert job.state == "RUNNING"
    await daemon.pass_time(20.0)
    assert states(there) == ["watching"] and daemon.bugs() == 0


@pytest.mark.parametrize("seen", [True, False], ids=["seen at work", "not seen"])
async def test_a_job_that_still_waits_once_its_run_has_stopped_gets_the_newest_checkpoint(
    world: Worlds, seen: bool
) -> None:
    there = silent(world(nodes=3))
    job = there.slurm.jobs[there.job]
    following = there.slurm.submit(nodes=2, comment=str(job.record["comment"]))
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    if seen:
        await daemon.pass_time(20.0)
        assert "SENTINEL_RESUME_STEP" not in there.resume.files[there.job], daemon.said
    else:
        there.slurm.clock.advance(20.0)
    there.checkpoints.chosen = {"path": "/shared/run/step-400", "step": 400, "tier": "global"}
    there.slurm.person_drains("n3", "ticket 7")
    there.slurm.end(following)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and there.resume.files[there.job]["SENTINEL_RESUME_STEP"] == "400", daemon.said
    assert daemon.bugs() == 0


async def test_a_waiting_jobs_checkpoint_is_chosen_as_often_as_the_site_allows(world: Worlds) -> None:
    """Each one is read by nodes; then the job resumes as its script does."""
    there = silent(world(nodes=3))
    following = there.slurm.submit(nodes=2, comment=str(there.slurm.jobs[there.job].record["comment"]))
    once = dataclasses.replace(WIDE, recovery=dataclasses.replace(WIDE.recovery, resume_choices=1))
    daemon = Daemon(there, settings=once)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    there.checkpoints.chosen = {"path": "/shared/run/step-400", "step": 400, "tier": "global"}
    there.slurm.person_drains("n3", "ticket 7")
    there.slurm.end(following)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert "SENTINEL_RESUME_STEP" not in there.resume.files[there.job], daemon.said
