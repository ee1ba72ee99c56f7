"""Whose turn it is to be tested: suspects first, the rotation within its share and rate, work before both."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import evidence

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.config.settings import Diagnostics, Mode, Modes
from sentinel.engine.diagnostics.due_tests import (
    DiagnosticRecord,
    DueTest,
    add_suspects,
    due_tests,
    has_waiting_job,
    idle_nodes,
    read,
    suspects,
    written,
)
from sentinel.model.records import (
    Cause,
    Fleet,
    Ground,
    JobView,
    Kind,
    NodeView,
    Scope,
    Trust,
    Verdict,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ROTATION = Diagnostics(idle_level=2, idle_fraction=0.25, idle_period_s=7 * 86400.0)


def idle(count: int, since: datetime = NOW - DAY) -> dict[str, datetime]:
    return {f"n{number:03d}": since for number in range(count)}


def names(chosen: list[DueTest]) -> list[str]:
    return [turn.node for turn in chosen]


def test_the_longest_untested_have_their_turn_within_the_share() -> None:
    known = {f"n{number:03d}": DiagnosticRecord(passed=NOW - (8 + number) * DAY) for number in range(8)}
    chosen = due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW)
    assert chosen == [DueTest("n007", 2, False), DueTest("n006", 2, False)]


def test_one_that_passed_is_left_alone_for_its_period() -> None:
    known = {f"n{number:03d}": DiagnosticRecord(passed=NOW - 6 * DAY) for number in range(8)}
    assert due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    assert len(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW + DAY)) == 2


def test_the_rotation_yields_to_waiting_jobs_and_suspects_do_not() -> None:
    known = {"n005": DiagnosticRecord(suspect=NOW - DAY)}
    assert due_tests(known, idle(8), waiting=True, settings=ROTATION, now=NOW) == [DueTest("n005", 2, True)]
    assert names(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW)) == ["n005", "n000"]


def test_what_runs_counts_against_the_share_also_where_it_is_not_idle_any_more() -> None:
    known = {
        "n000": DiagnosticRecord(until=NOW + timedelta(minutes=5)),
        "gone": DiagnosticRecord(until=NOW + timedelta(minutes=5)),
    }
    assert due_tests(known, idle(8), waiting=False, settings=ROTATION, now=NOW) == []
    over = NOW + timedelta(minutes=6)
    assert len(due_tests(known, idle(8), waiting=False, settings=ROTATION, now=over)) == 2


def test_a_single_suspect_is_tested_where_the_share_is_less_than_a_node() -> None:
    known = {"n000": DiagnosticRecord(suspect=NOW), "n001": DiagnosticRecord(suspect=NOW - DAY)}
    assert names(due_tests(known, idle(3), waiting=True, settings=ROTATION, now=NOW)) == ["n001"]
    assert due_tests({}, idle(3), waiting=False, settings=ROTATION, now=NOW) == []


def test_a_node_between_jobs_is_not_idle() -> None:
    fresh = idle(8, NOW - timedelta(seconds=60))
    assert due_tests({}, fresh, waiting=False, settings=ROTATION, now=NOW) == []
    assert len(due_tests({}, fresh, waiting=False, settings=ROTATION, now=NOW + timedelta(seconds=60))) == 2


def test_the_rotation_keeps_to_its_rate() -> None:
    slow = replace(ROTATION, idle_per_hour=3)
    known = {f"n{number:03d}": DiagnosticRecord(tried=NOW - timedelta(minutes=40 + number)) for number in range(2)}
    assert len(due_tests(known, idle(100), waiting=False, settings=slow, now=NOW)) == 1
    assert len(due_tests(known, idle(100), waiting=False, settings=slow, now=NOW + timedelta(hours=1))) == 3


def test_one_without_answer_is_asked_again_after_a_pause() -> None:
    known = {"n000": DiagnosticRecord(suspect=NOW - DAY, tried=NOW - timedelta(minutes=29))}
    assert due_tests(known, idle(1), waiting=True, settings=ROTATION, now=NOW) == []
    assert names(due_tests(known, idle(1), waiting=True, settings=ROTATION, now=NOW + timedelta(minutes=1))) == ["n000"]


def test_without_levels_there_is_nothing() -> None:
    off = Diagnostics(suspect_level=0)
    assert due_tests({"n000": DiagnosticRecord(suspect=NOW)}, idle(99), waiting=False, settings=off, now=NOW) == []


_times = st.none() | st.integers(-20 * 24 * 60, 60).map(lambda minutes: NOW + timedelta(minutes=minutes))


_tested = st.builds(DiagnosticRecord, suspect=_times, passed=_times, tried=_times, until=_times)


@given(
    known=st.dictionaries(st.integers(0, 60).map(lambda number: f"n{number:03d}"), _tested, max_size=60),
    count=st.integers(0, 60),
    fraction=st.floats(0, 1),
    per_hour=st.integers(0, 30),
    waiting=st.booleans(),
)
def test_never_above_the_share(
    known: dict[str, DiagnosticRecord], count: int, fraction: float, per_hour: int, waiting: bool
) -> None:
    settings = replace(ROTATION, idle_fraction=fraction, idle_per_hour=per_hour)
    chosen = due_tests(known, idle(count), waiting=waiting, settings=settings, now=NOW)
    running = {name for name, tested in known.items() if tested.until is not None and tested.until > NOW}
    rotated = [turn for turn in chosen if not turn.suspect]
    after = len(running) + len(chosen)
    share = fraction * len(set(idle(count)) | running) + 1e-9  # 0.29 of 100 are 29
    assert len(set(names(chosen))) == len(chosen), "nobody twice"
    assert not set(names(chosen)) & running
    assert set(names(chosen)) <= set(idle(count))
    if chosen:
        assert after <= max(share, 1.0)
    if rotated:
        assert after <= share
        assert not waiting
        assert len(rotated) <= per_hour


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
    assert has_waiting_job(jobs) is waiting


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
    scores = {"often": score("often", True, 2), "well": score("well", False, 2), "named": score("named", True, 3)}
    trends = {"ages": (trend("ages", False), trend("ages", True)), "well": (trend("well", False),)}
    named = [(NOW - DAY, verdict("named"), "ann"), (NOW, verdict("named"), "ann")]
    found = {name: one.since for name, one in suspects(named, scores, trends, settings, NOW).items()}
    assert found == {"named": NOW, "often": NOW - timedelta(hours=2), "ages": NOW - DAY}


def printed(*suspect: str) -> Verdict:
    """A verdict for which nothing but a program's words speak."""
    said = evidence(Kind.NUMBERS, node=suspect[0], trust=Trust.USER)
    ground = Ground(said, 1.0, "what a program printed")
    return replace(verdict(*suspect), grounds=(ground,))


def test_one_users_words_cost_few_tests_and_two_users_words_count_as_the_machines() -> None:
    settings, known = Diagnostics(user_suspects_per_day=2), dict[str, DiagnosticRecord]()

    def add(now: datetime, *told: tuple[str, str]) -> list[str]:
        verdicts = [(now, printed(node), user) for node, user in told]
        add_suspects(known, suspects(verdicts, {}, {}, settings, now), settings, now)
        return sorted(name for name, record in known.items() if record.suspect == now)

    assert add(NOW, *((f"n{number}", "eve") for number in range(9))) == ["n0", "n1"]
    later = NOW + timedelta(hours=1)
    known["n0"] = replace(known["n0"], suspect=None, passed=later, tried=later)
    later += timedelta(hours=1)
    assert add(later, ("n0", "eve"), ("n5", "eve"), ("n6", "ann")) == ["n6"], "n0 was tested for eve's words today"
    assert add(later + DAY, ("n0", "eve"), ("n5", "eve")) == ["n0", "n5"]
    assert add(later + 2 * DAY, ("n7", "eve"), ("n7", "ann"), ("n8", ""), ("n9", "")) == ["n7", "n8", "n9"]
    assert known["n7"].user is None and known["n8"].user == ""


def test_what_is_kept_reads_back() -> None:
    known = {"a": DiagnosticRecord(suspect=NOW, user="eve", tried=NOW - DAY), "b": DiagnosticRecord()}
    assert read(written(known)) == known
    assert read({"a": {"suspect": "yesterday"}, "b": {"colour": "blue"}, "c": 5}) == {}
    assert read(None) == {}
