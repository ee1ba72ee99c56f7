"""How long an answer of ``sentinel plan`` takes, as a process, beside a bare Python and Python with click.

    python tests/bench/planning/bench_plan.py [RUNS]

Prints the median of RUNS (11) starts of each command, its ratio to ``python -c "import click"``, and whether it stays
below the half second that is promised. Exit status 1 if one does not.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

PROMISE_S = 0.5
BASELINES = {"bare python": ["-c", "pass"], "python with click": ["-c", "import click"]}
ANSWERS = [
    "interval --mtbf 3.09h --save 90s",
    "interval --mtbf 3.093h --save 2min --restart 15min --local-save 10s --local-restart 3min --local-share 99.9%",
    "bandwidth --parameters 405B --interval 15min --overlap 10%",
    "fleet --gpus 16384 --interruptions 419 --days 54 --goodput 95% --save 10s --restart 1min --checkpoint 5TB",
    "spares --nodes 2048 --node-mtbf 6250h --repair 24h --wait 10min",
    "spares --nodes 100000 --losses 500 --copies 3",
    "spares --nodes 2048 --gpu-mtbf 50000h --parameters 405B --storage-bandwidth 100GB/s --peer-bandwidth 40GB/s",
    "ettr --gpus 12000 --failures-per-1000-node-days 6.5 --save 5min --restart 5min",
]


def median_s(arguments: list[str], runs: int) -> float:
    """Median wall time of this many starts; a failing command ends the bench."""
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    base = {name: median_s(arguments, runs) for name, arguments in BASELINES.items()}
    for name, taken in base.items():
        print(f"{taken * 1e3:7.0f} ms           {name}")
    worst = 0.0
    for answer in ANSWERS:
        for form in ([], ["--json"]):
            taken = median_s(["-m", "sentinel", "plan", *answer.split(), *form], runs)
            worst = max(worst, taken)
            ratio = taken / base["python with click"]
            print(f"{taken * 1e3:7.0f} ms  {ratio:5.1f} x  plan {' '.join([*answer.split(), *form])}")
    print(f"slowest {worst * 1e3:.0f} ms, promised below {PROMISE_S * 1e3:.0f} ms")
    return 0 if worst < PROMISE_S else 1


if __name__ == "__main__":
    sys.exit(main())
