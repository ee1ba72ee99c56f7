"""How many spare nodes: so that a failed node is replaced within the wished time.

Every failure takes one spare; every broken node comes back to the pool after its repair. That is the base-stock
inventory of reliability engineering. With failures as a Poisson process of rate f and repairs that do not queue for
each other, the number of nodes in repair is Poisson with mean f x repair whatever the distribution of the repair times
(C. Palm 1938; G. J. Feeney and C. C. Sherbrooke, "The (s-1, s) inventory policy under compound Poisson demand",
Management Science 12(5), 1966).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.planning.limits import OutOfRange, fraction, not_negative, positive, whole
from sentinel.planning.poisson import at_most, pmf
from sentinel.planning.quantities import DAY_S

MOST_SPARES = 100_000


@dataclass(frozen=True)
class SparePool:
    """What a number of spares gives. The waiting time is that of the failed node's replacement."""

    spares: int
    no_wait_probability: float
    within_wait_probability: float
    mean_wait_s: float


@dataclass(frozen=True)
class SparesPlan:
    """``spares`` is the least number that keeps the promise; ``pools`` the numbers around it."""

    spares: int
    failures_per_day: float
    in_repair_mean: float
    wait_s: float
    pools: tuple[SparePool, ...]
    warnings: tuple[str, ...]


def no_wait_probability(spares: int, in_repair_mean: float) -> float:
    """A failure finds a spare if fewer than ``spares`` nodes are away: P(X <= s - 1); Poisson arrivals see time
    averages (R. W. Wolff 1982)."""
    return at_most(whole(spares, "spares", least=0) - 1, in_repair_mean)


def mean_wait_s(spares: int, failures_per_s: float, repair_s: float) -> float:
    """Mean wait over all failures: Little's law on the missing nodes, E[(X - s)+] / f."""
    mean = positive(failures_per_s, "failure rate") * not_negative(repair_s, "repair")
    # E[(X-s)+] = E[X] - s + sum over x < s of (s - x) P(x), which for a Poisson X is mean P(X >= s) - s P(X >= s+1).
    missing = mean * (1 - at_most(spares - 1, mean)) - spares * (1 - at_most(spares, mean))
    if missing < 1e-9:  # cancellation: sum the far tail instead
        missing, x = 0.0, spares + 1
        while True:
            term = (x - spares) * pmf(x, mean)
            missing += term
            if x > mean and term <= missing * 1e-12:
                break
            x += 1
    return missing / failures_per_s


def within_wait_probability(spares: int, failures_per_s: float, repair_s: float, wait_s: float) -> float:
    """P(wait <= t) when every repair takes the same time L: fewer than ``spares`` failures in the last L - t, so
    P(Poisson(f (L - t)) <= s - 1); certain for t >= L. Longer tails of the repair time make it smaller."""
    if wait_s >= repair_s:
        return 1.0
    return at_most(whole(spares, "spares", least=0) - 1, failures_per_s * (repair_s - wait_s))


def plan_spares(
    node_failures_per_s: float, repair_s: float, wait_s: float, probability_fraction: float, nodes: int
) -> SparesPlan:
    """Spares so that a replacement is there within ``wait_s`` for this share of the failures.

    ``node_failures_per_s``: failures that send a node to repair, of all ``nodes`` at work together.
    """
    rate, repair = positive(node_failures_per_s, "failure rate"), positive(repair_s, "repair")
    wait, wish = not_negative(wait_s, "wait"), fraction(probability_fraction, "probability", one=False)
    mean = rate * repair
    if mean > whole(nodes, "nodes") / 2:
        raise OutOfRange(
            f"{mean:.0f} of {nodes} nodes would be in repair at any time: failures are then no longer independent of it",
            fix="Check the failure rate and the repair time; such a fleet needs quicker repair, not spares.",
        )
    needed = _least(lambda s: within_wait_probability(s, rate, repair, wait) >= wish)
    shown = range(max(0, needed - 3), needed + 4)
    pools = tuple(
        SparePool(
            s,
            no_wait_probability(s, mean),
            within_wait_probability(s, rate, repair, wait),
            mean_wait_s(s, rate, repair),
        )
        for s in shown
    )
    return SparesPlan(needed, rate * DAY_S, mean, wait, pools, tuple(_warnings(needed, nodes, wait, repair)))


def _warnings(needed: int, nodes: int, wait: float, repair: float) -> list[str]:
    found = []
    if wait >= repair:
        found.append("the wished wait is as long as the repair: waiting for the repair keeps it without any spare")
    if needed > nodes / 10:
        found.append(f"{needed} spares are more than a tenth of the {nodes} nodes: quicker repair is cheaper")
    return found


def _least(enough: Callable[[int], bool]) -> int:
    """The least number that is enough."""
    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_SPARES:
            raise OutOfRange(
                f"more than {MOST_SPARES} spares would be needed", fix="Check failure rate and repair time."
            )
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
