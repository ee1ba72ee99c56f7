"""A job's curve is bounded, covers the whole attempt, and takes what is no number for not known."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan
from typing import Any

from made_records import evidence, later

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.progress_curve import MOST, ProgressCurve
from sentinel.model.records import JobView, Kind, Source


def line(at_s: float, job: int | None = None, **data: Any) -> Any:
    return evidence(Kind.STEP, at_s=at_s, source=Source.JOB_LOG, job=job, attempt=None if job is None else 0, data=data)


def test_points_cover_the_whole_attempt_however_long_it_is() -> None:
    curve = ProgressCurve()
    for step in range(1, 20_001):
        curve.note(line(step * 2.0, step=step, loss=10 / step, step_time_s=2.0))
    points = curve.points()
    assert MOST / 2 - 1 <= len(points) < MOST and points[0].step == 1 and points[-1].step > 20_000 - 2 * curve.stride
    assert len({later.step - earlier.step for earlier, later in pairwise(points)}) == 1
    assert all(point.loss == 10 / point.step and point.step_s == 2.0 for point in points)


def test_step_time_that_is_not_printed_comes_from_the_clock() -> None:
    curve = ProgressCurve()
    for at_s, step in ((0.0, 10), (30.0, 20), (30.0, 20), (90.0, 30)):
        curve.note(line(at_s, step=step, loss=1.0))
    assert [(point.step, point.step_s) for point in curve.points()] == [(10, None), (20, 3.0), (30, 6.0)]


def test_what_is_no_number_is_not_known() -> None:
    curve = ProgressCurve()
    for step, loss in (
        (1, nan),
        (2, inf),
        (3, "1.5"),
        (4, True),
        (5, 2),
        (True, 1.0),
        ("6", 1.0),
        (10**400, 1.0),
        (4, 1.0),
    ):
        curve.note(line(1.0, step=step, loss=loss))
    assert [point.loss for point in curve.points()] == [None, None, None, None, 2.0] and curve.bad == 2


def test_curve_outlives_its_attempt() -> None:
    view = ClusterView()
    view.see_attempt(JobView(id=7, state="running", nodes=("n1",), started_at=later(0)))
    view.note(line(1.0, job=7, step=1, loss=3.0))
    view.note(evidence(Kind.JOB_ENDED, job=7, attempt=0, at_s=2.0, source=Source.SLURM))
    view.forget(later(7 * 86400))
    assert view.attempts == {} and [point.loss for point in view.curve(7, 0, later(0))] == [3.0]
    assert view.curve(7, 1, later(0)) == view.curve(8, 0, later(0)) == view.curve(7, 0, later(1)) == []
