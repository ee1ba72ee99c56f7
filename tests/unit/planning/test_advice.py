"""Recommendations for a running job."""

from __future__ import annotations

import pytest

from sentinel.planning.advice import recommend


def test_a_job_that_saves_too_rarely_is_told_what_it_would_gain() -> None:
    found = recommend(save_s=90, mtbf_s=11135, interval_s=3600)
    assert found.verdict == "save_more_often"
    assert found.interval_s == pytest.approx(1356.4, abs=0.1)
    assert "every 22.6 min instead of every 60 min saves 5." in found.reason


def test_a_job_that_saves_too_often() -> None:
    found = recommend(save_s=90, mtbf_s=11135, interval_s=300)
    assert found.verdict == "save_less_often"
    assert found.overlap is not None and not found.overlap.within


def test_a_small_gain_is_not_worth_a_word() -> None:
    assert recommend(save_s=90, mtbf_s=11135, interval_s=1600).verdict == "keep"
    far = recommend(save_s=90, mtbf_s=11135, mtbf_low_s=3000, mtbf_high_s=90000, interval_s=3600)
    assert far.verdict == "keep"  # within what the few failures leave open


def test_without_a_measured_interval_the_best_is_stated() -> None:
    found = recommend(save_s=90, mtbf_s=11135)
    assert found.verdict == "set" and found.interval_s == pytest.approx(1356.4, abs=0.1)


def test_what_was_not_measured_is_named() -> None:
    assert "no save" in recommend(save_s=None, mtbf_s=11135).reason
    assert "no failure rate" in recommend(save_s=90, mtbf_s=None).reason
    bound = recommend(save_s=90, mtbf_s=None, mtbf_low_s=11135)
    assert bound.verdict == "unknown" and "more often than every 22.6 min is not needed" in bound.reason


def test_measurements_that_do_not_fit_are_unknown_and_no_crash() -> None:
    assert recommend(save_s=90, mtbf_s=60).verdict == "unknown"
    assert recommend(save_s=-1, mtbf_s=60).verdict == "unknown"
    piled = recommend(save_s=90, mtbf_s=11135, interval_s=-30)
    assert piled.verdict == "unknown" and "pile up" in piled.reason
    lost = recommend(save_s=5, mtbf_s=60, interval_s=1e6)
    assert lost.verdict == "save_more_often"
