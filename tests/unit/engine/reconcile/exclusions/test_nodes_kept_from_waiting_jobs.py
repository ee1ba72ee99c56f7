"""Which nodes a waiting job is kept from, and when such a list is taken back, made longer or left to the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, heard, outcomes, silent, states
from in_memory.world import World
from made_records import OPTED_IN, lost_gpu, step_line

from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.records import JobView

Worlds = Callable[..., World]


WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))


async def test_without_a_spare_the_job_starts_as_soon_as_the_repaired_node_is_back(world: Worlds) -> None:
    there = world(nodes=2)
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"), lost_gpu("n2", at_s=0.1))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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


async def test_a_job_that_starts_while_its_list_is_written_anew_is_not_called_held(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    job = there.slurm.jobs[there.job]
    daemon = Daemon(there, [sink], settings=WIDE)
    blockers = [there.slurm.submit(nodes=2), there.slurm.submit(nodes=2)]
    await fail(daemon, lost_gpu("n1"))
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
    await daemon.observe([step_line(there.job, 1, 201, 60.0)])
    await daemon.quiet()
    assert states(there) == ["closed"] and heard(sink) == ["restarting", "running again"], daemon.said


async def test_the_users_own_exclusions_stay_and_a_changed_list_is_respected(world: Worlds) -> None:
    there = silent(world(nodes=6))
    job = there.slurm.jobs[there.job]
    job.excluded = ("n6",)
    daemon = Daemon(there, settings=WIDE)
    blockers = [there.slurm.submit(nodes=1, excluded=["n6"]) for _ in range(3)]
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
    assert not {"n1", "n3"} & set(there.slurm.jobs[there.job].on)
