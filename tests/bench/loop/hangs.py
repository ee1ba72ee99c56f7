"""How long a silent hang of a running job stays unseen.

Jobs of two nodes (the stand-in: the ranks meet in every step, it saves every 10 and 50 steps) make steps of --steps
seconds; at a random moment a random rank is stopped. The clock runs from SIGSTOP to the daemon's evidence of the stall.
Baseline: what waiting for NCCL's own timeout takes, 600 s by default. Everything but GPUs and NCCL is real: log, follower,
agent, daemon.

Run: PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/hangs.py [--hangs 10] [--steps 0.2 1 5] [--parallel 2]
"""

from __future__ import annotations

import argparse
import math
import random
import re
import threading
import time
from functools import partial

from faults import gone
from lab import slurm
from lab.faults import ALL
from lab.layout import Lab, LabError
from lab.submit import Request, submit
from measure import lab_up, load, quantile, rows, seconds, until
from restart import log_of

NCCL_S = 600.0
PATIENCE_S = 300.0
STEP = re.compile(r"^step (\d+) \| loss", re.MULTILINE)


def stalled_at(lab: Lab, job: int) -> float | None:
    found = rows(lab, "SELECT seen_at FROM evidence WHERE kind = 'stall' AND job = ?", job)
    return seconds(found[0][0]) if found else None


def hang(lab: Lab, step_s: float, rng: random.Random, found: dict[float, list[float]]) -> None:
    job = submit(lab, Request(nodes=2, run="hang", standin=True, step_time_s=step_s, steps=100_000, restart=False))
    first = 6 + rng.randrange(8)
    until("the first steps", lambda: len(STEP.findall(log_of(lab, job))) >= first, 120.0 + 20 * step_s, step_s=0.2)
    time.sleep(rng.uniform(0.0, max(20.0, 5 * step_s)))
    began = time.time()
    ALL["hang"].inject(lab, argparse.Namespace(job=job, rank=rng.randrange(2), node=None))
    try:
        until("the stall", partial(stalled_at, lab, job), PATIENCE_S, step_s=0.2)
        took = (stalled_at(lab, job) or math.inf) - began
    except LabError:
        took = math.inf
    step = STEP.findall(log_of(lab, job))[-1]
    print(f"  steps of {step_s:g} s: stopped after step {step}, seen after {took:.1f} s (load {load()})", flush=True)
    found[step_s].append(took)
    slurm.client(lab, ["scancel", "--signal=KILL", str(job)])
    until("the job's end", partial(gone, lab, job), 120.0, step_s=0.5)


def some(lab: Lab, step_s: float, hangs: int, rng: random.Random, found: dict[float, list[float]]) -> None:
    for _ in range(hangs):
        try:
            hang(lab, step_s, rng, found)
        except LabError as error:
            print(f"  no measurement: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--hangs", type=int, default=10, help="for each step time")
    parser.add_argument("--steps", type=float, nargs="+", default=[0.2, 1.0, 5.0], help="seconds a step takes")
    parser.add_argument("--parallel", type=int, default=2, help="jobs of each step time at once")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    found: dict[float, list[float]] = {step_s: [] for step_s in options.steps}
    with lab_up(2 * options.parallel * len(options.steps) + 2) as lab:
        threads = [
            threading.Thread(
                target=some,
                args=(
                    lab,
                    step_s,
                    math.ceil(options.hangs / options.parallel),
                    random.Random(f"{options.seed} {step_s} {n}"),
                    found,
                ),
            )
            for step_s in options.steps
            for n in range(options.parallel)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for step_s, took in found.items():
        most = max(15.0, 3 * step_s)
        within = sum(value <= most for value in took)
        print(
            f"steps of {step_s:g} s: within {most:g} s {within} of {len(took)} (target 90 %), within 60 s "
            f"{sum(value <= 60 for value in took)}; p50 {quantile(took, 0.5):.1f} p90 {quantile(took, 0.9):.1f} "
            f"max {max(took, default=math.nan):.1f} s; "
            f"x{quantile(took, 0.5) / NCCL_S:.3f} of NCCL's {NCCL_S:g} s; load {load()}"
        )


if __name__ == "__main__":
    main()
