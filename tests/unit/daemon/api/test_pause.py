"""A plan and a pause: it stops after the step it is at, and goes on where it stopped when the pause ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink, incidents_of
from in_memory.world import World
from made_records import ended, evidence

from sentinel.actions import ACTIONS, Means, Task
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.effects import perform
from sentinel.daemon.runner import Runner
from sentinel.log import Log
from sentinel.model.records import Kind, Outcome, StepKind

Worlds = Callable[..., World]
Do = Callable[[Task, Means], Awaitable[Outcome]]
ALL = [
    "drain",
    "requeue_hold",
    "choose_checkpoint",
    "quarantine",
    "write_resume",
    "exclude",
    "release",
    "confirm",
]


def changes(daemon: Daemon) -> OperatorCommands:
    there = daemon.world
    return OperatorCommands(
        store=there.store, live=daemon.live, fleets=daemon.fleets, clock=there.slurm.clock, reader=there.slurm,
        writer=there.slurm, runner=daemon.runner, log=Log(daemon.stream),
    )  # fmt: skip


async def fail(daemon: Daemon) -> None:
    there = daemon.world
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    xid = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")
    await daemon.observe([xid, ended(there.job)])
    await daemon.quiet()


def done(there: World) -> list[tuple[str, Any]]:
    (name,) = incidents_of(there.store)
    return [(row["kind"], row["result"]) for row in there.store.steps_of(name)]


def state(there: World) -> str:
    ((found, _, _),) = incidents_of(there.store).values()
    return str(found)


@pytest.fixture
def pausing(monkeypatch: pytest.MonkeyPatch) -> Callable[[World, StepKind], None]:
    """An operator pauses while this step is being done."""

    def arrange(there: World, at: StepKind) -> None:
        real = ACTIONS[at]

        async def act(task: Task, means: Means) -> Outcome:
            assert isinstance(means.ledger, Runner)
            await means.ledger.command("pause", "an operator")
            return await real(task, means)

        monkeypatch.setattr(perform, "ACTIONS", {**ACTIONS, at: act})

    return arrange


async def test_plan_without_a_pause(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    await fail(Daemon(there, [sink]))
    assert (
        done(there) == [(kind, "done") for kind in ALL]
        and state(there) == "closed"
        and sink.stages == ["restarting", "running again"]
    )


@pytest.mark.parametrize("number", range(len(ALL) - 1))
@pytest.mark.parametrize("restarted", [False, True])
async def test_plan_stops_after_its_step_and_is_carried_on(
    world: Worlds, pausing: Callable[[World, StepKind], None], monkeypatch: pytest.MonkeyPatch, number: int,
    restarted: bool,
) -> None:  # fmt: skip
    there, sink = world(), FakeSink()
    pausing(there, StepKind(ALL[number]))
    daemon = Daemon(there, [sink])
    await fail(daemon)
    assert done(there) == [(kind, "done") for kind in ALL[: number + 1]]
    assert state(there) != "closed" and len(there.store.open_plans()) == 1
    monkeypatch.setattr(perform, "ACTIONS", ACTIONS)
    if restarted:
        daemon = Daemon(there, [sink])
        await daemon.start()
        await daemon.quiet()
        assert len(done(there)) == number + 1  # a start ends no pause
    answer = await changes(daemon).make("resume", {}, 0)
    await daemon.quiet()
    assert answer["paused"] is False
    assert done(there) == [(kind, "done") for kind in ALL]
    assert state(there) == "closed" and there.store.open_plans() == [] and daemon.bugs() == 0
    assert there.slurm.jobs[there.job].state == "RUNNING" and there.slurm.nodes["n1"].drained
    assert sink.stages == ["restarting", "running again"]


async def test_pause_while_the_restart_is_confirmed_leaves_nothing_to_do(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    there.progress._steps = False
    await fail(daemon)
    await changes(daemon).make("pause", {}, 0)
    there.progress._steps = True
    await daemon.pass_time(20.0)
    assert done(there) == [(kind, "done") for kind in ALL]
    await changes(daemon).make("resume", {}, 0)
    await daemon.quiet()
    assert state(there) == "closed" and there.store.open_plans() == []


async def test_resume_without_anything_stopped(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await changes(daemon).make("pause", {}, 0)
    await changes(daemon).make("resume", {}, 0)
    await daemon.quiet()
    assert there.slurm.calls == [] and daemon.bugs() == 0


async def test_resumed_twice_is_carried_on_once(world: Worlds, pausing: Callable[[World, StepKind], None]) -> None:
    there = world()
    pausing(there, StepKind.REQUEUE_HOLD)
    daemon = Daemon(there)
    await fail(daemon)
    made = changes(daemon)
    await made.make("resume", {}, 0)
    await made.make("resume", {}, 0)
    await daemon.quiet()
    assert [call[0] for call in there.slurm.calls].count("release") == 1 and daemon.bugs() == 0
