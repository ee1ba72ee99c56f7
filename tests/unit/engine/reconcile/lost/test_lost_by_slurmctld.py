"""What slurmctld lost at a restart is done again: requeues, holds, deferrals, releases, lists of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, heard, silent, states
from in_memory.world import World
from made_records import lost_gpu, step_line

from sentinel.config.settings import Limits
from sentinel.errors import Refused

Worlds = Callable[..., World]


WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


async def test_a_requeue_and_a_drain_that_slurmctld_lost_are_done_again(world: Worlds) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.save_state()
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and there.slurm.nodes["n1"].drained
    there.slurm.crash()
    assert there.slurm.jobs[there.job].restarts == 0 and not there.slurm.nodes["n1"].drained
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert there.slurm.nodes["n1"].drained and there.slurm.nodes["n1"].reason.startswith("sentinel:")
    assert job.restarts == 1 and job.state == "RUNNING" and "n1" not in job.on
    await daemon.observe([step_line(there.job, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and sink.stages == ["restarting", "running again"] and daemon.bugs() == 0
    assert len(daemon.state.past.restarts(there.job)) == 1, "one restart, done twice"


async def test_a_release_that_slurmctld_lost_is_done_again(world: Worlds) -> None:
    there = silent(world(nodes=3))
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=1)  # the released job waits for its node
    defer = there.slurm.defer

    async def deferred(job: int) -> None:
        await defer(job)
        there.slurm.save_state()

    there.slurm.defer = deferred  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    there.slurm.crash()
    there.slurm.cancel(blocker)
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.eligible > there.slurm.time_s() + 86_400
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.restarts == 1


def saved_between_hold_and_deferral(there: World) -> None:
    defer = there.slurm.defer

    async def deferred(job: int) -> None:
        there.slurm.save_state()
        await defer(job)

    there.slurm.defer = deferred  # type: ignore[method-assign]


async def test_a_deferral_that_slurmctld_lost_before_the_release_leaves_no_job_held(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    saved_between_hold_and_deferral(there)
    write = there.resume.write

    async def crashing(job: int, values: Any) -> None:
        there.slurm.crash()
        assert there.slurm.jobs[there.job].held
        await write(job, values)

    there.resume.write = crashing  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said
    assert heard(sink) == ["restarting"]


async def test_a_deferral_and_a_release_that_slurmctld_lost_leave_no_job_held(world: Worlds) -> None:
    there = silent(world(nodes=3))
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=1)  # the released job waits for its node
    saved_between_hold_and_deferral(there)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.crash()
    assert there.slurm.jobs[there.job].held
    there.slurm.cancel(blocker)
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said


async def test_a_job_that_is_held_and_deferred_again_after_its_release_is_released_again(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld had saved its deferral, and not yet that the hold before it was taken off."""
    there = silent(world(nodes=3))
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=1)  # the released job waits for its node
    verbs, saved = there.slurm.verbs, []
    real = verbs.release

    async def release(name: str) -> None:
        if not saved:
            saved.append(name)
            there.slurm.save_state()
        await real(name)

    monkeypatch.setattr(verbs, "release", release)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.crash()
    job = there.slurm.jobs[there.job]
    assert saved and job.held and job.eligible > there.slurm.time_s() + 86_400
    there.slurm.cancel(blocker)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert there.slurm.jobs[there.job].state == "RUNNING", daemon.said


@pytest.mark.parametrize("released", [False, True])
async def test_the_nodes_of_a_jobs_own_saves_that_slurmctld_forgot_are_asked_for_again(
    world: Worlds, released: bool
) -> None:
    """It saved the deferral and not the list after it: the job would start elsewhere, with a resume point of these nodes."""
    there = silent(world(nodes=6))
    there.checkpoints.chosen = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=4) if released else None  # the released job waits for its nodes
    defer, update, crashed = there.slurm.defer, there.slurm.update_job, [released]

    async def deferred(job: int) -> None:
        await defer(job)
        there.slurm.save_state()

    async def updated(job: int, **fields: Any) -> None:
        await update(job, **fields)
        if not crashed[0]:
            crashed[0] = True
            there.slurm.crash()

    there.slurm.defer, there.slurm.update_job = deferred, updated  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    if blocker is not None:
        there.slurm.crash()
        there.slurm.cancel(blocker)
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert (job.state, job.on, job.required) == ("RUNNING", ("n2", "n3"), ("n2", "n3")), daemon.said
    assert job.restarts == 1 and job.admin_comment.endswith("attempt=1 required=local")


async def test_an_earlier_restart_chooses_nothing_for_a_job_that_another_incident_restarts(world: Worlds) -> None:
    """The node that broke held the job's own saves: to the earlier incident it looked like a wait for a node that is out."""
    there = silent(world(nodes=6))
    there.checkpoints.chosen = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.required == ("n2", "n3"), daemon.said
    await daemon.observe([step_line(there.job, 1, 251, 60.0)])
    await daemon.pass_time(100.0)
    write, written = there.resume.write, []

    async def looked_at(number: int, values: Any) -> None:
        written.append(values["SENTINEL_ATTEMPT"])
        await write(number, values)
        if len(written) == 1:
            await daemon.fleets.take()

    there.resume.write = looked_at  # type: ignore[method-assign]
    there.checkpoints.chosen = {"path": "/shared/run/step-260", "step": 260, "tier": "global"}
    await fail(daemon, lost_gpu("n3", 200.0))
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.restarts == 2 and job.required == (), daemon.said
    assert written == ["2"] and "done-again" not in daemon.said, daemon.said


@pytest.mark.parametrize("held", [False, True])
async def test_a_hold_for_a_person_that_slurmctld_lost_leaves_no_job_deferred_for_a_month(
    world: Worlds, held: bool
) -> None:
    """All of it, or the hold was saved and not the start time after it: released by a person the job would still wait."""
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    name = "requeue_hold" if held else "defer"
    ask = getattr(there.slurm, name)

    async def saved(*asked: int) -> Any:
        found = await ask(*asked)
        there.slurm.save_state()
        return found

    async def full(_job: int, _values: Any) -> None:
        raise Refused("no space left on device")

    setattr(there.slurm, name, saved)
    there.resume.write = full  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    there.slurm.crash()
    job = there.slurm.jobs[there.job]
    assert job.held is held and job.eligible > there.slurm.time_s() + 86_400
    await daemon.pass_time(20.0)
    assert states(there) == ["held"] and heard(sink) == ["failed"], daemon.said
    await there.slurm.release(there.job)
    assert job.state == "RUNNING" and daemon.said.count("done-again") == 1, daemon.said
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and heard(sink) == ["failed", "resolved"]


async def test_what_was_lost_is_found_by_the_next_daemon_too(world: Worlds) -> None:
    there = silent(world())
    first = Daemon(there)
    await first.fleets.take()
    there.slurm.save_state()
    await fail(first, lost_gpu("n1"))
    there.slurm.crash()
    second = Daemon(there)
    await second.start()
    await second.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and "n1" not in job.on and there.slurm.nodes["n1"].drained


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "changed back by a person"])
async def test_a_longer_list_that_slurmctld_lost_is_written_again(world: Worlds, lost: bool) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    for _ in range(2):
        there.slurm.submit(nodes=2)
    await fail(daemon, lost_gpu("n1"))
    assert there.slurm.jobs[there.job].excluded == ("n1",)
    there.slurm.save_state()
    seen = daemon.live.node("n3")
    seen.state, seen.verdict = "heard", {"word": "BAD"}
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.excluded == ("n1", "n3")
    if lost:
        there.slurm.crash()
        job = there.slurm.jobs[there.job]
    else:
        job.excluded = ("n1",)
    assert job.excluded == ("n1",)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == (("n1", "n3") if lost else ("n1",)), daemon.said
    assert daemon.said.count("done-again") == 2
