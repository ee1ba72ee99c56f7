"""Evidence goes out in order, at least once; heartbeats measure the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.spool import Spool
from sentinel.agent.sending import Sender
from sentinel.errors import ProtocolError, Unavailable
from sentinel.protocol import EVIDENCE, HEARTBEAT


def accept(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"acknowledged": body["first"] + len(body["items"]) - 1}


def sender(tmp_path: Path, client: Any, batch: int = 3) -> tuple[Sender, Spool]:
    spool = Spool(tmp_path)
    return Sender("n1", spool, client, lambda: {"version": "x"}, batch=batch), spool


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


def test_a_heartbeat_measures_the_clock(tmp_path: Path, scripted: Any) -> None:
    ahead = timedelta(seconds=90)
    client = scripted(lambda *_: {"at": (datetime.now(UTC) + ahead).isoformat()})
    made, _ = sender(tmp_path, client)
    made.beat()
    assert client.asked[0][0] == HEARTBEAT
    assert client.asked[0][1]["node"] == "n1"
    assert made.clock_offset_s == pytest.approx(90, abs=5)


def test_pauses_grow_and_are_bounded(tmp_path: Path, scripted: Any, away: Any) -> None:
    made, _ = sender(tmp_path, scripted(away))
    made.failures = 1
    assert made.pause_s() <= 0.6
    made.failures = 1000
    assert 5 <= made.pause_s() <= 15
