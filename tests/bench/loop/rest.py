"""What Sentinel costs while nothing happens, and what it costs the jobs.

Measured: CPU and memory of the daemon and of each agent (with its children), the requests that reach slurmctld (its own
count, sdiag), and how fast tiny jobs go through the same cluster with Sentinel and without it (the baseline). Real:
slurmctld, slurmd, munged, hooks, daemon, agents. Simulated: GPUs and DCGM (the lab's), and that all nodes share one host.

Run: PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/rest.py [--nodes 64] [--rest-s 120] [--jobs 200] [--per-s 2]
     [--rounds 3]
"""

from __future__ import annotations

import argparse
import re
import statistics
import time

from lab import slurm
from lab.layout import Lab
from measure import lab_up, load, metric, quantile, service, tree, until, usage

MINE = "REQUEST_STATS_INFO"  # sdiag itself
# What slurmd and slurmctld say to each other, with and without Sentinel.
NOT_OURS = ("MESSAGE_", "REQUEST_COMPLETE", "REQUEST_PING", "ACCOUNTING_")


def requests(lab: Lab) -> dict[str, int]:
    """Requests by type since the last reset, without those of this bench and of slurmd."""
    said = slurm.client(lab, ["sdiag"])
    found = re.findall(r"^\s+(REQUEST_\w+|MESSAGE_\w+|ACCOUNTING_\w+)\s+\(\s*\d+\) count:(\d+)", said, re.MULTILINE)
    return {name: int(count) for name, count in found if name != MINE and not name.startswith(NOT_OURS)}


def at_rest(lab: Lab, for_s: float) -> None:
    trees = {name: tree(service(lab, name)) for name in ("daemon", *(f"agent-{node}" for node in lab.names))}
    slurm.client(lab, ["sdiag", "--reset"])
    before = {name: usage(pids) for name, pids in trees.items()}
    asked_before = metric(lab, 'sentinel_slurm_snapshots_total{result="answered"}')
    began = time.monotonic()
    time.sleep(for_s)
    took_s = time.monotonic() - began
    after = {name: usage(tree(pids[0])) for name, pids in trees.items()}
    counted = requests(lab)
    snapshots = metric(lab, 'sentinel_slurm_snapshots_total{result="answered"}') - asked_before
    cores = {name: (after[name].cpu_s - before[name].cpu_s) / took_s for name in trees}
    agents = [name for name in trees if name != "daemon"]
    rss = [after[name].rss_bytes / 1e6 for name in agents]
    pss = [after[name].pss_bytes / 1e6 for name in agents]
    share = [100 * cores[name] for name in agents]
    rate = sum(counted.values()) / took_s
    print(f"at rest for {took_s:.0f} s, {lab.spec.nodes} nodes (load {load()})")
    print(
        f"  agent with children   RSS p50 {quantile(rss, 0.5):.1f} max {max(rss):.1f} MB (target 60: x{max(rss) / 60:.2f})"
    )
    print(f"                        PSS p50 {quantile(pss, 0.5):.1f} max {max(pss):.1f} MB")
    print(
        f"                        CPU mean {statistics.mean(share):.2f} max {max(share):.2f} % of a core "
        f"(target 0.5: x{statistics.mean(share) / 0.5:.2f})"
    )
    print(
        f"  daemon                RSS {after['daemon'].rss_bytes / 1e6:.0f} MB, CPU {100 * cores['daemon']:.1f} % of a core"
    )
    print(f"  slurmctld, requests   {rate:.3f}/s (target 0.2: x{rate / 0.2:.2f})  {counted}; snapshots {snapshots:.0f}")


def throughput(lab: Lab, jobs: int, per_s: float) -> tuple[float, float]:
    """Jobs per second through the cluster, and how long that took.

    Submitted at ``per_s``: all nodes of a lab share this machine's cores, so that a flood measures what one job costs them
    (hooks, a log follower: work that a cluster spreads over its nodes), not how many jobs the cluster takes.
    """
    command = ["sbatch", "--parsable", "--nodes=1", "--output=/dev/null", "--wrap", "true"]
    began = time.monotonic()
    if per_s <= 0:
        slurm.client(lab, [*command, f"--array=1-{jobs}"], timeout_s=60)
    for number in range(jobs if per_s > 0 else 0):
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
        slurm.client(lab, command, timeout_s=60)
    until("the jobs' end", lambda: not slurm.client(lab, ["squeue", "-h", "-o", "%i"]).strip(), 600.0, step_s=0.25)
    took_s = time.monotonic() - began
    return jobs / took_s, took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rest-s", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--per-s", type=float, default=2.0, help="jobs submitted in a second; 0: all at once")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with_us: list[float] = []
    stock: list[float] = []
    for number in range(options.rounds):
        with lab_up(options.nodes) as lab:
            if number == 0 and options.rest_s > 0:
                time.sleep(20)  # the agents' start is no rest
                at_rest(lab, options.rest_s)
            slurm.client(lab, ["sdiag", "--reset"])
            rate, took_s = throughput(lab, options.jobs, options.per_s)
            with_us.append(rate)
            print(
                f"with Sentinel  {rate:6.2f} jobs/s in {took_s:.0f} s (load {load()})  requests {requests(lab)}",
                flush=True,
            )
        with lab_up(options.nodes, sentinel=False) as lab:
            rate, took_s = throughput(lab, options.jobs, options.per_s)
            stock.append(rate)
            print(f"stock          {rate:6.2f} jobs/s in {took_s:.0f} s (load {load()})", flush=True)
    if with_us:
        ratio = statistics.median(with_us) / statistics.median(stock)
        print(f"job throughput, median of {options.rounds}: {ratio:.1%} of stock (target 95 %)")


if __name__ == "__main__":
    main()
