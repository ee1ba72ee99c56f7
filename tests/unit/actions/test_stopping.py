"""Stopping a job: waits for its end, its user's holds and cancellations, what others did meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.actions import do, means, stopped, task
from in_memory.slurm import FakeSlurm
from in_memory.world import ECC, World
from made_records import AT, evidence, incident, plan

from sentinel.actions import ACTIONS, Task
from sentinel.errors import Unavailable
from sentinel.model.records import Kind, Result, Step, StepKind

Worlds = Callable[..., World]


@pytest.mark.parametrize("how", ["running", "failed", "completed", "requeued"])
async def test_job_waits_far_off_from_whatever_state(world: Worlds, how: str) -> None:
    there = world()
    if how in ("failed", "completed"):
        there.slurm.end(there.job, exit_code=int(how == "failed"))
    if how == "requeued":
        there.slurm.lose("n1")
        there.slurm.notice("n1")
    assert (await do(there, StepKind.REQUEUE_HOLD)).result is Result.DONE
    job = there.slurm.jobs[there.job]
    found: list[object] = [job.state, job.held, job.restarts, list(job.on)]
    assert found == ["PENDING", False, 1, []]
    assert job.eligible - there.slurm.clock.now().timestamp() > 86_400


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_job_that_its_user_cancels_while_it_completes_stays_cancelled(world: Worlds, kind: StepKind) -> None:
    """Slurm calls it completing until its processes are gone, and would requeue it."""
    there = world()
    job = there.slurm.jobs[there.job]
    job.state = "COMPLETING"
    looks = 0

    async def look(number: int) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            there.slurm.cancel(number)
        return await FakeSlurm.job(there.slurm, number)

    there.slurm.job = look  # type: ignore[method-assign,assignment]
    found = await do(there, kind)
    assert "cancelled" in found.reason and found.data["cancelled"] is True
    assert there.slurm.calls == [] and job.state == "CANCELLED"


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_job_that_was_done_before_anything_happened_stays_done(world: Worlds, kind: StepKind) -> None:
    """As when a GPU falls off the bus in its epilog."""
    there = world()
    there.slurm.end(there.job, exit_code=0)
    step = Step(kind, job=there.job, attempt=0)
    after_s = (there.slurm.clock.now() - AT).total_seconds() + 1
    about = incident(evidence(Kind.GPU_LOST, at_s=after_s, node="n1"), job=there.job, nodes=["n1"])
    found = await ACTIONS[kind](Task(about, ECC, plan(step), step), means(there))
    assert found.reason == f"job {there.job} was done before this happened" and found.data["goes_on"] is True
    assert there.slurm.calls == [] and there.slurm.jobs[there.job].state == "COMPLETED"


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
@pytest.mark.parametrize("state", ["TIMEOUT", "DEADLINE", "PREEMPTED"])
@pytest.mark.parametrize("when", ["before", "while it completes", "at our request"])
async def test_job_that_slurm_ended_on_purpose_stays_over(world: Worlds, kind: StepKind, state: str, when: str) -> None:
    there = world()
    job = there.slurm.jobs[there.job]
    looks, request = 0, there.slurm.requeue_hold

    async def look(number: int) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            job.state, job.ended = state, there.slurm.time_s()
        return await FakeSlurm.job(there.slurm, number)

    async def ends(*arguments: int) -> bool:
        there.slurm.end(there.job, exit_code=0, exit_signal=15, state=state)
        return await request(*arguments)

    if when == "before":
        there.slurm.end(there.job, exit_code=0, exit_signal=15, state=state)
    elif when == "while it completes":
        job.state = "COMPLETING"
        there.slurm.job = look  # type: ignore[method-assign,assignment]
    else:
        there.slurm.requeue_hold = ends  # type: ignore[method-assign,assignment]
    found = await do(there, kind)
    assert found.result is Result.FAILED and found.data["on_purpose"] is True and "on purpose" in found.reason
    assert (job.state, job.restarts, job.held) == (state, 0, False)


async def test_heterogeneous_job_waits_for_the_epilogs_of_all_its_components(world: Worlds) -> None:
    """Slurm sets the start of a component anew when its epilogs are over: deferred before, it would start by itself."""
    there = world()
    other = there.slurm.submit(nodes=1)
    for number in (there.job, other):
        there.slurm.jobs[number].record["het_job_id"] = there.job
    looks = 0

    async def look(number: int) -> object:
        nonlocal looks
        component = there.slurm.jobs[other]
        if number == other:
            looks += 1
            component.state = "COMPLETING" if looks < 3 else "PENDING"
            component.on = ["n4"] if looks < 3 else []
        return await FakeSlurm.job(there.slurm, number)

    there.slurm.job = look  # type: ignore[method-assign,assignment]
    assert (await do(there, StepKind.REQUEUE_HOLD)).result is Result.DONE
    assert looks >= 3


async def test_job_that_its_user_held_before_we_stopped_it_is_left(world: Worlds) -> None:
    there = world()
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)  # scontrol requeuehold, by its user
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "not by Sentinel" in found.reason
    assert there.slurm.jobs[there.job].held and there.slurm.calls == []


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING"])
async def test_job_that_its_user_holds_at_the_moment_of_our_request_is_left(world: Worlds, state: str) -> None:
    there = world()
    ours, job = there.slurm.requeue_hold, there.slurm.jobs[there.job]

    async def late(number: int, attempt: int | None = None) -> bool:
        if job.restarts == 0:
            there.slurm.back_to_queue(job, held=True)
            job.state = state
        answer = await ours(number, attempt)
        job.state = "PENDING"
        return answer

    there.slurm.requeue_hold = late  # type: ignore[method-assign]
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "not by Sentinel" in found.reason
    assert job.held


async def test_job_that_its_user_holds_while_we_prepare_its_restart_stays_held(world: Worlds) -> None:
    there = world()
    await stopped(there)
    job = there.slurm.jobs[there.job]
    job.held, job.held_by = True, "JobHeldUser"
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "whoever held it releases it" in found.reason
    assert job.held and job.state == "PENDING"


async def test_a_job_that_slurm_could_never_start_is_not_said_to_be_held_by_somebody(world: Worlds) -> None:
    there = world()
    await stopped(there)
    job = there.slurm.jobs[there.job]
    job.feature, job.bad = ("n1",), True
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "Slurm holds job" in found.reason and "whoever" not in found.reason


async def test_job_that_its_user_holds_before_it_starts_is_held_for_its_user(world: Worlds) -> None:
    """Right after our release, which is looked at again then: nobody waits for its start, and people hear of the hold."""
    there = world()
    stop = await stopped(there)
    await do(there, StepKind.RELEASE)
    job = there.slurm.jobs[there.job]
    job.state, job.on, job.held, job.held_by = "PENDING", [], True, "JobHeldUser"
    again = dataclasses.replace(task(there, StepKind.RELEASE).step, tries=1)
    again = dataclasses.replace(task(there, StepKind.RELEASE), plan=plan(stop, again), step=again)
    found = await ACTIONS[StepKind.RELEASE](again, means(there))
    assert (found.result, found.data.get("held")) == (Result.FAILED, True) and "whoever held it" in found.reason
    assert found.data.get("held_by_others") is True
    assert job.held


async def test_words_of_others_in_the_admin_comment_stay(world: Worlds) -> None:
    there = world()
    job = there.slurm.jobs[there.job]
    job.admin_comment = "bill to project 7"
    await do(there, StepKind.REQUEUE_HOLD)
    for _ in range(2):
        await do(there, StepKind.EXCLUDE, nodes="n1")
        assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 attempt=1 || bill to project 7"
    await do(there, StepKind.HOLD)
    assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 held || bill to project 7"
    job.admin_comment = "x" * 1024
    await do(there, StepKind.EXCLUDE, nodes="n1")
    assert len(job.admin_comment) == 1024 and job.admin_comment.startswith("sentinel:inc1 ")


async def test_job_that_somebody_restarted_is_not_stopped(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].restarts = 1
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "meanwhile" in found.reason
    assert there.slurm.jobs[there.job].state == "RUNNING" and there.slurm.calls == []


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_cancelled_job_stays_cancelled(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.cancel(there.job)
    found = await do(there, kind)
    assert "cancelled" in found.reason and there.slurm.calls == []
    assert found.result is (Result.DONE if kind is StepKind.HOLD else Result.FAILED)


@pytest.mark.parametrize(
    "kind",
    [
        StepKind.REQUEUE_HOLD,
        StepKind.HOLD,
        StepKind.CHOOSE_CHECKPOINT,
        StepKind.QUARANTINE,
        StepKind.EXCLUDE,
        StepKind.RELEASE,
    ],
)
async def test_purged_job_fails(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=1)
    there.slurm.purge(there.job)
    assert (await do(there, kind)).result is Result.FAILED


async def test_job_whose_epilogs_hang_is_not_called_held(world: Worlds) -> None:
    there = world()
    there.slurm.lose("n1")
    there.slurm.notice("n1")  # requeued by Slurm, not held
    there.slurm.jobs[there.job].state = "COMPLETING"
    there.slurm.jobs[there.job].on = ("n1",)  # still on its node
    with pytest.raises(Unavailable, match="still completing after 90 s"):
        await do(there, StepKind.REQUEUE_HOLD)


async def test_job_that_slurm_lists_with_nodes_that_it_left_waits(world: Worlds) -> None:
    """Seen on 22.05: requeued when its start failed, and its node set down meanwhile; nothing clears the list."""
    there = world()
    there.slurm.lose("n1")
    there.slurm.notice("n1")
    there.slurm.jobs[there.job].on = ("n1",)
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.DONE and found.data["deferred"] is True
