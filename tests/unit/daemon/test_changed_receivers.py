"""What a receiver did not take: the newest of a thread says all that holds on, and goes to those named in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from delivery_attempts import channel, notice
from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail
from in_memory.world import World
from made_records import lost_gpu

from sentinel.adapters.notify.http_post import name_of
from sentinel.config.alerts import JOB_LOG, Alerts, Channel
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Delivery, Notice

Worlds = Callable[..., World]
OLD, NEW, OTHER = (name_of(f"https://chat.example/hook/{token}") for token in ("old", "new", "other"))
REFUSED = Delivery(1, "answered 401", True)


def told(there: World, number: int = 1, *, hours: float = 3.0, **data: object) -> Notice:
    """Message of a thread that was written some hours ago; the later one with the higher number."""
    at = there.slurm.clock.now() - timedelta(hours=hours, seconds=-number)
    texts = {"operator_text": f"how it was {number}", "owner_text": "of a job"}
    made = notice(at, "critical", message=number, told=["handled"], worst="critical", **texts, **data)
    return dataclasses.replace(made, id=f"m{number}", body=f"how it was {number}", delivery=REFUSED)


async def started(there: World, *sinks: FakeSink, **channels: Channel) -> Daemon:
    settings = dataclasses.replace(SETTINGS, alerts=Alerts(channels=channels))
    daemon = Daemon(there, sinks, settings=settings)
    await daemon.start()
    await daemon.quiet()
    return daemon


async def test_what_a_revoked_address_refused_goes_once_to_the_new_one(world: Worlds) -> None:
    class Revoked(FakeSink):
        async def send(self, notice: Notice) -> None:
            raise Refused("answered 401")

    there, taking, new = world(), FakeSink(OTHER), FakeSink(NEW)
    for number in (1, 2):
        there.store.record_notice(told(there, number), OLD, False)
        there.store.record_notice(told(there, number), OTHER, True)
    await started(there, Revoked(OLD), taking)
    assert len(there.store.undelivered()) == 2
    await started(there, taking, new)
    assert ([one.id for one in new.all], taking.all) == (["m2"], []), "how it is now, to whom it is news"
    assert there.store.undelivered() == []
    after = FakeSink(NEW)
    await started(there, taking, after)
    assert (after.all, taking.all) == ([], [])


async def test_what_is_sent_late_says_when_it_was_written(world: Worlds) -> None:
    there, new = world(), FakeSink(NEW)
    late = told(there)
    there.store.record_notice(late, OLD, False)
    await started(there, new)
    (got,) = new.all
    words = f"Written at {late.at:%Y-%m-%d %H:%M:%S} UTC, 3 h before it was sent."
    assert (got.body, got.data["operator_text"]) == (f"{words}\nhow it was 1",) * 2
    assert got.data["owner_text"] == f"{words} of a job"
    ((kept, _, delivered),) = there.store.notices(since=late.at, most=9)
    assert delivered and kept.body == "how it was 1", "as it was written"


async def test_two_addresses_that_went_are_one_message_to_each_new_one(world: Worlds) -> None:
    there, first, second = world(), FakeSink(NEW), FakeSink(name_of("https://chat.example/hook/second"))
    for gone in (OLD, OTHER):
        there.store.record_notice(told(there), gone, False)
    await started(there, first, second)
    assert [len(sink.all) for sink in (first, second)] == [1, 1] and there.store.undelivered() == []


async def test_addresses_that_took_it_are_known_under_a_channels_new_name(world: Worlds) -> None:
    there, sink = world(), FakeSink("ops")
    for gone, address in (("operators", "a@example"), ("people", "b@example")):
        half = dataclasses.replace(told(there), delivery=Delivery(3, "answered 550", True, took=(address,), unsure=1))
        there.store.record_notice(half, gone, False)
    await started(there, sink, ops=channel())
    (got,) = sink.all
    assert sorted(got.delivery.took) == ["a@example", "b@example"] and got.delivery.unsure == 1


@pytest.mark.parametrize(
    ("case", "sent"),
    [
        ("an address that went, and a channel that is for it", 1),
        ("a channel whose name was changed", 1),
        ("one that asks for another partition", 0),
        ("a job's log", 0),
        ("written long ago", 0),
        ("it may have arrived", 0),
        ("a later one of its thread came since", 0),
    ],
)
async def test_who_else_gets_what_was_not_taken(world: Worlds, case: str, sent: int) -> None:
    there, sink = world(), FakeSink("ops")
    made = told(there, hours=30.0 if case == "written long ago" else 3.0, partition="gpu")
    if case == "it may have arrived":
        made = dataclasses.replace(made, delivery=Delivery(2, "no answer", True, unsure=2))
    gone = {"a channel whose name was changed": "operators", "a job's log": JOB_LOG}.get(case, OLD)
    there.store.record_notice(made, gone, False)
    if case == "a later one of its thread came since":
        there.store.record_notice(told(there, 2), "ops", True)
    chosen = ["cpu"] if case == "one that asks for another partition" else []
    await started(there, sink, ops=channel(partitions=chosen))
    assert len(sink.all) == sent and len(there.store.undelivered()) == 1 - sent


class Away(FakeSink):
    """Takes nothing until ``back``."""

    back = False

    async def send(self, notice: Notice) -> None:
        if not self.back:
            raise Unavailable(f"{self.name} does not answer")
        await super().send(notice)


async def test_the_newest_message_of_a_thread_says_what_was_done_before_it(world: Worlds) -> None:
    there, away = world(nodes=6), Away("ops")
    daemon = Daemon(there, [away], settings=SETTINGS)
    await fail(daemon, lost_gpu("n1"))
    away.back = True
    await started(there, away)
    (got,) = away.all
    assert got.data["told"] == ["restarting", "running again"] and got.data["drained"] == ["n1"]
    assert "Drained: n1." in got.body and "Done: drained n1; restarted the job" in str(got.data["operator_text"])


@pytest.mark.parametrize("digest_s", [0.0, 600.0])
async def test_what_only_a_message_before_it_said_and_what_holds_on_is_in_the_newest(
    world: Worlds, digest_s: float
) -> None:
    there, sink = world(), FakeSink("ops")
    words = "Within 1 h no more notices are sent of user_code in jobs of this user."
    for number in (1, 2):
        more = {"stands": [words]} if number == 1 else {"stands": []}
        there.store.record_notice(told(there, number, **more), "ops", False)
    if digest_s:
        other = dataclasses.replace(told(there, 3), id="other", incident="inc2")
        there.store.record_notice(other, "ops", False)
    await started(there, sink, ops=channel(digest_s=digest_s, at_once="none"))
    (got,) = sink.all
    for text in (got.body, str(got.data["operator_text"]), str(got.data["owner_text"])):
        assert text.count(words) == 1
