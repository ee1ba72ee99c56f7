"""Which nodes were put back into service after a drain of Sentinel's."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest
from core_records import AT, fleet, node

from sentinel.engine.node_return.put_back import KEPT, PutBack, read
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def shown(known: PutBack, at_s: float, reason: str | None) -> list[Any]:
    """What is saved after a snapshot in which n1 is drained with this reason; None: it is in service."""
    view = node("n1") if reason is None else dataclasses.replace(node("n1"), flags=frozenset({"drain"}), reason=reason)
    out = Transition()
    known.snapshot_taken(out, dataclasses.replace(fleet([view, node("n2")], []), at=at(at_s)))
    return [one.value for one in out.changes if isinstance(one, SettingChanged) and one.name == KEPT]


@pytest.mark.parametrize("then", ["sentinel:ab12 gpu_memory_ecc", "RMA 4711"])  # people may write another reason
def test_what_was_said_before_a_person_put_the_node_back_is_settled(then: str) -> None:
    known = PutBack()
    for at_s, reason in ((0.0, "sentinel:ab12 gpu_memory_ecc"), (20.0, then), (40.0, then), (60.0, None)):
        shown(known, at_s, reason)
    assert known.settles("n1", at(40.0)) and not known.settles("n1", at(40.1)) and not known.settles("n2", at(0.0))


@pytest.mark.parametrize("reason", ["cable swap", "NHC: check_fs"])
def test_a_drain_of_somebody_else_settles_nothing(reason: str) -> None:
    known = PutBack()
    for at_s, words in ((0.0, reason), (40.0, reason), (60.0, None)):
        assert shown(known, at_s, words) == []
    assert not known.settles("n1", at(0.0))


def test_a_drain_that_slurmctld_may_have_lost_settles_nothing() -> None:
    known = PutBack()
    for at_s, reason in ((0.0, "sentinel:ab12"), (30.0, "sentinel:ab12"), (40.0, None)):
        assert shown(known, at_s, reason) == []
    assert not known.settles("n1", at(0.0))


def test_the_next_daemon_knows_who_was_out_and_who_came_back() -> None:
    known = PutBack()
    saved = [one for at_s in (0.0, 20.0, 40.0, 60.0) for one in shown(known, at_s, "sentinel:ab12")]
    (kept,) = saved  # once, not at each snapshot
    following = read(kept)
    (back,) = shown(following, 200.0, None)
    for daemon in (following, read(back)):
        assert daemon.settles("n1", at(40.0)) and not daemon.settles("n1", at(41.0))


@pytest.mark.parametrize("stored", [None, [], {"out": 3, "since": []}, {"out": {"n1": ["x", 2]}, "since": {"n1": "x"}}])
def test_what_cannot_be_read_is_left_out(stored: object) -> None:
    assert read(stored) == PutBack()
