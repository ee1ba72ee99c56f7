"""How long from a fault to the decision and to the drained node, one by one and 64 at once.

A fault is a line at the end of a node's kernel log (the lab's file in place of /dev/kmsg) and DCGM's event, at a random node
and GPU; every fifth hits a node of a running job. The clock starts before the line is written. Measured: the ledger's row of
the drain (the decision), and the first sinfo that shows it (sinfo is asked without a pause, which costs slurmctld more than
Sentinel does). Between two faults the node is returned as ``sentinel release`` does. Baseline in the same run: what sinfo
takes to show a drain made by hand, which no daemon can beat.

Then all nodes at once with the lab's own limits: when the last decision was made, what was drained, how many messages.

Run: PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/faults.py [--nodes 64] [--faults 40] [--seed N] [--storms 1]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from functools import partial

from lab import gpus, slurm
from lab.faults import ALL
from lab.layout import Lab
from lab.submit import Request, submit
from measure import change_limits, client, lab_up, line, load, node_states, release, rows, seconds, until

WIDE = {
    "breaker_nodes": 100000, "drain_per_hour": 100000, "drain_count": 100000, "drain_fraction": 1.0,
    "suspect_job_nodes": 100000,  # the same job is to lose node after node
}  # fmt: skip
NARROW = {"breaker_nodes": 5, "drain_per_hour": 100, "drain_count": 100, "drain_fraction": 0.5}
XIDS = (79, 95, 119)  # each convicts its node at once


def inject(lab: Lab, node: str, gpu: int, xid: int) -> None:
    ALL["xid"].inject(lab, argparse.Namespace(node=node, gpu=gpu, xid=xid, text=None))


def drained(lab: Lab, node: str) -> bool:
    return slurm.client(lab, ["sinfo", "-h", "-n", node, "-o", "%T"]).strip().startswith("drain")


def gone(lab: Lab, job: int) -> bool:
    return str(job) not in slurm.client(lab, ["squeue", "-h", "-o", "%i"]).split()


def by_hand(lab: Lab, node: str) -> float:
    """Seconds from scontrol to the sinfo that shows the drain."""
    began = time.time()
    slurm.client(lab, ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=by hand"])
    until("the drain by hand", lambda: drained(lab, node), 30.0, step_s=0.0)
    took = time.time() - began
    slurm.client(lab, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
    return took


def job_node(lab: Lab, rng: random.Random, hit: set[str]) -> tuple[int, str]:
    """A job of two nodes that makes steps, and one of them. Nodes that were hit are left out: their agents refuse jobs until
    a diagnostic passes or the node boots."""
    spared = (f"--exclude={','.join(sorted(hit))}",) if hit else ()
    job = submit(
        lab, Request(nodes=2, run="bench", standin=True, step_time_s=0.5, steps=100_000, restart=False, sbatch=spared)
    )
    log = lab.shared / f"bench-{job}.out"
    until("the job's steps", lambda: log.exists() and log.read_text().count("| loss") >= 3, 120.0)
    shown = slurm.client(lab, ["squeue", "-h", "-j", str(job), "-o", "%N"]).strip()
    return job, rng.choice(slurm.client(lab, ["scontrol", "show", "hostnames", shown]).split())


def one_by_one(lab: Lab, faults: int, rng: random.Random) -> None:
    asked = client(lab)
    decided: list[float] = []
    shown: list[float] = []
    hit: set[str] = set()
    hand = [by_hand(lab, rng.choice(lab.names)) for _ in range(10)]
    for number in range(faults):
        job, node = job_node(lab, rng, hit) if number % 5 == 4 else (0, rng.choice(lab.names))
        hit.add(node)
        xid = rng.choice(XIDS)
        began = time.time()
        inject(lab, node, rng.randrange(lab.spec.gpus), xid)
        until(f"the drain of {node} after Xid {xid}", partial(drained, lab, node), 60.0, step_s=0.0)
        shown.append(time.time() - began)
        found = rows(lab, "SELECT intended_at FROM step WHERE kind = 'drain' AND node = ? ORDER BY intended_at", node)
        decided.append(seconds(found[-1][0]) - began)
        if job:
            slurm.client(lab, ["scancel", str(job)])
        gpus.heal(lab, node)
        time.sleep(2.0)  # the agent has seen healthy GPUs
        release(asked, node)
        time.sleep(rng.uniform(0.0, 1.0))
    print(line("drain by hand, scontrol to sinfo (baseline)", hand, {0.5: 1.0}))
    print(line("fault to decision (ledger row)", decided, {0.5: 1.0, 0.99: 3.0}))
    print(line("fault to DRAIN in sinfo", shown, {0.5: 5.0, 0.99: 5.0}))


def all_at_once(lab: Lab, rng: random.Random) -> None:
    told_before = len(lab.messages.read_text().splitlines())
    begun = time.time()
    for node in rng.sample(lab.names, len(lab.names)):
        inject(lab, node, rng.randrange(lab.spec.gpus), 79)
    injected_s = time.time() - begun
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begun))

    def judged() -> set[str]:
        query = "SELECT nodes FROM incident WHERE decided_at IS NOT NULL AND opened_at >= ?"
        return {node for (nodes,) in rows(lab, query, since) for node in json.loads(nodes)}

    try:
        until("a decision about every node", lambda: len(judged()) == len(lab.names), 60.0)
    finally:
        times = [seconds(at) - begun for (at,) in rows(lab, "SELECT at FROM verdict WHERE at >= ?", since)]
        print(f"{len(lab.names)} nodes failing within {injected_s:.2f} s: {len(judged())} judged, load {load()}")
        print(f"  first after {min(times):.2f} s, last after {max(times):.2f} s (target 10: x{max(times) / 10:.2f})")
        time.sleep(15)  # what would be told or drained late
        states = node_states(lab)
        bad = sorted(name for name, state in states.items() if state.startswith(("drain", "down")))
        told = lab.messages.read_text().splitlines()[told_before:]
        incidents = rows(lab, "SELECT count(*) FROM incident WHERE opened_at >= ?", since)[0][0]
        plans = rows(
            lab, "SELECT json_extract(record, '$.refusal'), count(*) FROM plan WHERE at >= ? GROUP BY 1", since
        )
        print(f"  incidents {incidents}; plans by refusal {dict(plans)}")
        print(f"  drained {len(bad)} (breaker at 5), messages {len(told)} (target 1)")
    asked = client(lab)
    for node in lab.names:
        gpus.heal(lab, node)
    time.sleep(3)
    for node in bad:
        release(asked, node)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--storms", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}")
    with lab_up(options.nodes, limits=WIDE) as lab:
        if options.faults:
            one_by_one(lab, options.faults, rng)
        if options.storms:
            change_limits(lab, NARROW)
        for _ in range(options.storms):
            time.sleep(65)  # the breaker's window forgets what was before
            all_at_once(lab, rng)


if __name__ == "__main__":
    main()
