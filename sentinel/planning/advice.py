"""Recommends a save interval for a running job, for listings and for its researcher."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.planning.bandwidth import Overlap, overlap
from sentinel.planning.interval import plan_interval, wall_per_work
from sentinel.planning.limits import OutOfRange, PlanningError
from sentinel.planning.quantities import show_duration, show_share

# A gain below this share of the job's time is not worth telling anybody.
LEAST_GAIN = 0.005


@dataclass(frozen=True)
class Recommendation:
    """``verdict``: ``keep``, ``save_more_often``, ``save_less_often``, ``set`` (no interval measured), or ``unknown``
    with the missing measurement named in ``reason``."""

    verdict: str
    reason: str
    interval_s: float | None = None
    lost_per_failure_s: float | None = None
    overlap: Overlap | None = None


def recommend(
    *,
    save_s: float | None,
    mtbf_s: float | None,
    mtbf_low_s: float | None = None,
    mtbf_high_s: float | None = None,
    interval_s: float | None = None,
) -> Recommendation:
    """The interval a job should use, from what was measured of it; pure, and never an exception for missing data.

    ``save_s``: mean time that a save stops the training. ``mtbf_s`` (with its confidence bounds): MTBF of a job of this
    size. ``interval_s``: mean work between saves as measured. ``None`` means not known. How long a restart takes is not
    measured and left out.
    """
    try:
        if save_s is None:
            return Recommendation("unknown", "no save of this job was measured")
        seen = overlap(save_s, interval_s + save_s, blocking=True) if interval_s is not None and save_s != 0 else None
        if mtbf_s is None:
            return _without_mtbf(save_s, mtbf_low_s, seen)
        best = plan_interval(save_s, mtbf_s)
    except OutOfRange as error:
        return Recommendation("unknown", f"{error.message}. {error.fix}")
    except PlanningError as error:
        return Recommendation("unknown", f"the measurements do not fit together: {error.message}")
    verdict = "set"
    reason = f"a save takes {show_duration(save_s)} and a failure comes every {show_duration(mtbf_s)}"
    if interval_s is not None:
        low, high = (best.interval_s if m is None else _bound(save_s, m) for m in (mtbf_low_s, mtbf_high_s))
        verdict, reason = _compare(best.interval_s, low, high, save_s, mtbf_s, interval_s, reason)
    return Recommendation(verdict, reason, best.interval_s, best.lost_per_failure_s, seen)


def _bound(save_s: float, mtbf_s: float) -> float:
    try:
        return plan_interval(save_s, mtbf_s).interval_s
    except OutOfRange:
        return save_s


def _without_mtbf(save_s: float, mtbf_low_s: float | None, seen: Overlap | None) -> Recommendation:
    if mtbf_low_s is None:
        return Recommendation("unknown", "no failure rate is known for this cluster", overlap=seen)
    return Recommendation(
        "unknown",
        f"no failure was seen yet: failures are at least {show_duration(mtbf_low_s)} apart, so saving more often than "
        f"every {show_duration(_bound(save_s, mtbf_low_s))} is not needed",
        overlap=seen,
    )


def _compare(
    best_s: float, low_s: float, high_s: float, save_s: float, mtbf_s: float, interval_s: float, reason: str
) -> tuple[str, str]:
    """Verdict and reason beside the measured interval; between ``low_s`` and ``high_s`` any may be the best."""
    best_cost = wall_per_work(best_s, save_s, mtbf_s)
    try:
        cost = wall_per_work(interval_s, save_s, mtbf_s)
    except OutOfRange as error:
        return "save_more_often", f"{reason}; {error.message}"
    gain = 1 / best_cost - 1 / cost  # share of the time that changing would save
    if gain < LEAST_GAIN or low_s <= interval_s <= high_s:
        more = show_share(max(gain, 0.0))
        return "keep", f"every {show_duration(interval_s)} costs {more} of the time more than the best"
    return (
        "save_more_often" if interval_s > best_s else "save_less_often",
        f"{reason}; every {show_duration(best_s)} instead of every {show_duration(interval_s)} saves "
        f"{show_share(gain)} of the time",
    )
