"""Counts of rare events: the Poisson distribution and the exact interval for its mean.

The interval is that of Garwood 1936 ("Fiducial limits for the Poisson distribution", Biometrika 28), which reliability
engineering writes with chi-square quantiles (MIL-HDBK-781A, time-truncated test): for k events the mean lies between
chi2(a/2; 2k)/2 and chi2(1-a/2; 2k+2)/2. Both are quantiles of the gamma distribution, found here by bisection of the
regularised incomplete gamma function.
"""

from __future__ import annotations

import math
from functools import lru_cache

from sentinel.planning.limits import fraction, not_negative, positive, whole

_STEPS = 1_000_000  # most of series and continued fraction: they end by precision, those of 10**9 events after 300,000


def gamma_below(shape: float, x: float) -> float:
    """P(shape, x), the regularised lower incomplete gamma function (NIST DLMF 8.11.4 and 8.9.2)."""
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for i in range(1, _STEPS):
            term *= x / (shape + i)
            total += term
            if term < total * 1e-16:
                break
        return min(1.0, total * scale)
    # Continued fraction of the upper function, by the modified Lentz method.
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, _STEPS):
        a = -i * (i - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return max(0.0, 1 - scale * h)


def at_most(count: int, mean: float) -> float:
    """P(X <= count) for X Poisson with this mean; 0 for a negative count."""
    not_negative(mean, "mean")
    if count < 0:
        return 0.0
    return 1.0 if mean == 0 else 1 - gamma_below(count + 1, mean)


def pmf(count: int, mean: float) -> float:
    """P(X = count)."""
    if mean == 0:
        return 1.0 if count == 0 else 0.0
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def mean_interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval for the mean of a Poisson count (Garwood 1936). Count 0 gives (0, upper)."""
    whole(count, "count", least=0, most=10**9)
    tail = (1 - fraction(confidence, "confidence", one=False)) / 2
    low = 0.0 if count == 0 else _gamma_quantile(count, tail)
    return low, _gamma_quantile(count + 1, 1 - tail)


def count_interval(mean: float, confidence: float = 0.95) -> tuple[int, int]:
    """The counts between which a Poisson variable falls with at least this probability (equal tails)."""
    not_negative(mean, "mean")
    tail = (1 - fraction(confidence, "confidence", one=False)) / 2
    return _count_quantile(mean, tail), _count_quantile(mean, 1 - tail)


def same_rate_probability(count: int, exposure: float, other_count: int, other_exposure: float) -> float:
    """How often chance makes two counts at least so different where both have one rate (two-sided).

    The exact conditional test: given the sum of both, one of them is binomial with its share of the exposure (Przyborowski
    and Wilenski 1940, "Homogeneity of results in testing samples from Poisson series", Biometrika 31).
    """
    total = whole(count, "count", least=0, most=10**9) + whole(other_count, "other count", least=0, most=10**9)
    share = positive(exposure, "exposure") / (exposure + positive(other_exposure, "other exposure"))
    if total == 0:
        return 1.0
    below = math.fsum(_binomial(i, total, share) for i in range(count + 1))
    above = math.fsum(_binomial(i, total, share) for i in range(count, total + 1))
    return min(1.0, 2 * min(below, above))


def _binomial(count: int, total: int, share: float) -> float:
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    return math.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share))


@lru_cache(maxsize=256)  # of one count of failures it is asked for each of thousands of jobs, and takes 0.3 ms
def _gamma_quantile(shape: float, probability: float) -> float:
    low, high = 0.0, shape + 10 * math.sqrt(shape) + 10
    while gamma_below(shape, high) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if gamma_below(shape, middle) < probability:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2


def _count_quantile(mean: float, probability: float) -> int:
    """The least count with P(X <= count) >= probability."""
    low, high = -1, math.ceil(mean + 10 * math.sqrt(mean) + 10)
    while at_most(high, mean) < probability:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if at_most(middle, mean) < probability:
            low = middle
        else:
            high = middle
    return high
