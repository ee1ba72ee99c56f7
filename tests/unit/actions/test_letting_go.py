"""Letting a stopped job go: exclusions, requirements, the release, the resume point, its folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from in_memory.actions import Known, do, means, stopped, task
from in_memory.slurm import FakeSlurm
from in_memory.world import ECC, World
from made_records import AT, ended, incident, plan

from sentinel.actions import ACTIONS, Task
from sentinel.actions.requeue import leave_held
from sentinel.errors import Unavailable
from sentinel.model.records import JobView, Outcome, Result, Scalar, Step, StepKind

Worlds = Callable[..., World]


def chosen(world: World, **data: Scalar) -> None:
    step = Step(StepKind.CHOOSE_CHECKPOINT, job=world.job, attempt=0)
    world.store.intend(plan(step), step, AT)
    world.store.record(plan(step), Outcome(step, Result.DONE, AT, data=data))


async def held_by_us(world: World) -> None:
    await do(world, StepKind.REQUEUE_HOLD)
    await do(world, StepKind.EXCLUDE, nodes="n1")


async def test_exclusions_are_a_union_with_the_users_own(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].excluded = ("n4",)
    await do(there, StepKind.REQUEUE_HOLD)
    found = await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    job = there.slurm.jobs[there.job]
    assert job.excluded == ("n1", "n2", "n4") and found.data["excluded"] == "n1,n2,n4"
    assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 attempt=1"
    assert job.required == ()


async def test_components_lose_the_names_that_slurm_has_no_node_of_too(world: Worlds) -> None:
    there = world(nodes=6)
    other = there.slurm.jobs[there.slurm.submit(nodes=1, het=there.job)]
    leader = there.slurm.jobs[there.job]
    leader.record["het_job_id"] = there.job
    leader.excluded, other.excluded = ("n4", "gone1"), ("gone2", "n5")
    await do(there, StepKind.REQUEUE_HOLD)
    found = await do(there, StepKind.EXCLUDE, nodes="n1", not_in_slurm="gone1,gone2")
    assert found.data["excluded"] == "n1,n4" and leader.excluded == ("n1", "n4") and other.excluded == ("n1", "n5")


@pytest.mark.parametrize("which", ["excluded", "required"])
async def test_a_list_of_the_users_that_cannot_be_read_is_not_written_over(world: Worlds, which: str) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)

    async def look(number: int) -> JobView | None:
        seen = await FakeSlurm.job(there.slurm, number)
        return dataclasses.replace(seen, unread_lists=(which,)) if seen is not None else None

    there.slurm.job = look  # type: ignore[method-assign]
    found = await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    job = there.slurm.jobs[there.job]
    assert found.result is Result.DONE and job.admin_comment.startswith("sentinel:inc1 ")
    if which == "excluded":
        assert job.excluded == () and "cannot be read" in found.reason and found.data == {"added": "", "required": ""}
    else:
        assert job.excluded == ("n1", "n2") and found.data["excluded"] == "n1,n2"


async def test_a_stopped_job_that_completes_once_more_is_waited_for(world: Worlds) -> None:
    """slurmctld was started again, and its nodes report anew that its epilogs are over."""
    there = world()
    await stopped(there)
    there.slurm.jobs[there.job].completing = True
    with pytest.raises(Unavailable, match="completing"):
        await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    there.slurm.jobs[there.job].completing = False
    assert (await do(there, StepKind.EXCLUDE, nodes="n1,n2")).result is Result.DONE


@pytest.mark.parametrize(("restarted", "days"), [(True, 0), (False, 0), (None, 0), (True, 2)])
async def test_a_list_that_a_person_changed_back_stays_and_with_it_what_the_job_was_lent(
    world: Worlds, restarted: bool | None, days: int
) -> None:
    """Unless slurmctld was restarted since the list was written, and that is not long ago: then it may have lost it."""
    there = world(nodes=6)
    there.slurm.clock.advance(days * 86_400.0)
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.excluded = ("n1",)
    last = {"excluded": "n1,n3", "added": "n3", "required": "n4", "spares": "kept"}
    written: list[dict[str, Scalar]] = [{"excluded": "n1"}, last]

    class Tries(Known):
        def outcome(self, _incident: str, step: Step) -> Outcome | None:
            known = step.kind is StepKind.EXCLUDE and 0 <= step.tries < len(written)
            return Outcome(step, Result.DONE, AT, "", written[step.tries]) if known else None

    async def booted() -> datetime | None:
        return None if restarted is None else AT + timedelta(seconds=5.0 if restarted else -60.0)

    again = task(there, StepKind.EXCLUDE, nodes="n1,n3", ours="n1,n3")
    again = dataclasses.replace(again, step=dataclasses.replace(again.step, tries=2))
    ledger = Tries(again.step, Outcome(again.step, Result.DONE, AT))
    found = await ACTIONS[StepKind.EXCLUDE](again, dataclasses.replace(means(there), ledger=ledger, booted_at=booted))
    if restarted and not days:
        assert job.excluded == ("n1", "n3") and found.data["excluded"] == "n1,n3"
    else:
        assert job.excluded == ("n1",) and found.data == {"added": "", "required": "n4", "spares": "kept"}


async def test_local_checkpoint_needs_its_own_nodes(world: Worlds) -> None:
    there = world()
    chosen(there, path="/nvme/s2", step=2, tier="local", hosts="n1,n2")
    await do(there, StepKind.REQUEUE_HOLD)
    await do(there, StepKind.EXCLUDE, nodes="n3")
    job = there.slurm.jobs[there.job]
    assert job.required == ("n1", "n2") and job.admin_comment.endswith("required=local")


async def test_requirement_of_ours_goes_and_one_of_the_user_stays(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.required = ("n1",)
    await do(there, StepKind.EXCLUDE, nodes="n3")
    assert list(job.required) == ["n1"]
    job.admin_comment += " required=local"
    await do(there, StepKind.EXCLUDE, nodes="n3")
    assert list(job.required) == []


@pytest.mark.parametrize("lost", [False, True], ids=["", "on a node that was set down"])
@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD, StepKind.EXCLUDE, StepKind.RELEASE])
async def test_job_that_ran_since_is_left_to_the_incident_that_stopped_it(
    world: Worlds, kind: StepKind, lost: bool
) -> None:
    there = world()
    stopped = await do(there, StepKind.REQUEUE_HOLD)
    there.store.intend(plan(stopped.step), stopped.step, AT)
    there.store.record(plan(stopped.step), stopped)
    await do(there, StepKind.EXCLUDE, nodes="n1")
    await do(there, StepKind.RELEASE)
    job = there.slurm.jobs[there.job]
    requeued = job.submitted
    there.slurm.clock.advance(60.0)
    assert job.state == "RUNNING" and job.restarts == 1
    other = dataclasses.replace(incident(ended(there.job), job=there.job), id="inc2")
    for step in (StepKind.REQUEUE_HOLD, StepKind.EXCLUDE):
        later = dataclasses.replace(task(there, step, attempt=1, nodes="n2"), incident=other)
        assert (await ACTIONS[step](later, means(there))).result is Result.DONE
    assert job.state == "PENDING" and job.restarts == 2 and job.excluded == ("n1", "n2")
    job.submitted = requeued if lost else job.submitted  # as Slurm leaves it then
    before = len(there.slurm.calls)
    found = await do(there, kind, nodes="n1")
    assert "has run since" in found.reason and there.slurm.calls[before:] == []


async def test_a_failed_step_leaves_no_job_deferred_whose_one_requeue_was_counted_twice(world: Worlds) -> None:
    there = world()
    stopped = await do(there, StepKind.REQUEUE_HOLD)
    there.store.intend(plan(stopped.step), stopped.step, AT)
    there.store.record(plan(stopped.step), stopped)
    job = there.slurm.jobs[there.job]
    job.restarts = 2
    await leave_held(dataclasses.replace(task(there, StepKind.EXCLUDE), plan=plan(stopped.step)), means(there))
    assert job.held and job.eligible < there.slurm.time_s() + 86_400


async def test_only_what_this_incident_held_is_released(world: Worlds) -> None:
    there = world()
    await held_by_us(there)
    assert (await do(there, StepKind.RELEASE)).result is Result.DONE
    assert there.slurm.jobs[there.job].state == "RUNNING"


@pytest.mark.parametrize("comment", ["", "sentinel:other gpu", "mine"])
async def test_job_held_by_somebody_else_is_never_released(world: Worlds, comment: str) -> None:
    there = world()
    job = there.slurm.jobs[there.job]
    there.slurm.back_to_queue(job, held=True)
    job.admin_comment = comment
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "held by somebody else" in found.reason
    assert there.slurm.jobs[there.job].held


async def test_resume_point(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    await do(there, StepKind.WRITE_RESUME)
    assert there.resume.files[there.job] == {
        "SENTINEL_JOB": str(there.job),
        "SENTINEL_ATTEMPT": "1",
        "SENTINEL_INCIDENT": "inc1",
        "SENTINEL_UID": "1001",
    }
    chosen(there, path="/s/200", step=200, tier="global")
    await do(there, StepKind.WRITE_RESUME)
    assert there.resume.files[there.job]["SENTINEL_RESUME_PATH"] == "/s/200"
    assert there.resume.files[there.job]["SENTINEL_RESUME_STEP"] == "200"


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING"])
@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_the_folders_of_a_job_that_does_not_wait_any_more_are_left_alone(
    world: Worlds, kind: StepKind, state: str
) -> None:
    """What is new in them is its own next attempt's by then, or another job's that its user submitted in its place."""
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.state, job.held = state, False
    chosen(there, path="/shared/run/step-200", step=200, tier="global")
    outcome = await do(there, kind)
    assert outcome.result is (Result.FAILED if state == "CANCELLED" else Result.DONE), outcome
    assert "path" not in outcome.data and not there.checkpoints.moved and not there.resume.files  # type: ignore[attr-defined]
    assert bool(outcome.data.get("cancelled")) is (state == "CANCELLED")


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING", "PENDING"])
@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_what_ends_a_components_step_is_of_that_step_though_its_leader_was_asked(
    world: Worlds, kind: StepKind, state: str
) -> None:
    there = world()
    part = there.slurm.submit(nodes=1, het=there.job)
    there.slurm.jobs[there.job].record["het_job_id"] = there.job
    await do(there, StepKind.REQUEUE_HOLD)
    leader = there.slurm.jobs[there.job]
    leader.state, leader.held, leader.restarts = state, False, 2 if state == "PENDING" else 1
    step = Step(kind, job=part, attempt=0)
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.step == step and not there.resume.files
    assert outcome.result is (Result.FAILED if state == "CANCELLED" else Result.DONE)


@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE])
async def test_the_folders_of_a_job_that_has_left_its_allocation_are_left_alone(world: Worlds, kind: StepKind) -> None:
    there = world()
    stop, this, start = (Step(k, job=there.job, attempt=0) for k in (StepKind.STOP_RUN, kind, StepKind.START_RUN))
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(stop, this, start), this)
    assert (await ACTIONS[kind](work, means(there))).result is Result.DONE
    moved = list(there.checkpoints.moved)  # type: ignore[attr-defined]
    job = there.slurm.jobs[there.job]
    job.restarts += 1
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.result is Result.DONE and "attempt 0" in outcome.reason and "path" not in outcome.data
    assert there.checkpoints.moved == moved  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_the_checkpoints_of_a_later_attempt_are_left_to_it_also_by_a_step_that_is_done_again(
    world: Worlds, kind: StepKind
) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    there.slurm.jobs[there.job].restarts = 2
    step = Step(kind, job=there.job, attempt=0, tries=1)
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.result is Result.DONE and "that attempt is over" in outcome.reason
    assert "path" not in outcome.data and not there.checkpoints.moved and not there.resume.files  # type: ignore[attr-defined]
