"""How often which cause interrupts a job: published fleets, or the site's own history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.errors import UserError
from sentinel.planning import history
from sentinel.planning.fleet import PUBLISHED_CAUSES, PUBLISHED_SOURCE
from sentinel.planning.poisson import mean_interval
from sentinel.simulate.long_run.assumptions import Assumption
from sentinel.simulate.long_run.causes import SAME_AS, SIGNS

FEW_FAILURES = 10  # below it the rate of a history is known within a factor of four only (Garwood 1936)
LLAMA3_PER_1000_NODE_DAYS = 1000 * 419 / (54 * 2048)
_RSC = (
    "Kokolis et al., arXiv:2410.21680: failures of hardware per 1,000 node-days; the mix is that of Llama 3's hardware"
)
_NOT_HARDWARE = frozenset({"software bug", "NCCL watchdog timeout", "dependency", "host maintenance"})


@dataclass(frozen=True, slots=True)
class Rates:
    """``per_1000_node_days``: interruptions of any cause; ``shares``: of each cause, adding up to one."""

    name: str
    per_1000_node_days: float
    shares: Mapping[str, float]
    source: str
    warning: str = ""  # where the rate itself is hardly known

    def per_s(self, nodes: int) -> float:
        """Interruptions per second of a job on so many nodes."""
        return self.per_1000_node_days / 1000 / 86400 * nodes

    def assumption(self) -> Assumption:
        return Assumption(
            "failures_per_1000_node_days", round(self.per_1000_node_days, 4), "failures/1000 node-days", self.source
        )


def _published(name: str, rate: float, source: str, without: frozenset[str] = frozenset()) -> Rates:
    counts = {cause: count for cause, count in PUBLISHED_CAUSES if cause not in without}
    total = sum(counts.values())
    return Rates(name, rate, {cause: count / total for cause, count in counts.items()}, source)


PRESETS: Mapping[str, Rates] = {
    "llama3": _published("llama3", LLAMA3_PER_1000_NODE_DAYS, PUBLISHED_SOURCE),
    "rsc1": _published("rsc1", 6.50, _RSC, _NOT_HARDWARE),
    "rsc2": _published("rsc2", 2.34, _RSC, _NOT_HARDWARE),
}


def rates_of(past: history.FleetHistory, name: str) -> Rates:
    """Rates of a site's own history, each failure counted under the cause that this simulation knows it by.

    Raises:
        UserError: there are no failures, or one has a cause that is not known here.
    """
    if not past.failures:
        raise UserError(f"{name}: no failure in it, so it says nothing about how often", fix="--failures llama3")
    counts: dict[str, int] = {}
    for failure in past.failures:
        cause = failure.cause if failure.cause in SIGNS else SAME_AS.get(failure.cause.strip().lower())
        if cause is None:
            known = ", ".join(sorted({*SIGNS, *SAME_AS}))
            raise UserError(f"{name}: the cause {failure.cause!r:.80} is not one that can be simulated", fix=known)
        counts[cause] = counts.get(cause, 0) + 1
    node_days = past.gpu_s / past.gpus_per_node / 86400
    total = sum(counts.values())
    shares = {cause: count / total for cause, count in sorted(counts.items())}
    source = f"{name}: {total} failures in {node_days:,.0f} node-days"
    return Rates(name, 1000 * total / node_days, shares, source, _warning(name, total, node_days))


def _warning(name: str, failures: int, node_days: float) -> str:
    """Why the intervals of a simulation are too narrow where few failures gave its rate; they hold for one rate only."""
    if failures >= FEW_FAILURES:
        return ""
    low, high = (1000 * count / node_days for count in mean_interval(failures))
    return (
        f"{name} holds only {failures} failure{'' if failures == 1 else 's'}: their rate lies between {low:.3g} and "
        f"{high:.3g} per 1,000 node-days (95 %), which is a factor of {high / low:.0f}. The intervals of this simulation "
        f"leave that out: they hold for {1000 * failures / node_days:.3g}."
    )
