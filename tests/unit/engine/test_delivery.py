"""When a receiver gets a message: at once, after its quiet hours, with its digest; and what a failed attempt leads to."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from delivery_attempts import Attempts, channel, notice, settings_with
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import AT, ended, incident, plan, verdict

from sentinel.config.alerts import Alerts
from sentinel.engine import recovery
from sentinel.engine.delivery import due, is_for
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Delivery, IncidentState, Notice

Worlds = Callable[..., World]


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    return datetime(2026, 7, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("quiet", "zone", "now", "expected"),
    [
        ("22:00-07:00", "UTC", at(21, 59), at(21, 59)),
        ("22:00-07:00", "UTC", at(22), at(7, day=2)),
        ("22:00-07:00", "UTC", at(3), at(7)),
        ("22:00-07:00", "UTC", at(7), at(7)),
        ("12:00-13:00", "UTC", at(12, 30), at(13)),
        ("22:00-07:00", "Europe/Zurich", at(20), at(5, day=2)),  # two hours ahead in summer
        ("22:00-07:00", "Europe/Zurich", at(5), at(5)),
    ],
)
def test_quiet_hours(quiet: str, zone: str, now: datetime, expected: datetime) -> None:
    assert due(channel(quiet=quiet, timezone=zone), notice(now)) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (datetime(2026, 10, 24, 22, 0, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 0, 15, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 0, 45, tzinfo=UTC), datetime(2026, 10, 25, 0, 45, tzinfo=UTC)),
        (datetime(2026, 10, 25, 1, 15, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        (datetime(2026, 3, 29, 0, 45, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
    ],
)
def test_quiet_hours_that_end_in_an_hour_that_comes_twice_or_not_at_all(now: datetime, expected: datetime) -> None:
    """In Berlin it is 02:15 at 00:15 and at 01:15 of 25 October; on 29 March 03:00 follows 02:00."""
    assert due(channel(quiet="22:00-02:30", timezone="Europe/Berlin"), notice(now)) == expected


def test_a_held_job_is_news_for_its_owner_and_none_for_operators() -> None:
    held = notice(severity="info", stage="held", told=["held"], user="alice", owner_text="Job 8 is held.")
    later = dataclasses.replace(held, data={**held.data, "stage": "resolved", "told": ["held", "resolved"]})
    handled = dataclasses.replace(held, data={**held.data, "stage": "handled", "told": ["handled"]})
    owners = channel(audience="owners", least_severity="warning")

    assert [is_for(owners, one) for one in (held, later, handled)] == [True, True, False]
    assert not is_for(channel(least_severity="warning"), held)
    assert not is_for(channel(audience="owners", least_severity="critical"), held)
    night = channel(audience="owners", quiet="22:00-07:00", at_once="warning")
    assert due(night, dataclasses.replace(held, at=at(23))) == at(23)


def test_what_is_critical_waits_for_nothing() -> None:
    night = channel(quiet="22:00-07:00", digest_s=3600.0)
    assert due(night, notice(at(23), "critical")) == at(23)
    assert due(dataclasses.replace(night, at_once="none"), notice(at(23), "critical")) == at(7, day=2)
    assert due(dataclasses.replace(night, at_once="warning"), notice(at(23))) == at(23)
    assert due(None, notice(at(23), "info")) == at(23)


def test_digest_has_the_same_end_for_all_that_comes_in_it() -> None:
    hourly = channel(digest_s=3600.0)
    assert {due(hourly, notice(at(9, minute))) for minute in (0, 1, 59)} == {at(10)}
    assert due(dataclasses.replace(hourly, quiet="22:00-07:00"), notice(at(21, 30))) == at(7, day=2)


async def _tell(daemon: Daemon, *names: str) -> None:
    for name in names:
        daemon.state.put(incident(ended(), id=name, state=IncidentState.WAITING))
        daemon.state.verdicts[name], daemon.state.plans[name] = verdict(), plan(incident=name, refusal="drain-budget")
        await daemon.runner.timer_due(recovery.notice_timer(name))


async def test_what_came_within_a_digest_is_one_message_also_after_a_start(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine")
    settings = settings_with(digest_s=600.0, at_once="none")
    daemon = Daemon(there, [sink], settings=settings)
    await _tell(daemon, "inc1", "inc2")
    await daemon.runner.stop()  # before its time
    assert sink.got == [] and len(there.store.undelivered()) == 2
    again = Daemon(there, [sink], settings=settings)
    await again.start()
    await again.quiet()
    assert [one.title for one in sink.got] == ["2 incidents: 2 critical"] and there.store.undelivered() == []


class Refuses(FakeSink):
    async def send(self, notice: Notice) -> None:
        raise Refused("answered 404")


async def test_attempts_have_growing_pauses_and_an_end_that_is_stored(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine", fails=99)
    daemon = Daemon(there, [sink], settings=settings_with())
    began = there.slurm.clock.now()
    await _tell(daemon, "inc1")
    await daemon.quiet()
    assert sink.fails == 99 - 4 and there.slurm.clock.now() - began >= timedelta(seconds=12.5)
    ((kept, receiver),) = there.store.undelivered()
    assert receiver == "mine" and kept.delivery == Delivery(4, "mine does not answer", True, None)
    assert "notice-given-up" in daemon.said
    sink.fails = 0
    again = Daemon(there, [sink], settings=settings_with())
    await again.start()
    await again.quiet()
    assert len(sink.got) == 1 and there.store.undelivered() == [], "a dead letter is tried once more after a start"


@pytest.mark.parametrize(("asked_s", "pause_s"), [(60.0, 60.0), (0.1, 0.5), (1e9, 3600.0)])
async def test_a_receiver_may_ask_for_a_pause(world: Worlds, asked_s: float, pause_s: float) -> None:
    class Busy(FakeSink):
        async def send(self, notice: Notice) -> None:
            error = Unavailable("answered 429")
            error.after_s = asked_s
            raise error

    there = world()
    daemon = Daemon(there, [Busy("mine")], settings=settings_with(attempts=2))
    began = there.slurm.clock.now()
    await _tell(daemon, "inc1")
    await daemon.quiet()
    assert pause_s <= (there.slurm.clock.now() - began).total_seconds() < pause_s + 0.5


async def test_a_receiver_that_was_away_for_an_hour_gets_what_was_told_at_its_beginning(world: Worlds) -> None:
    """As the settings promise of ``alerts.attempts``."""
    case = Attempts(world(), attempts=Alerts().attempts)
    case.say(1)
    while case.now < AT + timedelta(hours=1):
        case.ends(taken=False)
        case.pause_ends()
        assert case.under_way, f"given up after {case.now - AT}"


async def test_what_is_refused_is_a_dead_letter_at_once(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there, [Refuses("mine")], settings=settings_with())
    await _tell(daemon, "inc1")
    await daemon.quiet()
    ((kept, _),) = there.store.undelivered()
    assert kept.delivery == Delivery(1, "answered 404", True, None)


async def test_old_dead_letters_are_no_news(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine")
    old = dataclasses.replace(notice(there.slurm.clock.now() - timedelta(days=2)), incident="")
    there.store.record_notice(old, "mine", False)
    daemon = Daemon(there, [sink], settings=settings_with())
    await daemon.start()
    await daemon.quiet()
    assert sink.got == [] and len(there.store.undelivered()) == 1


@pytest.mark.parametrize(("days", "sent"), [(2.0, True), (6.5, True), (7.5, True), (8.5, False)])
async def test_what_waits_for_a_long_digest_is_news_until_a_day_after_that(
    world: Worlds, days: float, sent: bool
) -> None:
    there, sink = world(), FakeSink("mine")
    clock, settings = there.slurm.clock, settings_with(digest_s=7 * 86_400.0)
    told = dataclasses.replace(notice(clock.now(), "info"), incident="")
    begun = due(settings.alerts.channels["mine"], told) - timedelta(days=7)
    told = dataclasses.replace(told, at=begun)
    there.store.record_notice(told, "mine", False)
    clock.at = begun + timedelta(days=days)
    daemon = Daemon(there, [sink], settings=settings)
    await daemon.start()
    await daemon.quiet()
    assert (len(sink.all), len(there.store.undelivered())) == ((1, 0) if sent else (0, 1))
    assert not sent or clock.now() >= begun + timedelta(days=7)


class Slow(FakeSink):
    """Takes a message once it may: ``may``."""

    def __init__(self) -> None:
        super().__init__("mine")
        self.begun, self.may = asyncio.Event(), asyncio.Event()

    async def send(self, notice: Notice) -> None:
        self.begun.set()
        await self.may.wait()
        await super().send(notice)


@pytest.mark.parametrize(
    ("hangs", "deadline_s", "most_s"), [(False, 60.0, 60.0), (True, 0.05, 60.0), (True, 3600.0, 0.05)]
)
async def test_a_stop_waits_for_deliveries_under_way_and_for_none_that_hangs(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, hangs: bool, deadline_s: float, most_s: float
) -> None:
    monkeypatch.setattr("sentinel.daemon.runner._LAST_DELIVERIES_S", most_s)
    there, sink, settings = world(), Slow(), settings_with()
    alerts = dataclasses.replace(settings.alerts, deadline_s=deadline_s)
    daemon = Daemon(there, [sink], settings=dataclasses.replace(settings, alerts=alerts))
    await _tell(daemon, "inc1")
    await sink.begun.wait()
    stopping = asyncio.create_task(daemon.runner.stop())
    if not hangs:
        sink.may.set()
    await asyncio.wait_for(stopping, 30.0)
    assert len(sink.all) == (0 if hangs else 1), "what can be delivered is"
    assert len(there.store.undelivered()) == (1 if hangs else 0), "and what was not is the next daemon's"


async def test_a_receiver_that_is_back_hears_how_it_is_now_and_nothing_of_before(world: Worlds) -> None:
    case = Attempts(world())
    case.say(1)
    case.ends(taken=False)
    case.say(2)
    assert [one.notice.id for one in case.under_way] == ["m2"], "news is tried at once"
    case.ends(taken=False)
    case.pause_ends()
    assert [one.notice.id for one in case.under_way] == ["m2"], "of the first there is no attempt of its own any more"
    case.ends(taken=True)
    case.pause_ends()
    assert (case.told, case.under_way, case.missing) == (["m2"], [], [])


async def test_messages_of_a_thread_do_not_overtake_each_other_on_their_way(world: Worlds) -> None:
    case = Attempts(world())
    for number in (1, 2, 3):
        case.say(number)
    assert [one.notice.id for one in case.under_way] == ["m1"]
    for _ in range(3):
        case.ends(taken=True)
    assert (case.told, case.under_way) == (["m1", "m2", "m3"], [])


async def test_what_came_during_an_attempt_that_failed_is_told_by_the_newest(world: Worlds) -> None:
    case = Attempts(world())
    for number in (1, 2, 3):
        case.say(number)
    case.ends(taken=False)
    assert [one.notice.id for one in case.under_way] == ["m3"]
    case.ends(taken=True)
    assert (case.told, case.under_way, case.missing) == (["m3"], [], [])


async def test_news_that_waits_for_nothing_tells_what_was_kept_for_a_digest(world: Worlds) -> None:
    case = Attempts(world(), digest_s=3600.0)
    case.say(1)
    case.say(2, "critical")
    case.ends(taken=True)
    case.pause_ends()
    assert (case.told, case.under_way, case.missing) == (["m2"], [], [])


async def test_what_was_urgent_and_is_over_when_the_receiver_is_back_is_not_told_as_news(world: Worlds) -> None:
    case = Attempts(world(), digest_s=3600.0)
    case.say(1, "critical")
    case.ends(taken=False)
    case.say(2)
    assert case.under_way == [], "it has its own time"
    case.pause_ends()
    case.ends(taken=True)
    case.pause_ends()
    assert (case.told, case.under_way, case.missing) == (["m2"], [], [])


@pytest.mark.parametrize("taken", [False, True])
async def test_a_digest_under_way_is_not_overtaken_and_tells_nothing_that_was_told_since(
    world: Worlds, taken: bool
) -> None:
    case = Attempts(world(), digest_s=3600.0)
    case.say(1)
    case.say(2)
    case.pause_ends()
    (digest_of_both,) = case.under_way
    case.say(3, "critical")
    assert case.under_way == [digest_of_both]
    case.ends(taken=taken)
    assert [one.notice.id for one in case.under_way] == ["m3"]
    case.ends(taken=True)
    case.pause_ends()
    assert (case.told[-1], case.under_way, case.missing) == ("m3", [], [])


async def test_messages_of_a_digest_that_failed_are_in_the_next_one(world: Worlds) -> None:
    case = Attempts(world(), digest_s=3600.0)
    case.say(1)
    case.say(2)
    case.pause_ends()
    case.ends(taken=False)
    case.say(3)
    case.pause_ends()
    (last,) = case.under_way
    assert {one.id for one in last.of} == {"m1", "m2", "m3"}
    case.ends(taken=True)
    assert case.missing == []


async def test_a_dead_letter_is_no_news_once_a_later_message_of_its_thread_was_taken(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine")
    for number, delivered in ((1, False), (2, True)):
        at = there.slurm.clock.now() - timedelta(hours=20, seconds=-number)
        for thread in ({}, {"since": "then"}):
            one = dataclasses.replace(notice(at, message=number, **thread), id=f"{number}{len(thread)}")
            there.store.record_notice(dataclasses.replace(one, incident="" if thread else "inc1"), "mine", delivered)
    daemon = Daemon(there, [sink], settings=settings_with())
    await daemon.start()
    await daemon.quiet()
    assert sink.all == []


async def test_a_start_tells_of_a_thread_how_it_is_now(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine")
    for number in (2, 1):
        one = notice(there.slurm.clock.now() + timedelta(seconds=number), message=number)
        there.store.record_notice(dataclasses.replace(one, id=f"m{number}"), "mine", False)
    daemon = Daemon(there, [sink], settings=settings_with())
    await daemon.start()
    await daemon.quiet()
    assert [one.id for one in sink.all] == ["m2"] and there.store.undelivered() == []


async def test_an_address_that_has_it_is_known_at_the_next_attempt_and_after_a_start(world: Worlds) -> None:
    case = Attempts(world())
    case.say(1)
    case.ends(taken=False, took=("a@x",))
    case.pause_ends()
    assert case.under_way[0].notice.delivery.took == ("a@x",)
    case.ends(taken=False)  # not reached at all: it has it still
    case.pause_ends()
    assert case.under_way[0].notice.delivery.took == ("a@x",)
    ((kept, _),) = case.daemon.world.store.undelivered()
    assert kept.delivery.took == ("a@x",)
    case.say(2)
    case.ends(taken=False)
    assert case.under_way[0].notice.delivery.took == (), "another message"


@pytest.mark.parametrize("before", [1, 2])
async def test_what_may_have_arrived_is_sent_once_more_and_not_a_dozen_times(world: Worlds, before: int) -> None:
    there = world()
    case = Attempts(there)
    case.say(1)
    for _ in range(before):
        case.ends(taken=False, unsure=True)
        case.pause_ends()
    assert bool(case.under_way) is (before == 1)
    sink = FakeSink("mine", fails=1000)
    daemon = Daemon(there, [sink], settings=settings_with())
    await daemon.start()
    await daemon.quiet()
    ((kept, _),) = there.store.undelivered()
    assert kept.delivery.unsure == before, "a start does not begin anew"
    assert kept.delivery.given_up and bool(sink.fails == 1000) is (before == 2)
