"""Events of Slurm's hooks: answered at once, followed up until Slurm says how it ended."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from in_memory.watch import Scene
from in_memory.world import World

from sentinel.engine.events import EffectCompleted, FleetObserved, ReportedEnd, SlurmReported
from sentinel.model.records import Kind

Worlds = Callable[..., World]


async def test_end_of_a_job_is_told_with_its_nodes(world: Worlds) -> None:
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    there.slurm.end(there.job, exit_code=5)
    await scene.report("job_ended", there.job)
    (item,) = scene.reported
    assert item.kind == Kind.JOB_ENDED and item.where.job == there.job
    assert (item.data["state"], item.data["exit_code"], item.data["nodes"]) == ("failed", 5, "n1,n2")
    assert f"event name=job_ended job={there.job}" in scene.daemon.said


@pytest.mark.parametrize(
    ("preempted_s", "suspended_s", "told"),
    [(10, None, True), (-10, None, False), (10, 12, False), (10, 5, True), (None, None, False)],
    ids=["", "an earlier attempt", "suspended for it and resumed", "suspended before it", "never"],
)
async def test_a_failure_after_slurm_preempted_the_job_is_told_as_that(
    world: Worlds, preempted_s: int | None, suspended_s: int | None, told: bool
) -> None:
    """Its program ends with an error at the SIGTERM with which the grace time begins; Slurm calls that failed."""
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    this = there.slurm.jobs[there.job]
    assert this.started is not None
    for key, after_s in (("preempt_time", preempted_s), ("suspend_time", suspended_s)):
        this.record[key] = 0 if after_s is None else int(this.started) + after_s
    await scene.advance(20.0)
    there.slurm.end(there.job, exit_code=1)
    await scene.report("job_ended", there.job)
    (item,) = scene.reported
    assert item.data["state"] == "failed" and item.data.get("preempted", False) is told
    assert item.text.endswith(", after Slurm preempted it") is told
    assert item.data.get("preempted_at_s") == (int(this.started) + (preempted_s or 0) if told else None)


async def test_job_that_completes_slowly_is_asked_about_until_it_ended(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    scene = Scene(there)
    this = there.slurm.jobs[there.job]
    this.state = "COMPLETING"
    real, looks = there.slurm.fleet, 0

    async def fleet() -> object:
        nonlocal looks
        looks += 1
        if looks == 4:
            this.state = "NODE_FAIL"
        return await real()

    monkeypatch.setattr(there.slurm, "fleet", fleet)
    await scene.report("job_ended", there.job)
    assert looks == 4 and [item.data["state"] for item in scene.reported] == ["node_fail"]


async def test_job_whose_epilogs_hang_is_left_to_reconciliation(world: Worlds) -> None:
    there = world()
    scene = Scene(there)
    there.slurm.jobs[there.job].state = "COMPLETING"
    began = there.slurm.clock.now()
    await scene.report("job_ended", there.job)
    assert scene.reported == [] and 9.5 < (there.slurm.clock.now() - began).total_seconds() <= 10.0


@pytest.mark.parametrize("how", ["purged", "requeued"])
async def test_job_that_is_gone_or_waits_again_is_no_news(world: Worlds, how: str) -> None:
    there = world()
    scene = Scene(there)
    there.slurm.end(there.job, exit_code=1)
    if how == "purged":
        there.slurm.purge(there.job)
    else:
        there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)
    await scene.report("job_ended", there.job)
    assert scene.reported == []


@pytest.mark.parametrize(
    ("attempt", "code", "signal", "states"),
    [(0, 3, 0, ["failed"]), (0, 0, 0, []), (0, 1, 15, []), (1, 3, 0, [])],
    ids=["failed", "completed", "perhaps cancelled", "an attempt that nobody saw"],
)
async def test_a_failure_that_slurm_has_forgotten_is_told_by_what_its_hook_said(
    world: Worlds, attempt: int, code: int, signal: int, states: list[str]
) -> None:
    """The daemon was away for longer than MinJobAge; the attempt is one that it saw begin."""
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    ended_at = there.slurm.clock.now()
    there.slurm.end(there.job, exit_code=3)
    there.slurm.purge(there.job)
    await scene.advance(60.0)
    told = {there.job: ReportedEnd(ended_at, attempt, code, signal)}
    for _ in range(2):
        scene.apply(SlurmReported(scene.now, "job_ended", frozenset({there.job}), told))
        await scene.settle()
    assert [item.data["state"] for item in scene.reported] == states
    assert [(item.at, item.data["nodes"]) for item in scene.reported] == [(ended_at, "n1,n2") for _ in states]


async def test_many_ends_at_once_cost_one_question(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world(nodes=8, wide=1)
    scene = Scene(there)
    jobs = [there.job, *(there.slurm.submit() for _ in range(5))]
    for job in jobs[:-1]:
        there.slurm.end(job, exit_code=1)
    real, looks = there.slurm.fleet, 0

    async def fleet() -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            there.slurm.end(jobs[-1])
        return await real()

    monkeypatch.setattr(there.slurm, "fleet", fleet)
    await scene.report("job_ended", *jobs)
    assert [item.where.job for item in scene.reported] == jobs and looks == 3


async def test_hook_does_not_wait_for_slurm(world: Worlds) -> None:
    there = world()
    scene = Scene(there)
    there.slurm.answers = False
    scene.apply(SlurmReported(scene.now, "job_ended", frozenset({there.job})))  # returns
    there.slurm.end(there.job, exit_code=1)
    there.slurm.answers = True
    await scene.settle()
    assert [item.kind for item in scene.reported] == [Kind.JOB_ENDED]
    assert not scene.timers and not scene.effects


@pytest.mark.parametrize(("event", "jobs"), [("node_down", {101}), ("job_ended", ()), ("", {7})])
async def test_anything_else_is_worth_a_look(world: Worlds, event: str, jobs: Collection[int]) -> None:
    scene = Scene(world())
    scene.apply(SlurmReported(scene.now, event, frozenset(jobs)))
    assert [effect.id for effect in scene.effects] == ["reconcile"]


async def test_a_job_that_ends_while_slurm_is_asked_about_another_is_asked_about_next(world: Worlds) -> None:
    there = world(nodes=4, wide=1)
    scene = Scene(there)
    await scene.fleets.take()
    second = there.slurm.submit()
    there.slurm.end(there.job, exit_code=1)
    scene.apply(SlurmReported(scene.now, "job_ended", frozenset({there.job})))
    early = await there.slurm.fleet()  # taken before the second one ended
    there.slurm.end(second, exit_code=2)
    scene.apply(SlurmReported(scene.now, "job_ended", frozenset({second})))
    (asked,) = scene.effects
    scene.effects.clear()
    scene.apply(FleetObserved(scene.now, early))
    scene.apply(EffectCompleted(scene.now, asked.id))
    assert [item.where.job for item in scene.reported] == [there.job]
    await scene.settle()
    assert [item.where.job for item in scene.reported] == [there.job, second]


async def test_event_with_a_hostile_environment_cannot_forge_a_log_line(world: Worlds) -> None:
    scene = Scene(world())
    scene.apply(SlurmReported(scene.now, "x\nERROR bug where=here"))
    assert [line for line in scene.daemon.said.splitlines() if " ERROR " in line.partition(" INFO ")[0]] == []
    assert len(scene.daemon.said.splitlines()) == 1
