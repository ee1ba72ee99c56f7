"""Evidence goes out in order, at least once; heartbeats measure the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.spool import Spool
from sentinel.agent.process.retries import FIRST_S, Retries
from sentinel.agent.uplink.heartbeats import Heartbeats
from sentinel.agent.uplink.sender import ITEM_BYTES, REQUEST_BYTES, Sender
from sentinel.errors import Denied, ProtocolError, Refused, SentinelError, Unavailable
from sentinel.protocol import EVIDENCE, HEARTBEAT


def accept(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"acknowledged": body["first"] + len(body["items"]) - 1}


def sender(tmp_path: Path, client: Any, batch: int = 3) -> tuple[Sender, Spool]:
    spool = Spool(tmp_path)
    return Sender("n1", spool, client, batch=batch), spool


def test_numbers_on_the_wire_have_no_gaps(tmp_path: Path, scripted: Any) -> None:
    client = scripted(accept)
    made, spool = sender(tmp_path, client)
    for number in range(7):
        spool.append(number)
    while spool.pending:
        made.send_batch()
    bodies = [body for path, body in client.asked if path == EVIDENCE]
    assert [(body["first"], body["items"]) for body in bodies] == [(1, [0, 1, 2]), (4, [3, 4, 5]), (7, [6])]
    assert len({body["epoch"] for body in bodies}) == 1


def test_a_partial_acknowledgement_sends_the_rest_again(tmp_path: Path, scripted: Any) -> None:
    client = scripted(lambda _path, body: {"acknowledged": body["first"]})
    made, spool = sender(tmp_path, client)
    for number in range(3):
        spool.append(number)
    made.send_batch()
    client.answer = accept
    made.send_batch()
    assert client.asked[-1][1]["items"] == [1, 2]
    assert client.asked[-1][1]["first"] == 2


def test_no_answer_keeps_everything(tmp_path: Path, scripted: Any, away: Any) -> None:
    client = scripted(away)
    made, spool = sender(tmp_path, client)
    spool.append("x")
    with pytest.raises(Unavailable):
        made.send_batch()
    assert spool.pending == 1
    assert Spool(tmp_path).pending == 1


@pytest.mark.parametrize("acknowledged", [None, "3", True, 0, -5, 1.5])
def test_an_acknowledgement_that_makes_no_sense_loses_nothing(tmp_path: Path, scripted: Any, acknowledged: Any) -> None:
    made, spool = sender(tmp_path, scripted(lambda *_: {"acknowledged": acknowledged}))
    spool.append("x")
    with pytest.raises(ProtocolError):
        made.send_batch()
    assert spool.pending == 1


def test_an_acknowledgement_beyond_what_was_sent_counts_for_what_was_sent(tmp_path: Path, scripted: Any) -> None:
    made, spool = sender(tmp_path, scripted(lambda *_: {"acknowledged": 10_000}))
    for number in range(4):
        spool.append(number)
    made.send_batch()
    assert spool.pending == 1


def test_a_heartbeat_measures_the_clock(scripted: Any) -> None:
    ahead = timedelta(seconds=90)
    client = scripted(lambda *_: {"at": (datetime.now(UTC) + ahead).isoformat()})
    made = Heartbeats("n1", client, lambda: {"version": "x"})
    made.beat()
    assert client.asked[0][0] == HEARTBEAT
    assert client.asked[0][1]["node"] == "n1"
    assert made.clock_offset_s == pytest.approx(90, abs=5)


def test_a_heartbeat_says_when_it_was_sent_before_what_was_measured_for_it(scripted: Any) -> None:
    measured: list[float] = []

    def body() -> dict[str, Any]:
        measured.append(time.monotonic())
        return {"version": "x"}

    def answer(*_: Any) -> dict[str, Any]:
        measured.append(time.monotonic())
        return {}

    client = scripted(answer)
    made = Heartbeats("n1", client, body)
    made.beat()
    assert client.asked[0][1]["sent_s"] <= measured[0]
    assert made.took_s >= measured[1] - measured[0]


@pytest.mark.parametrize(
    ("asked", "next_s"), [({}, 2.0), ({"beat_s": 0.5}, 0.5), ({"beat_s": 0.001}, 0.2), ({"beat_s": 60}, 2.0),
    ({"beat_s": "soon"}, 2.0), ({"beat_s": None}, 2.0), ({"beat_s": float("nan")}, 2.0)]
)  # fmt: skip
def test_the_daemon_may_want_the_next_heartbeat_soon(scripted: Any, asked: dict[str, Any], next_s: float) -> None:
    client = scripted(lambda *_: asked)
    made = Heartbeats("n1", client, lambda: {"version": "x"})
    made.beat()
    assert made._next_s == next_s
    client.answer = lambda *_: {}
    made.beat()
    assert made._next_s == 2.0


def test_pauses_grow_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pauses_s = Retries(10.0), []
    monkeypatch.setattr("random.random", lambda: 0.5)
    for _ in range(20):
        made.failed(Unavailable("away"))
        pauses_s.append(made.pause_s())
    assert pauses_s[:7] == pytest.approx([FIRST_S * 2**n for n in range(6)] + [10.0]) and pauses_s[-1] == 10.0
    for chance, factor in ((0.0, 0.5), (1.0, 1.5)):
        monkeypatch.setattr("random.random", lambda chance=chance: chance)
        assert made.pause_s() == factor * 10.0


# --- what the daemon does not take ------------------------------------------------------------------------------------


def refusal(kind: type[SentinelError] = ProtocolError, signed: bool = True) -> SentinelError:
    error = kind("too much")
    error.signed = signed
    return error


class Poisoned:
    """A daemon that takes no request with a poisoned item in it."""

    def __init__(self, poison: Any, error: SentinelError) -> None:
        self.poison, self.error = poison, error
        self.taken: list[Any] = []
        self.requests = 0

    def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        if self.poison in body["items"]:
            raise self.error
        self.taken += body["items"]
        return accept(path, body)


@pytest.mark.parametrize("kind", [ProtocolError, Refused])
def test_a_poisoned_item_holds_up_no_other_one(tmp_path: Path, scripted: Any, kind: type[SentinelError]) -> None:
    poison = {"id": "p", "kind": "log", "data": {}}
    daemon = Poisoned(poison, refusal(kind))
    made, spool = sender(tmp_path, scripted(daemon), batch=200)
    for number in range(300):
        spool.append(poison if number == 77 else number)
    while spool.pending:
        made.send_batch()
    told = daemon.taken.pop()
    assert daemon.taken == [number for number in range(300) if number != 77]
    assert (told["kind"], told["data"], told["where"]["node"]) == ("unreadable", {"given_up": "p"}, "n1")
    assert made.given_up == 1 and daemon.requests < 30


def test_what_replaces_a_poisoned_item_is_not_replaced_again(tmp_path: Path, scripted: Any) -> None:
    def takes_nothing(*_: Any) -> Any:
        raise refusal()

    made, spool = sender(tmp_path, scripted(takes_nothing))
    spool.append({"id": "p"})
    for _ in range(2):
        made.send_batch()
    assert spool.pending == 0 and made.given_up == 2


@pytest.mark.parametrize("error", [refusal(signed=False), refusal(Unavailable), refusal(Denied)])
def test_nothing_is_given_up_for_an_answer_that_says_nothing_about_it(
    tmp_path: Path, scripted: Any, error: SentinelError
) -> None:
    """Anybody may answer on the daemon's port while it is away."""
    daemon = Poisoned(1, error)
    made, spool = sender(tmp_path, scripted(daemon))
    spool.append(1)
    for _ in range(5):
        with pytest.raises(type(error)):
            made.send_batch()
    assert spool.pending == 1 and made.given_up == 0


def test_a_request_is_bounded_by_bytes_and_an_item_too(tmp_path: Path, scripted: Any) -> None:
    daemon = Poisoned(None, refusal())
    client = scripted(daemon)
    made, spool = sender(tmp_path, client, batch=200)
    spool.append({"id": "big", "text": "x" * (ITEM_BYTES + 1)})
    for _ in range(20):
        spool.append("y" * (REQUEST_BYTES // 5))
    while spool.pending:
        made.send_batch()
    assert len(daemon.taken) == 21 and made.given_up == 1
    assert max(len(str(body)) for _, body in client.asked) < REQUEST_BYTES + 1000


def test_a_heartbeat_waits_for_no_evidence(tmp_path: Path, scripted: Any, away: Any) -> None:
    """It has its own connection and its own thread."""
    made, spool = sender(tmp_path, scripted(away))
    spool.append("x")
    with pytest.raises(Unavailable):
        made.send_batch()
    client = scripted(lambda *_: {})
    Heartbeats("n1", client, dict).beat()
    assert [path for path, _ in client.asked] == [HEARTBEAT]
