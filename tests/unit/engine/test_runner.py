"""The live runner: saved first, done afterwards; a store that is away stops the doing and nothing else."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hanging_threads import all_threads_hang
from in_memory.daemon import RULES, SETTINGS
from made_records import AT, evidence
from prometheus_client import CollectorRegistry

from sentinel.daemon import runner
from sentinel.daemon.runner import Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine, grouping, judging
from sentinel.engine.events import EffectCompleted, Event, EvidenceReceived, FleetObserved
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet
from sentinel.errors import Refused, Unavailable
from sentinel.log import Log
from sentinel.model.changes import Change, EvidenceAdded, SettingChanged
from sentinel.model.records import Fleet, Kind
from sentinel.telemetry import Telemetry


class Clock:
    def now(self) -> datetime:
        return AT


class Store:
    """Keeps what is committed; ``away`` commits fail first."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.saved: list[Change] = []

    def commit(self, changes: Sequence[Change]) -> None:
        if self.away > 0:
            self.away -= 1
            raise Unavailable("the store does not answer")
        self.saved.extend(changes)


class Case:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, away: int = 0) -> None:
        self.store, self.stream, self.done = Store(away), io.StringIO(), []
        self.done: list[Any] = []
        view = ClusterView()
        state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
        self.telemetry = Telemetry(CollectorRegistry())
        self.runner = Runner(
            Engine(state),
            self.store,
            clock=Clock(),
            telemetry=self.telemetry,
            log=Log(self.stream),  # type: ignore[arg-type]
        )
        self.runner.perform = {ObserveFleet: self.observe_fleet}
        real = asyncio.sleep

        async def soon(_seconds: float) -> None:
            await real(0)

        monkeypatch.setattr(asyncio, "sleep", soon)

    async def observe_fleet(self, effect: ObserveFleet) -> Event:
        self.done.append((effect, len(self.store.saved)))
        return EffectCompleted(AT, effect.id)

    async def quiet(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


XID = evidence(Kind.XID, node="n1", data={"xid": 79}, text="NVRM: Xid 79")


async def test_no_effect_before_its_changes_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    await case.runner.observe([XID])
    assert case.store.saved == [EvidenceAdded((XID,))]
    await case.quiet()
    assert case.done and all(saved >= 1 for _, saved in case.done)


async def test_what_is_saved_waits_for_no_thread_that_hangs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared folder, or a resolver: the daemon would stay active and save nothing."""
    case = Case(monkeypatch)
    all_threads_hang()
    await asyncio.wait_for(case.runner.observe([XID]), 30.0)
    assert case.store.saved == [EvidenceAdded((XID,))]
    await case.quiet()


async def test_a_store_that_is_away_is_said_once_refuses_evidence_and_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch, away=3)
    with pytest.raises(Unavailable):
        await case.runner.observe([XID])
    with pytest.raises(Unavailable):
        await case.runner.observe([evidence(Kind.XID, node="n2", data={"xid": 79})])
    assert case.done == []
    await case.quiet()
    assert case.store.saved[0] == EvidenceAdded((XID,))
    assert case.stream.getvalue().count("store-unavailable") == 1 and "store-answers-again" in case.stream.getvalue()
    await case.runner.observe([XID])  # sent again by its node: acknowledged, and kept once
    assert sum(isinstance(change, EvidenceAdded) for change in case.store.saved) == 1


async def test_an_effect_that_fails_by_a_bug_is_counted_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)

    async def broken(effect: ObserveFleet) -> Event:
        if not case.done:
            case.done.append(effect)
            raise RuntimeError("a bug")
        return await case.observe_fleet(effect)

    case.runner.perform = {ObserveFleet: broken}
    await case.runner.observe([XID])
    await case.quiet()
    assert "bug where=ObserveFleet" in case.stream.getvalue()
    assert case.telemetry.registry.get_sample_value("sentinel_bugs_total") == 1.0
    assert len(case.done) == 2, "asked again"
    case.runner.handle(FleetObserved(AT, Fleet(AT, {}, {})))
    assert case.runner.state.cluster.fleet is not None


async def test_an_event_that_meets_a_bug_once_keeps_its_evidence_and_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch)
    real, broken = judging.judge_soon, [True]

    def soon(*arguments: Any) -> None:
        if broken:
            broken.clear()
            raise RuntimeError("a bug")
        real(*arguments)

    monkeypatch.setattr(judging, "judge_soon", soon)
    await case.runner.observe([XID])
    await case.quiet()
    assert set(case.store.saved) == {EvidenceAdded((XID,))} and "bug where=EvidenceReceived" in case.stream.getvalue()
    assert case.done, "a snapshot is asked for: the incident is on its way"


async def test_an_item_that_meets_a_bug_each_time_keeps_no_other_from_its_incident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch)
    poison = evidence(Kind.XID, node="n9", data={"xid": 79}, text="poison")
    real = grouping._put

    def put(state: Any, out: Any, item: Any, now: datetime) -> None:
        if item.id == poison.id:
            raise OverflowError("a bug")
        real(state, out, item, now)

    monkeypatch.setattr(grouping, "_put", put)
    await case.runner.observe([poison, XID])
    await case.quiet()
    kept = {item.id for change in case.store.saved if isinstance(change, EvidenceAdded) for item in change.items}
    assert kept == {poison.id, XID.id} and case.done, "kept both, judged the one"


async def test_a_change_that_the_store_refuses_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    real = case.store.commit

    def commit(changes: Sequence[Change]) -> None:
        if any(isinstance(change, EvidenceAdded) and change.items[0].id == XID.id for change in changes):
            raise Refused("value too long")
        real(changes)

    monkeypatch.setattr(case.store, "commit", commit)
    other = evidence(Kind.XID, node="n2", data={"xid": 79}, text="NVRM: Xid 79 on n2")
    first, second = case.runner.handle(EvidenceReceived(AT, (XID,))), case.runner.handle(EvidenceReceived(AT, (other,)))
    await asyncio.gather(first, second)
    await case.quiet()
    assert EvidenceAdded((other,)) in case.store.saved and case.done
    assert "bug where=store change=EvidenceAdded" in case.stream.getvalue()


async def test_nothing_begins_after_the_stop_and_a_store_that_is_away_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch, away=10**9)
    case.runner.handle(EvidenceReceived(AT, (XID,)))
    await asyncio.wait_for(case.runner.stop(), 30.0)
    with pytest.raises(Unavailable):
        await case.runner.observe([XID])
    assert case.done == []
    other = Case(monkeypatch)
    other.runner.handle(EvidenceReceived(AT, (XID,)))
    await other.runner.stop()
    await other.quiet()
    assert other.store.saved and other.done == [], "saved for the next daemon, not begun"


async def test_a_command_waits_until_the_store_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in force as soon as that does: whoever gave it is not told that it failed."""
    case = Case(monkeypatch, away=3)
    await case.runner.command("pause", "ada")
    assert case.runner.state.paused and any(isinstance(change, SettingChanged) for change in case.store.saved)
    await case.quiet()


async def test_a_command_that_is_not_saved_in_time_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, away=10**9)
    monkeypatch.setattr(runner, "_DECIDED_S", 0.0)
    with pytest.raises(Unavailable, match="whether it was done is not known") as caught:
        await case.runner.command("pause", "ada")
    assert "in force when the store answers" in caught.value.fix
    case.store.away = 0
    await case.quiet()
    assert case.runner.state.paused and any(isinstance(change, SettingChanged) for change in case.store.saved)


async def test_a_command_that_a_stop_overtakes_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, away=10**9)
    given = asyncio.ensure_future(case.runner.command("pause", "ada"))
    while not case.runner.store_problem:
        await asyncio.wait({given}, timeout=0)
    await asyncio.wait_for(case.runner.stop(), 30.0)
    with pytest.raises(Unavailable, match="whether it was done is not known"):
        await given


async def test_while_the_store_is_known_to_be_away_a_command_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, away=10**9)
    with pytest.raises(Unavailable):
        await case.runner.observe([XID])
    with pytest.raises(Unavailable, match="nothing was done: the store does not answer"):
        await case.runner.command("pause", "ada")
    assert not case.runner.state.paused
    case.store.away = 0
    await case.quiet()
    assert not any(isinstance(change, SettingChanged) for change in case.store.saved)
    await case.runner.command("pause", "ada")
    assert case.runner.state.paused
