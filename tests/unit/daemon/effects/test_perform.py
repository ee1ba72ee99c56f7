"""What is told of an effect that took a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sentinel.daemon.effects import perform
from sentinel.daemon.effects.perform import Effects
from sentinel.engine.transition import CarryOutStep, LendSpares
from sentinel.errors import Refused
from sentinel.model.records import Outcome, Result, Step, StepKind, Task

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Refusing:
    """A writer that lets nobody into a reservation."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def give_access(self, _reservation: str, user: str) -> None:
        self.asked.append(f"access {user}")
        raise Refused("no")

    async def update_job(self, job: int, *, reservation: str) -> None:
        self.asked.append(f"{reservation} for {job}")


class Clock:
    def __init__(self) -> None:
        self.at = AT

    def now(self) -> datetime:
        return self.at


def of(clock: Clock, writer: Any = None) -> Effects:
    none = cast("Any", None)
    return Effects(
        means=none, fleets=none, inquiry=none, diagnostics=cast("Any", Clock), writer=writer, signals=none, sinks={},
        returns=none, clock=clock,
    )  # fmt: skip


async def test_a_step_is_over_when_it_is_over_not_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes an event's time for now: what follows was written down as begun seconds too early."""
    clock, none = Clock(), cast("Any", None)

    async def slow(task: Task, _: object) -> Outcome:
        clock.at += timedelta(seconds=4)
        return Outcome(task.step, Result.DONE, AT)

    monkeypatch.setattr(perform, "ACTIONS", {StepKind.DRAIN: slow})
    effects = of(clock)
    effects._means = cast("Any", SimpleNamespace(ledger=SimpleNamespace(outcome=lambda *_: None)))
    incident = cast("Any", SimpleNamespace(id="i"))
    event = await effects._step(CarryOutStep("id", Task(incident, none, none, Step(StepKind.DRAIN, node="n1"))))
    assert event.at == clock.at


async def test_no_job_asks_for_a_reservation_into_which_its_user_is_not_let() -> None:
    writer = Refusing()
    event = await of(Clock(), writer)._lend(LendSpares("id", "spares", ((7, "ada"), (8, "bob")), (), ()))
    assert writer.asked == ["access ada", "access bob"] and cast("Any", event).reason == "no; no"
