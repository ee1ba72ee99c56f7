"""Whose turn it is to be tested: suspects first, the rotation within its share and rate, work before both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from core_records import evidence
from hypothesis import given
from hypothesis import strategies as st

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.daemon.diagnoses import (
    Checkup,
    Diagnoses,
    Turn,
    idle_nodes,
    in_hand,
    read,
    suspects,
    turns,
    waits,
    written,
)
from sentinel.daemon.live import Live
from sentinel.daemon.scores import Scores
from sentinel.errors import Timeout, UserError
from sentinel.incidents import new
from sentinel.log import Log
from sentinel.model import Cause, Evidence, Fleet, IncidentState, JobView, Kind, NodeView, Scope, Verdict
from sentinel.settings import Diagnostics, Mode, Modes
from sentinel.wire import to_json

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ROTATION = Diagnostics(idle_level=2, idle_fraction=0.25, idle_period_s=7 * 86400.0)
ACT = Modes(default=Mode(drain="act"))


def idle(count: int, since: datetime = NOW - DAY) -> dict[str, datetime]:
    return {f"n{number:03d}": since for number in range(count)}


def names(chosen: list[Turn]) -> list[str]:
    return [turn.node for turn in chosen]


def test_the_longest_untested_have_their_turn_within_the_share() -> None:
    known = {f"n{number:03d}": Checkup(passed=NOW - (8 + number) * DAY) for number in range(8)}
    chosen = turns(known, idle(8), waiting=False, settings=ROTATION, now=NOW)
    assert chosen == [Turn("n007", 2, False), Turn("n006", 2, False)]


def test_one_that_passed_is_left_alone_for_its_period() -> None:
    known = {f"n{number:03d}": Checkup(passed=NOW - 6 * DAY) for number in range(8)}
    assert turns(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    assert len(turns(known, idle(8), waiting=False, settings=ROTATION, now=NOW + DAY)) == 2


def test_the_rotation_yields_to_waiting_jobs_and_suspects_do_not() -> None:
    known = {"n005": Checkup(suspect=NOW - DAY)}
    assert turns(known, idle(8), waiting=True, settings=ROTATION, now=NOW) == [Turn("n005", 2, True)]
    assert names(turns(known, idle(8), waiting=False, settings=ROTATION, now=NOW)) == ["n005", "n000"]


def test_what_runs_counts_against_the_share_also_where_it_is_not_idle_any_more() -> None:
    known = {"n000": Checkup(until=NOW + timedelta(minutes=5)), "gone": Checkup(until=NOW + timedelta(minutes=5))}
    assert turns(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    over = NOW + timedelta(minutes=6)
    assert len(turns(known, idle(8), waiting=False, settings=ROTATION, now=over)) == 2


def test_a_single_suspect_is_tested_where_the_share_is_less_than_a_node() -> None:
    known = {"n000": Checkup(suspect=NOW), "n001": Checkup(suspect=NOW - DAY)}
    assert names(turns(known, idle(3), waiting=True, settings=ROTATION, now=NOW)) == ["n001"]
    assert turns({}, idle(3), waiting=False, settings=ROTATION, now=NOW) == []


def test_a_node_between_jobs_is_not_idle() -> None:
    fresh = idle(8, NOW - timedelta(seconds=60))
    assert turns({}, fresh, waiting=False, settings=ROTATION, now=NOW) == []
    assert len(turns({}, fresh, waiting=False, settings=ROTATION, now=NOW + timedelta(seconds=60))) == 2


def test_the_rotation_keeps_to_its_rate() -> None:
    slow = replace(ROTATION, idle_per_hour=3)
    known = {f"n{number:03d}": Checkup(tried=NOW - timedelta(minutes=40 + number)) for number in range(2)}
    assert len(turns(known, idle(100), waiting=False, settings=slow, now=NOW)) == 1
    assert len(turns(known, idle(100), waiting=False, settings=slow, now=NOW + timedelta(hours=1))) == 3


def test_one_without_answer_is_asked_again_after_a_pause() -> None:
    known = {"n000": Checkup(suspect=NOW - DAY, tried=NOW - timedelta(minutes=29))}
    assert turns(known, idle(1), waiting=True, settings=ROTATION, now=NOW) == []
    assert names(turns(known, idle(1), waiting=True, settings=ROTATION, now=NOW + timedelta(minutes=1))) == ["n000"]


def test_without_levels_there_is_nothing() -> None:
    off = Diagnostics(suspect_level=0)
    assert turns({"n000": Checkup(suspect=NOW)}, idle(99), waiting=False, settings=off, now=NOW) == []


_times = st.none() | st.integers(-20 * 24 * 60, 60).map(lambda minutes: NOW + timedelta(minutes=minutes))
_tested = st.builds(Checkup, suspect=_times, passed=_times, tried=_times, until=_times)


@given(
    known=st.dictionaries(st.integers(0, 60).map(lambda number: f"n{number:03d}"), _tested, max_size=60),
    count=st.integers(0, 60),
    fraction=st.floats(0, 1),
    per_hour=st.integers(0, 30),
    waiting=st.booleans(),
)
def test_never_above_the_share(
    known: dict[str, Checkup], count: int, fraction: float, per_hour: int, waiting: bool
) -> None:
    settings = replace(ROTATION, idle_fraction=fraction, idle_per_hour=per_hour)
    chosen = turns(known, idle(count), waiting=waiting, settings=settings, now=NOW)
    running = {name for name, tested in known.items() if tested.until is not None and tested.until > NOW}
    rotated = [turn for turn in chosen if not turn.suspect]
    after = len(running) + len(chosen)
    share = fraction * len(set(idle(count)) | running)
    assert len(set(names(chosen))) == len(chosen), "nobody twice"
    assert not set(names(chosen)) & running
    assert set(names(chosen)) <= set(idle(count))
    if chosen:
        assert after <= max(share, 1.0)
    if rotated:
        assert after <= share
        assert not waiting
        assert len(rotated) <= per_hour


# ------------------------------------------------------------------------------------------------- who


def job(number: int, state: str = "pending", **rest: Any) -> JobView:
    return JobView(id=number, state=state, **rest)


@pytest.mark.parametrize(
    ("jobs", "waiting"),
    [
        ([], False),
        ([job(1, "running")], False),
        ([job(1, reason="Resources")], True),
        ([job(1, reason="Priority")], True),
        ([job(1, reason="Dependency")], False),
        ([job(1, reason="BeginTime")], False),
        ([job(1, held=True, reason="JobHeldUser")], False),
    ],
)
def test_which_jobs_wait_for_nodes(jobs: list[JobView], waiting: bool) -> None:
    assert waits(jobs) is waiting


def fleet(**nodes: NodeView) -> Fleet:
    return Fleet(at=NOW, nodes=nodes, jobs={7: job(7, "running", nodes=("busy",))})


def test_which_nodes_may_be_tested() -> None:
    nodes = {
        "good": NodeView("good", "idle", partitions=("gpu",)),
        "busy": NodeView("busy", "idle"),
        "mixed": NodeView("mixed", "mixed"),
        "drained": NodeView("drained", "idle", flags=frozenset({"drain"})),
        "reserved": NodeView("reserved", "idle", flags=frozenset({"reserved"})),
        "login": NodeView("login", "idle", gpus=0),
        "watched": NodeView("watched", "idle", partitions=("gpu", "prod")),
    }
    modes = Modes(default=Mode(drain="act"), partitions={"prod": Mode(drain="observe"), "gpu": Mode(drain="act")})
    assert idle_nodes(fleet(**nodes), modes) == {"good"}
    assert idle_nodes(fleet(**nodes), Modes()) == set(), "installed, we observe"


def verdict(*suspect: str) -> Verdict:
    return Verdict(cause=Cause.UNKNOWN, scope=Scope.UNKNOWN, confidence=0.4, suspect=suspect)


def score(node: str, lemon: bool, hours: float) -> NodeScore:
    at = NOW - timedelta(hours=hours)
    return NodeScore(node, failures=4, busy_days=9.0, rate=0.4, low=0.2, high=0.9, lemon=lemon, last_at=at)


def trend(node: str, suspect: bool) -> Trend:
    return Trend(
        node=node, unit="gpu3", name="pcie_replay", words="PCIe replays", cause=Cause.PCIE, value=900.0, days=9.0,
        per_day=100.0, low=80.0, high=120.0, faster=False, suspect=suspect, reason="grows" if suspect else "",
    )  # fmt: skip


def test_who_is_suspect() -> None:
    settings = Diagnostics(idle_period_s=86400.0)
    scores = Scores(
        {"often": score("often", True, 2), "well": score("well", False, 2), "named": score("named", True, 3)},
        {"ages": (trend("ages", False), trend("ages", True)), "well": (trend("well", False),)},
    )
    found = suspects([(NOW - DAY, verdict("named")), (NOW, verdict("named"))], scores, settings, NOW)
    assert found == {"named": NOW, "often": NOW - timedelta(hours=2), "ages": NOW - DAY}


def test_what_is_kept_reads_back() -> None:
    known = {"a": Checkup(suspect=NOW, tried=NOW - DAY), "b": Checkup()}
    assert read(written(known)) == known
    assert read({"a": {"suspect": "yesterday"}, "b": {"colour": "blue"}, "c": 5}) == {}
    assert read(None) == {}


# ------------------------------------------------------------------------------------------------- orders


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at


class Agents:
    """Agents that answer what they are told to, when they are told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, object], float]] = []
        self.answer: Callable[[str], object] = lambda node: {"result": "pass", "reason": ""}
        self.gate = asyncio.Event()

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        assert kind == "diagnose"
        self.asked.append((node, arguments, deadline_s))
        await self.gate.wait()
        return self.answer(node)


class Site:
    def __init__(self, settings: Diagnostics, count: int = 4) -> None:
        self.agents, self.clock, self.live = Agents(), Clock(), Live()
        self.kept: Any = None
        self.suspected: dict[str, datetime] = {}
        self.paused = False
        self.going: set[str] = set()
        self.observed: list[Evidence] = []
        self.live.fleet = Fleet(at=NOW, nodes={name: NodeView(name, "idle") for name in idle(count)}, jobs={})
        self.settings = settings
        self.diagnoses = self.make()

    def make(self) -> Diagnoses:
        return Diagnoses(
            orders=self.agents,
            connected=lambda node: node != "n003",
            live=self.live,
            settings=self.settings,
            modes=ACT,
            kept=lambda: self.kept,
            keep=lambda value: setattr(self, "kept", value),
            suspected=lambda _now: dict(self.suspected),
            going=lambda _fleet, _now: self.going,
            observe=self.observe,
            paused=lambda: self.paused,
            clock=self.clock,
            log=Log(),
        )

    async def observe(self, items: Sequence[Evidence]) -> None:
        assert not self.kept or "until" in self.kept["n001"], "it is known before the node can be tested again"
        self.observed.extend(items)

    async def settle(self) -> None:
        for _ in range(200):
            await asyncio.sleep(0)
            if not self.diagnoses._running:
                return
        while self.diagnoses._running:
            await asyncio.gather(*self.diagnoses._running)


SUSPECTS = Diagnostics(idle_fraction=1.0)


async def test_a_suspect_is_tested_once_and_cleared_by_a_pass() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW - timedelta(minutes=1), "n003": NOW}
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert site.agents.asked == [("n001", {"level": 2, "gpus": None, "yields": True}, 900.0)], "n003 is not connected"
    assert read(site.kept)["n001"] == Checkup(passed=NOW, tried=NOW)
    site.clock.at += DAY
    await site.diagnoses.turn()
    assert len(site.agents.asked) == 1, "the same suspicion is answered"
    site.suspected["n001"] = site.clock.at - timedelta(minutes=1)
    await site.diagnoses.turn()
    await site.settle()
    assert len(site.agents.asked) == 2, "a new one is not"


async def test_what_came_up_during_the_test_is_not_answered_by_it() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW - DAY}
    await site.diagnoses.turn()
    await asyncio.sleep(0)
    site.clock.at += timedelta(seconds=20)
    site.suspected["n001"] = NOW + timedelta(seconds=10)
    await site.diagnoses.turn()
    site.agents.gate.set()
    await site.settle()
    assert read(site.kept)["n001"] == Checkup(suspect=NOW + timedelta(seconds=10), passed=NOW, tried=NOW)


@pytest.mark.parametrize("result", ["fail", "inconclusive", None])
async def test_what_is_no_pass_clears_nobody(result: str | None) -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.agents.answer = lambda _node: {"result": result} if result else "what?"
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert read(site.kept)["n001"] == Checkup(suspect=NOW, tried=NOW)


async def test_what_failed_is_known_to_the_judge_before_the_next_turn() -> None:
    site = Site(replace(SUSPECTS, retry_s=1.0))
    site.suspected = {"n001": NOW}
    failed = [evidence(Kind.DIAG_FAILED, node="n001"), evidence(Kind.DIAG_FAILED, node="n002")]
    site.agents.answer = lambda _node: {"result": "fail", "evidence": to_json(failed)}
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert site.observed == failed[:1], "a node speaks for itself"


async def test_evidence_that_cannot_be_read_is_no_end_of_the_world() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.agents.answer = lambda _node: {"result": "fail", "evidence": [{"kind": 7}]}
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert read(site.kept)["n001"] == Checkup(suspect=NOW, tried=NOW)


async def test_a_node_that_is_going_out_is_not_tested_again() -> None:
    site = Site(replace(SUSPECTS, retry_s=1.0))
    site.suspected, site.going = {"n001": NOW, "n002": NOW}, {"n001"}
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert [node for node, _, _ in site.agents.asked] == ["n002"]


async def test_a_suspicion_is_kept_before_the_node_can_be_tested() -> None:
    site = Site(SUSPECTS)
    site.suspected, site.going = {"n001": NOW}, {"n001"}
    await site.diagnoses.turn()
    assert read(site.kept) == {"n001": Checkup(suspect=NOW)}


async def test_the_pause_begins_when_the_test_is_over() -> None:
    site = Site(replace(SUSPECTS, retry_s=60.0))
    site.suspected = {"n001": NOW}
    site.agents.answer = lambda _node: {"result": "inconclusive"}
    await site.diagnoses.turn()
    await asyncio.sleep(0)
    site.clock.at += timedelta(seconds=300)
    site.agents.gate.set()
    await site.settle()
    for after_s, asked in ((59, 1), (1, 2)):
        site.clock.at += timedelta(seconds=after_s)
        await site.diagnoses.turn()
        await site.settle()
        assert len(site.agents.asked) == asked


def test_a_failed_diagnostic_is_in_hand_until_its_incident_is_closed() -> None:
    failed = evidence(Kind.DIAG_FAILED, node="n001")
    opened = new(failed, job=None, attempt=None, now=NOW)
    passed = new(evidence(Kind.DIAG_PASSED, node="n002"), job=None, attempt=None, now=NOW)
    assert in_hand([opened, passed]) == {"n001"}
    assert in_hand([replace(opened, state=IncidentState.HELD)]) == {"n001"}, "a person has it"
    assert in_hand([replace(opened, state=IncidentState.CLOSED)]) == set()


async def test_an_agent_that_does_not_answer_leaves_the_question_open() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}

    def late(_node: str) -> object:
        raise Timeout("the agent of n001 did not answer")

    site.agents.answer = late
    site.agents.gate.set()
    await site.diagnoses.turn()
    await site.settle()
    assert read(site.kept)["n001"] == Checkup(suspect=NOW, tried=NOW)


async def test_a_restarted_daemon_counts_what_its_predecessor_ordered() -> None:
    site = Site(replace(ROTATION, idle_fraction=0.34, settled_s=0.0), count=3)
    await site.diagnoses.turn()
    await asyncio.sleep(0)
    assert len(site.agents.asked) == 1
    await site.diagnoses.stop()
    site.diagnoses = site.make()
    site.clock.at += timedelta(seconds=30)
    await site.diagnoses.turn()
    await asyncio.sleep(0)
    assert len(site.agents.asked) == 1, "one of three is under test"
    site.clock.at += timedelta(seconds=900)
    await site.diagnoses.turn()
    await asyncio.sleep(0)
    assert [node for node, _, _ in site.agents.asked] == ["n000", "n001"]
    await site.diagnoses.stop()


async def test_nothing_while_paused_or_without_a_snapshot() -> None:
    site = Site(SUSPECTS)
    site.suspected = {"n001": NOW}
    site.paused = True
    await site.diagnoses.turn()
    site.paused, site.live.fleet = False, None
    await site.diagnoses.turn()
    assert site.agents.asked == []


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="four positive"):
        Site(Diagnostics(deadline_s=[60.0]))
