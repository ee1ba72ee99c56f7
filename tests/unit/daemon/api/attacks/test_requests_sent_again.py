"""Requests of others sent again, and denials that would fill the log."""

from __future__ import annotations

import asyncio
import time

import pytest
from in_memory.server import NODE, OPERATOR, RESEARCHER, Served
from servers.asked_by_anybody import PATIENCE_S

from sentinel import protocol
from sentinel.daemon.api.callers import DenialLog, UsedCredentials
from sentinel.errors import Denied, Unavailable
from sentinel.log import Log
from sentinel.ports import Signed

STATUS = {"view": "status"}


async def test_a_request_sent_again_after_munged_was_restarted_is_denied(served: Served) -> None:
    change = {"change": "drain", "arguments": {"node": "n1", "reason": "fan"}}
    first = await served.post(protocol.CHANGE, change, uid=OPERATOR)
    assert first.status == 200
    calls = list(served.world.slurm.calls)
    served.credentials.used.clear()  # as munged does when it is restarted
    again = await served.post(protocol.CHANGE, change, credential=first.credential)
    assert again.status == 403 and "before" in again.body["error"]
    assert served.world.slurm.calls == calls


async def test_a_change_older_than_the_daemon_is_denied(served: Served) -> None:
    served.credentials.made_s = time.time() - 60.0
    change = {"change": "drain", "arguments": {"node": "n1"}}
    answer = await served.post(protocol.CHANGE, change, uid=OPERATOR)
    assert answer.status == 403 and "older" in answer.body["error"] and served.world.slurm.calls == []
    assert (await served.post(protocol.HEARTBEAT, {"node": "n1"})).status == 200  # a node's clock may be behind


def test_credentials_are_remembered_as_long_as_they_live() -> None:
    now_s = 1000.0
    used = UsedCredentials(lambda: now_s)
    at = [Signed(b"", 0, 0, "", made_s, 300.0) for made_s in (1000.0, 700.0, 1290.0, None)]  # clocks differ
    for number, one in enumerate(at):
        used.use(f"c{number}", one)
    for passed_s, still in ((0.0, (0, 1, 2, 3)), (299.0, (0, 2, 3)), (589.0, (2,))):
        now_s = 1000.0 + passed_s
        for number in still:
            with pytest.raises(Denied):
                used.use(f"c{number}", at[number])
    now_s = 1000.0 + 10_000.0
    used.use("new", Signed(b"", 0, 0, "", now_s, 300.0))
    assert sum(map(len, used._used.values())) == used._count == 1


def test_credentials_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._REMEMBERED", 2)
    used = UsedCredentials(lambda: 0.0)
    used.use("a", Signed(b"", 0, 0))
    used.use("b", Signed(b"", 0, 0))
    with pytest.raises(Unavailable):
        used.use("c", Signed(b"", 0, 0))


async def test_one_users_credentials_keep_nobody_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._OF_ONE_USER", 20)
    monkeypatch.setattr("sentinel.daemon.api.callers._REMEMBERED", 40)
    asked = [(await served.post(protocol.VIEW, {"view": "nothing"}, uid=RESEARCHER)).status for _ in range(50)]
    assert set(asked[:20]) == {422} and set(asked[20:]) == {503}
    for path, body, uid in ((protocol.VIEW, STATUS, OPERATOR), (protocol.HEARTBEAT, {"node": "n1"}, NODE)):
        assert (await served.post(path, body, uid=uid)).status == 200


def test_credentials_of_all_users_leave_as_many_to_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.api.callers._OF_ALL_USERS", 2)
    now_s = 0.0
    used = UsedCredentials(lambda: now_s)
    for uid in (1000, 1001):
        used.use(f"c{uid}", Signed(b"", uid, uid), person=True)
    with pytest.raises(Unavailable):
        used.use("c1002", Signed(b"", 1002, 1002), person=True)
    used.use("node", Signed(b"", 0, 0))
    now_s = 10_000.0
    used.use("again", Signed(b"", 1002, 1002), person=True)
    assert (used._count, used._of_users.total()) == (1, 1)


async def test_denied_requests_fill_no_log(served: Served) -> None:
    for _ in range(40):
        assert (await served.post(protocol.VIEW, STATUS, credential="junk")).status == 403
    assert served.daemon.said.count("request-denied ") == 5
    await served.server.stop()
    assert "requests-denied more=35 addresses=1" in served.daemon.said


def test_denials_are_logged_again_in_the_next_period_and_by_address(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    log = DenialLog(Log(), lambda: now_s)
    for peer in ("a", "b"):
        for _ in range(7):
            log.denied("/v1/view", peer, "why")
    now_s = 61.0
    log.denied("/v1/view", "a", "why")
    lines = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["request-denied"] * 10 + ["requests-denied", "request-denied"]


async def test_nodes_are_not_bounded_as_people_are(served: Served) -> None:
    asked = [asyncio.create_task(served.post(protocol.ORDERS, {"node": f"n{at}"}, uid=NODE)) for at in range(1, 13)]
    async with asyncio.timeout(PATIENCE_S):
        while sum(seen.state == "heard" for seen in served.daemon.live.nodes.values()) < 12:
            await asyncio.sleep(0)
    assert not any(task.done() for task in asked), "all of them wait for orders"
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
