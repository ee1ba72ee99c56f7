"""Effective training time ratio: useful work per clock time of a run, and which lever buys most.

Two figures. The answer is exact for Poisson failures: one over ``interval.wall_per_work``. Beside it stands the
first-order expression of Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
arXiv:2410.21680, E[ETTR] = (1 - (u0 + dt/2)/MTTF) / (1 + w/dt), where u0 is the restart, dt the work between saves and w
the save; it holds while the loss per failure is small beside the MTTF.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.planning.interval import MOST_C_OVER_M, daly_s, wall_per_work, young_s
from sentinel.planning.limits import OutOfRange, PlanningError, not_negative, positive

# Above this loss per failure (in MTTFs) the first-order expression is not shown.
FIRST_ORDER_LOSS = 0.25


@dataclass(frozen=True)
class Run:
    """What one failure costs a run, in its parts. ``interval_s`` ``None``: always at its best."""

    mtbf_s: float
    save_s: float
    detection_s: float = 0.0
    wait_s: float = 0.0
    restart_s: float = 0.0
    load_s: float = 0.0
    interval_s: float | None = None

    def __post_init__(self) -> None:
        positive(self.mtbf_s, "mtbf")
        for name in ("save_s", "detection_s", "wait_s", "restart_s", "load_s"):
            not_negative(getattr(self, name), name.removesuffix("_s"))
        if self.interval_s is not None:
            if positive(self.interval_s, "interval") < self.save_s:
                raise PlanningError(
                    f"an interval of {self.interval_s:g} s is shorter than the save of {self.save_s:g} s",
                    fix=f"Save at most every {self.save_s:g} s.",
                )
        elif self.save_s == 0:
            raise PlanningError("a save that costs nothing has no best interval", fix="Give the interval.")
        elif self.save_s > MOST_C_OVER_M * self.mtbf_s:
            raise OutOfRange(
                f"a save of {self.save_s:g} s against a failure every {self.mtbf_s:g} s: hardly any save completes",
                fix=f"Make the save shorter than {self.mtbf_s / 10:.3g} s.",
            )

    @property
    def downtime_s(self) -> float:
        """From a failure to the first new step: noticed, replaced, started, loaded."""
        return self.detection_s + self.wait_s + self.restart_s + self.load_s

    @property
    def chosen_interval_s(self) -> float:
        return self.interval_s if self.interval_s is not None else daly_s(self.save_s, self.mtbf_s)


@dataclass(frozen=True)
class Lever:
    """One change, alone: what it is, the new ratio and the gain (a difference of ratios)."""

    name: str
    change: str
    ettr_fraction: float
    gain_fraction: float


@dataclass(frozen=True)
class EttrPlan:
    ettr_fraction: float
    first_order_fraction: float | None
    interval_s: float
    downtime_s: float
    levers: tuple[Lever, ...]
    half_failures_ettr_fraction: float
    """For comparison: what twice the MTBF would give."""
    warnings: tuple[str, ...]


def ettr(run: Run) -> float:
    """Useful work per clock time, exact expectation."""
    return 1 / wall_per_work(run.chosen_interval_s, run.save_s, run.mtbf_s, run.downtime_s)


def ettr_first_order(mtbf_s: float, save_s: float, downtime_s: float, interval_s: float) -> float:
    """E[ETTR] of arXiv:2410.21680. Refused where a failure loses more than a quarter of the MTTF."""
    lost = (not_negative(downtime_s, "restart") + positive(interval_s, "interval") / 2) / positive(mtbf_s, "mtbf")
    if lost > FIRST_ORDER_LOSS:
        raise OutOfRange(
            f"a failure loses {100 * lost:.0f} % of the time to the next: the first-order ratio does not hold",
            fix="Use the exact expectation.",
        )
    return (1 - lost) / (1 + not_negative(save_s, "save") / interval_s)


def plan_ettr(run: Run) -> EttrPlan:
    """The ratio, and what halving each cost (or doing away with the wait) would buy, best first."""
    value = ettr(run)
    warnings = []
    interval = run.interval_s
    if interval is None:
        interval = young_s(run.save_s, run.mtbf_s)  # what the first-order expression has as its best, too
    first: float | None
    try:
        first = ettr_first_order(run.mtbf_s, run.save_s, run.downtime_s, interval)
    except OutOfRange as error:
        first = None
        warnings.append(f"first order left out: {error.message}")
    if value < 0.5:
        warnings.append(f"only {100 * value:.0f} % of the time is useful work")
    half = ettr(replace(run, mtbf_s=run.mtbf_s * 2))
    return EttrPlan(value, first, run.chosen_interval_s, run.downtime_s, _levers(run, value), half, tuple(warnings))


def _levers(run: Run, now: float) -> tuple[Lever, ...]:
    """Each lever alone, the others as they are; the interval follows where it was left to be best."""
    trials = [
        ("detection", "halved", replace(run, detection_s=run.detection_s / 2)),
        ("restart", "halved", replace(run, restart_s=run.restart_s / 2)),
        ("spares", "no wait for nodes", replace(run, wait_s=0.0)),
    ]
    if run.save_s > 0:
        trials.append(
            ("storage", "saves and loads twice as fast", replace(run, save_s=run.save_s / 2, load_s=run.load_s / 2))
        )
        best = replace(run, interval_s=None) if run.save_s <= MOST_C_OVER_M * run.mtbf_s else run
        change = "is at its best" if run.interval_s is None else f"every {best.chosen_interval_s:.0f} s of work"
        trials.append(("interval", change, best))
    rows = []
    for name, change, trial in trials:
        after = ettr(trial)
        rows.append(Lever(name, change, after, after - now))
    return tuple(sorted(rows, key=lambda lever: (-lever.gain_fraction, lever.name)))
