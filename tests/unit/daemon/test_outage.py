"""While the store cannot be written nothing is judged or done: people are told, without the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from in_memory.daemon import Daemon, FakeSink
from in_memory.views import OPERATOR, Shown
from in_memory.world import World
from made_records import evidence

from sentinel.cli.operator.doctor_daemon import findings_of
from sentinel.config.alerts import Alerts, Channel
from sentinel.config.settings import Daemon as DaemonSettings
from sentinel.config.settings import Settings
from sentinel.daemon.effects.messages import messages
from sentinel.daemon.outage import EVERY_S, StoreOutage
from sentinel.daemon.outage_told import OutageTold, tell_that_it_is_over
from sentinel.daemon.standby import another_acts
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.records import Kind, Notice
from sentinel.protocol import ACTIVE, STANDBY

Worlds = Callable[..., World]
FULL = "the store does not answer: database or disk is full"
XID = evidence(Kind.XID, node="n3", data={"xid": 79}, text="NVRM: Xid 79")


class Case:
    """A daemon whose store can be full, whose lease can be out, and beside which another one may act."""

    def __init__(
        self, there: World, monkeypatch: pytest.MonkeyPatch, *sinks: FakeSink, file: Path | None = None
    ) -> None:
        self.daemon, self.clock = Daemon(there, sinks), there.slurm.clock
        self.full, self.lease, self.other_acts = False, "", False
        commit = there.store.commit

        def written(changes: Any) -> None:
            if self.full:
                raise Unavailable(FULL)
            commit(changes)

        monkeypatch.setattr(there.store, "commit", written)
        log = Log(self.daemon.stream)

        async def acts() -> bool:
            return self.other_acts

        self.outage = StoreOutage(
            self.daemon.runner, self.clock, log,
            lease_problem=lambda: self.lease, another_acts=acts, told=OutageTold(file, log),
        )  # fmt: skip

    async def looks(self, span_s: float) -> None:
        for _ in range(round(span_s / EVERY_S)):
            self.clock.advance(EVERY_S)
            await self.outage.look()


def events(sink: FakeSink) -> list[Any]:
    return [notice.data["event"] for notice in sink.all if not notice.incident]


async def test_people_are_told_once_that_nothing_is_done_and_once_that_it_is_over(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager, chat = FakeSink("pager"), FakeSink("chat", fails=2)
    case = Case(world(), monkeypatch, pager, chat)
    began, case.full = case.clock.now(), True
    assert not await case.daemon.observe([XID])
    assert case.outage.shown() == {"since": began, "reason": FULL}
    await case.looks(55.0)
    assert pager.all == []
    await case.looks(300.0)
    assert events(pager) == events(chat) == ["blind"]
    notice = pager.all[0]
    for words in (f"{began:%H:%M:%S} UTC", FULL, "disk space", "judges, drains and restarts nothing"):
        assert words in notice.body
    case.full = False
    await case.daemon.quiet()
    assert case.outage.shown() is None
    await case.looks(20.0)
    await case.daemon.quiet()
    assert events(pager) == events(chat) == ["blind", "sees_again"]
    over = next(one for one in pager.all if one.data.get("event") == "sees_again")
    assert over.id != notice.id and over.data["since"] == notice.data["since"] and over.data["final"]


async def test_a_lease_that_cannot_be_renewed_is_an_outage_where_nothing_is_to_be_saved(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = FakeSink()
    case = Case(world(), monkeypatch, pager)
    case.lease = FULL
    await case.looks(5.0)
    began = case.clock.now()
    await case.looks(100.0)
    assert events(pager) == ["blind"] and case.outage.shown() == {"since": began, "reason": FULL}


async def test_a_short_outage_is_nobody_s_business_and_who_did_not_hear_of_one_hears_not_of_its_end(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager, deaf = FakeSink("pager"), FakeSink("deaf", fails=1000)
    case = Case(world(), monkeypatch, pager, deaf)
    for _ in range(3):
        case.lease = FULL
        await case.looks(55.0)
        case.lease = ""
        await case.looks(5.0)
    assert pager.all == []
    case.lease = FULL
    await case.looks(70.0)
    case.lease, deaf.fails = "", 0
    await case.looks(20.0)
    await case.daemon.quiet()
    assert (events(pager), deaf.all) == (["blind", "sees_again"], [])


async def test_what_was_told_of_an_outage_is_listed_once_it_is_over(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, pager, deaf = world(), FakeSink("pager"), FakeSink("deaf", fails=1000)
    case = Case(there, monkeypatch, pager, deaf)
    case.full = True
    assert not await case.daemon.observe([XID])
    await case.looks(65.0)
    assert events(pager) == ["blind"]
    case.full = False
    await case.daemon.quiet()
    await case.looks(5.0)
    await case.daemon.quiet()
    listed = await messages(there.store, case.clock.now(), {}, None)
    rows = {(row["stage"], row["receiver"]): row for row in listed["messages"] if not row["incident"]}
    assert {key: row["state"] for key, row in rows.items()} == {
        ("blind", "pager"): "delivered", ("sees_again", "pager"): "delivered", ("blind", "deaf"): "given up",
    }  # fmt: skip
    assert rows["blind", "deaf"]["tries"] >= 1 and "does not answer" in rows["blind", "deaf"]["reason"]
    deaf.fails = 0
    again = Daemon(there, [pager, deaf])
    await again.start()
    await again.quiet()
    assert events(deaf) == [], "what was so, and is no longer, is no news"


async def test_status_and_doctor_say_it(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(world())
    assert (await shown("status", OPERATOR))["outage"] is None
    shown.views.outage = lambda: {"since": shown.world.slurm.clock.now(), "reason": FULL}
    assert (await shown("status", OPERATOR))["outage"]["reason"] == FULL
    (found,) = [one for one in findings_of(await shown("doctor", OPERATOR), Settings()) if one.what == "store"]
    assert found.answer == "bad" and FULL in found.seen and "nothing is judged or done" in found.seen


async def test_nobody_is_told_that_nothing_is_done_while_another_daemon_acts(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = FakeSink()
    case = Case(world(), monkeypatch, pager)
    case.lease, case.other_acts = FULL, True
    await case.looks(100.0)
    assert events(pager) == []
    case.other_acts = False  # the database is away for both, or that one ended
    await case.looks(5.0)
    assert events(pager) == ["blind"]


async def test_where_another_daemon_acts_later_people_are_told_past_the_store(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager, deaf = FakeSink("pager"), FakeSink("deaf", fails=1000)
    case = Case(world(), monkeypatch, pager, deaf)
    case.lease = FULL
    await case.looks(100.0)
    case.other_acts, pager.fails, deaf.fails = True, 2, 0
    await case.looks(100.0)
    assert (events(pager), events(deaf)) == (["blind", "sees_again"], [])


async def test_a_process_that_is_replaced_leaves_to_the_next_one_whom_to_tell_of_the_end(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, pager, deaf, file = world(), FakeSink("pager"), FakeSink("deaf", fails=1000), tmp_path / "told.json"
    case = Case(there, monkeypatch, pager, deaf, file=file)
    case.lease = FULL
    await case.looks(100.0)
    assert file.exists()
    deaf.fails = 0
    next_one = Case(there, monkeypatch, pager, deaf, file=file)
    await next_one.looks(5.0)
    await next_one.daemon.quiet()
    assert (events(pager), events(deaf)) == (["blind", "sees_again"], [])
    assert not file.exists() and {one.data["since"] for one in pager.all} == {pager.all[0].data["since"]}


async def test_a_store_that_fails_anew_before_it_has_the_end_is_one_outage(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager, deaf, file = FakeSink("pager"), FakeSink("deaf", fails=1000), tmp_path / "told.json"
    case = Case(world(), monkeypatch, pager, deaf, file=file)
    began, case.full = case.clock.now(), True
    assert not await case.daemon.observe([XID])
    await case.looks(100.0)
    case.full = False
    await case.daemon.quiet()
    assert case.outage.shown() is None
    case.full, deaf.fails = True, 0
    await case.looks(5.0)
    while case.outage.shown() is None:
        await asyncio.sleep(0)
    await case.looks(200.0)
    assert (events(pager), events(deaf)) == (["blind"], ["blind"])
    kept = OutageTold(file, Log(case.daemon.stream))  # for the next process, if this one is killed now
    assert (kept.since, set(kept.receivers)) == (began, {"pager", "deaf"})
    case.full = False
    for _ in range(3):
        await case.looks(5.0)
        await case.daemon.quiet()
    assert (events(pager), events(deaf)) == (["blind", "sees_again"], ["blind", "sees_again"])
    assert not file.exists() and len({one.data["since"] for one in (*pager.all, *deaf.all) if not one.incident}) == 1


async def test_one_that_stands_by_tells_those_who_heard(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager, file = FakeSink("pager"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, pager, FakeSink("removed"), file=file)
    case.lease = FULL
    await case.looks(100.0)
    pager.fails = 2
    told, log = OutageTold(file, Log(case.daemon.stream)), Log(case.daemon.stream)
    await tell_that_it_is_over(told, Alerts(), {"pager": pager}, case.clock.now, log)
    assert events(pager) == ["blind", "sees_again"] and not file.exists()


class Mailbox(FakeSink):
    """Of its two addresses one refuses until ``heals``; or its server says nothing after it had all."""

    silent = heals = False

    async def send(self, notice: Notice) -> None:
        took, self.all = notice.delivery.took, [*self.all, notice]
        if not self.heals and (self.silent or not took):
            error = Unavailable("not taken by all")
            error.took, error.unsure = () if self.silent else ("ops@example.org",), self.silent
            raise error


async def test_of_a_mail_that_some_took_these_get_no_second_one(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mail, file = Mailbox("mail"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, mail, file=file)
    case.lease = FULL
    await case.looks(100.0)
    assert [one.delivery.took for one in mail.all] == [(), ("ops@example.org",)]
    mail.all = []
    log = Log(case.daemon.stream)
    await tell_that_it_is_over(OutageTold(file, log), Alerts(), {"mail": mail}, case.clock.now, log, again_s=0.0)
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
    log = Log(case.daemon.stream)
    await tell_that_it_is_over(OutageTold(file, log), Alerts(), {"mail": mail}, case.clock.now, log, again_s=0.0)
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
    alerts = Alerts(channels={"chat": Channel("apprise", url="https://chat.example/x", digest_s=3600.0)}, attempts=2)
    asked = 0

    def now() -> datetime:
        nonlocal asked
        asked += 1
        case.clock.advance(60.0)
        at: datetime = case.clock.now()
        return at

    log = Log(case.daemon.stream)
    await tell_that_it_is_over(OutageTold(file, log), alerts, {"chat": chat}, now, log, again_s=0.0)
    assert events(chat) == ["blind", "sees_again"] and not file.exists() and asked > 2 * alerts.attempts


async def test_only_the_daemon_s_account_reads_what_was_told(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "told.json"
    case = Case(world(), monkeypatch, FakeSink(), file=file)
    case.lease = FULL
    await case.looks(100.0)
    assert file.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", ["", "[]", '{"notice": 1}', '{"notice": {}, "receivers": 5}'])
def test_a_file_that_cannot_be_read_tells_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "told.json").write_text(content)
    assert OutageTold(tmp_path / "told.json", Log()).since is None


@pytest.mark.parametrize(("says", "acts"), [(ACTIVE, True), (STANDBY, False), ("", False)])
async def test_only_a_daemon_that_says_so_is_taken_for_active(says: str, acts: bool) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text=f"{says}\n")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    there, nobody = f"http://{host}:{port}", "http://127.0.0.1:9"
    try:
        for seen, named in ((there, nobody), (nobody, there)):  # one that came just now is in the settings only
            lease: Any = SimpleNamespace(other_addresses=(seen,))
            assert await another_acts(lease, DaemonSettings(url=named), 60.0) is acts
    finally:
        await runner.cleanup()
