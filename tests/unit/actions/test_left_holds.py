"""The hold of our requeue outlives the cancellation of its job, and a requeue by a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from in_memory.world import ECC, Fate, World
from made_records import ended, incident, plan

from sentinel.actions import ACTIONS
from sentinel.errors import Unavailable
from sentinel.model.records import JobView, Outcome, Result, Scalar, Step, StepKind, Task

Worlds = Callable[..., World]
STOPS = [StepKind.REQUEUE_HOLD, StepKind.HOLD]


async def stop(there: World, kind: StepKind, tries: int = 0) -> Outcome:
    step = Step(kind, job=there.job, attempt=0, tries=tries)
    task = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    outcome = await ACTIONS[kind](task, there.means(Fate()))
    there.store.record(plan(step), outcome)
    return outcome


def cancelled_while_it_completes(there: World, monkeypatch: pytest.MonkeyPatch, *, requeued: bool = True) -> None:
    """``requeued``: the cancellation comes after our request, which slurmctld gets else for a job that does not run."""
    verbs = there.slurm.verbs
    real = verbs.requeue_hold

    async def requeue_hold(job: str, *, incomplete: bool) -> None:
        if requeued:
            await real(job, incomplete=incomplete)
        there.slurm.cancel(there.job)
        if not requeued:
            await real(job, incomplete=incomplete)

    monkeypatch.setattr(verbs, "requeue_hold", requeue_hold)


@pytest.mark.parametrize("kind", STOPS)
async def test_it_is_taken_off_once_a_person_has_requeued_the_job(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, kind: StepKind
) -> None:
    there = world()
    cancelled_while_it_completes(there, monkeypatch)
    found = await stop(there, kind)
    assert "cancelled" in found.reason and found.data == {"cancelled": True, "left_hold": True}
    there.slurm.person_requeues(there.job)
    assert there.slurm.jobs[there.job].held
    for _ in range(2):  # the answer of the first may have been lost
        found = await stop(there, kind, tries=1)
        assert "hold is off" in found.reason and found.data == {"goes_on": True}
        assert not there.slurm.jobs[there.job].held


@pytest.mark.parametrize("kind", STOPS)
async def test_a_hold_that_its_user_had_put_on_the_job_before_is_no_hold_of_ours(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, kind: StepKind
) -> None:
    there = world()
    there.slurm.person_holds(there.job)
    cancelled_while_it_completes(there, monkeypatch)
    assert "left_hold" not in (await stop(there, kind)).data


@pytest.mark.parametrize("kind", STOPS)
async def test_a_job_that_was_cancelled_before_our_request_has_no_hold_of_ours(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, kind: StepKind
) -> None:
    there = world()
    cancelled_while_it_completes(there, monkeypatch, requeued=False)
    found = await stop(there, kind)
    assert found.data == {"cancelled": True} and there.slurm.jobs[there.job].state == "CANCELLED"


async def test_a_job_cancelled_between_requeue_and_deferral_has_it_too(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    verbs, looks = there.slurm.verbs, 0
    real = verbs.job_record

    async def job_record(job: int) -> dict[str, Scalar] | None:
        nonlocal looks
        if there.slurm.jobs[job].held:
            looks += 1
            there.slurm.cancel(job)
        return await real(job)  # type: ignore[return-value]

    monkeypatch.setattr(verbs, "job_record", job_record)
    found = await stop(there, StepKind.REQUEUE_HOLD)
    assert looks and found.result is Result.FAILED and found.data.get("left_hold") is True


@pytest.mark.parametrize("by_requeue", [True, False])
async def test_the_hold_of_our_requeue_that_slurmctld_forgot_to_have_released_is_ours(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, by_requeue: bool
) -> None:
    """Seen on 26.05: killed between two savings of a deferral, start time and release; the job was left as somebody's."""
    there = world()
    await stop(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    assert not job.held
    job.held = True
    there.slurm.booted = there.slurm.clock.now() + timedelta(seconds=1)
    read = there.slurm.job

    async def shown(number: int) -> JobView | None:
        seen = await read(number)
        return dataclasses.replace(seen, requeue_held=by_requeue and seen.held) if seen is not None else None

    monkeypatch.setattr(there.slurm, "job", shown)
    first = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    step = Step(StepKind.RELEASE, job=there.job, attempt=0)
    task = Task(incident(ended(there.job), job=there.job), ECC, plan(first, step), step)
    found = await ACTIONS[StepKind.RELEASE](task, there.means(Fate()))
    assert found.result is (Result.DONE if by_requeue else Result.FAILED) and job.held is not by_requeue


@pytest.mark.parametrize("kind", STOPS)
async def test_it_is_taken_off_a_job_whose_next_attempt_our_request_has_stopped(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, kind: StepKind
) -> None:
    """Slurm requeued the job and began it between our look and our request (explore, seed 8133 anything-9557)."""
    there = world()
    verbs, job = there.slurm.verbs, there.slurm.jobs[there.job]
    real = verbs.requeue_hold

    async def requeue_hold(name: str, *, incomplete: bool) -> None:
        if job.restarts == 0:
            there.slurm.person_requeues(there.job)
            there.slurm.clock.advance(300.0)
            there.slurm.catch_up()
            assert job.restarts == 1 and job.state == "RUNNING"
        await real(name, incomplete=incomplete)

    monkeypatch.setattr(verbs, "requeue_hold", requeue_hold)
    with pytest.raises(Unavailable):
        await stop(there, kind)
    assert job.held
    job.completing = True
    with pytest.raises(Unavailable, match="with our hold"):
        await stop(there, kind)
    job.completing = False
    found = await stop(there, kind)
    assert found.data == {"goes_on": True} and not job.held
