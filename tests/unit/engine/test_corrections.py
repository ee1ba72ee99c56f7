"""What people were told is corrected once when it is no longer so; they hear what Slurm did with jobs that waited."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, heard, silent, states
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence, lost_gpu, step_line

from sentinel.config.settings import Limits
from sentinel.detect import job_end
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Source, stable_id

Worlds = Callable[..., World]
ERROR = dataclasses.replace(
    evidence("x", source=Source.JOB_LOG, job=101, attempt=0, text="IndexError: list index out of range", at_s=0.5),
    rule="python-bug",
)


ONE_DRAIN = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0, drain_count=1))


@pytest.mark.parametrize(
    ("end", "stage", "severity", "words"),
    [
        (None, "running again", "warning", "runs again"),
        ({"exit_code": 1}, "failed", "warning", "was restarted: attempt 1 ended as failed before it gained a step."),
        ({"state": "CANCELLED"}, "cancelled", "warning", "was cancelled, and stays so."),
    ],
)
async def test_people_who_heard_of_a_restart_hear_what_became_of_it_once(
    world: Worlds, end: dict[str, Any] | None, stage: str, severity: str, words: str
) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await fail(daemon, lost_gpu("n1"))
    assert heard(sink) == ["restarting"]
    daemon = Daemon(there, [sink])  # what was told is known after a start
    await daemon.start()
    if end is None:
        await daemon.observe([step_line(there.job, 1, 201, 60.0)])
        await daemon.quiet()
    else:
        there.slurm.end(there.job, **end)
        await daemon.pass_time(20.0)
    assert heard(sink) == ["restarting", stage], daemon.said
    told = sink.later[0]
    assert told.incident == sink.got[0].incident and told.id != sink.got[0].id
    assert told.data["severity"] == severity and words in str(told.data["owner_text"])
    await daemon.pass_time(60.0)
    again = Daemon(there, [sink])
    await again.start()
    await again.pass_time(60.0)
    assert len(sink.later) == 1


async def test_a_requeue_that_slurmctld_forgot_half_way_is_not_told_as_a_failure(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.save_state()
    write, crashes = there.resume.write, iter([True])

    async def forgotten(job: int, values: Any) -> None:
        if next(crashes, False):
            there.slurm.crash()
        await write(job, values)

    there.resume.write = forgotten  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said
    assert heard(sink) == ["restarting"], daemon.said


async def test_people_who_heard_that_nothing_is_done_hear_when_it_is_done_after_all(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    daemon = Daemon(there, [sink], settings=ONE_DRAIN)
    await fail(daemon, lost_gpu("n5"))  # without a job
    assert heard(sink) == ["waiting"] and states(there) == ["waiting"]
    there.slurm.nodes["n6"].drained = False
    await daemon.pass_time(20.0)
    assert heard(sink) == ["waiting", "handled"] and sink.later[0].data["drained"] == ["n5"]


async def test_jobs_that_waited_for_one_that_failed_by_itself_are_named(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    waiting = there.slurm.submit(nodes=1, comment=OPTED_IN, after_ok=there.job)
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await fail(daemon, lost_gpu("n1"), ended(there.job))
    assert there.slurm.jobs[there.job].restarts == 1
    assert f"will never start {waiting} (afterok)" in sink.got[0].body


# --- RequeueExitHold: a failed job does not come to its end -------------------------------------------------------------


async def exit_held(world: Worlds, comment: str = OPTED_IN) -> tuple[World, Daemon, FakeSink]:
    """A job failed, and Slurm itself requeued and held it."""
    there, sink = silent(world(nodes=6, comment=comment)), FakeSink()
    there.slurm.requeue_exit_hold = True
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    return there, daemon, sink


async def test_a_failed_job_that_slurm_requeued_and_held_is_restarted_on_good_nodes(world: Worlds) -> None:
    there, daemon, sink = await exit_held(world)
    await daemon.runner.timer_due("reconcile")
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on and not job.special, daemon.said
    assert heard(sink) == ["restarting"]


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
async def test_a_job_that_slurm_requeued_and_held_before_it_was_seen_is_reported_whatever_slurms_clock_says(
    world: Worlds, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterView, "own_clock_ahead_s", lambda _: ahead_s)
    there = silent(world(nodes=6))
    there.slurm.requeue_exit_hold = True
    daemon = Daemon(there)
    there.slurm.end(there.job, exit_code=1)
    job = there.slurm.jobs[there.job]
    job.submitted -= ahead_s
    job.started -= ahead_s
    await daemon.fleets.take()
    await daemon.runner.timer_due("reconcile")
    await daemon.pass_time(20.0)
    assert states(there), daemon.said


async def test_a_job_of_broken_code_that_slurm_requeued_and_held_is_left_held_and_told(world: Worlds) -> None:
    there, daemon, sink = await exit_held(world)
    await daemon.observe([ERROR])
    await daemon.runner.timer_due("reconcile")
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.held and job.restarts == 1, daemon.said
    assert heard(sink) == ["held"], daemon.said
    again = Daemon(there, [sink])
    await again.start()
    await again.pass_time(60.0)
    assert len(sink.got) == 1 and sink.later == []


@pytest.mark.parametrize("comment", ["", OPTED_IN])
async def test_one_that_an_earlier_release_knew_is_no_news_to_this_one(
    world: Worlds, comment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases made the id of an end without the time of submission."""
    there, daemon, sink = await exit_held(world, comment)
    with monkeypatch.context() as earlier:
        earlier.setattr(job_end, "_id", lambda job, state: stable_id("job_ended", job.id, job.restarts, state))
        await daemon.observe([ERROR])
        await daemon.runner.timer_due("reconcile")
        await daemon.pass_time(20.0)
    told = heard(sink)
    assert told and len(states(there)) == 1, daemon.said
    there.slurm.clock.advance(2 * 86400.0)
    again = Daemon(there, [sink])
    await again.start()
    for _ in range(3):
        await again.runner.timer_due("reconcile")
        await again.pass_time(60.0)
    job = there.slurm.jobs[there.job]
    assert len(states(there)) == 1 and heard(sink) == told, again.said
    assert job.held and job.restarts == 1 and again.bugs() == 0
