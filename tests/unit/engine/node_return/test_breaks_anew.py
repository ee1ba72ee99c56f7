"""A node that breaks anew while it is out of service: it must be proven good of everything that was found there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from drained_node import ALL, Node

from sentinel.engine.events import EffectCompleted, EvidenceReceived, FleetObserved, TimerDue
from sentinel.engine.node_return.state import Stage, read, written
from sentinel.engine.transition import (
    DeliverNotice,
    Effect,
    ObserveFleet,
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
    StartTimer,
)
from sentinel.model.records import Cause, Evidence, Fleet, Kind, Source, Trust, Where


def breaks(node: Node, *xids: int, after_s: float = 600.0, ago_s: float = 0.0) -> None:
    """The kernel says this of its GPU, and it is judged."""
    node.at += timedelta(seconds=after_s)
    at = node.at - timedelta(seconds=ago_s)
    items = tuple(
        Evidence(
            id=f"x{xid}-{node.at}", at=at, seen_at=node.at, source=Source.KERNEL, kind=Kind.XID,
            where=Where(node="n1", gpu=3), text=f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, name=x",
            data={"xid": xid, "pci": "0000:3b:00"}, trust=Trust.SYSTEM,
        )
        for xid in xids
    )  # fmt: skip
    judge(node, node.handle(EvidenceReceived(node.at, items)).effects)


def judge(node: Node, effects: Sequence[Effect]) -> None:
    pending = list(effects)
    for _ in range(40):
        if not pending:
            node.asked = [asked for asked in node.asked if not isinstance(asked, DeliverNotice)]
            return
        effect = pending.pop(0)
        if isinstance(effect, StartTimer) and effect.id.startswith(("judge", "tell")):
            node.at = max(node.at, effect.due)
            pending += node.handle(TimerDue(node.at, effect.id)).effects
        elif isinstance(effect, ObserveFleet):
            node.at += timedelta(seconds=1)
            pending += node.handle(FleetObserved(node.at, Fleet(node.at, {"n1": node.view}, {}))).effects
            pending += node.handle(EffectCompleted(node.at, effect.id)).effects
    raise AssertionError("it is judged for ever")


def way_back(node: Node) -> list[str]:
    """What is done to it before it returns; each test passes, each command succeeds."""
    done: list[str] = []
    for _ in range(8):
        asked = next(iter(node.look()), None)
        if isinstance(asked, RunDiagnostic):
            done.append(f"level {asked.level}")
            node.answer("pass")
        elif isinstance(asked, RunSiteCommand):
            done.append(str(asked.action))
            node.answer("done")
            node.boot += "'"
        elif isinstance(asked, ReturnNode):
            return done
    return [*done, "stays out"]


@pytest.mark.parametrize(
    ("xids", "expected"),
    [
        ((119, 120), ["reset", "level 1", "level 2"]),
        ((144, 145), ["reset", "level 1", "level 2", "level 3"]),
        ((79,), ["reboot", "level 1", "level 2", "level 3"]),
    ],
)
@pytest.mark.parametrize("after_s", [60.0, 600.0])
def test_it_must_pass_what_the_later_fault_asks_for(xids: tuple[int, ...], expected: list[str], after_s: float) -> None:
    node = Node(cause=Cause.DISK_FULL)
    breaks(node, *xids, after_s=after_s)
    assert way_back(node) == expected


def test_two_incidents_that_drain_one_node_ask_for_both() -> None:
    node = Node(cause=Cause.NODE_OS_OR_HOST)
    node.handle_drained("77aa", Cause.DISK_FULL)
    assert node.record.causes == (Cause.NODE_OS_OR_HOST, Cause.DISK_FULL)
    assert way_back(node) == ["reboot", "level 1", "level 2"]


def test_a_lesser_fault_takes_nothing_back() -> None:
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.acts("reboot")
    breaks(node, 119, 120, after_s=20.0)
    node.answer("done")
    node.boot += "'"
    assert way_back(node) == ["level 1", "level 2", "level 3"] and node.record.failures == ()


def test_tests_that_passed_before_it_prove_nothing_of_it() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2)
    breaks(node, 79)
    assert node.record.passed == 0 and len(node.record.failures) == 1 and "broke again" in node.record.failed
    node.at += timedelta(seconds=node.settings.returns.retry_s)
    assert way_back(node) == ["reboot", "level 1", "level 2", "level 3"]


def test_the_pass_of_a_test_that_was_under_way_is_not_taken() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    (asked,) = node.look()
    assert isinstance(asked, RunDiagnostic)
    breaks(node, 79, after_s=60.0)
    node.answer("pass")
    assert node.record.passed == 0 and node.stage is Stage.WAITING


def test_it_is_counted_once_however_often_it_is_judged() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1)
    breaks(node, 79)
    breaks(node, 79, after_s=5.0, ago_s=30.0)  # heard late
    assert len(node.record.failures) == 1


def test_what_it_is_not_sure_of_asks_for_nothing() -> None:
    node = Node(cause=Cause.DISK_FULL)
    breaks(node, 63)
    assert node.record.causes == (Cause.DISK_FULL,)


def test_it_is_not_returned_while_what_was_heard_of_it_is_being_judged() -> None:
    node = Node(cause=Cause.DISK_FULL)
    node.passes(1)
    text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    item = Evidence(
        "x", node.at, node.at, Source.KERNEL, Kind.XID, Where(node="n1", gpu=3), text,
        data={"xid": 79, "pci": "0000:3b:00"}, trust=Trust.SYSTEM,
    )  # fmt: skip
    effects = node.handle(EvidenceReceived(node.at, (item,))).effects
    assert node.look(0.1) == [] and "being judged" in node.record.waits
    judge(node, effects)
    assert node.record.passed == 0


def test_what_was_found_is_kept_over_a_restart_of_the_daemon() -> None:
    node = Node(replace(ALL), Cause.DISK_FULL)
    breaks(node, 79)
    kept = json.loads(json.dumps(written({"n1": node.record})))
    assert read(kept) == {"n1": node.record}
    del kept["n1"]["also"], kept["n1"]["broke_at"]  # as a daemon before this wrote it
    assert read(kept)["n1"].causes == (Cause.DISK_FULL,)
