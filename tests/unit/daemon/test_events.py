"""Events of Slurm's hooks: answered at once, followed up until Slurm says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from core_watch import Scene
from core_world import World

from sentinel.daemon.events import Events
from sentinel.log import Log
from sentinel.model import Evidence, Kind

Worlds = Callable[..., World]


class Wired:
    """``Events`` over a scene; ``told`` is what the judge got, ``looks`` counts reconciliations."""

    def __init__(self, world: World) -> None:
        self.scene = Scene(world)
        self.told: list[Evidence] = []
        self.looks = 0
        daemon = self.scene.daemon
        daemon.judge.observe = self._observe  # type: ignore[method-assign]
        self.scene.watch.reconcile = self._reconcile  # type: ignore[method-assign]
        self.events = Events(
            live=self.scene.live, fleets=self.scene.fleets, judge=daemon.judge, watch=self.scene.watch,
            clock=world.slurm.clock, log=Log(daemon.stream),
        )  # fmt: skip

    async def _observe(self, items: Sequence[Evidence]) -> None:
        self.told.extend(items)

    async def _reconcile(self) -> None:
        self.looks += 1

    async def hear(self, event: str, **environment: object) -> None:
        await self.events.arrived(event, dict(environment))
        await self.scene.daemon.quiet()


async def test_end_of_a_job_is_told_with_its_nodes(world: Worlds) -> None:
    there = world()
    wired = Wired(there)
    await wired.scene.fleets.take()
    there.slurm.end(there.job, exit_code=5)
    await wired.hear("job_ended", SLURM_JOB_ID=str(there.job))
    (item,) = wired.told
    assert item.kind == Kind.JOB_ENDED and item.where.job == there.job
    assert (item.data["state"], item.data["exit_code"], item.data["nodes"]) == ("failed", 5, "n1,n2")
    assert wired.looks == 0 and f"event name=job_ended job={there.job}" in wired.scene.daemon.said


async def test_job_that_completes_slowly_is_asked_about_until_it_ended(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    wired = Wired(there)
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
    await wired.hear("job_ended", SLURM_JOB_ID=str(there.job))
    assert looks == 4 and [item.data["state"] for item in wired.told] == ["node_fail"]


async def test_job_whose_epilogs_hang_is_left_to_reconciliation(world: Worlds) -> None:
    there = world()
    wired = Wired(there)
    there.slurm.jobs[there.job].state = "COMPLETING"
    began = there.slurm.clock.now()
    await wired.hear("job_ended", SLURM_JOB_ID=str(there.job))
    assert wired.told == [] and (there.slurm.clock.now() - began).total_seconds() == pytest.approx(10.0)


@pytest.mark.parametrize("how", ["purged", "requeued"])
async def test_job_that_is_gone_or_waits_again_is_no_news(world: Worlds, how: str) -> None:
    there = world()
    wired = Wired(there)
    there.slurm.end(there.job, exit_code=1)
    if how == "purged":
        there.slurm.purge(there.job)
    else:
        there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)
    await wired.hear("job_ended", SLURM_JOB_ID=str(there.job))
    assert wired.told == []


async def test_many_ends_at_once_cost_one_question(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world(nodes=8, wide=1)
    wired = Wired(there)
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
    await wired.events.arrived_together("job_ended", set(jobs))
    await wired.scene.daemon.quiet()
    assert [item.where.job for item in wired.told] == jobs and looks == 3


async def test_hook_does_not_wait_for_slurm(world: Worlds) -> None:
    there = world()
    wired = Wired(there)
    there.slurm.answers = False
    await wired.events.arrived("job_ended", {"SLURM_JOB_ID": str(there.job)})  # returns
    there.slurm.end(there.job, exit_code=1)
    there.slurm.answers = True
    await wired.scene.daemon.quiet()
    assert [item.kind for item in wired.told] == [Kind.JOB_ENDED]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("event", "job"), [("node_down", "101"), ("job_ended", ""), ("job_ended", "../1"), ("job_ended", "²"), ("", "7")]
)
async def test_anything_else_is_worth_a_look(world: Worlds, event: str, job: str) -> None:
    wired = Wired(world())
    await wired.hear(event, SLURM_JOB_ID=job)
    assert wired.looks == 1 and wired.told == []


async def test_event_with_a_hostile_environment_cannot_forge_a_log_line(world: Worlds) -> None:
    wired = Wired(world())
    await wired.hear("x\nERROR bug", SLURM_JOB_ID="7\nERROR bug where=here")
    assert [line for line in wired.scene.daemon.said.splitlines() if " ERROR " in line.partition(" INFO ")[0]] == []
    assert len(wired.scene.daemon.said.splitlines()) == 1
