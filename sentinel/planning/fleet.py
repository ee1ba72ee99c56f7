"""How often a fleet fails, what that means for a run, and how many saves fit between two failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sentinel.planning.interval import optimum_s, wall_per_work
from sentinel.planning.limits import OutOfRange, PlanningError, fraction, not_negative, positive, whole
from sentinel.planning.poisson import count_interval
from sentinel.planning.quantities import DAY_S

# Unexpected interruptions in 54 days of Llama 3 405B on 16,384 H100: "The Llama 3 Herd of Models", arXiv:2407.21783,
# table 5 (its counts; some of its percentages do not follow from them). They sum to 419.
PUBLISHED_CAUSES: tuple[tuple[str, int], ...] = (
    ("faulty GPU", 148),
    ("GPU HBM memory", 72),
    ("software bug", 54),
    ("network switch or cable", 35),
    ("host maintenance", 32),
    ("GPU SRAM memory", 19),
    ("GPU system processor", 17),
    ("NIC", 7),
    ("NCCL watchdog timeout", 7),
    ("silent data corruption", 6),
    ("GPU thermal interface and sensor", 6),
    ("SSD", 3),
    ("power supply", 3),
    ("server chassis", 2),
    ("IO expansion board", 2),
    ("dependency", 2),
    ("CPU", 2),
    ("system memory", 2),
)
PUBLISHED_SOURCE = "Llama 3 405B, 419 interruptions (arXiv:2407.21783, table 5)"
LEAST_MTBF_S = 1.0


def fleet_mtbf_s(gpu_mtbf_s: float, gpus: int) -> float:
    """MTBF of a job that any of its GPUs interrupts: M/N. The failures of N independent Poisson processes add up
    (superposition, e.g. Cox and Lewis 1966). A GPU's figure includes its share of node, network and software."""
    result = positive(gpu_mtbf_s, "MTBF of a GPU") / whole(gpus, "gpus")
    if result < LEAST_MTBF_S:
        raise OutOfRange(
            f"{gpus} GPUs at {gpu_mtbf_s:g} s each fail every {result:g} s: no training is possible",
            fix="Check the unit of the MTBF of a GPU: it is some 50000h.",
        )
    return result


def failures_per_1000_node_days(mtbf_s: float, gpus: int, gpus_per_node: int = 8) -> float:
    """Failures per 1,000 node-days, the unit of Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
    Research Clusters", arXiv:2410.21680 (6.50 on RSC-1, 2.34 on RSC-2)."""
    nodes = whole(gpus, "gpus") / whole(gpus_per_node, "GPUs of a node")
    return 1000 * DAY_S / positive(mtbf_s, "mtbf") / nodes


def mtbf_from_node_days(per_1000_node_days: float, gpus: int, gpus_per_node: int = 8) -> float:
    """The way back: MTTF = 1/(N rf) of the same paper."""
    nodes = whole(gpus, "gpus") / whole(gpus_per_node, "GPUs of a node")
    return 1000 * DAY_S / (positive(per_1000_node_days, "failures per 1000 node-days") * nodes)


@dataclass(frozen=True)
class Interruptions:
    """What to expect in a run: the mean count, and the range it stays in with this probability (Poisson)."""

    days: float
    expected: float
    low: int
    high: int
    confidence: float
    by_cause: tuple[tuple[str, float, float], ...]
    """(cause, share_fraction, expected)"""


def interruptions(
    mtbf_s: float, run_s: float, causes: tuple[tuple[str, int], ...] = (), confidence: float = 0.95
) -> Interruptions:
    """Interruptions of a run of this length on the clock, split by the counts of the causes."""
    expected = positive(run_s, "length of the run") / positive(mtbf_s, "mtbf")
    low, high = count_interval(expected, confidence)
    total = sum(count for _, count in causes)
    rows = tuple((cause, count / total, expected * count / total) for cause, count in causes if total)
    return Interruptions(run_s / DAY_S, expected, low, high, confidence, rows)


def goodput_at(checkpoints: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of the clock that is useful work with this many saves per MTBF: period M/n, work M/n - C (exact
    expectation of ``interval.wall_per_work``)."""
    m = positive(mtbf_s, "mtbf")
    work = m / positive(checkpoints, "checkpoints between failures") - not_negative(save_s, "save")
    if work <= 0:
        raise OutOfRange(
            f"{checkpoints:g} saves of {save_s:g} s do not fit between failures {m:g} s apart",
            fix=f"At most {m / save_s:.0f} fit, and then nothing else does.",
        )
    return 1 / wall_per_work(work, save_s, m, restart_s)


@dataclass(frozen=True)
class CheckpointsBetweenFailures:
    """How many saves per MTBF reach a wished goodput: from ``least`` to ``most``; ``None`` where none does."""

    goodput_fraction: float
    least: float | None
    most: float | None
    best: float | None
    best_goodput_fraction: float
    save_limit_s: float | None
    """The longest save with which the wish can be met at all; ``None``: the restarts alone forbid it."""
    at_20_goodput_fraction: float | None
    at_20_free_goodput_fraction: float
    folklore: str


def checkpoints_for_goodput(
    goodput_fraction: float, save_s: float, mtbf_s: float, restart_s: float = 0.0
) -> CheckpointsBetweenFailures:
    """Saves between failures for a wished goodput, with what "20 for 95 %" is worth here.

    The rule counts a whole interval lost per failure and nothing else: 1/20 = 5 %. On average half an interval is lost,
    so with free saves and restarts 10 do for 95 %; with real ones 20 may be too many, too few, or no number is enough.
    ``save_s`` = 0 is the ideal of free saves.
    """
    wish = fraction(goodput_fraction, "goodput", one=False)
    c, m = not_negative(save_s, "save"), positive(mtbf_s, "mtbf")
    r = not_negative(restart_s, "restart")
    free20 = goodput_at(20, 0.0, m)
    at_20 = goodput_at(20, c, m, r) if 20 * c < m else None
    if c == 0:
        best, top = None, math.exp(-r / m)
    else:
        if c >= m / 2:
            raise OutOfRange(
                f"a save of {c:g} s against a failure every {m:g} s: hardly any save completes",
                fix=f"Make the save shorter than {m / 10:.3g} s.",
            )
        best = m / (optimum_s(c, m) + c)
        top = goodput_at(best, c, m, r)
    least = most = None
    if wish < top:
        least = _crossing(wish, c, m, r, outside=1e-6, inside=best or 1e9)
        most = None if best is None else _crossing(wish, c, m, r, outside=m / c * (1 - 1e-12), inside=best)
    return CheckpointsBetweenFailures(
        goodput_fraction=wish,
        least=least,
        most=most,
        best=best,
        best_goodput_fraction=top,
        save_limit_s=_save_limit(wish, m, r),
        at_20_goodput_fraction=at_20,
        at_20_free_goodput_fraction=free20,
        folklore=_folklore(wish, free20, at_20, least, top),
    )


def _crossing(wish: float, c: float, m: float, r: float, *, outside: float, inside: float) -> float:
    """The number of saves at which goodput passes the wish, between one that misses it and one that reaches it."""
    for _ in range(200):
        middle = math.sqrt(outside * inside)
        try:
            reached = goodput_at(middle, c, m, r) >= wish
        except OutOfRange:
            reached = False
        outside, inside = (outside, middle) if reached else (middle, inside)
        if abs(inside / outside - 1) < 1e-10:
            break
    return inside


def _save_limit(wish: float, m: float, r: float) -> float | None:
    """The longest save whose best interval still reaches the wish (bisection; goodput falls with the save)."""
    if math.exp(-r / m) <= wish:
        return None
    low, high = 0.0, m / 2
    for _ in range(100):
        middle = (low + high) / 2
        if 1 / wall_per_work(optimum_s(middle, m), middle, m, r) >= wish:
            low = middle
        else:
            high = middle
        if high - low < 1e-9 * m:
            break
    return low


def _folklore(wish: float, free20: float, at_20: float | None, least: float | None, top: float) -> str:
    text = (
        "20 saves between failures for 95 % is folklore: it counts a whole lost interval per failure and no cost of saving; "
        f"with free saves and restarts 20 give {100 * free20:.1f} %, and 10 already {100 * goodput_at(10, 0, 1):.1f} %."
    )
    if at_20 is None:
        return f"{text} Here 20 saves do not even fit between two failures."
    text += f" Here 20 give {100 * at_20:.1f} %"
    if least is None:
        return f"{text}, and no number gives {100 * wish:.4g} %: the best is {100 * top:.1f} %."
    return f"{text}; {100 * wish:.4g} % needs {least:.1f}."


def interval_for_checkpoints(checkpoints: float, mtbf_s: float) -> float:
    """From start to start of the saves, with this many per MTBF."""
    return positive(mtbf_s, "mtbf") / positive(checkpoints, "checkpoints between failures")


def check_gpu_mtbf(gpu_mtbf_s: float) -> str | None:
    """A warning where the MTBF of a GPU is far from what was published: 29,500 h (RSC-1), 50,700 h (Llama 3), 82,100 h
    (RSC-2)."""
    hours = positive(gpu_mtbf_s, "MTBF of a GPU") / 3600
    if hours > 1e9:
        raise PlanningError(f"an MTBF of {hours:g} h for a GPU is beyond anything real", fix="Some 50000h is usual.")
    if hours < 2000 or hours > 1e6:
        return f"an MTBF of {hours:,.0f} h for a GPU is far from published figures (29,500 h to 82,100 h)"
    return None
