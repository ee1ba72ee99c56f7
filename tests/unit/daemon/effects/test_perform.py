"""What is told of an effect that took a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from sentinel.daemon.effects import perform
from sentinel.daemon.effects.perform import Effects
from sentinel.engine.transition import CarryOutStep
from sentinel.model.records import Task


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


async def test_a_step_is_over_when_it_is_over_not_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes an event's time for now: what follows was written down as begun seconds too early."""
    clock, none = Clock(), cast("Any", None)

    async def slow(*_: object) -> None:
        clock.at += timedelta(seconds=4)

    monkeypatch.setattr(perform, "carry_out", slow)
    effects = Effects(
        means=none, fleets=none, inquiry=none, diagnostics=cast("Any", Clock), writer=none, signals=none, sinks={},
        returns=none, clock=clock,
    )  # fmt: skip
    event = await effects._step(CarryOutStep("id", cast("Task", None)))
    assert event.at == clock.at
