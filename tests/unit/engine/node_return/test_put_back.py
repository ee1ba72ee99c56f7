"""Which nodes were put back into service after a drain of Sentinel's, and what of them is settled by that."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import pytest
from made_records import AT, fleet, node

from sentinel.engine.node_return.put_back import KEPT, PutBack, read
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged

OURS = "sentinel:ab12 gpu_memory_ecc"


def known_of(*ids: str, at_s: float | None = None) -> dict[str, datetime | None]:
    """Reports, by id when each happened."""
    return dict.fromkeys(ids, AT + timedelta(seconds=at_s) if at_s is not None else None)


def shown(
    known: PutBack, at_s: float, reason: str | None, *said: str, concerned: Collection[str] = ("n1",)
) -> list[Any]:
    """What is saved after a snapshot in which n1 is drained with this reason; None: it is in service.

    Args:
        said: ids of the reports against it so far.
    """
    view = node("n1") if reason is None else dataclasses.replace(node("n1"), flags=frozenset({"drain"}), reason=reason)
    snapshot = dataclasses.replace(fleet([view, node("n2")], []), at=AT + timedelta(seconds=at_s))
    out = Transition()
    known.snapshot_taken(out, snapshot, {"n1": frozenset(said)}, concerned)
    return [one.value for one in out.changes if isinstance(one, SettingChanged) and one.name == KEPT]


@pytest.mark.parametrize("then", [OURS, "RMA 4711"])  # people may write another reason
def test_what_was_said_before_the_node_was_put_back_is_settled(then: str) -> None:
    known = PutBack()
    shown(known, 0.0, OURS, "a")
    shown(known, 40.0, then, "a", "b")
    shown(known, 60.0, None, "a", "b", "later")
    assert known.settles("n1", known_of("a")) and known.settles("n1", known_of("a", "b"))
    assert not known.settles("n1", known_of("b", "later")) and not known.settles("n2", known_of("a"))


def test_what_happened_before_the_last_look_is_settled_although_it_is_reported_later() -> None:
    known = PutBack()
    for at_s, reason in ((0.0, OURS), (40.0, OURS), (60.0, None)):
        shown(known, at_s, reason, "a")
    assert known.settles("n1", known_of("late", at_s=39.0))
    assert not known.settles("n1", known_of("new", at_s=39.1)), "clocks differ by a second"
    assert not known.settles("n1", known_of("late")), "whose clock is not known"


@pytest.mark.parametrize("seen_s", [None, 5.0, 40.0])  # until when snapshots show the drain
def test_what_was_said_of_a_drained_node_that_slurm_has_no_more_is_settled(seen_s: float | None) -> None:
    known = PutBack()
    for at_s in (0.0, seen_s) if seen_s is not None else ():
        shown(known, at_s, OURS, "a")
    out = Transition()
    without = dataclasses.replace(fleet([node("n2")], []), at=AT + timedelta(seconds=50.0))
    known.snapshot_taken(out, without, {"n1": frozenset({"a"})}, ("n1",), ("n1",))
    (saved,) = [one.value for one in out.changes if isinstance(one, SettingChanged)]
    for daemon in (known, read(saved)):
        assert shown(daemon, 60.0, None, "a", "new") == [], "another machine registers with its name"
        assert daemon.settles("n1", known_of("a")) and not daemon.settles("n1", known_of("a", "new"))
        assert daemon.is_over("n1", AT) and not daemon.is_over("n1", AT + timedelta(seconds=55.0))


@pytest.mark.parametrize("reason", ["cable swap", "NHC: check_fs"])
def test_a_drain_of_somebody_else_settles_nothing(reason: str) -> None:
    known = PutBack()
    for at_s, words in ((0.0, reason), (40.0, reason), (60.0, None)):
        assert shown(known, at_s, words, "a") == []
    assert not known.settles("n1", known_of("a"))


def test_a_drain_that_slurmctld_may_have_lost_settles_nothing() -> None:
    known = PutBack()
    for at_s, reason in ((0.0, OURS), (30.0, OURS), (40.0, None)):
        assert shown(known, at_s, reason, "a") == []
    assert not known.settles("n1", known_of("a"))


def test_the_next_daemon_hears_of_no_drain_that_slurmctld_may_have_lost() -> None:
    known = PutBack()
    n1, n2 = (dataclasses.replace(node(name), flags=frozenset({"drain"}), reason=OURS) for name in ("n1", "n2"))
    saved: list[Any] = []
    for at_s, views in ((0.0, [n1, node("n2")]), (40.0, [n1, n2])):
        out = Transition()
        known.snapshot_taken(out, dataclasses.replace(fleet(views, []), at=AT + timedelta(seconds=at_s)), {}, ())
        saved += [one.value for one in out.changes if isinstance(one, SettingChanged)]
    assert saved == [{"out": {"n1": {"at": (AT + timedelta(seconds=40.0)).isoformat(), "said": []}}, "settled": {}}]


def test_the_next_daemon_knows_who_was_out_and_what_was_said() -> None:
    known = PutBack()
    saved = [one for at_s in (0.0, 20.0, 40.0, 60.0) for one in shown(known, at_s, OURS, "a")]
    assert len(saved) == 1, "not at each snapshot"
    (more,) = shown(known, 80.0, OURS, "a", "b")
    following = read(more)
    (back,) = shown(following, 200.0, None, "a", "b", "later")
    for daemon in (following, read(back)):
        assert daemon.settles("n1", known_of("a", "b")) and not daemon.settles("n1", known_of("later"))


def test_what_no_incident_names_any_more_is_forgotten() -> None:
    known = PutBack()
    for at_s, reason in ((0.0, OURS), (40.0, OURS), (60.0, None)):
        shown(known, at_s, reason, "a")
    assert known.settles("n1", known_of("a"))
    shown(known, 80.0, None, concerned=())
    assert known == PutBack()


@pytest.mark.parametrize(
    "stored", [None, [], {"out": 3, "settled": []}, {"out": {"n1": "x"}, "settled": {"n1": {"at": 2}}}]
)
def test_what_cannot_be_read_is_left_out(stored: object) -> None:
    assert read(stored) == PutBack()
