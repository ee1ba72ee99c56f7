"""What stands is sent to Alertmanager again: a restarted one has forgotten it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World
from made_records import incident

from sentinel.config.alerts import Alerts, Channel
from sentinel.engine import Transition, notices
from sentinel.engine.delivery import repeat_due
from sentinel.engine.events import NoticeDelivered
from sentinel.engine.transition import DeliverNotice
from sentinel.model.records import IncidentState, Notice

Worlds = Callable[..., World]
EVERY_S = 60.0


class Forgets(FakeSink):
    """``shown``: by thread, the newest stage, as an Alertmanager has it that was restarted whenever it is emptied."""

    def __init__(self) -> None:
        super().__init__("am")
        self.shown: dict[str, Any] = {}

    async def send(self, notice: Notice) -> None:
        await super().send(notice)
        self.shown[notice.thread] = notice.data["stage"]
        if notice.data["final"]:
            del self.shown[notice.thread]

    async def repeat(self, of: Sequence[Notice], now: datetime) -> None:
        self.shown |= {notice.thread: notice.data["stage"] for notice in of}


def _daemon(there: World, *sinks: FakeSink) -> Daemon:
    alerts = Alerts(
        channels={"am": Channel(kind="alertmanager", url="http://x"), "hook": Channel(kind="webhook", url="http://x")},
        repeat_s=EVERY_S,
    )
    return Daemon(there, sinks, settings=dataclasses.replace(SETTINGS, alerts=alerts))


def _notice(there: World, number: int, stage: str, *, final: bool = False, thread: str = "inc1") -> Notice:
    data = {"stage": stage, "message": number, "final": final, "severity": "warning", "told": [stage], "labels": {},
            "joined": "", "worst": "warning"}  # fmt: skip
    return Notice(f"{thread}-{number}", thread, there.slurm.clock.now(), "title", "body", data)


async def _say(daemon: Daemon, notice: Notice) -> None:
    out = Transition()
    notices.send(daemon.state, out, notice)
    daemon.store.commit(out.changes)
    for effect in out.effects:
        assert isinstance(effect, DeliverNotice)
        event = await daemon.runner.perform[DeliverNotice](effect)
        assert event is not None
        await daemon.runner.handle(event)
    await daemon.quiet()


async def _later(daemon: Daemon, seconds: float = EVERY_S) -> None:
    daemon.world.slurm.clock.advance(seconds)
    await daemon.housekeeping()
    await daemon.quiet()


async def test_what_stands_is_there_again_and_what_is_over_is_not(world: Worlds) -> None:
    there, sink, hook = world(), Forgets(), FakeSink("hook")
    daemon = _daemon(there, sink, hook)
    await _say(daemon, _notice(there, 1, "held"))
    await _say(daemon, _notice(there, 1, "failed", thread="inc2"))
    await _later(daemon)
    sink.shown.clear()
    await _later(daemon, EVERY_S / 2)
    assert sink.shown == {}
    await _later(daemon)
    assert sink.shown == {"inc1": "held", "inc2": "failed"}
    await _say(daemon, _notice(there, 2, "resolved", final=True))
    sink.shown.clear()
    await _later(daemon)
    assert sink.shown == {"inc2": "failed"} and len(hook.all) == 3, "other receivers get each once"


async def test_the_next_daemon_knows_what_stands(world: Worlds) -> None:
    there, sink = world(), Forgets()
    first = _daemon(there, sink)
    for name in ("inc1", "inc2"):
        there.store.save_incident(incident(id=name, state=IncidentState.HELD))
        await _say(first, _notice(there, 1, "held", thread=name))
    await _say(first, _notice(there, 2, "resolved", final=True, thread="inc2"))
    sink.shown.clear()
    second = _daemon(there, sink)
    await second.start()
    await _later(second)
    assert sink.shown == {"inc1": "held"}


async def test_an_end_waits_for_a_repetition_under_way_which_would_undo_it(world: Worlds) -> None:
    there, sink = world(), Forgets()
    daemon = _daemon(there, sink)
    await _say(daemon, _notice(there, 1, "held"))
    out, now = Transition(), there.slurm.clock.now() + timedelta(seconds=EVERY_S)
    repeat_due(daemon.state, out, now)
    (repetition,) = out.effects
    assert isinstance(repetition, DeliverNotice) and repetition.repeat
    out = Transition()
    notices.send(daemon.state, out, _notice(there, 2, "resolved", final=True))
    assert out.effects == []
    out = daemon.runner.engine.handle(NoticeDelivered(now, repetition.notice, "am"))
    (last,) = out.effects
    assert isinstance(last, DeliverNotice) and last.notice.data["final"]
    out = Transition()
    repeat_due(daemon.state, out, now + timedelta(seconds=EVERY_S))
    assert out.effects == [], "nor is repeated what may be over in a moment"
