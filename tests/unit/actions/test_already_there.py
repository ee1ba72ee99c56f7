"""What is there already is not asked for again, whatever the writer would make of the request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_memory.world import ECC, Fate, World
from made_records import ended, incident, plan

from sentinel.actions import ACTIONS, Means, Task
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Outcome, Result, Step, StepKind

Worlds = Callable[..., World]


class Recorded:
    """A writer that does what the real one does and remembers that it was asked."""

    def __init__(self, world: World) -> None:
        self._writer = world.slurm
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._writer, name)

        async def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append(name)
            return await found(*arguments, **named)

        return ask


def means(world: World, **changes: Any) -> tuple[Means, Recorded]:
    writer = Recorded(world)
    return dataclasses.replace(world.means(Fate()), writer=writer, **changes), writer


async def do(world: World, kind: StepKind, *, node: str | None = None, **changes: Any) -> tuple[Outcome, list[str]]:
    made, writer = means(world, **changes)
    step = Step(kind, node=node, job=None if node else world.job, attempt=None if node else 0)
    outcome = await ACTIONS[kind](Task(incident(ended(world.job), job=world.job), ECC, plan(step), step), made)
    return outcome, writer.asked


@pytest.mark.parametrize("reason", ["sentinel:inc1 gpu_memory_ecc n1:3", "sentinel:other ecc", "a person", ""])
async def test_drained_node_is_not_drained_again(world: Worlds, reason: str) -> None:
    there = world()
    there.slurm.person_drains("n1", reason)
    outcome, asked = await do(there, StepKind.DRAIN, node="n1")
    assert outcome.result is Result.DONE and asked == []
    assert outcome.reason == ("" if reason.startswith("sentinel:") else "was drained by somebody else already")


async def test_node_that_is_not_drained_is(world: Worlds) -> None:
    assert (await do(world(), StepKind.DRAIN, node="n1"))[1] == ["drain"]


async def test_drain_that_does_not_show_is_not_called_done(world: Worlds) -> None:
    """Nor a person's doing, where it is not known when slurmctld was started."""
    there = world()

    async def not_known() -> None:
        return None

    async def nothing(*_: object) -> None:
        return None

    there.slurm.drain = nothing  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable, match="does not show as drained"):
        await do(there, StepKind.DRAIN, node="n1", booted_at=not_known)
    there.slurm.down = nothing  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable, match="does not show as down"):
        await do(there, StepKind.DOWN, node="n1", booted_at=not_known)


@pytest.mark.parametrize("kind", [StepKind.DRAIN, StepKind.DOWN])
@pytest.mark.parametrize("started_again", [False, True])
async def test_node_that_somebody_returns_at_once_is_left_to_them(
    world: Worlds, kind: StepKind, started_again: bool
) -> None:
    """Before the first look at it; slurmctld may have lost the drain only if it was started again."""
    there = world()
    verb = kind.value
    asked = getattr(there.slurm, verb)

    async def taken_back(*arguments: str) -> None:
        await asked(*arguments)
        there.slurm.person_resumes("n1")

    async def booted() -> datetime:
        return there.means(Fate()).clock.now() - timedelta(seconds=0.0 if started_again else 60.0)

    setattr(there.slurm, verb, taken_back)
    if started_again:
        with pytest.raises(Unavailable, match="does not show"):
            await do(there, kind, node="n1", booted_at=booted)
    else:
        outcome, _ = await do(there, kind, node="n1", booted_at=booted)
        assert (outcome.result, outcome.reason) == (Result.DONE, "was returned to service by somebody else: left there")


@pytest.mark.parametrize(
    ("state", "drained", "reason", "asked"),
    [
        (True, True, "sentinel:inc1", []),
        (True, False, "sentinel:inc1", ["down"]),  # it would come back by itself
        (True, True, "Not responding", ["down"]),
        (False, True, "sentinel:inc1", ["down"]),
    ],
)
async def test_lost_node_is_set_down_unless_all_of_it_is_so(
    world: Worlds, state: bool, drained: bool, reason: str, asked: list[str]
) -> None:
    there = world()
    there.slurm.lose("n3")
    this = there.slurm.nodes["n3"]
    this.down, this.drained, this.reason = state, drained, reason
    outcome, was_asked = await do(there, StepKind.DOWN, node="n3")
    assert outcome.result is Result.DONE and was_asked == asked


async def test_held_job_is_not_held_again(world: Worlds) -> None:
    there = world()
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)
    outcome, asked = await do(there, StepKind.HOLD)
    assert outcome.result is Result.DONE and asked == ["update_job"]


async def test_job_that_waits_far_off_is_not_stopped_again(world: Worlds) -> None:
    there = world()
    outcome, asked = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and asked == ["requeue_hold", "defer"]
    outcome, asked = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and asked == []


async def test_hold_that_is_ours_and_was_cut_is_carried_on(world: Worlds) -> None:
    """Killed between the request and the answer: the ledger knows that we had asked."""
    there = world()
    step = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    there.store.intend(plan(step), step, there.slurm.clock.now())
    there.store.record(plan(step), Outcome(step, Result.NOT_KNOWN, there.slurm.clock.now(), "", {"asked": True}))
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)
    outcome, asked = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and asked == ["defer"]


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_waiting_job_that_is_not_held_is(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    outcome, asked = await do(there, kind)
    assert outcome.result is Result.DONE and asked[0] == "requeue_hold"
    assert there.slurm.jobs[there.job].held == (kind is StepKind.HOLD)


@pytest.mark.parametrize("ended", [False, True], ids=["running", "failed meanwhile"])
async def test_job_that_its_user_held_while_it_ran_keeps_the_hold(world: Worlds, ended: bool) -> None:
    """Slurm keeps such a hold over the end and the requeue; a deferral would lose it."""
    there = world()
    there.slurm.jobs[there.job].held = True
    if ended:
        there.slurm.end(there.job, exit_code=3)
    outcome, asked = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and asked == ["requeue_hold"] and outcome.data["user_hold"]
    assert there.slurm.jobs[there.job].state == "PENDING" and there.slurm.jobs[there.job].held


async def test_job_that_an_operator_had_suspended_stays_held_and_is_told_so(world: Worlds) -> None:
    """scontrol suspend takes a job's priority, as a hold does."""
    there = world()
    job = there.slurm.jobs[there.job]
    job.state, job.held = "SUSPENDED", True
    stop, then = (Step(kind, job=there.job, attempt=0) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE))
    there.store.intend(plan(stop, then), stop, there.slurm.clock.now())
    outcome, _ = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and outcome.reason == "an operator had suspended it: it stays held"
    there.store.record(plan(stop, then), outcome)
    released, asked = await do(there, StepKind.RELEASE)
    assert released.result is Result.FAILED and asked == [] and job.held
    assert (
        released.reason == f"an operator had suspended job {job.id}: it stays held; scontrol release {job.id} starts it"
    )


@pytest.mark.parametrize("how", ["while it ran", "faster than ours"])
async def test_hold_of_its_user_stays_also_if_this_incident_held_the_job_before_it_knew_better(
    world: Worlds, how: str
) -> None:
    """Our comment is on the job then, and its hold is theirs all the same."""
    there = world()
    if how == "while it ran":
        there.slurm.jobs[there.job].held = True
        there.slurm.end(there.job, exit_code=3)
    else:
        there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)  # scontrol requeuehold
    step = Step(StepKind.HOLD, job=there.job, attempt=0)
    there.store.intend(plan(step), step, there.slurm.clock.now())
    there.store.record(plan(step), (await do(there, StepKind.HOLD))[0])
    outcome, _ = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE and outcome.data.get("user_hold")
    assert there.slurm.jobs[there.job].state == "PENDING" and there.slurm.jobs[there.job].held


async def test_job_that_fails_before_the_request_comes_is_requeued(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    real = there.slurm.verbs.requeue_hold

    async def late(job: str, *, incomplete: bool) -> None:
        if there.slurm.jobs[there.job].state == "RUNNING":
            there.slurm.end(there.job, exit_code=3)
        await real(job, incomplete=incomplete)

    monkeypatch.setattr(there.slurm.verbs, "requeue_hold", late)
    outcome, _ = await do(there, StepKind.REQUEUE_HOLD)
    assert outcome.result is Result.DONE
    assert (there.slurm.jobs[there.job].state, there.slurm.jobs[there.job].restarts) == ("PENDING", 1)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
async def test_released_job_is_not_released_again(world: Worlds, state: str) -> None:
    there = world()
    there.slurm.jobs[there.job].state = state
    outcome, asked = await do(there, StepKind.RELEASE)
    assert outcome.result is Result.DONE and asked == []


@pytest.mark.parametrize("ahead", [timedelta(days=3), timedelta(days=20), timedelta(days=60), None])
@pytest.mark.parametrize("away", [timedelta(0), timedelta(days=3)])
async def test_start_time_that_its_user_gave_the_stopped_job_is_kept_and_our_deferral_is_not(
    world: Worlds, ahead: timedelta | None, away: timedelta
) -> None:
    """Also if the daemon died once it had deferred the job, and wrote that down days later."""
    there = world()
    made, _ = means(there)
    stop, then = (Step(kind, job=there.job, attempt=0) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE))
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(stop, then), stop)
    there.store.intend(work.plan, stop, made.clock.now())
    await ACTIONS[stop.kind](work, made)
    job = there.slurm.jobs[there.job]
    if ahead is not None:
        job.eligible = (made.clock.now() + ahead).timestamp()
    there.slurm.clock.advance(away.total_seconds())
    there.store.record(work.plan, await ACTIONS[stop.kind](work, made))
    if ahead is not None and away >= ahead:
        return  # it has started by then
    made, writer = means(there)
    outcome = await ACTIONS[then.kind](dataclasses.replace(work, step=then), made)
    assert outcome.result is Result.DONE
    if ahead is None:
        assert (job.state, outcome.reason) == ("RUNNING", "")
    else:
        assert (writer.asked, job.state) == ([], "PENDING") and "its user had it start at" in outcome.reason


async def test_a_hold_that_is_tried_again_leaves_the_next_attempt_alone(world: Worlds) -> None:
    """Its first try may have happened without an answer, and somebody else have restarted the job since."""
    there = world()
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    there.slurm.person_releases(there.job)
    there.slurm.clock.advance(200.0)
    there.slurm.schedule()
    assert there.slurm.jobs[there.job].state == "RUNNING" and there.slurm.jobs[there.job].restarts == 1
    outcome, asked = await do(there, StepKind.HOLD)
    assert outcome.result is Result.FAILED and "restarted by somebody else" in outcome.reason and asked == []


@pytest.mark.parametrize("tries", [0, 1])
async def test_job_that_starts_while_its_list_is_to_be_changed_keeps_the_earlier_one(world: Worlds, tries: int) -> None:
    """Seen: it was let go, another node broke, and the job started before the longer list came: it counted as held."""
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    made, _ = means(there)

    async def update_job(job: int, **_: object) -> None:
        there.slurm.jobs[job].state = "RUNNING"
        raise Refused(f"job {job} is running: Job is no longer pending execution")

    made = dataclasses.replace(made, writer=cast("Any", SimpleNamespace(update_job=update_job)))
    step = Step(StepKind.EXCLUDE, job=there.job, attempt=0, data={"nodes": "n1,n2"}, tries=tries)
    task = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    found = await ACTIONS[StepKind.EXCLUDE](task, made)
    assert found.result is Result.DONE and "its list stays" in found.reason
