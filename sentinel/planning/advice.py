"""Recommends a save interval for a running job, for listings and for its researcher."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.planning.bandwidth import Overlap, overlap
from sentinel.planning.interval import plan_interval, wall_per_work
from sentinel.planning.limits import OutOfRange, PlanningError
from sentinel.planning.quantities import show_duration, show_share

# A gain below this share of the job's time is not worth telling anybody.
LEAST_GAIN = 0.005


@dataclass(frozen=True)
class Recommendation:
    """``verdict``: ``keep``, ``save_more_often``, ``save_less_often``, ``set`` (no interval measured), or ``unknown``
    with the missing measurement named in ``reason``. ``gain_fraction``: share of the time that changing would save."""

    verdict: str
    reason: str
    interval_s: float | None = None
    low_interval_s: float | None = None
    high_interval_s: float | None = None
    overhead_fraction: float | None = None
    current_interval_s: float | None = None
    current_overhead_fraction: float | None = None
    gain_fraction: float | None = None
    lost_per_failure_s: float | None = None
    overlap: Overlap | None = None
    warnings: tuple[str, ...] = ()


def recommend(
    *,
    save_s: float | None,
    mtbf_s: float | None,
    mtbf_low_s: float | None = None,
    mtbf_high_s: float | None = None,
    restart_s: float | None = None,
    interval_s: float | None = None,
    drain_s: float | None = None,
) -> Recommendation:
    """The interval a job should use, from what was measured of it; pure, and never an exception for missing data.

    ``save_s``: mean time that a save stops the training. ``mtbf_s`` (with its confidence bounds): MTBF of a job of this
    size. ``interval_s``: mean work between saves as measured. ``drain_s``: how long a save goes on behind the training;
    the next cannot start before it ends. ``None`` means not known; a restart not known is left out and said so.
    """
    try:
        seen = _overlap(save_s, interval_s, drain_s)
        if save_s is None:
            return Recommendation(
                "unknown", "no save of this job was measured", overlap=seen, current_interval_s=interval_s
            )
        if mtbf_s is None:
            return _without_mtbf(save_s, interval_s, mtbf_low_s, seen)
        best = plan_interval(save_s, mtbf_s, restart_s or 0.0)
    except OutOfRange as error:
        return Recommendation("unknown", f"{error.message}. {error.fix}", current_interval_s=interval_s)
    except PlanningError as error:
        return Recommendation(
            "unknown", f"the measurements do not fit together: {error.message}", current_interval_s=interval_s
        )
    floor = drain_s or 0.0
    interval = max(best.interval_s, floor - save_s)
    warnings = list(best.warnings)
    if restart_s is None:
        warnings.append("the restart was not measured and is left out of the overhead")
    if interval > best.interval_s:
        warnings.append(
            f"{show_duration(best.interval_s)} would be best, but a save drains for {show_duration(floor)}: faster "
            "storage would allow it"
        )
    wall = wall_per_work(interval, save_s, mtbf_s, restart_s or 0.0)
    bounds = [None if m is None else max(_bound(save_s, m), floor - save_s) for m in (mtbf_low_s, mtbf_high_s)]
    base = Recommendation(
        verdict="set",
        reason=f"a save takes {show_duration(save_s)} and a failure comes every {show_duration(mtbf_s)}",
        interval_s=interval,
        low_interval_s=bounds[0],
        high_interval_s=bounds[1],
        overhead_fraction=wall - 1,
        current_interval_s=interval_s,
        lost_per_failure_s=best.lost_per_failure_s,
        overlap=seen,
        warnings=tuple(warnings),
    )
    return base if interval_s is None else _compare(base, save_s, mtbf_s, restart_s or 0.0, interval_s)


def _bound(save_s: float, mtbf_s: float) -> float:
    try:
        return plan_interval(save_s, mtbf_s).interval_s
    except OutOfRange:
        return save_s


def _overlap(save_s: float | None, interval_s: float | None, drain_s: float | None) -> Overlap | None:
    took = drain_s if drain_s is not None else save_s
    if took is None or interval_s is None or took == 0:
        return None
    return overlap(took, interval_s + (save_s or 0.0), blocking=drain_s is None)


def _without_mtbf(
    save_s: float, interval_s: float | None, mtbf_low_s: float | None, seen: Overlap | None
) -> Recommendation:
    if mtbf_low_s is None:
        return Recommendation(
            "unknown", "no failure rate is known for this cluster", current_interval_s=interval_s, overlap=seen
        )
    least = _bound(save_s, mtbf_low_s)
    return Recommendation(
        "unknown",
        f"no failure was seen yet: failures are at least {show_duration(mtbf_low_s)} apart, so saving more often than "
        f"every {show_duration(least)} is not needed",
        low_interval_s=least,
        current_interval_s=interval_s,
        overlap=seen,
    )


def _compare(base: Recommendation, save_s: float, mtbf_s: float, restart_s: float, interval_s: float) -> Recommendation:
    assert base.interval_s is not None and base.overhead_fraction is not None
    try:
        current = wall_per_work(interval_s, save_s, mtbf_s, restart_s) - 1
    except OutOfRange as error:
        return _with(base, "save_more_often", f"{base.reason}; {error.message}", None, None)
    gain = 1 / (1 + base.overhead_fraction) - 1 / (1 + current)
    low = base.low_interval_s if base.low_interval_s is not None else base.interval_s
    high = base.high_interval_s if base.high_interval_s is not None else base.interval_s
    if gain < LEAST_GAIN or low <= interval_s <= high:
        reason = f"every {show_duration(interval_s)} costs {show_share(max(gain, 0.0))} of the time more than the best"
        return _with(base, "keep", reason, current, gain)
    verdict = "save_more_often" if interval_s > base.interval_s else "save_less_often"
    reason = (
        f"{base.reason}; every {show_duration(base.interval_s)} instead of every {show_duration(interval_s)} saves "
        f"{show_share(gain)} of the time"
    )
    return _with(base, verdict, reason, current, gain)


def _with(base: Recommendation, verdict: str, reason: str, current: float | None, gain: float | None) -> Recommendation:
    return replace(base, verdict=verdict, reason=reason, current_overhead_fraction=current, gain_fraction=gain)
