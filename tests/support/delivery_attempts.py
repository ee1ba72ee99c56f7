"""The engine's deliveries to one receiver, step by step, with what is under way and the timers that run."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World
from made_records import AT

from sentinel.config.alerts import Alerts, Channel
from sentinel.config.settings import Settings
from sentinel.engine import Transition, delivery
from sentinel.engine.events import NoticeDelivered, NoticeNotDelivered, TimerDue
from sentinel.engine.state import State
from sentinel.engine.transition import DeliverNotice, StartTimer
from sentinel.model.changes import NoticeChanged
from sentinel.model.records import Notice
from sentinel.model.stored import Stored


def channel(**what: Any) -> Channel:
    return Channel(**{"kind": "webhook", "url": "x", **what})


def notice(at: datetime = AT, severity: str = "warning", **data: Any) -> Notice:
    return Notice("note", "inc1", at, "a title", "a body", {"severity": severity, "stage": "handled", **data})


def settings_with(attempts: int = 4, **what: Any) -> Settings:
    """One channel, ``mine``, with what it says."""
    alerts = Alerts(channels={"mine": channel(**what)}, attempts=attempts)
    return dataclasses.replace(SETTINGS, alerts=alerts)


class Attempts:
    """The engine's deliveries to the receiver ``mine``, step by step: what is under way, and the timers that run."""

    def __init__(self, there: World, attempts: int = 12, **what: Any) -> None:
        self.daemon = Daemon(there, [FakeSink("mine")])
        self.daemon.state.settings = settings_with(attempts, **what)
        self.now = AT
        self.state: State = self.daemon.state
        self.under_way: list[DeliverNotice] = []
        self.timers: dict[str, datetime] = {}
        self.told: list[str] = []

    def say(self, number: int, severity: str = "info", **data: Any) -> None:
        given = {"message": number, "stage": f"stage{number}", **data}
        at = max(self.now, AT + timedelta(seconds=number))
        made = dataclasses.replace(notice(at, severity, **given), id=f"m{number}")
        out = Transition()
        out.save(NoticeChanged(made, "mine", delivered=False))
        delivery.begin(self.state, out, made, "mine")
        self._took(out)

    def ends(self, taken: bool, *, again: bool = True, **what: Any) -> None:
        """The attempt that began first."""
        one = self.under_way.pop(0)
        if taken:
            self.told.append(one.notice.id if one.notice.data["stage"] != "digest" else str(one.notice.body))
            event: NoticeDelivered | NoticeNotDelivered = NoticeDelivered(self.now, one.notice, "mine")
        else:
            event = NoticeNotDelivered(self.now, one.notice, "mine", "502", again, **what)
        self._took(self.daemon.runner.engine.handle(event))

    def starts_again(self) -> None:
        """As the next daemon, with what the store has."""
        self.state.deliveries.clear()
        self.under_way, self.timers = [], {}
        out = Transition()
        stored = Stored(undelivered=tuple(self.daemon.world.store.undelivered()))
        delivery.carry_on(self.state, out, stored, self.now)
        self._took(out)

    def pause_ends(self) -> None:
        timers, self.timers = self.timers, {}
        for name, at in timers.items():
            self.now = max(self.now, at)
            self._took(self.daemon.runner.engine.handle(TimerDue(at, name)))

    def _took(self, out: Transition) -> None:
        self.under_way += [effect for effect in out.effects if isinstance(effect, DeliverNotice)]
        self.timers |= {effect.id: effect.due for effect in out.effects if isinstance(effect, StartTimer)}
        self.daemon.store.commit(out.changes)

    @property
    def missing(self) -> list[str]:
        return sorted(one.id for one, _ in self.daemon.world.store.undelivered())
