"""History at 2,048 nodes: what a verdict pays for it, what people wait for, and which nodes it calls lemons.

Cost: a store with a month of 3,000 judged incidents, 20,000 attempts on 64 nodes each and 184,000 values of counters (two
that grow on every node: the worst case). Lemons: a simulated fleet (Poisson failures; 1.2 % of the nodes fail ``times`` as
often as the others do), judged by ``classify.node_scores`` after 7, 14 and 28 days. Of a lemon's failures ``--one-part`` are
of the same cause on the same GPU (most lemons had one bad part: Kokolis et al., arXiv:2410.21680); its others, and a good
node's, fall on any of four causes and eight GPUs. Nothing but failures over work counts.

How much worse a lemon is decides everything, and nobody publishes it. Meta took 1.2 % of a cluster's nodes out and large
jobs failed in 4 % instead of 14 % of cases: (10 / 0.012) / (4 / 0.988), about 200 times. Where a lemon fails 20 times as
often it fails 1.2 times in 14 days of this fleet, beside 4 good nodes that fail twice: no count can name it early and
surely.

Run: PYTHONPATH=$PWD:$PWD/tests/support python tests/bench/history.py [--nodes 2048] [--seeds 5] [--lemons] [--plot FILE]
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from math import exp, factorial, perm
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from in_memory.world import opened

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.store import Store
from sentinel.classify import History, PastFailure, node_scores
from sentinel.classify.history import WINDOW
from sentinel.cli.offline.chart import Figure, write
from sentinel.config.rules_files import load_rules
from sentinel.config.settings import Settings
from sentinel.config.signals_files import load_signals
from sentinel.daemon.api.fleet_history import exposure
from sentinel.daemon.api.scores import read_scores
from sentinel.daemon.ingest.trends import read_trends
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.loading import state_of
from sentinel.engine.state import KNOWN_EVIDENCE
from sentinel.model.records import Cause

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PER_NODE_DAY = 6.5e-3  # failures, all nodes' mean; the order of what large clusters report
LEMONS = 0.012  # share of the nodes
MOST_FAILURES = 16  # of one node; with more it is a lemon beyond doubt
PARTS = 32  # four causes on eight GPUs
CAUSES_OF_MACHINES = (Cause.GPU_MEMORY_ECC, Cause.GPU_FALLEN_OFF_BUS, Cause.GPU_NVLINK, Cause.GPU_GSP_OR_DRIVER)
CAUSES = (Cause.GPU_MEMORY_ECC, Cause.USER_CODE, Cause.GPU_FALLEN_OFF_BUS, Cause.NETWORK_FABRIC)


def fill(store: Store, nodes: int) -> None:
    rng = random.Random(1)
    names = [f"n{number}" for number in range(nodes)]
    incidents: list[dict[str, Any]] = []
    for number in range(3000):
        at = NOW - timedelta(days=30 * rng.random())
        incidents.append(
            {
                "id": f"i{number}", "opened_at": at, "updated_at": at, "closed_at": at, "state": "closed", "job": number,
                "attempt": 0, "user": f"u{number % 50}", "nodes": [], "outcome": "", "cause": rng.choice(CAUSES),
                "scope": "gpu", "confidence": 0.9, "culprit_nodes": [rng.choice(names)], "culprit_gpus": [],
                "culprit_ranks": [], "seen_on": [], "onset_step": None, "decided_at": at,
            }
        )  # fmt: skip
    attempts: list[dict[str, Any]] = []
    for number in range(20000):
        at, first = NOW - timedelta(days=30 * rng.random()), rng.randrange(0, max(1, nodes - 64))
        attempts.append(
            {
                "job": number, "attempt": 0, "started_at": at, "user": "u", "partition": "p", "name": "x",
                "nodes": names[first : first + 64], "ended_at": at + timedelta(hours=3), "state": "completed",
                "first_step": 1, "last_step": 2, "step_time_s": 1.0,
            }
        )  # fmt: skip
    counters = []
    for name in names:
        units = [("", "told by dcgm"), *((f"gpu{gpu}", "ecc_corrected") for gpu in rng.sample(range(8), 2))]
        for unit, counter in units:
            for day in range(30):
                at = NOW - timedelta(days=day)
                row = {"node": name, "unit": unit, "name": counter, "day": f"{at:%Y-%m-%d}", "at": at}
                counters.append({**row, "value": 1.0 if not unit else float(100 - day)})
    with store.engine.begin() as connection:
        connection.execute(sa.insert(t.incident), incidents)
        connection.execute(sa.insert(t.attempt), attempts)
        connection.execute(sa.insert(t.counter), counters)


def clock(label: str, do: Callable[[], object], times: int = 3) -> None:
    best = float("inf")
    for _ in range(times):
        began_s = time.perf_counter()
        do()
        best = min(best, time.perf_counter() - began_s)
    print(f"  {label:48} {1000 * best:8.1f} ms")


def cost(nodes: int) -> None:
    counters = load_signals().counters
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as store:
        fill(store, nodes)
        stored = store.load(month=NOW - WINDOW, lately=NOW, evidence_ids=KNOWN_EVIDENCE)
        state = state_of(stored, ClusterView(), rules=load_rules(), settings=Settings())
        clock(
            "state of the engine after a start", lambda: store.load(month=NOW - WINDOW, lately=NOW, evidence_ids=1), 1
        )
        clock("history for a verdict", lambda: state.past.failures(without="i7"))
        clock("trends of counters (hourly, no verdict waits)", lambda: read_trends(store, counters, NOW), 1)
        clock("work of each node in a month", lambda: exposure(store, NOW - timedelta(days=30), NOW, None), 1)
        clock("scores for people (kept 50 times as long)", lambda: read_scores(store, ClusterView(), counters, NOW), 1)
    print(f"  peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def fleet(nodes: int, times: float, days: int, seed: int, one_part: float) -> tuple[int, int, int]:
    """Lemons found, good nodes called lemons, lemons there are. ``one_part``: see the module."""
    rng = random.Random(seed)
    lemons = set(rng.sample(range(nodes), max(1, round(LEMONS * nodes))))
    failures = []
    good = PER_NODE_DAY / (1 + (times - 1) * len(lemons) / nodes)  # the fleet's mean stays what is reported
    for node in range(nodes):
        rate = good * (times if node in lemons else 1.0)
        at = rng.expovariate(rate)
        while at < days:
            when = NOW - timedelta(days=days - at)
            bad = node in lemons and rng.random() < one_part
            cause = CAUSES_OF_MACHINES[node % 4] if bad else rng.choice(CAUSES_OF_MACHINES)
            gpu = str(node % 8 if bad else rng.randrange(8))
            failures.append(PastFailure(when, cause, node=f"n{node}", gpu=gpu, job=rng.randrange(10**6)))
            at += rng.expovariate(rate)
    busy = {f"n{node}": days * 86400.0 * rng.uniform(0.6, 1.0) for node in range(nodes)}
    called = {score.node for score in node_scores(History(tuple(failures), busy), NOW) if score.lemon}
    right = len(called & {f"n{node}" for node in lemons})
    return right, len(called) - right, len(lemons)


def partitions(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """How ``count`` failures can fall on parts: the sizes, largest first."""
    if count == 0:
        yield ()
    for size in range(min(count, most), 0, -1):
        for rest in partitions(count - size, size):
            yield (size, *rest)


def bound(times: float, days: int, one_part: float, precision: float) -> float:
    """The most lemons that any rule can name at this precision which reads what the simulated failures tell.

    It knows the share of lemons, their rate, and what their bad part does: it ranks by the likelihood ratio of the number of
    failures and of how they fall on ``PARTS`` causes and GPUs; of equal cases it may name some. As a share of all lemons.
    """
    good = PER_NODE_DAY / (1 + (times - 1) * LEMONS)
    seen: list[tuple[float, float]] = []  # share of the nodes: lemons, good ones
    tails = [1.0, 1.0]  # nodes that failed more often than is looked at
    for count in range(MOST_FAILURES):
        of_good, of_lemon = (exp(-mean) * mean**count / factorial(count) for mean in (good * days, times * good * days))
        tails = [tails[0] - of_lemon, tails[1] - of_good]
        for sizes in partitions(count, count):
            ways = factorial(count) * perm(PARTS, len(sizes))
            for size, repeated in Counter(sizes).items():
                ways //= factorial(size) ** repeated * factorial(repeated)
            same, other = one_part + (1 - one_part) / PARTS, (1 - one_part) / PARTS
            unhit = (PARTS - len(sizes)) * other**count
            bad = sum(same**size * other ** (count - size) for size in sizes) + unhit
            seen.append((LEMONS * of_lemon * ways * bad / PARTS, (1 - LEMONS) * of_good * ways / PARTS**count))
    named, wrong = LEMONS * max(tails[0] - 1e-12, 0.0), (1 - LEMONS) * max(tails[1] - 1e-12, 0.0)  # rounding
    for lemon, well in sorted(seen, key=lambda pair: -pair[0] / pair[1]):
        room = (1 - precision) / precision * (named + lemon) - wrong
        if well > room:
            # as many of these as the precision still allows
            spare = (1 - precision) / precision * named - wrong
            cost = well - (1 - precision) / precision * lemon
            named += lemon * max(0.0, min(1.0, spare / cost))
            break
        named, wrong = named + lemon, wrong + well
    return named / LEMONS


def plot(found: dict[tuple[float, int], float], one_part: float, path: Path) -> None:
    """What any rule can find at precision 0.90, day by day; ``found``: what ours finds, by times and days."""
    curves = tuple(
        (f"any rule, {times:.0f} times", tuple((float(day), bound(times, day, one_part, 0.90)) for day in range(1, 29)))
        for times in (20.0, 40.0, 100.0)
    )
    marks = tuple(
        (f"found, {times:.0f} times", float(day), recall)
        for (times, day), recall in found.items()
        if times in (20.0, 40.0, 100.0) and day == 14
    )
    title = f"Lemon nodes that {LEMONS:.1%} of a fleet are: the share that can be known by their failures alone"
    write(Figure(title, "days of work", "share found at precision 0.90", curves, marks), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--one-part", type=float, default=0.8, help="share of a lemon's failures that are of its bad part"
    )
    parser.add_argument("--lemons", action="store_true", help="only the lemons")
    parser.add_argument("--plot", type=Path, help="PNG or SVG of what can be found, day by day")
    options = parser.parse_args()
    found: dict[tuple[float, int], float] = {}
    if not options.lemons:
        print(f"cost at {options.nodes} nodes")
        cost(options.nodes)
    print(
        f"lemons, simulated: {options.nodes} nodes, {PER_NODE_DAY:g} failures a node-day, mean of {options.seeds} fleets"
    )
    for times in (10.0, 20.0, 40.0, 100.0, 200.0):
        for days in (7, 14, 28):
            runs = [fleet(options.nodes, times, days, options.seed + n, options.one_part) for n in range(options.seeds)]
            right, wrong, there = (sum(run[n] for run in runs) for n in range(3))
            precision = right / (right + wrong) if right + wrong else float("nan")
            found[times, days] = right / there
            print(
                f"  {times:3.0f} times as often, day {days:2d}: precision {precision:.2f}, recall {right / there:.2f}; "
                f"any rule at .90: {bound(times, days, options.one_part, 0.90):.2f}"
            )
    if options.plot:
        plot(found, options.one_part, options.plot)


if __name__ == "__main__":
    main()
