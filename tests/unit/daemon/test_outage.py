"""While the store cannot be written nothing is judged or done: people are told, without the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from in_memory.daemon import Daemon, FakeSink
from in_memory.views import OPERATOR, Shown
from in_memory.world import World
from made_records import evidence
from stories.store_outage import FULL, Case, events

from sentinel.cli.operator.doctor_daemon import findings_of
from sentinel.config.settings import Daemon as DaemonSettings
from sentinel.config.settings import Settings
from sentinel.daemon.effects.messages import messages
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.standby import another_acts
from sentinel.errors import Timeout
from sentinel.log import Log
from sentinel.model.records import Kind, Notice
from sentinel.protocol import ACTIVE, STANDBY, TELLS

Worlds = Callable[..., World]
XID = evidence(Kind.XID, node="n3", data={"xid": 79}, text="NVRM: Xid 79")


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


async def test_a_receiver_that_was_away_for_a_while_hears_of_an_outage_that_lasts(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One switch took the database and the mail server: the latter is back after two hours, the database is not."""
    pager = FakeSink("pager", fails=10**6)
    case = Case(world(), monkeypatch, pager)
    case.full = True
    assert not await case.daemon.observe([XID])
    await case.looks(2 * 3600.0)
    assert 10**6 - pager.fails < 30
    pager.fails = 0
    await case.looks(700.0)
    assert events(pager) == ["blind"]


class Late(FakeSink):
    """Takes every message, and answers after the deadline; ``dies``: the daemon is killed before that."""

    dies = False

    async def send(self, notice: Notice) -> None:
        self.all.append(notice)
        if self.dies:
            raise asyncio.CancelledError
        silent = Timeout(f"{self.name} did not answer in time")
        silent.late = True
        raise silent


async def test_who_answered_too_late_hears_that_it_is_over(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late("pager")
    case = Case(world(), monkeypatch, late)
    case.lease = FULL
    await case.looks(120.0)
    assert set(events(late)) == {"blind"}
    case.lease = ""
    await case.looks(5.0)
    await case.daemon.quiet()
    assert "sees_again" in events(late)


async def test_who_was_told_by_a_daemon_that_was_killed_before_the_answer_hears_that_it_is_over(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, file, pager, deaf = world(), tmp_path / "told.json", Late("pager"), FakeSink("deaf", fails=1000)
    case = Case(there, monkeypatch, pager, deaf, file=file)
    case.lease, pager.dies = FULL, True
    with pytest.raises(asyncio.CancelledError):
        await case.looks(100.0)
    next_one = Case(there, monkeypatch, heard := FakeSink("pager"), file=file)
    await next_one.looks(5.0)
    await next_one.daemon.quiet()
    assert (events(pager), events(heard)) == (["blind"], ["sees_again"]) and not file.exists()


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
    await case.daemon.quiet()
    assert OutageTold(file, Log(case.daemon.stream)).receivers == ("deaf",), "the store has the end for the other one"
    for _ in range(3):
        await case.looks(5.0)
        await case.daemon.quiet()
    assert (events(pager), events(deaf)) == (["blind", "sees_again"], ["blind", "sees_again"])
    assert not file.exists() and len({one.data["since"] for one in (*pager.all, *deaf.all) if not one.incident}) == 1


async def test_only_the_daemon_s_account_reads_what_was_told(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "state" / "told.json"
    case = Case(world(), monkeypatch, FakeSink(), file=file)
    case.lease = FULL
    await case.looks(100.0)
    assert file.stat().st_mode & 0o777 == 0o600 and list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("content", ["", "[]", '{"notice": 1}', '{"notice": {}, "receivers": 5}'])
def test_a_file_that_cannot_be_read_tells_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "told.json").write_text(content)
    assert OutageTold(tmp_path / "told.json", Log()).since is None


@pytest.mark.parametrize(
    ("says", "tells", "acts"),
    [(ACTIVE, False, True), (STANDBY, False, False), (STANDBY, True, False), ("", False, False)],
)
async def test_only_a_daemon_that_says_so_is_taken_for_active(says: str, tells: bool, acts: bool) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text=f"{says}\n", headers={TELLS: "yes"} if tells else {})

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
            assert await another_acts(lease, DaemonSettings(url=named), 60.0, or_tells=True) is (acts or tells)
        assert await another_acts(None, DaemonSettings(url=there), 60.0) is acts
    finally:
        await runner.cleanup()


class Broken(FakeSink):
    async def send(self, notice: Notice) -> None:
        raise RuntimeError("a bug")


async def test_a_receiver_with_a_bug_neither_keeps_others_from_theirs_nor_has_them_told_again(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager, file = FakeSink("pager"), tmp_path / "told.json"
    case = Case(world(), monkeypatch, pager, Broken("broken"), file=file)
    case.lease = FULL
    await case.looks(300.0)
    assert events(pager) == ["blind"] and OutageTold(file, Log(case.daemon.stream)).receivers == ("pager",)
