"""An outage of the store before this daemon acts: it was started in it, or stands by and was told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_memory.daemon import FakeSink
from in_memory.world import World
from prometheus_client import CollectorRegistry
from stories.store_outage import FULL, Case, Mailbox, events

from sentinel.config.alerts import Alerts, Channel
from sentinel.config.settings import Daemon, Settings
from sentinel.daemon import outage_standby
from sentinel.daemon.outage import EVERY_S
from sentinel.daemon.outage_standby import OutageBeforeActing, once_store_answers, waiting_daemon
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.standby import StandbyServer, another_acts
from sentinel.errors import Unavailable, UserError
from sentinel.log import Log
from sentinel.telemetry import Telemetry

Worlds = Callable[..., World]


class Waits:
    """A daemon that waits for its store or its lease, beside or after that of ``case``."""

    def __init__(
        self, case: Case, *sinks: FakeSink, file: Path | None = None, alerts: Alerts | None = None, acts: bool = True
    ) -> None:
        """``acts``: whether another daemon is seen to act."""
        self.clock, log = case.clock, Log(case.daemon.stream)
        self.another = acts

        async def elsewhere(or_tells: bool) -> bool:
            return self.another

        settings = Settings(alerts=alerts or Alerts())
        self.outage = OutageBeforeActing(
            settings, {sink.name: sink for sink in sinks}, OutageTold(file, log), case.clock, log, elsewhere=elsewhere
        )
        lease: Any = SimpleNamespace(another_renews=acts)
        self.outage.lease = lease

    async def looks(self, span_s: float) -> None:
        for _ in range(round(span_s / EVERY_S)):
            self.clock.advance(EVERY_S)
            await self.outage.look()

    async def looks_until_told(self, sink: FakeSink, event: str) -> None:
        while event not in events(sink):
            await self.looks(EVERY_S)


async def test_people_are_told_that_a_daemon_waits_for_its_store_and_by_whoever_acts_that_it_is_over(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A power cut took the database and the daemon, which was back first."""
    there, pager, deaf, file = world(), FakeSink("pager"), FakeSink("deaf", fails=1000), tmp_path / "told.json"
    case = Case(there, monkeypatch, pager, deaf, file=file)
    waits, began = Waits(case, pager, deaf, file=file, acts=False), case.clock.now()
    for _ in range(20):
        waits.outage.answers(FULL)
        await waits.looks(EVERY_S)
        assert bool(pager.all) is ((case.clock.now() - began).total_seconds() >= Settings().daemon.blind_s)
    assert events(pager) == ["blind"] and FULL in pager.all[0].body
    waits.outage.answers("")
    await waits.looks(20.0)
    assert events(pager) == ["blind"], "nobody acts yet"
    acts = Case(there, monkeypatch, pager, deaf, file=file)
    await acts.looks(5.0)
    await acts.daemon.quiet()
    assert events(pager) == ["blind", "sees_again"] and not file.exists()


async def test_nobody_is_told_twice_of_what_another_daemon_tells_nor_of_what_is_short(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = FakeSink("pager")
    waits = Waits(Case(world(), monkeypatch, pager), pager)
    waits.outage.answers(FULL)
    await waits.looks(200.0)
    waits.another = False
    waits.outage.answers("")
    for _ in range(5):
        waits.outage.answers(FULL)
        await waits.looks(50.0)
        waits.outage.answers("")
    assert pager.all == []


async def test_one_that_stands_by_says_that_it_tells_people_for_as_long_as_the_outage_lasts_of_which_somebody_heard(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started meanwhile asks it, and tells nobody a second time."""
    pager = FakeSink("pager", fails=1)
    case = Case(world(), monkeypatch, pager)
    waits = Waits(case, pager, acts=False)
    nobody: Any = SimpleNamespace()
    server = StandbyServer(
        Daemon(listen="127.0.0.1:0"),
        nobody,
        Telemetry(CollectorRegistry()),
        Log(case.daemon.stream),
        waits.outage.tells,
    )
    await server.start()
    host, port = server.address

    async def tells() -> bool:
        return await another_acts(None, Daemon(url=f"http://{host}:{port}"), 60.0, or_tells=True)

    try:
        waits.outage.answers(FULL)
        await waits.looks(60.0)
        assert pager.all == [] and not await tells()
        await waits.looks_until_told(pager, "blind")
        assert await tells()
        waits.outage.answers("")
        assert not await tells()
    finally:
        await server.stop()


async def test_a_store_that_does_not_answer_is_opened_again_and_one_that_cannot_be_used_is_not(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, said, left = Case(world(), monkeypatch), list[str](), [Unavailable("refused")] * 3

    monkeypatch.setattr(outage_standby, "_AGAIN_S", 0.0)

    def make() -> str:
        if left:
            raise left.pop()
        return "store"

    assert await once_store_answers(make, said.append, Log(case.daemon.stream)) == "store"
    assert said == ["refused"] * 3 + [""] and case.daemon.said.count("waiting-for-store") == 1

    def wrong() -> str:
        raise UserError("no database that Sentinel knows")

    with pytest.raises(UserError):
        await asyncio.wait_for(once_store_answers(wrong, said.append, Log(case.daemon.stream)), 60.0)


def test_receivers_that_cannot_be_made_keep_no_daemon_from_standing_by(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = Case(world(), monkeypatch)
    log = Log(case.daemon.stream)
    alerts = Alerts(channels={"hook": Channel("webhook", url_file=str(tmp_path / "missing"))})
    waiting_daemon(Settings(alerts=alerts), OutageTold(None, log), case.clock, log)
    assert "outage-not-told" in case.daemon.said


async def test_one_that_stands_by_tells_those_who_heard(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager, file = FakeSink("pager"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, pager, FakeSink("removed"), file=file)
    case.lease = FULL
    await case.looks(100.0)
    pager.fails = 2
    await Waits(case, pager, file=file).looks_until_told(pager, "sees_again")
    assert events(pager) == ["blind", "sees_again"] and not file.exists()


@pytest.mark.parametrize("lasts", [True, False])
async def test_who_had_not_taken_it_before_a_restart_hears_of_an_outage_that_lasts(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lasts: bool
) -> None:
    pager, mail, file = FakeSink("pager"), FakeSink("mail", fails=1000), tmp_path / "told.json"
    case = Case(world(), monkeypatch, pager, mail, file=file)
    case.lease = FULL
    await case.looks(100.0)
    mail.fails, waits = 0, Waits(case, pager, mail, file=file, acts=False)
    for _ in range(20):
        waits.outage.answers(FULL if lasts else "")
        await waits.looks(EVERY_S)
    assert events(pager) == ["blind"] and events(mail) == ["blind"] * lasts
    assert set(OutageTold(file, Log(case.daemon.stream)).receivers) == ({"pager", "mail"} if lasts else {"pager"})


async def test_of_a_mail_that_some_took_these_get_no_second_one(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mail, file = Mailbox("mail"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, mail, file=file)
    case.lease = FULL
    await case.looks(100.0)
    assert [one.delivery.took for one in mail.all] == [(), ("ops@example.org",)]
    mail.all = []
    await Waits(case, mail, file=file).looks(100.0)
    assert [one.delivery.took for one in mail.all] == [(), ("ops@example.org",)]


async def test_a_silent_mail_server_gets_each_message_twice_and_the_end_where_it_may_have_taken_the_first(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mail, file = Mailbox("mail"), tmp_path / "told.json"
    mail.silent = True
    case = Case(world(), monkeypatch, mail, file=file)
    case.lease = FULL
    await case.looks(200.0)
    assert events(mail) == ["blind"] * 2
    await Waits(case, mail, file=file).looks(100.0)
    assert events(mail) == ["blind"] * 2 + ["sees_again"] * 2
    case.lease, mail.heals = "", True
    await case.looks(5.0)
    await case.daemon.quiet()
    assert events(mail)[4:] == ["sees_again"]


async def test_one_that_stands_by_tells_of_the_end_after_quiet_hours_too(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chat, file = FakeSink("chat"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, chat, file=file)
    case.lease = FULL
    await case.looks(100.0)
    quiet = Alerts(channels={"chat": Channel("apprise", url="https://chat.example/x", digest_s=3600.0)}, attempts=2)
    waits = Waits(case, chat, file=file, alerts=quiet)
    await waits.looks(60.0)
    assert events(chat) == ["blind"] and file.exists()
    await waits.looks(3600.0)
    assert events(chat) == ["blind", "sees_again"] and not file.exists()
