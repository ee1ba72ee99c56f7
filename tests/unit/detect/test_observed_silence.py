"""The clock of a stall: it runs only where an agent says freshly that the log is read and nothing is in it."""

from __future__ import annotations

import pytest

from sentinel.detect.observed_silence import (
    BUCKET_S,
    FRESH_S,
    LogRead,
    Observed,
    Transit,
    after_line,
    after_report,
    logs_of,
    seconds_of,
    transit_of,
)
from sentinel.model.records import utc

LINE, NEXT = utc(1_900_000_000), utc(1_900_000_001)
APART_S = 6.0


def said(observed: Observed, *ends_s: float) -> Observed:
    for end_s in ends_s:
        observed = after_report(observed, end_s, APART_S)
    return observed


def test_time_between_close_statements_is_silence() -> None:
    observed = said(after_line(Observed(), LINE, 100.0), 100.0, 102.0, 104.0, 105.5)
    assert observed.silent_s == 5.5 and observed.through_s == 105.5


def test_the_first_statement_proves_nothing_of_the_time_before_it() -> None:
    assert said(after_line(Observed(), LINE, 100.0), 180.0).silent_s == 0.0


def test_time_that_nobody_covers_does_not_count() -> None:
    observed = said(after_line(Observed(), LINE, 100.0), 100.0, 104.0, 130.0, 132.0)
    assert observed.silent_s == 6.0


def test_nothing_counts_from_before_the_line_was_known_here() -> None:
    observed = said(after_line(Observed(), LINE, 100.0), 100.0, 102.0)
    observed = after_line(observed, NEXT, 103.0)
    assert observed.silent_s == 0.0
    assert said(observed, 102.9).silent_s == 0.0  # a look from before it came
    assert said(observed, 104.0).silent_s == 1.0  # what covers both sides counts on this one


def test_statements_that_come_twice_or_in_disorder_count_once() -> None:
    observed = said(after_line(Observed(), LINE, 100.0), 100.0, 104.0, 102.0, 104.0, 105.0)
    assert observed.silent_s == 5.0


def test_the_same_line_does_not_start_the_clock_anew() -> None:
    observed = said(after_line(Observed(), LINE, 100.0), 100.0, 104.0)
    assert after_line(observed, LINE, 110.0) is observed


def test_only_a_new_statement_is_fresh() -> None:
    assert not Observed().fresh(0.0)
    observed = said(after_line(Observed(), LINE, 100.0), 100.0)
    assert observed.fresh(100.0 + FRESH_S) and not observed.fresh(100.1 + FRESH_S)


def test_a_request_that_was_on_its_way_for_long_is_known_by_the_quickest() -> None:
    transit, late_s = transit_of(None, "b", 5000.0, 100.0)
    assert late_s == 0.0
    transit, late_s = transit_of(transit, "b", 5002.0, 101.9)  # quicker than the first
    assert late_s == 0.0
    transit, late_s = transit_of(transit, "b", 5004.0, 134.0)  # it lay in the socket of a daemon that stood still
    assert late_s == pytest.approx(30.1)


def test_clocks_that_drift_or_were_halted_are_followed() -> None:
    transit: Transit | None = None
    for turn in range(500):  # the agent's machine was suspended for an hour after ten heartbeats
        sent_s = 2.0 * turn
        transit, late_s = transit_of(transit, "b", sent_s, sent_s + (3600.0 if turn >= 10 else 0.0))
    assert late_s == 0.0


def test_a_node_that_booted_has_another_clock() -> None:
    transit, _ = transit_of(None, "b", 9_000_000.0, 100.0)
    assert transit_of(transit, "c", 20.0, 200.0)[1] == 0.0
    assert transit_of(transit, "b", 20.0, 200.0)[1] > BUCKET_S


@pytest.mark.parametrize("torn", [None, 7, "x", {}, [7], [{}], [{"job": 1, "attempt": 0}],
    [{"job": "1", "attempt": 0, "looked_ago_s": 1.0}], [{"job": 1, "attempt": 0, "looked_ago_s": -1.0}],
    [{"job": 1, "attempt": 0, "looked_ago_s": float("nan")}], [{"job": 1, "attempt": 0, "looked_ago_s": True}]])  # fmt: skip
def test_torn_statements_are_not_known(torn: object) -> None:
    assert list(logs_of(torn)) == []


def test_statements_of_a_heartbeat() -> None:
    value = [{"job": 7, "attempt": 1, "looked_ago_s": 1}, {"job": None}, {"job": 8, "attempt": 0, "looked_ago_s": 0.25}]
    assert list(logs_of(value)) == [LogRead(7, 1, 1.0), LogRead(8, 0, 0.25)]


@pytest.mark.parametrize("value", [None, "1", True, float("inf"), float("nan"), [1.0]])
def test_what_is_no_number_of_seconds(value: object) -> None:
    assert seconds_of(value) is None
