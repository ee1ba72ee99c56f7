"""Repeats a scenario over seeds and behaviours, and says how sure the figures are."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from sentinel.simulate.long_run.behaviours import ASSUMPTIONS, MAKERS
from sentinel.simulate.long_run.run import Run
from sentinel.simulate.long_run.scenario import Scenario, given

CONFIDENCE = 0.95
BLOCK_S = 86400.0
# Student's t for 95 %, by degrees of freedom; beyond them the normal distribution's.
_T = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23,
    2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """One seed under one behaviour, as plain values."""

    behaviour: str
    seed: int
    ettr: float
    days: tuple[float, ...]  # ETTR of each day
    incidents: int
    automated: int
    by_person: int
    unresolved: int
    drains: int
    wrong_drains: int
    wrong_restarts: int
    unsafe: tuple[str, ...]
    lost_gpu_hours: Mapping[str, float]
    detection_s: tuple[float, ...]
    decision_s: tuple[float, ...]
    restart_s: tuple[float, ...]
    down_s: tuple[float, ...]
    steps_s: Mapping[str, Sequence[float]]  # by kind of step, and from release to RUNNING ("start")
    by_person_causes: Mapping[str, int]
    waits: Mapping[str, int]
    wall_s: float


def run_one(scenario: Scenario, seed: int, behaviour: str, progress: Callable[[int], None] = lambda _: None) -> Ran:
    """Simulate one seed. The same arguments give the same result, but for ``wall_s``."""
    began = time.monotonic()
    run = Run(scenario, seed, behaviour)
    run.behaviour = MAKERS[behaviour](run)
    run.go(progress)
    counts, times = run.counts, run.times
    hours = scenario.job_nodes * scenario.gpus_per_node / 3600
    lost: dict[str, float] = {}
    for one in times:
        for cause, seconds in one.lost_s.items():
            lost[cause] = lost.get(cause, 0.0) + seconds * hours
    return Ran(
        behaviour=behaviour,
        seed=seed,
        ettr=sum(one.work_s for one in times) / (len(times) * run.ends_s),
        days=_days([one.history for one in times], run.ends_s),
        incidents=counts.incidents,
        automated=counts.automated,
        by_person=counts.by_person,
        unresolved=counts.unresolved,
        drains=counts.drains,
        wrong_drains=counts.wrong_drains,
        wrong_restarts=counts.wrong_restarts,
        unsafe=tuple(counts.unsafe),
        lost_gpu_hours=lost,
        detection_s=tuple(counts.detection_s),
        decision_s=tuple(counts.decision_s),
        restart_s=tuple(counts.restart_s),
        down_s=tuple(counts.down_s),
        steps_s={kind: tuple(took) for kind, took in counts.steps_s.items()},
        by_person_causes=dict(counts.persons_causes),
        waits=dict(counts.waits),
        wall_s=time.monotonic() - began,
    )


def _days(histories: Sequence[Sequence[tuple[float, float]]], ends_s: float) -> tuple[float, ...]:
    """ETTR of each whole day, or of all if there is none."""
    count = max(1, int(ends_s // BLOCK_S))
    edges = [ends_s * number / count for number in range(count + 1)]
    work = [sum(_at(history, edge) for history in histories) / len(histories) for edge in edges]
    return tuple((later - sooner) / (ends_s / count) for sooner, later in itertools.pairwise(work))


def _at(history: Sequence[tuple[float, float]], at_s: float) -> float:
    """Work kept at a time, linear between what was noted."""
    low, high = 0, len(history) - 1
    while low < high:
        middle = (low + high) // 2
        if history[middle][0] < at_s:
            low = middle + 1
        else:
            high = middle
    (t0, w0), (t1, w1) = history[max(low - 1, 0)], history[low]
    return w1 if t1 <= t0 else w0 + (w1 - w0) * min(1.0, (at_s - t0) / (t1 - t0))


def run_all(
    scenarios: Sequence[Scenario], seeds: Sequence[int], behaviours: Sequence[str], processes: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[int, Ran]]:  # fmt: skip
    """Every scenario under every behaviour with every seed: the scenario's number and the result, as they are done.

    ``progress``: told of simulated days; with several processes only when a run is done.
    """
    tasks = [(n, scenario, seed, name) for n, scenario in enumerate(scenarios) for name in behaviours for seed in seeds]
    if processes <= 1 or len(tasks) == 1:
        for number, scenario, seed, name in tasks:
            yield number, run_one(scenario, seed, name, progress)
        return
    fork = multiprocessing.get_context("fork")
    # Ctrl-C goes to all of the terminal's processes, and is for the first one alone to take.
    with fork.Pool(min(processes, len(tasks)), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for number, ran in pool.imap_unordered(_task, tasks):
            progress(int(scenarios[number].days))
            yield number, ran


def _task(task: tuple[int, Scenario, int, str]) -> tuple[int, Ran]:
    number, scenario, seed, name = task
    return number, run_one(scenario, seed, name)


# -- figures -----------------------------------------------------------------------------------------------------------


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean (Student); None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    degrees = len(values) - 1
    t = _T[degrees - 1] if degrees <= len(_T) else 1.96 + 2.5 / degrees
    half = t * spread / math.sqrt(len(values))
    return mean - half, mean + half


def proportion_interval(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def summary(scenario: Scenario, runs: Sequence[Ran]) -> dict[str, object]:
    """What the seeds of one scenario and behaviour say together, for the JSON.

    The interval of ETTR is over seeds; of one seed it is over its days, which says less: its nodes and lemons are the same.
    """
    runs = sorted(runs, key=lambda ran: ran.seed)
    ettr = math.fsum(ran.ettr for ran in runs) / len(runs)
    bounds = mean_interval([ran.ettr for ran in runs] if len(runs) > 1 else runs[0].days)
    over = sum(ran.automated + ran.by_person for ran in runs)
    automated = sum(ran.automated for ran in runs)
    share = proportion_interval(automated, over) if over else None
    lost: dict[str, float] = {}
    for ran in runs:
        for cause, hours in ran.lost_gpu_hours.items():
            lost[cause] = lost.get(cause, 0.0) + hours / len(runs)
    name = runs[0].behaviour
    return {
        "simulated": True,
        "as": name,
        "seed": runs[0].seed,
        "seeds": [ran.seed for ran in runs],
        **given(scenario),
        "ettr": round(ettr, 6),
        "ettr_interval": None if bounds is None else [round(max(0.0, bounds[0]), 6), round(min(1.0, bounds[1]), 6)],
        "ettr_interval_over": "seeds" if len(runs) > 1 else "days",
        "incidents": sum(ran.incidents for ran in runs),
        "automated": automated,
        "automated_fraction": round(automated / over, 6) if over else None,
        "automated_interval": None if share is None else [round(share[0], 6), round(share[1], 6)],
        "by_person": sum(ran.by_person for ran in runs),
        "by_person_causes": _added([ran.by_person_causes for ran in runs]),
        "unresolved": sum(ran.unresolved for ran in runs),
        "drains": sum(ran.drains for ran in runs),
        "wrong_drains": sum(ran.wrong_drains for ran in runs),
        "wrong_restarts": sum(ran.wrong_restarts for ran in runs),
        "unsafe_actions": sum(len(ran.unsafe) for ran in runs),
        "unsafe": [f"seed {ran.seed}: {words}" for ran in runs for words in ran.unsafe][:20],
        "waits": _added([ran.waits for ran in runs]),
        "lost_gpu_hours": round(math.fsum(lost.values()), 3),
        "lost_by_cause": {cause: round(lost[cause], 3) for cause in sorted(lost, key=lambda one: -lost[one])},
        "times_s": {
            key: quantiles([value for ran in runs for value in getattr(ran, f"{key}_s")])
            for key in ("detection", "decision", "restart", "down")
        },
        "step_times_s": {
            kind: quantiles([value for ran in runs for value in ran.steps_s.get(kind, ())])
            for kind in sorted({kind for ran in runs for kind in ran.steps_s})
        },
        "daily_ettr": [round(math.fsum(day) / len(day), 5) for day in zip(*(ran.days for ran in runs), strict=True)],
        "confidence": CONFIDENCE,
        "assumptions": [one.to_json() for one in (*scenario.assumptions(), *ASSUMPTIONS[name])],
        "wall_s": round(math.fsum(ran.wall_s for ran in runs), 2),
    }


def quantiles(values: Sequence[float]) -> dict[str, float | int | None]:
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "p50": None, "p99": None, "max": None}

    def pick(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"count": len(ordered), "p50": pick(0.5), "p99": pick(0.99), "max": round(ordered[-1], 3)}


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items(), key=lambda item: -item[1]))
