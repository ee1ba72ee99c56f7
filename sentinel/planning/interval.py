"""How often to save: one tier of checkpoints.

Names of the literature and ours: C is ``save_s``, the time a save stops the training; M is ``mtbf_s``, the mean time
between interruptions of this job; R is ``restart_s``, from the failure to the first new step (detection, waiting,
loading); T is ``interval_s``, the useful work between two saves. So saves start every T + C on the clock.

Failures are taken as a Poisson process, also during saves and restarts. The cost is stated as ``overhead``: clock time
spent per second of useful work, minus one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sentinel.planning.limits import OutOfRange, PlanningError, not_negative, positive

# A first-order formula drops terms of the order of sqrt(C/2M); beyond this Young is more than 5 % too long.
FIRST_ORDER_C_OVER_M = 0.01
# Above this share the best interval would be shorter than the save itself (e^(2c) (1 - c) = 1).
MOST_C_OVER_M = 0.7968


def young_s(save_s: float, mtbf_s: float) -> float:
    """First order: T = sqrt(2 C M). J. W. Young, "A first order approximation to the optimum checkpoint interval",
    CACM 17(9), 1974. True for C much smaller than M."""
    return math.sqrt(2 * positive(save_s, "save") * positive(mtbf_s, "mtbf"))


def daly_first_s(save_s: float, mtbf_s: float) -> float:
    """Daly's first order: T = sqrt(2 C M) - C, the same period counted without the save. J. T. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Needs C < 2M."""
    interval = young_s(save_s, mtbf_s) - save_s
    if interval <= 0:
        raise OutOfRange(
            f"Daly's first order gives no interval for a save of {save_s:g} s and an MTBF of {mtbf_s:g} s",
            fix="It needs a save shorter than twice the MTBF.",
        )
    return interval


def daly_s(save_s: float, mtbf_s: float) -> float:
    """Daly 2006, higher order: T = sqrt(2CM) [1 + sqrt(C/2M)/3 + (C/2M)/9] - C for C < 2M, else M."""
    ratio = positive(save_s, "save") / (2 * positive(mtbf_s, "mtbf"))
    if ratio >= 1:
        return mtbf_s
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def optimum_s(save_s: float, mtbf_s: float) -> float:
    """The exact minimum of ``wall_per_work``: e^((T+C)/M) (1 - T/M) = 1, so T/M = 1 + W(-e^(-1-C/M)) with the main
    branch of Lambert's W. Found by Newton's method on log(1 - x) + x + C/M = 0 in x = T/M."""
    c = positive(save_s, "save") / positive(mtbf_s, "mtbf")
    # For small c the root is near sqrt(2c); log1p keeps its precision there.
    x = min(math.sqrt(2 * c), 1 - math.exp(-1 - c))
    for _ in range(100):
        residual = math.log1p(-x) + x + c
        step = residual * (1 - x) / x
        x_next = x + step
        if not 0 < x_next < 1:
            x_next = (x + (1 if step > 0 else 0)) / 2
        if abs(x_next - x) <= 1e-14 * x:
            break
        x = x_next
    return x * mtbf_s


def saxena_period_s(save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Period from save to save: C + sqrt(2 (M + R) C + C^2). S. Saxena et al., arXiv:2410.18124 (2024).
    Counts M from the end of a restart to the next failure, which lengthens the period slightly."""
    c, m, r = positive(save_s, "save"), positive(mtbf_s, "mtbf"), not_negative(restart_s, "restart")
    return c + math.sqrt(2 * (m + r) * c + c * c)


def wall_per_work(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Expected clock time per useful time: M e^(R/M) (e^((T+C)/M) - 1) / T. Daly 2006; exact for Poisson
    failures that also strike saves and restarts."""
    t, m = positive(interval_s, "interval"), positive(mtbf_s, "mtbf")
    c, r = not_negative(save_s, "save"), not_negative(restart_s, "restart")
    try:
        return math.exp(r / m) * math.expm1((t + c) / m) * m / t
    except OverflowError:
        raise OutOfRange(
            f"no run gets {t + c:g} s past failures every {m:g} s in any time worth stating",
            fix="Save more often, or restart faster.",
        ) from None


def first_order_waste(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of the clock lost, first order: C/(T+C) + (R + (T+C)/2)/M (the textbook sum, e.g. Herault and Robert,
    "Fault-Tolerance Techniques for High-Performance Computing", 2015, chapter 1). Refused where it passes 1."""
    t, m = positive(interval_s, "interval"), positive(mtbf_s, "mtbf")
    c, r = not_negative(save_s, "save"), not_negative(restart_s, "restart")
    waste = c / (t + c) + (r + (t + c) / 2) / m
    if waste >= 1:
        raise OutOfRange(
            f"the first-order sum says {100 * waste:.0f} % of the time is lost: it does not hold this far",
            fix="Use the exact expectation, or save more often.",
        )
    return waste


@dataclass(frozen=True)
class Method:
    """One way to choose the interval, and what it costs by the exact expectation."""

    name: str
    interval_s: float
    overhead_fraction: float
    note: str = ""


@dataclass(frozen=True)
class IntervalPlan:
    """The answer: ``interval_s`` is Daly's higher order, or the interval that was asked about.

    ``overhead_fraction`` = ``wall_per_work`` - 1. The three parts sum to it: completed saves, restarts, and lost time
    (work to be redone and saves that a failure cut short).
    """

    interval_s: float
    overhead_fraction: float
    wall_per_work: float
    save_overhead_fraction: float
    restart_overhead_fraction: float
    lost_overhead_fraction: float
    lost_per_failure_s: float
    saves_per_failure: float
    half_overhead_fraction: float
    double_overhead_fraction: float
    first_order_waste_fraction: float | None
    methods: tuple[Method, ...]
    warnings: tuple[str, ...]


def plan_interval(
    save_s: float, mtbf_s: float, restart_s: float = 0.0, interval_s: float | None = None
) -> IntervalPlan:
    """Best interval for one tier, what it costs, and what the other formulas would have said.

    Refuses a save so long, beside the MTBF, that no interval longer than the save is best, and a given interval that
    is shorter than the save.
    """
    c, m, r = positive(save_s, "save"), positive(mtbf_s, "mtbf"), not_negative(restart_s, "restart")
    _refuse_hopeless(c, m)
    if interval_s is not None and positive(interval_s, "interval") < c:
        raise PlanningError(
            f"an interval of {interval_s:g} s is shorter than the save of {c:g} s: the job would save more than it works",
            fix=f"Save at most every {c:g} s; the best interval here is {daly_s(c, m):.0f} s.",
        )
    best = daly_s(c, m)
    chosen = best if interval_s is None else interval_s
    wall = wall_per_work(chosen, c, m, r)
    failures_per_work_s = wall / m
    saved = c / chosen
    # A restart lasts until it is done or struck itself: E[min(X, R)] = M (1 - e^(-R/M)) per failure.
    restarts = failures_per_work_s * m * -math.expm1(-r / m)
    lost = wall - 1 - saved - restarts
    return IntervalPlan(
        interval_s=chosen,
        overhead_fraction=wall - 1,
        wall_per_work=wall,
        save_overhead_fraction=saved,
        restart_overhead_fraction=restarts,
        lost_overhead_fraction=lost,
        lost_per_failure_s=lost / failures_per_work_s,
        saves_per_failure=m / (chosen + c),
        half_overhead_fraction=wall_per_work(chosen / 2, c, m, r) - 1,
        double_overhead_fraction=wall_per_work(chosen * 2, c, m, r) - 1,
        first_order_waste_fraction=_waste_if_valid(chosen, c, m, r),
        methods=_methods(c, m, r),
        warnings=tuple(_warnings(chosen, c, m, r)),
    )


def _refuse_hopeless(c: float, m: float) -> None:
    if c > MOST_C_OVER_M * m:
        done = 100 * math.exp(-c / m)
        raise OutOfRange(
            f"a save of {c:g} s against a failure every {m:g} s: only {done:.0f} % of the saves would complete, and the "
            "best interval would be shorter than the save itself",
            fix=f"Make the save shorter than {m / 10:.3g} s (faster storage, a local tier, asynchronous saves).",
        )


def _waste_if_valid(t: float, c: float, m: float, r: float) -> float | None:
    try:
        return first_order_waste(t, c, m, r)
    except OutOfRange:
        return None


def _methods(c: float, m: float, r: float) -> tuple[Method, ...]:
    rows = [
        ("Young 1974", young_s(c, m), "first order"),
        ("Daly 2006, first order", daly_first_s(c, m), "Young less the save"),
        ("Daly 2006, higher order", daly_s(c, m), "the answer"),
        ("exact optimum", optimum_s(c, m), "Lambert W"),
        ("Saxena 2024", saxena_period_s(c, m, r) - c, "period less the save"),
    ]
    return tuple(Method(name, t, wall_per_work(t, c, m, r) - 1, note) for name, t, note in rows)


def _warnings(t: float, c: float, m: float, r: float) -> list[str]:
    best, wall = daly_s(c, m), wall_per_work(t, c, m, r)
    found = []
    if c > FIRST_ORDER_C_OVER_M * m:
        off = young_s(c, m) / optimum_s(c, m) - 1
        found.append(
            f"the save is {100 * c / m:.1f} % of the MTBF: first-order formulas leave their range (Young is "
            f"{100 * off:.0f} % too long); the higher order holds"
        )
    if abs(best / optimum_s(c, m) - 1) > 0.02:
        found.append(
            f"the save is {100 * c / m:.0f} % of the MTBF: Daly's higher order is itself "
            f"{100 * abs(best / optimum_s(c, m) - 1):.0f} % off the exact optimum of {optimum_s(c, m):.0f} s"
        )
    if wall > 2:
        found.append(f"only {100 / wall:.0f} % of the time is useful work: shorten the save and the restart first")
    if r > m / 2:
        found.append(
            f"a restart takes {100 * r / m:.0f} % of the MTBF: one restart in {1 / -math.expm1(-r / m):.1f} is "
            "itself interrupted"
        )
    if t > m:
        found.append("the interval is longer than the MTBF: most intervals end in a failure instead of a save")
    return found


def curve(
    save_s: float, mtbf_s: float, restart_s: float, centre_s: float, *, span: float = 8.0, points: int = 33
) -> list[tuple[float, float]]:
    """(interval_s, overhead_fraction) on a logarithmic grid from centre/span to centre x span; ends that no run
    would survive are left out."""
    rows = []
    for i in range(points):
        t = centre_s * span ** (2 * i / (points - 1) - 1)
        try:
            rows.append((t, wall_per_work(t, save_s, mtbf_s, restart_s) - 1))
        except OutOfRange:
            continue
    return rows
