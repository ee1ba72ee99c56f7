"""The failures of one seed: when, of what cause, on which node. The same for every behaviour that is compared."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.simulate.long_run import assumptions
from sentinel.simulate.long_run.causes import LOST, NEEDS_CODE, SIGNS, SOFTWARE_BUG, TAKEN, Sign
from sentinel.simulate.long_run.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Failure:
    """``place``: where among the nodes of the job, 0 to 1. ``unseen``: no machine reports it."""

    number: int
    at_s: float
    job: int  # index
    cause: str
    sign: Sign
    place: float
    unseen: bool
    late_s: float
    misleading: int  # healthy nodes that print something too
    torn: bool  # the newest checkpoint cannot be read
    repair_s: float

    @property
    def needs_code(self) -> bool:
        return self.sign is NEEDS_CODE


def failures_of(scenario: Scenario, seed: int) -> list[Failure]:
    """All failures of the scenario's days, in order of time: a Poisson process, split by cause."""
    rng = random.Random(f"{seed}/failures")  # noqa: S311 - repeatable, not secret
    rate = scenario.rates.per_s(scenario.job_nodes * scenario.jobs)
    causes, shares = list(scenario.rates.shares), list(scenario.rates.shares.values())
    found: list[Failure] = []
    at_s = rng.expovariate(rate) if rate > 0 else float("inf")
    while at_s < scenario.days * 86400:
        cause = rng.choices(causes, shares)[0]
        found.append(_failure(len(found), at_s, scenario, cause, rng))
        at_s += rng.expovariate(rate)
    return found


def _failure(number: int, at_s: float, scenario: Scenario, cause: str, rng: random.Random) -> Failure:
    signs = SIGNS[cause]
    sign = rng.choices(signs, [one.weight for one in signs])[0]
    if cause == SOFTWARE_BUG and rng.random() < scenario.needs_code:
        sign = NEEDS_CODE
    hardware = sign.broken is not None and sign.ends not in (LOST, TAKEN)
    return Failure(
        number=number,
        at_s=at_s,
        job=rng.randrange(scenario.jobs),
        cause=cause,
        sign=sign,
        place=rng.random(),
        unseen=rng.random() < assumptions.UNSEEN_SHARE and hardware,
        late_s=rng.uniform(*assumptions.LATE_S) if rng.random() < assumptions.LATE_SHARE else 0.0,
        misleading=(rng.randint(*assumptions.MISLEADING_NODES) if rng.random() < assumptions.MISLEADING_SHARE else 0),
        torn=rng.random() < assumptions.TORN_SHARE,
        repair_s=sign.broken.draw(rng) if sign.broken is not None else 0.0,
    )


class Lemons:
    """Chooses nodes so that a few fail more often than the others."""

    def __init__(self, nodes: Sequence[str], seed: int) -> None:
        rng = random.Random(f"{seed}/lemons")  # noqa: S311 - repeatable, not secret
        count = round(assumptions.LEMON_SHARE * len(nodes))
        self.names = frozenset(rng.sample(list(nodes), count))

    def choose(self, nodes: Sequence[str], place: float) -> int:
        """Index of the node at this place, each lemon counted as several nodes."""
        ends, total = [], 0.0
        for name in nodes:
            total += assumptions.LEMON_FACTOR if name in self.names else 1.0
            ends.append(total)
        return min(bisect.bisect_right(ends, place * total), len(nodes) - 1)
