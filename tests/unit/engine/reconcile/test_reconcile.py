"""What is wanted of Slurm is compared with every snapshot: what slurmctld lost is done again, what people changed stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, heard, outcomes, silent, states
from in_memory.world import World
from made_records import AT, OPTED_IN, evidence

from sentinel.actions import Task
from sentinel.config.settings import Limits, Mode, Modes, Settings
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.reconcile import confirming
from sentinel.errors import Refused
from sentinel.model.records import Evidence, JobView, Kind, Scalar, Source

Worlds = Callable[..., World]
WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


def bus(node: str, at_s: float = 0.0) -> Evidence:
    return evidence(Kind.XID, node=node, at_s=at_s, data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")


def printed(job: int, attempt: int, step: int, at_s: float) -> Evidence:
    return evidence(Kind.STEP, source=Source.PROGRESS, job=job, attempt=attempt, at_s=at_s, data={"step": step})


# --- slurmctld forgets -------------------------------------------------------------------------------------------------


async def test_a_requeue_and_a_drain_that_slurmctld_lost_are_done_again(world: Worlds) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.save_state()
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and there.slurm.nodes["n1"].drained
    there.slurm.crash()
    assert there.slurm.jobs[there.job].restarts == 0 and not there.slurm.nodes["n1"].drained
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert there.slurm.nodes["n1"].drained and there.slurm.nodes["n1"].reason.startswith("sentinel:")
    assert job.restarts == 1 and job.state == "RUNNING" and "n1" not in job.on
    await daemon.observe([printed(there.job, 1, 201, 60.0)])
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
    await fail(daemon, bus("n1"))
    there.slurm.crash()
    there.slurm.cancel(blocker)
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.eligible > there.slurm.time_s() + 86_400
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.restarts == 1


@pytest.mark.parametrize("stepped", [False, True])
async def test_an_attempt_that_slurm_requeues_before_its_first_step_leaves_the_next_one_its_resume_point(
    world: Worlds, stepped: bool
) -> None:
    """As where a prolog fails at the start. What has made a step has begun from it, and goes on by its script's own rule."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    before = dict(there.resume.files[there.job])
    assert job.state == "RUNNING" and before["SENTINEL_ATTEMPT"] == "1" and before["SENTINEL_RESUME_STEP"] == "200"
    if stepped:
        await daemon.observe([printed(there.job, 1, 201, 60.0)])
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
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    assert there.resume.files[there.job]["SENTINEL_ATTEMPT"] == "1"
    if how == "a component made steps":
        await daemon.observe([printed(part, 1, 201, 60.0)])
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
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said
    assert heard(sink) == ["restarting"]


async def test_a_deferral_and_a_release_that_slurmctld_lost_leave_no_job_held(world: Worlds) -> None:
    there = silent(world(nodes=3))
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=1)  # the released job waits for its node
    saved_between_hold_and_deferral(there)
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
    there.slurm.crash()
    job = there.slurm.jobs[there.job]
    assert saved and job.held and job.eligible > there.slurm.time_s() + 86_400
    there.slurm.cancel(blocker)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert there.slurm.jobs[there.job].state == "RUNNING", daemon.said


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
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.required == ("n2", "n3") and states(there) == ["closed"], daemon.said
    there.checkpoints.chosen = shared
    await daemon.observe([bus("n3", 600.0)])
    await daemon.quiet()
    assert job.required == ("n2",) and job.restarts == 2 and "n2" in job.on, daemon.said


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
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "RUNNING" and job.required == ("n2", "n3"), daemon.said
    await daemon.observe([printed(there.job, 1, 251, 60.0)])
    await daemon.pass_time(100.0)
    write, written = there.resume.write, []

    async def looked_at(number: int, values: Any) -> None:
        written.append(values["SENTINEL_ATTEMPT"])
        await write(number, values)
        if len(written) == 1:
            await daemon.fleets.take()

    there.resume.write = looked_at  # type: ignore[method-assign]
    there.checkpoints.chosen = {"path": "/shared/run/step-260", "step": 260, "tier": "global"}
    await fail(daemon, bus("n3", 200.0))
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
    await fail(daemon, bus("n1"))
    there.slurm.crash()
    job = there.slurm.jobs[there.job]
    assert job.held is held and job.eligible > there.slurm.time_s() + 86_400
    await daemon.pass_time(20.0)
    assert states(there) == ["held"] and heard(sink) == ["failed"], daemon.said
    await there.slurm.release(there.job)
    assert job.state == "RUNNING" and daemon.said.count("done-again") == 1, daemon.said
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and heard(sink) == ["failed", "resolved"]


async def test_a_job_that_its_user_holds_after_the_release_stays_held_and_people_hear_of_it(world: Worlds) -> None:
    there, sink = silent(world(nodes=3)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    blocker = there.slurm.submit(nodes=1)
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    job.held, job.held_by = True, "JobHeldUser"
    there.slurm.cancel(blocker)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.held and states(there) == ["held"] and heard(sink) == ["restarting", "held"], daemon.said
    await there.slurm.release(there.job)
    await daemon.observe([printed(there.job, 1, 201, 60.0)])
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and heard(sink) == ["restarting", "held", "resolved"]


async def test_a_node_that_a_person_returned_is_left_in_service(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
    there.slurm.nodes["n1"].drained = False  # scontrol update State=RESUME
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained and daemon.bugs() == 0


async def test_a_job_that_starts_on_a_node_which_a_person_returned_at_once_is_left_there(world: Worlds) -> None:
    """The drain might have been lost by slurmctld, so it is asked about; until then nothing is known of the node."""
    there = world(nodes=6)
    daemon = Daemon(there, settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    await fail(daemon, bus("n1"))
    await daemon.pass_time(5.0)
    there.slurm.nodes["n1"].drained = False
    young = there.slurm.submit(nodes=4, comment=OPTED_IN)
    assert "n1" in there.slurm.jobs[young].on
    for _ in range(6):
        await daemon.pass_time(10.0)
    assert there.slurm.jobs[young].restarts == 0 and not there.slurm.nodes["n1"].drained, daemon.said


async def test_a_drain_that_was_seen_for_long_was_not_lost_with_a_later_restart_of_slurmctld(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
    await daemon.pass_time(60.0)
    there.slurm.nodes["n1"].drained = False
    there.slurm.save_state()
    there.slurm.crash()
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained


async def test_a_drain_that_outlived_a_restart_of_slurmctld_and_was_then_taken_back_stays_so(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    write = there.resume.write

    async def returned(job: int, values: Any) -> None:
        there.slurm.clock.advance(2.0)
        there.slurm.save_state()
        there.slurm.crash()
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        assert there.slurm.nodes["n1"].drained
        there.slurm.person_resumes("n1")
        await write(job, values)

    there.resume.write = returned  # type: ignore[method-assign]
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, daemon.said


async def test_the_next_daemon_knows_that_a_drain_outlived_a_restart_of_slurmctld(world: Worlds) -> None:
    there = silent(world())
    first = Daemon(there)
    await fail(first, bus("n1"))
    there.slurm.clock.advance(2.0)
    there.slurm.save_state()
    there.slurm.crash()
    there.slurm.clock.advance(3.0)
    await first.fleets.take()
    await first.quiet()
    there.slurm.person_resumes("n1")
    second = Daemon(there)
    await second.start()
    await second.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, second.said


def paused_after_the_drain(there: World, daemon: Daemon, meanwhile: Callable[[], None]) -> None:
    write = there.resume.write

    async def pausing(job: int, values: Any) -> None:
        there.resume.write = write  # type: ignore[method-assign]
        daemon.state.paused = True
        there.store.put("paused", True)
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        meanwhile()
        there.slurm.clock.advance(3.0)
        await daemon.fleets.take()
        await write(job, values)

    there.resume.write = pausing  # type: ignore[method-assign]


@pytest.mark.parametrize("daemons", [1, 2])
async def test_a_node_that_a_person_returned_in_a_pause_is_left_there_though_slurmctld_was_restarted_in_it(
    world: Worlds, daemons: int
) -> None:
    there = silent(world())
    daemon = Daemon(there)
    paused_after_the_drain(there, daemon, lambda: there.slurm.person_resumes("n1"))
    await fail(daemon, bus("n1"))
    if daemons == 2:
        daemon = Daemon(there)
        await daemon.start()
    await daemon.pass_time(20.0)
    there.slurm.save_state()
    there.slurm.crash()
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained, daemon.said


async def test_only_the_drain_that_may_be_lost_is_asked_about_and_not_those_beside_it(world: Worlds) -> None:
    """The other node was seen drained for a minute before a person returned it: that drain was saved."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    paused_after_the_drain(there, daemon, lambda: there.slurm.person_resumes("n2"))
    await fail(daemon, bus("n1"), bus("n2"))
    assert there.slurm.nodes["n1"].drained
    await daemon.pass_time(60.0)
    there.slurm.person_resumes("n1")
    await daemon.pass_time(5.0)
    there.slurm.save_state()
    there.slurm.crash()
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert not there.slurm.nodes["n1"].drained and not there.slurm.nodes["n2"].drained, daemon.said


async def test_a_drain_that_slurmctld_lost_in_a_pause_is_done_again_after_it(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    there.slurm.save_state()
    paused_after_the_drain(there, daemon, there.slurm.crash)
    await fail(daemon, bus("n1"))
    await daemon.pass_time(40.0)
    assert not there.slurm.nodes["n1"].drained
    daemon.state.paused = False
    await daemon.pass_time(20.0)
    assert there.slurm.nodes["n1"].drained, daemon.said


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("daemons", [1, 2])
async def test_slurmctld_that_kept_a_later_drain_kept_the_one_before_it(
    world: Worlds, daemons: int, kept: bool
) -> None:
    """It saves all nodes in one file: the node before was put back by a person. If both are gone, it lost both."""
    there = silent(world(nodes=6))
    wide = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0, drain_count=99, drain_per_hour=99))
    daemon = Daemon(there, settings=wide)

    def drained() -> set[str]:
        return {name for name, node in there.slurm.nodes.items() if node.drained}

    there.slurm.save_state()
    await fail(daemon, bus("n5"))
    await daemon.pass_time(9.0)
    await fail(daemon, bus("n6", at_s=(there.slurm.clock.now() - AT).total_seconds()))
    assert drained() == {"n5", "n6"}
    there.slurm.clock.advance(3.0)
    if kept:
        there.slurm.save_state()
    there.slurm.crash()
    assert drained() == ({"n5", "n6"} if kept else set())
    if kept:
        there.slurm.person_resumes("n5")
    if daemons == 2:
        daemon = Daemon(there, settings=wide)
        await daemon.start()
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert drained() == ({"n6"} if kept else {"n5", "n6"}), daemon.said


async def test_what_was_lost_is_found_by_the_next_daemon_too(world: Worlds) -> None:
    there = silent(world())
    first = Daemon(there)
    await first.fleets.take()
    there.slurm.save_state()
    await fail(first, bus("n1"))
    there.slurm.crash()
    second = Daemon(there)
    await second.start()
    await second.pass_time(20.0)
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and "n1" not in job.on and there.slurm.nodes["n1"].drained


# --- exclusions --------------------------------------------------------------------------------------------------------


async def test_without_a_spare_the_job_starts_as_soon_as_the_repaired_node_is_back(world: Worlds) -> None:
    there = world(nodes=2)
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    assert job.state == "PENDING" and job.excluded == () and states(there) == ["watching"]
    await daemon.pass_time(900.0)  # longer than a restart may take: it waits for a node, not for us
    assert states(there) == ["watching"] and "queue" in outcomes(there)[0]
    there.slurm.nodes["n1"].drained = False
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and states(there) == ["closed"]


async def test_an_exclusion_that_the_job_cannot_live_with_any_more_is_taken_back(world: Worlds) -> None:
    there = silent(world(nodes=3))
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, settings=WIDE)
    blocker = there.slurm.submit(nodes=1)  # n3 is busy: the restarted job waits for it
    await fail(daemon, bus("n1"))
    assert job.state == "PENDING" and job.excluded == ("n1",)
    await daemon.pass_time(60.0)
    there.slurm.person_drains("n3", "ticket 7")
    there.slurm.cancel(blocker)
    there.slurm.nodes["n1"].drained = False
    await daemon.pass_time(20.0)
    await daemon.pass_time(20.0)
    assert job.excluded == (), daemon.said
    assert job.state == "RUNNING" and set(job.on) == {"n1", "n2"}


@pytest.mark.parametrize("asks", ["feature", "required"])
async def test_a_job_that_only_some_nodes_can_run_waits_for_the_repaired_one(world: Worlds, asks: str) -> None:
    """With that node in its list Slurm would never start it, and forget its priority."""
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    setattr(job, asks, ("n1", "n2"))
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, bus("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.restarts == 1 and not job.bad and job.excluded == (), daemon.said
    assert states(there) == ["watching"] and sink.stages == ["restarting"]
    there.slurm.nodes["n1"].drained = False
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and set(job.on) == {"n1", "n2"} and states(there) == ["closed"]


async def test_a_component_that_only_some_nodes_can_run_waits_for_the_repaired_one(world: Worlds) -> None:
    """Slurm's word comes of the component, and the list is of the whole job."""
    there = silent(world(nodes=8))
    slurm = there.slurm
    slurm.cancel(there.job)
    there.job = leader = slurm.submit(nodes=1, comment=OPTED_IN, het=0)
    part = slurm.submit(nodes=1, comment=OPTED_IN, het=leader)
    slurm.jobs[part].feature = ("n2",)
    slurm.schedule()
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    await fail(daemon, bus("n1"), bus("n2", at_s=0.1))
    for _ in range(6):
        await daemon.pass_time(20.0)
    for name in ("n1", "n2"):
        slurm.nodes[name].drained = False
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert (slurm.jobs[leader].state, slurm.jobs[part].on) == ("RUNNING", ("n2",)), daemon.said


async def test_a_node_that_the_job_needs_is_taken_out_of_a_list_that_a_person_has_changed(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    blocker = there.slurm.submit(nodes=4)
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    job.excluded, job.feature = ("n1", "n6"), ("n1", "n2")
    there.slurm.cancel(blocker)
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.excluded == ("n6",) and not job.bad, daemon.said
    assert daemon.said.count("done-again") <= 2, daemon.said


async def test_what_slurm_said_of_one_attempt_is_not_held_against_the_next(world: Worlds) -> None:
    """An administrator takes a feature away and gives it back: without the node the job could not start either."""
    there = world(nodes=6)
    job = there.slurm.jobs[there.job]
    narrow = dataclasses.replace(WIDE, limits=Limits(drain_fraction=1.0, drain_count=0))
    blocker = there.slurm.submit(nodes=4)
    daemon = Daemon(there, settings=narrow)
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    assert job.excluded == ("n1",) and not there.slurm.nodes["n1"].drained
    job.feature = ("n9",)
    there.slurm.schedule()
    await daemon.pass_time(20.0)
    job.feature, job.bad = (), False
    there.slurm.cancel(blocker)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert "n1" not in job.on and job.restarts == 1, daemon.said


async def test_a_bad_node_in_service_that_the_job_cannot_do_without_is_not_given_to_it(world: Worlds) -> None:
    """Somebody is still to approve its drain: the job waits until it is out, and then for its return."""
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.feature = ("n1", "n2")
    asks = dataclasses.replace(WIDE, modes=Modes(default=Mode(drain="suggest", restart="act")))
    daemon = Daemon(there, [sink], settings=asks)
    await fail(daemon, bus("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == ("n1",) and not there.slurm.nodes["n1"].drained, daemon.said
    released = there.slurm.calls.count(("release", str(there.job)))
    await daemon.pass_time(60.0)
    assert there.slurm.calls.count(("release", str(there.job))) == released, "not again with every snapshot"
    there.slurm.person_drains("n1", "ticket 9")
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == () and not job.bad, daemon.said
    there.slurm.nodes["n1"].drained = False
    there.slurm.schedule()
    assert job.state == "RUNNING" and set(job.on) == {"n1", "n2"}


@pytest.mark.parametrize("before", ["choose_checkpoint", "exclude", "release"])
async def test_a_job_that_its_user_starts_before_we_do_is_seen_to_run(world: Worlds, before: str) -> None:
    """``scontrol update StartTime=now`` on the job that we deferred: any user may."""
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, [sink], settings=WIDE)
    actions = {"choose_checkpoint": (there.checkpoints, "choose"), "exclude": (there.resume, "write")}
    owner, name = actions.get(before, (there.slurm, "update_job"))
    inner = getattr(owner, name)

    async def started_first(*arguments: Any, **named: Any) -> Any:
        if job.state == "PENDING" and (before != "release" or named.get("start_now")):
            job.eligible = there.slurm.time_s()
            there.slurm.schedule()
        return await inner(*arguments, **named)

    setattr(owner, name, started_first)
    await fail(daemon, bus("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.restarts == 1 and "n1" not in job.on, daemon.said
    assert sink.stages == ["restarting", "running again"] and states(there) == ["closed"], daemon.said


async def test_a_job_that_can_never_start_for_what_its_user_asks_stays_held(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, [sink], settings=WIDE)
    blocker = there.slurm.submit(nodes=4)
    await fail(daemon, bus("n1"))
    job.feature, job.excluded = ("n1",), ()  # changed by its user while it waits
    there.slurm.cancel(blocker)
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.bad and states(there) == ["held"] and sink.stages[-1] == "held", (daemon.said, sink.stages)
    with monkeypatch.context() as late:
        late.setattr(there.slurm, "schedule", lambda: None)
        job.bad = False  # 22.05 gives it its priority until it looks at it again
        await daemon.pass_time(20.0)
    assert states(there) == ["held"] and "resolved" not in sink.stages, daemon.said
    job.feature, job.bad = (), False
    there.slurm.schedule()
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and states(there) == ["closed"]


async def test_a_node_that_goes_bad_while_the_job_waits_is_excluded_before_it_starts(world: Worlds) -> None:
    there = silent(world(nodes=6))
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, settings=WIDE)
    blockers = [there.slurm.submit(nodes=2), there.slurm.submit(nodes=2)]
    await fail(daemon, bus("n1"))
    assert job.state == "PENDING" and job.excluded == ("n1",)
    seen = daemon.live.node("n3")
    seen.state, seen.verdict = "heard", {"word": "BAD"}
    await daemon.pass_time(20.0)
    assert job.excluded == ("n1", "n3")
    for blocker in blockers:
        there.slurm.cancel(blocker)
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and not {"n1", "n3"} & set(job.on)


async def test_a_node_that_is_put_back_while_its_agent_calls_it_bad_stays_excluded_until_that_is_over(
    world: Worlds,
) -> None:
    """Its prolog would refuse the job, and Slurm drain the node for that."""
    there = silent(world(nodes=6))
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, settings=WIDE)
    blockers = [there.slurm.submit(nodes=2), there.slurm.submit(nodes=2)]
    await fail(daemon, bus("n1"))
    seen = daemon.live.node("n1")
    seen.state, seen.verdict = "heard", {"word": "BAD"}
    there.slurm.person_resumes("n1")
    seen.released_at = there.slurm.clock.now()
    await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == ("n1",), daemon.said
    seen.verdict = {"word": "GOOD"}
    await daemon.pass_time(20.0)
    assert job.excluded == () and job.state == "RUNNING" and "n1" in job.on, daemon.said
    assert len(blockers) == 2 and daemon.bugs() == 0


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "changed back by a person"])
async def test_a_longer_list_that_slurmctld_lost_is_written_again(world: Worlds, lost: bool) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    for _ in range(2):
        there.slurm.submit(nodes=2)
    await fail(daemon, bus("n1"))
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


async def test_a_job_that_starts_while_its_list_is_written_anew_is_not_called_held(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, [sink], settings=WIDE)
    blockers = [there.slurm.submit(nodes=2), there.slurm.submit(nodes=2)]
    await fail(daemon, bus("n1"))
    look = there.slurm.job

    async def starts_first(number: int) -> JobView | None:
        for blocker in blockers:
            there.slurm.cancel(blocker)
        return await look(number)

    monkeypatch.setattr(there.slurm, "job", starts_first)
    seen = daemon.live.node("n3")
    seen.state, seen.verdict = "heard", {"word": "BAD"}
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.excluded == ("n1",) and states(there) == ["watching"]
    await daemon.observe([printed(there.job, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and heard(sink) == ["restarting", "running again"], daemon.said


async def test_the_users_own_exclusions_stay_and_a_changed_list_is_respected(world: Worlds) -> None:
    there = silent(world(nodes=6))
    job = there.slurm.jobs[there.job]
    job.excluded = ("n6",)
    daemon = Daemon(there, settings=WIDE)
    blockers = [there.slurm.submit(nodes=1, excluded=["n6"]) for _ in range(3)]
    await fail(daemon, bus("n1"))
    assert job.state == "PENDING" and job.excluded == ("n1", "n6"), (job, blockers)
    job.excluded = ("n4",)  # scontrol update ExcNodeList
    await daemon.pass_time(20.0)
    assert job.excluded == ("n4",)


async def test_every_node_that_its_agent_calls_bad_is_left_out_of_a_restart(world: Worlds) -> None:
    there = world(nodes=6)
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    seen = daemon.live.node("n3")
    seen.state, seen.verdict = "heard", {"word": "BAD"}
    await fail(daemon, bus("n1"))
    assert not {"n1", "n3"} & set(there.slurm.jobs[there.job].on)


# --- confirmation ------------------------------------------------------------------------------------------------------


async def test_the_first_step_line_confirms_a_restart(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
    assert states(there) == ["watching"]
    await daemon.observe([printed(there.job, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and outcomes(there) == ["gains steps again from step 201"]


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        ({}, "closed", "ran to its end"),
        ({"exit_code": 1}, "held", "ended as failed before it gained a step"),
    ],
)
async def test_the_end_of_a_restarted_job_before_its_first_step(
    world: Worlds, end: dict[str, int], state: str, words: str
) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
    there.slurm.end(there.job, **end)
    await daemon.pass_time(20.0)
    assert states(there) == [state] and words in outcomes(there)[0]


async def test_a_restarted_job_that_somebody_requeues_before_its_first_step(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
    await there.slurm.requeue_hold(there.job)
    await daemon.pass_time(20.0)
    assert outcomes(there)[0].startswith("attempt 1 was requeued before it gained a step")


async def test_a_restarted_job_that_prints_nothing_counts_as_running_after_its_time(world: Worlds) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
    job = there.slurm.jobs[there.job]
    job.started += 300.0
    await daemon.pass_time(500.0)
    assert states(there) == ["watching"]
    await daemon.pass_time(150.0)
    assert states(there) == ["closed"] and outcomes(there) == ["runs; no step line was seen"]


async def test_a_restart_that_slurm_repeats_by_itself_is_followed_to_its_first_step(world: Worlds) -> None:
    """A prolog that refuses, a node that dies at the start: Slurm requeues the job without anybody's help."""
    there, sink = silent(world()), FakeSink("hook")
    daemon = Daemon(there, sinks=[sink])
    await fail(daemon, bus("n1"))
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    await daemon.pass_time(20.0)
    assert states(there) == ["watching"] and outcomes(there)[0].startswith("waits in the queue"), outcomes(there)
    await daemon.pass_time(200.0)
    assert there.slurm.jobs[there.job].state == "RUNNING" and states(there) == ["watching"]
    await daemon.observe([printed(there.job, 2, 201, 260.0)])
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
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus("n1"))
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
        await fail(daemon, bus(on, at_s=(there.slurm.clock.now() - there.slurm.clock.now()).total_seconds()))
        await daemon.pass_time(20.0)
        assert there.slurm.jobs[there.job].restarts == number + 1, daemon.said


async def test_a_hold_that_the_user_put_on_the_running_job_outlives_the_restart(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    job = there.slurm.jobs[there.job]
    job.held = True  # scontrol hold: it runs on, and is not to start again
    daemon = Daemon(there, [sink])
    await fail(daemon, bus("n1"))
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
    await fail(daemon, bus(bad))
    await daemon.pass_time(20.0)
    for name in (leader, second):
        job = there.slurm.jobs[name]
        assert job.state == "RUNNING" and job.restarts == 1 and bad not in job.on, daemon.said
        assert job.excluded == (bad,)
    assert states(there) == ["watching"]
    await daemon.observe([printed(leader, 1, 201, 60.0)])
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
    await fail(daemon, bus(bad))
    await daemon.pass_time(20.0)
    assert [jobs[name].state for name in (leader, second)] == ["RUNNING", "RUNNING"], daemon.said
    assert points == {leader: "2", second: "2"} and bad not in jobs[leader].on
    await daemon.observe([printed(leader, 2, 201, 60.0)])
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
    assert await daemon.observe([bus(bad, at_s=0.2)])
    await daemon.quiet()
    job = there.slurm.jobs[young]
    assert job.restarts == 1 and bad not in job.on, daemon.said
