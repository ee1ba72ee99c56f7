"""When a restart counts as done: its first step, its time, its end; by whom it was started; heterogeneous jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, heard, outcomes, silent, states
from in_memory.world import World
from made_records import AT, OPTED_IN, lost_gpu, step_line

from sentinel.config.settings import Limits, Settings
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.reconcile import confirming

Worlds = Callable[..., World]


WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


async def test_a_job_that_its_user_holds_after_the_release_stays_held_and_people_hear_of_it(world: Worlds) -> None:
    there, sink = silent(world(nodes=3)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    blocker = there.slurm.submit(nodes=1)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    job.held, job.held_by = True, "JobHeldUser"
    there.slurm.cancel(blocker)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.held and states(there) == ["held"] and heard(sink) == ["restarting", "held"], daemon.said
    await there.slurm.release(there.job)
    await daemon.observe([step_line(there.job, 1, 201, 60.0)])
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and heard(sink) == ["restarting", "held", "resolved"]


async def test_the_first_step_line_confirms_a_restart(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    assert states(there) == ["watching"]
    await daemon.observe([step_line(there.job, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and outcomes(there) == ["gains steps again from step 201"]


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        ({}, "closed", "ran to its end"),
        ({"exit_code": 1}, "held", "ended as failed before it gained a step"),
        ({"state": "DEADLINE"}, "closed", "ended as deadline before it gained a step"),
    ],
)
async def test_the_end_of_a_restarted_job_before_its_first_step(
    world: Worlds, end: dict[str, Any], state: str, words: str
) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.end(there.job, **end)
    await daemon.pass_time(20.0)
    assert states(there) == [state] and words in outcomes(there)[0]


async def test_a_restarted_job_that_somebody_requeues_before_its_first_step(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    await there.slurm.requeue_hold(there.job)
    await daemon.pass_time(20.0)
    assert outcomes(there)[0].startswith("attempt 1 was requeued before it gained a step")


async def test_a_restarted_job_that_failed_and_was_held_for_it_is_not_said_to_have_been_requeued(world: Worlds) -> None:
    """The requeue was the hold, by the incident of that failure."""
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    there.slurm.end(there.job, exit_code=1)
    daemon.live.see_fleet(await there.slurm.fleet())
    await there.slurm.requeue_hold(there.job)
    await daemon.pass_time(20.0)
    assert outcomes(there)[0].startswith("attempt 1 ended as failed before it gained a step"), outcomes(there)


async def test_a_restarted_job_that_prints_nothing_counts_as_running_after_its_time(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(500.0)
    assert states(there) == ["watching"]
    await daemon.pass_time(150.0)
    assert states(there) == ["closed"] and outcomes(there) == ["runs; no step line was seen"]


async def test_a_restarted_job_counts_as_running_after_its_time_also_by_a_slurm_whose_clock_is_ahead(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = silent(world())
    daemon = Daemon(there)
    monkeypatch.setattr(ClusterView, "own_clock_ahead_s", lambda _: -300.0)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    job.started += 300.0
    await daemon.pass_time(500.0)
    assert states(there) == ["watching"]
    await daemon.pass_time(150.0)
    assert states(there) == ["closed"] and outcomes(there) == ["runs; no step line was seen"]


async def test_a_restarted_job_whose_nodes_boot_does_not_count_as_running(world: Worlds) -> None:
    """Slurm gives its start anew when they are there: until then its script has not begun."""
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and states(there) == ["watching"]
    job.state = "CONFIGURING"
    for _ in range(2):
        await daemon.pass_time(SETTINGS.recovery.confirm_s + 20.0)
    assert states(there) == ["watching"] and "its nodes are being prepared" in outcomes(there)[0], daemon.said
    assert heard(sink) == ["restarting"]
    job.state, job.started = "RUNNING", there.slurm.time_s()
    await daemon.pass_time(20.0)
    assert states(there) == ["watching"], "it has just begun"
    await daemon.pass_time(SETTINGS.recovery.confirm_s)
    assert states(there) == ["closed"] and "runs; no step line was seen" in outcomes(there)[0]


async def test_a_restart_that_slurm_repeats_by_itself_is_followed_to_its_first_step(world: Worlds) -> None:
    """A prolog that refuses, a node that dies at the start: Slurm requeues the job without anybody's help."""
    there, sink = silent(world()), FakeSink("hook")
    daemon = Daemon(there, sinks=[sink])
    await fail(daemon, lost_gpu("n1"))
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    await daemon.pass_time(20.0)
    assert states(there) == ["watching"] and outcomes(there)[0].startswith("waits in the queue"), outcomes(there)
    await daemon.pass_time(200.0)
    assert there.slurm.jobs[there.job].state == "RUNNING" and states(there) == ["watching"]
    await daemon.observe([step_line(there.job, 2, 201, 260.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and outcomes(there) == ["gains steps again from step 201"]
    assert heard(sink) == ["restarting", "running again"]


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
async def test_who_takes_an_ended_attempt_over_is_waited_for_ten_seconds_whatever_slurms_clock_says(
    world: Worlds, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a requeued attempt has ended is seen by the daemon's own clock."""
    there = silent(world())
    daemon = Daemon(there)
    monkeypatch.setattr(ClusterView, "own_clock_ahead_s", lambda _: ahead_s)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    await daemon.fleets.take()
    (incident,), now = daemon.state.incidents, there.slurm.clock.now()
    later = now + timedelta(seconds=20.0)
    known = [confirming._taken_over_by(daemon.state, incident, there.job, 1, at) for at in (now, later)]
    assert known == [None, ""], daemon.said


async def test_a_restart_that_slurm_puts_back_and_holds_is_left_to_people(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)
    await daemon.pass_time(20.0)
    assert states(there) == ["held"]


def settings_of(**how: float) -> Settings:
    return dataclasses.replace(SETTINGS, limits=Limits(**how))  # type: ignore[arg-type]


async def test_steps_gained_while_no_daemon_ran_never_hold_a_job(world: Worlds) -> None:
    """Killed during recoveries, the daemon misses the step lines of the attempts in between."""
    there = silent(world(nodes=12, comment=OPTED_IN))
    for number, node in enumerate(["n1", "n2", "n3", "n4"]):
        daemon = Daemon(
            there, settings=settings_of(drain_fraction=1.0, drain_count=99, drain_per_hour=99, suspect_job_nodes=9)
        )
        await daemon.start()
        job = there.slurm.jobs[there.job]
        there.slurm.clock.advance(200.0)  # it gains steps, of which this daemon hears nothing
        on = next(name for name in job.on if name == node or number)
        await fail(daemon, lost_gpu(on, at_s=(there.slurm.clock.now() - AT).total_seconds()))
        await daemon.pass_time(20.0)
        assert there.slurm.jobs[there.job].restarts == number + 1, daemon.said


async def test_a_hold_that_the_user_put_on_the_running_job_outlives_the_restart(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    job = there.slurm.jobs[there.job]
    job.held = True  # scontrol hold: it runs on, and is not to start again
    daemon = Daemon(there, [sink])
    await fail(daemon, lost_gpu("n1"))
    assert job.state == "PENDING" and job.held and job.restarts == 1 and job.excluded == ("n1",)
    assert states(there) == ["held"] and "whoever held it releases it" in outcomes(there)[0]
    assert heard(sink) == ["held"] and sink.got[0].data["severity"] == "warning"
    await there.slurm.release(there.job)
    assert job.state == "RUNNING", "it starts at once, not after Slurm's two minutes"


async def heterogeneous(there: World) -> tuple[int, int, Daemon]:
    """Its first and second component, which run, and a daemon that knows them."""
    leader = there.slurm.submit(nodes=1, comment=OPTED_IN, het=0)
    second = there.slurm.submit(nodes=1, comment=OPTED_IN, het=leader)
    there.slurm.schedule()
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    return leader, second, daemon


async def test_a_heterogeneous_job_is_restarted_with_all_its_components(world: Worlds) -> None:
    there = silent(world(nodes=6))
    leader, second, daemon = await heterogeneous(there)
    (bad,) = there.slurm.jobs[second].on
    await fail(daemon, lost_gpu(bad))
    await daemon.pass_time(20.0)
    for name in (leader, second):
        job = there.slurm.jobs[name]
        assert job.state == "RUNNING" and job.restarts == 1 and bad not in job.on, daemon.said
        assert job.excluded == (bad,)
    assert states(there) == ["watching"]
    await daemon.observe([step_line(leader, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"], "only the first component prints steps"


@pytest.mark.parametrize("late", ["before the resume points", "after them"])
async def test_a_heterogeneous_job_whose_one_requeue_slurm_counts_twice_is_released(world: Worlds, late: str) -> None:
    there = silent(world(nodes=6))
    leader, second, daemon = await heterogeneous(there)
    write, defer, jobs = there.resume.write, there.slurm.defer, there.slurm.jobs
    points: dict[int, str] = {}

    def count_again() -> None:
        """slurmctld hears that the ended attempt's script is over."""
        for name in (leader, second):
            jobs[name].restarts = 2

    async def deferring(job: int) -> None:
        await defer(job)
        if late.startswith("before"):
            count_again()

    async def writing(job: int, values: Any) -> None:
        points[job] = values["SENTINEL_ATTEMPT"]
        await write(job, values)
        if len(points) == 2:
            count_again()

    there.slurm.defer, there.resume.write = deferring, writing  # type: ignore[method-assign]
    (bad,) = jobs[leader].on
    await fail(daemon, lost_gpu(bad))
    await daemon.pass_time(20.0)
    assert [jobs[name].state for name in (leader, second)] == ["RUNNING", "RUNNING"], daemon.said
    assert points == {leader: "2", second: "2"} and bad not in jobs[leader].on
    await daemon.observe([step_line(leader, 2, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"], daemon.said


async def test_a_job_that_began_after_the_newest_snapshot_is_found_on_its_bad_node(world: Worlds) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    await daemon.fleets.take()
    young = there.slurm.submit(nodes=1, comment=OPTED_IN)
    (bad,) = there.slurm.jobs[young].on
    there.slurm.clock.advance(0.2)
    assert await daemon.observe([lost_gpu(bad, at_s=0.2)])
    await daemon.quiet()
    job = there.slurm.jobs[young]
    assert job.restarts == 1 and bad not in job.on, daemon.said


async def test_a_restarted_job_that_its_user_stops_by_a_signal_is_waited_for(world: Worlds) -> None:
    """scancel -s STOP before its first step: it has ended nowhere."""
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    job.state = "STOPPED"
    await daemon.pass_time(120.0)
    assert states(there) == ["watching"] and heard(sink) == ["restarting"]
    job.state = "RUNNING"
    await daemon.observe([step_line(there.job, 1, 201, 180.0)])
    await daemon.quiet()
    assert outcomes(there) == ["gains steps again from step 201"]


async def test_a_job_stopped_by_a_signal_is_restarted_when_its_node_breaks(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.slurm.jobs[there.job].state = "STOPPED"
    await daemon.pass_time(60.0)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert there.slurm.nodes["n1"].drained and job.restarts == 1 and "n1" not in job.on


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocGrpCPUMinutesLimit"])
async def test_a_wait_by_a_limit_that_does_not_end_by_itself_is_told_once(world: Worlds, reason: str) -> None:
    there, sink = silent(world(nodes=5)), FakeSink()
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, [sink])
    job.limit = reason
    await fail(daemon, lost_gpu("n1"))
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and sink.stages == ["restarting", "waiting"], daemon.said
    told = sink.all[-1]
    assert f"job {job.id} waits" in told.title and reason in told.body and reason in str(told.data["log_text"])
    assert reason in str(told.data["owner_text"]) and "scontrol update" in str(told.data["owner_text"])
    assert states(there) == ["watching"]
    job.limit = ""
    there.slurm.schedule()
    there.progress._steps = True
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert sink.stages == ["restarting", "waiting", "running again"] and states(there) == ["closed"]
    assert daemon.bugs() == 0


@pytest.mark.parametrize("reason", ["Priority", "Resources", "QOSMaxJobsPerUserLimit", "AssocGrpCPURunMinutesLimit"])
async def test_a_wait_for_its_turn_is_not_told(world: Worlds, reason: str) -> None:
    there, sink = silent(world(nodes=5)), FakeSink()
    there.slurm.jobs[there.job].limit = reason
    daemon = Daemon(there, [sink])
    await fail(daemon, lost_gpu("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert sink.stages == ["restarting"]
