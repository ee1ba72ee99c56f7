"""How often to save: a quick local tier and a slow global one.

A pattern is n stretches of work of T each; after all but the last a local save (C1), after the last a global save
(C2). Failures that the local tier repairs come at rate l1 and cost R1 and the work since the last save of either
kind; the others come at rate l2 and cost R2 and the work since the last global save. The shares must come from the
cluster's own history: how many failures lost a shard beyond the copies, or needed an older state.

The structure goes back to N. Vaidya, "A case for two-level distributed recovery schemes" (SIGMETRICS 1995) and the SCR
library (A. Moody et al., SC 2010); the first-order optimum is that of A. Benoit et al., "Towards optimal multi-level
checkpointing" (IEEE Trans. Computers 66(7), 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.planning.interval import daly_s, plan_interval, wall_per_work
from sentinel.planning.limits import OutOfRange, PlanningError, fraction, not_negative, positive

MOST_LOCAL_SAVES = 100_000
# How much more than first order the exact overhead may be before that is said.
FIRST_ORDER_SLACK = 1.25


@dataclass(frozen=True)
class Tiers:
    """What two tiers cost. ``local_share_fraction``: share of the failures that the local tier repairs."""

    local_save_s: float
    local_restart_s: float
    global_save_s: float
    global_restart_s: float
    mtbf_s: float
    local_share_fraction: float

    def __post_init__(self) -> None:
        positive(self.local_save_s, "local save")
        positive(self.global_save_s, "global save")
        positive(self.mtbf_s, "mtbf")
        not_negative(self.local_restart_s, "local restart")
        not_negative(self.global_restart_s, "global restart")
        fraction(self.local_share_fraction, "local share", zero=True)

    @property
    def local_rate(self) -> float:
        return self.local_share_fraction / self.mtbf_s

    @property
    def global_rate(self) -> float:
        return (1 - self.local_share_fraction) / self.mtbf_s


@dataclass(frozen=True)
class TwoLevelPlan:
    """``local_interval_s`` of work between saves, every ``saves_per_global``-th of them global.

    ``overhead_fraction`` is the exact expectation; ``first_order_overhead_fraction`` what Benoit 2017 would say.
    """

    local_interval_s: float
    global_interval_s: float
    saves_per_global: int
    overhead_fraction: float
    single_level_interval_s: float
    single_level_overhead_fraction: float
    first_order_local_interval_s: float
    first_order_global_interval_s: float
    first_order_saves_per_global: int
    first_order_overhead_fraction: float
    independent_local_interval_s: float
    independent_global_interval_s: float
    warnings: tuple[str, ...]


def first_order_interval_s(tiers: Tiers, n: int) -> float:
    """T = sqrt(2 ((n-1) C1 + C2)/n / (l1 + n l2)): the pattern's save cost per stretch against what a failure loses
    (half a stretch, or half a pattern)."""
    cost = ((n - 1) * tiers.local_save_s + tiers.global_save_s) / n
    return math.sqrt(2 * cost / (tiers.local_rate + n * tiers.global_rate))


def first_order_overhead(tiers: Tiers, n: int, interval_s: float) -> float:
    """Saves, lost work and restarts per second of work, each to first order (Benoit 2017)."""
    cost = ((n - 1) * tiers.local_save_s + tiers.global_save_s) / n
    lost = (tiers.local_rate + n * tiers.global_rate) * interval_s / 2
    restarts = tiers.local_rate * tiers.local_restart_s + tiers.global_rate * tiers.global_restart_s
    return cost / interval_s + lost + restarts


def two_level_wall_per_work(tiers: Tiers, n: int, interval_s: float) -> float:
    """Exact expected clock time per useful time of the pattern, failures striking saves and restarts as well.

    With E(i) the expected time from the start of stretch i to the end of the pattern, and W, V(i) from the start of a
    global or local restart: each is a first-step equation of the Markov chain of restarts; they are linear, and the
    stretches before the last all have the same coefficients, so the recurrence sums as a geometric series.
    """
    rate = 1 / tiers.mtbf_s
    share1, share2 = tiers.local_share_fraction, 1 - tiers.local_share_fraction
    try:
        global_restart = math.expm1(rate * tiers.global_restart_s) / rate  # W - E(1)
        fail_restart = -math.expm1(-rate * tiers.local_restart_s)
        through = 1 - share1 * fail_restart
        back = share2 * fail_restart / through  # share of local restarts that end in a global one
        local_restart = (fail_restart / rate + share2 * fail_restart * global_restart) / through

        def stretch(save_s: float) -> tuple[float, float]:
            """(time, chance to be thrown back to the start) of one stretch, local repeats included."""
            passes = math.exp(-rate * (interval_s + save_s))
            fails = -math.expm1(-rate * (interval_s + save_s))
            thrown = fails * (share1 * back + share2)
            spent = fails * (1 / rate + share1 * local_restart + share2 * global_restart)
            return spent / (passes + thrown), thrown / (passes + thrown)

        time, thrown = stretch(tiers.local_save_s)
        last_time, last_thrown = stretch(tiers.global_save_s)
        reach = math.exp((n - 1) * math.log1p(-thrown)) if n > 1 else 1.0
        visits = (n - 1) if thrown == 0 else -math.expm1((n - 1) * math.log1p(-thrown)) / thrown
        return (time * visits + reach * last_time) / (reach * (1 - last_thrown)) / (n * interval_s)
    except (OverflowError, ZeroDivisionError, ValueError):
        raise OutOfRange(
            f"no run gets through patterns of {n} x {interval_s:g} s with a failure every {tiers.mtbf_s:g} s",
            fix="Save more often, or restart faster.",
        ) from None


def plan_two_level(tiers: Tiers) -> TwoLevelPlan:
    """Both intervals, by the exact expectation, beside first order and beside the global tier alone."""
    if tiers.local_save_s >= tiers.global_save_s:
        raise PlanningError(
            f"the local save ({tiers.local_save_s:g} s) is not shorter than the global one ({tiers.global_save_s:g} s)",
            fix="Then one tier is better: use plan interval with the global save alone.",
        )
    if tiers.local_share_fraction == 0:
        raise PlanningError(
            "no failure can be repaired locally", fix="Then one tier is better: leave out --local-save."
        )
    single = plan_interval(tiers.global_save_s, tiers.mtbf_s, tiers.global_restart_s)
    n1 = _best_n(lambda n: first_order_overhead(tiers, n, first_order_interval_s(tiers, n)))
    first = first_order_interval_s(tiers, n1)

    def cost(n: int) -> float:
        return two_level_wall_per_work(tiers, n, _best_interval(tiers, n))

    n = _best_n(cost)
    interval = _best_interval(tiers, n)
    overhead = two_level_wall_per_work(tiers, n, interval) - 1
    return TwoLevelPlan(
        local_interval_s=interval,
        global_interval_s=n * interval,
        saves_per_global=n,
        overhead_fraction=overhead,
        single_level_interval_s=single.interval_s,
        single_level_overhead_fraction=single.overhead_fraction,
        first_order_local_interval_s=first,
        first_order_global_interval_s=n1 * first,
        first_order_saves_per_global=n1,
        first_order_overhead_fraction=first_order_overhead(tiers, n1, first),
        independent_local_interval_s=math.sqrt(2 * tiers.local_save_s / tiers.local_rate),
        independent_global_interval_s=(
            math.sqrt(2 * tiers.global_save_s / tiers.global_rate) if tiers.global_rate > 0 else math.inf
        ),
        warnings=tuple(_warnings(tiers, n, overhead, single.overhead_fraction, first_order_overhead(tiers, n1, first))),
    )


def _warnings(tiers: Tiers, n: int, overhead: float, single: float, first_order: float) -> list[str]:
    found = []
    if tiers.local_share_fraction == 1:
        found.append(
            "every failure is taken as locally repairable: nothing then ever needs the global tier, which no fleet keeps up"
        )
    elif n >= MOST_LOCAL_SAVES:
        found.append(f"the global tier is needed so rarely that the pattern was cut at {MOST_LOCAL_SAVES} local saves")
    if overhead >= single:
        found.append("the local tier does not pay here: the global tier alone costs less")
    if overhead > first_order * FIRST_ORDER_SLACK:
        found.append(
            f"first order is out of its range: it says {100 * first_order:.0f} % overhead where "
            f"{100 * overhead:.0f} % is to be expected"
        )
    return found


def _best_n(cost: Callable[[int], float], least: int = 1) -> int:
    """The n of least cost; cost falls, then rises."""
    high = least
    while high < MOST_LOCAL_SAVES and cost(2 * high) < cost(high):
        high *= 2
    low, high = max(least, high // 2), min(2 * high, MOST_LOCAL_SAVES)
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        if cost(left) <= cost(right):
            high = right
        else:
            low = left
    return min(range(low, high + 1), key=cost)


def _best_interval(tiers: Tiers, n: int) -> float:
    """The stretch of least exact cost for this n: golden section on log T around the first-order value."""
    centre = math.log(first_order_interval_s(tiers, n))
    low, high = centre - math.log(20), centre + math.log(20)
    golden = (math.sqrt(5) - 1) / 2

    def cost(x: float) -> float:
        try:
            return two_level_wall_per_work(tiers, n, math.exp(x))
        except OutOfRange:
            return math.inf

    a, b = high - golden * (high - low), low + golden * (high - low)
    cost_a, cost_b = cost(a), cost(b)
    for _ in range(60):
        if cost_a <= cost_b:
            high, b, cost_b = b, a, cost_a
            a = high - golden * (high - low)
            cost_a = cost(a)
        else:
            low, a, cost_a = a, b, cost_b
            b = low + golden * (high - low)
            cost_b = cost(b)
    return math.exp((low + high) / 2)


def break_even_local_share(tiers: Tiers) -> float | None:
    """The share of locally repairable failures from which two tiers cost less than the global one alone; ``None``
    where they never do. The share in ``tiers`` is not used. Only patterns that really save locally (n >= 2) count."""
    single = wall_per_work(
        daly_s(tiers.global_save_s, tiers.mtbf_s), tiers.global_save_s, tiers.mtbf_s, tiers.global_restart_s
    )

    def gain(share: float) -> float:
        candidate = Tiers(
            tiers.local_save_s,
            tiers.local_restart_s,
            tiers.global_save_s,
            tiers.global_restart_s,
            tiers.mtbf_s,
            share,
        )
        n = _best_n(lambda k: two_level_wall_per_work(candidate, k, _best_interval(candidate, k)), least=2)
        return single - two_level_wall_per_work(candidate, n, _best_interval(candidate, n))

    if gain(0.9999) <= 0:
        return None
    low, high = 0.0, 0.9999
    for _ in range(14):
        middle = (low + high) / 2
        if gain(middle) > 0:
            high = middle
        else:
            low = middle
    return high
