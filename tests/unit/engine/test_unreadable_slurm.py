"""Slurm cannot be read for long: people are told once that nobody watches, and once when somebody does again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World

from sentinel.engine.unreadable_slurm import BLIND as KEY
from sentinel.errors import Unavailable
from sentinel.model.records import Notice

Worlds = Callable[..., World]


async def looks(daemon: Daemon, span_s: float, every_s: float = 5.0) -> None:
    """Time passes; Slurm is asked now and then."""
    for _ in range(round(span_s / every_s)):
        daemon.world.slurm.clock.advance(every_s)
        try:
            await daemon.fleets.take()
        except Unavailable:
            pass
    await daemon.quiet()


def events(sink: FakeSink) -> list[Any]:
    return [notice.data["event"] for notice in sink.got]


def blind_s(daemon: Daemon) -> float | None:
    return daemon.telemetry.registry.get_sample_value("sentinel_slurm_blind_seconds")


async def test_told_once_when_it_lasts_and_once_when_it_is_over(world: Worlds) -> None:
    there, sinks = world(), [FakeSink("a"), FakeSink("b")]
    daemon = Daemon(there, sinks)
    await looks(daemon, 10.0)
    assert blind_s(daemon) == 0.0
    began = there.slurm.clock.now()
    there.slurm.answers = False
    await looks(daemon, 60.0)
    assert [len(sink.got) for sink in sinks] == [0, 0] and blind_s(daemon) == 55.0
    await looks(daemon, 300.0)
    assert [events(sink) for sink in sinks] == [["blind"], ["blind"]]
    notice: Notice = sinks[0].got[0]
    assert notice.title == "Sentinel is blind: Slurm cannot be read" and notice.incident == ""
    first_failure = f"{began + timedelta(seconds=5):%Y-%m-%d %H:%M:%S} UTC"
    for words in (first_failure, "slurmctld did not answer within its deadline", "scontrol ping", "sentinel doctor"):
        assert words in notice.body
    there.slurm.answers = True
    await looks(daemon, 60.0)
    assert [events(sink) for sink in sinks] == [["blind", "sees_again"]] * 2
    assert "6 min" in sinks[0].got[1].body and blind_s(daemon) == 0.0
    there.slurm.answers = False
    await looks(daemon, 70.0)
    assert events(sinks[0]) == ["blind", "sees_again", "blind"], "another time"


async def test_a_short_silence_is_nobodys_business(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    for _ in range(5):
        there.slurm.answers = False
        await looks(daemon, 55.0)
        there.slurm.answers = True
        await looks(daemon, 5.0)
    assert sink.got == []


@pytest.mark.parametrize("answers_first", [False, True])
async def test_a_daemon_that_is_started_anew_meanwhile_tells_nobody_again(world: Worlds, answers_first: bool) -> None:
    there, sink = world(), FakeSink()
    there.slurm.answers = False
    await looks(Daemon(there, [sink]), 70.0)
    again = Daemon(there, [sink])
    await again.quiet()
    assert events(sink) == ["blind"], "not asked yet: nothing is known"
    if not answers_first:
        await looks(again, 300.0)
        assert events(sink) == ["blind"]
    there.slurm.answers = True
    await looks(again, 10.0)
    assert events(sink) == ["blind", "sees_again"]
    await looks(Daemon(there, [sink]), 10.0)
    assert events(sink) == ["blind", "sees_again"] and there.store.get(KEY) is None


async def test_a_receiver_that_was_away_gets_it_later_and_it_is_forgotten_in_the_end(world: Worlds) -> None:
    there, sink = world(), FakeSink(fails=99)
    there.slurm.answers = False
    await looks(Daemon(there, [sink]), 70.0)
    there.store.forget(there.slurm.clock.advance(1.0) - timedelta(days=1))
    assert len(there.store.undelivered()) == 1, "young: it is still sent"
    sink.fails = 0
    again = Daemon(there, [sink])
    await again.start()
    await again.quiet()
    assert events(sink) == ["blind"]
    notice = sink.got[0]
    there.store.forget(there.slurm.clock.advance(1.0))
    assert not there.store.knows_notice(notice.id, sink.name)


async def test_one_unreadable_record_does_not_blind(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    there.slurm.unreadable.add(there.job)
    daemon = Daemon(there, [sink])
    await looks(daemon, 120.0)
    assert sink.got == [] and blind_s(daemon) == 0.0
