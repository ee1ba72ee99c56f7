"""How long from the decision until the job runs again, against Slurm's plain requeue.

A job on --job-nodes of --nodes real slurmd (the stand-in program, since dozens of PyTorch ranks do not fit on two cores)
loses a GPU of a random node again and again (the nodes stay
drained). Measured from the plan's time in the store: the release of the job (ledger),
Slurm saying RUNNING for the next attempt (squeue), its first step in the log. Beside it, as the baseline of the same run, a
job that an operator requeues with ``scontrol requeue``: Slurm makes it wait two minutes.

Run: PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/restart.py [--nodes 64] [--job-nodes 16] [--restarts 12]
"""

from __future__ import annotations

import argparse
import random
import re
import threading
import time
from functools import partial

from faults import WIDE, inject
from lab import slurm
from lab.layout import Lab
from lab.submit import Request, submit
from measure import lab_up, line, load, quantile, rows, seconds, until
from process_starts import ProcessStarts, table

STEP = re.compile(r"^step \d+ \| loss", re.MULTILINE)


def log_of(lab: Lab, job: int) -> str:
    found = next(iter(lab.shared.glob(f"*-{job}.out")), None)
    return found.read_text(errors="replace") if found else ""


def state(lab: Lab, job: int) -> tuple[str, int]:
    """Slurm's word and the attempt."""
    said = slurm.client(lab, ["scontrol", "show", "job", "--oneliner", str(job)])
    fields = dict(part.split("=", 1) for part in said.split() if "=" in part)
    return fields["JobState"], int(fields["Restarts"])


def runs_again(lab: Lab, job: int, attempt: int) -> bool:
    return state(lab, job) == ("RUNNING", attempt)


def plain_requeue(lab: Lab, found: list[float]) -> None:
    """Seconds from ``scontrol requeue`` to RUNNING."""
    job = submit(lab, Request(nodes=2, run="plain", standin=True, step_time_s=5.0, steps=100_000, restart=False))
    until("the baseline job", partial(runs_again, lab, job, 0), 60.0)
    until("its first step", lambda: STEP.search(log_of(lab, job)), 60.0)
    began = time.time()
    slurm.client(lab, ["scontrol", "requeue", str(job)])
    until("the requeued job", partial(runs_again, lab, job, 1), 300.0, step_s=0.5)
    found.append(time.time() - began)
    slurm.client(lab, ["scancel", str(job)])


def last(lab: Lab, query: str, *values: object) -> float | None:
    found = rows(lab, query, *values)
    return seconds(found[-1][0]) if found and found[-1][0] else None


class Times:
    def __init__(self) -> None:
        self.decided: list[float] = []
        self.released: list[float] = []
        self.running: list[float] = []
        self.steps: list[float] = []
        self.choosing: list[float] = []
        self.starts: list[int] = []
        self.cpu: list[float] = []
        self.programs = ProcessStarts()


def one(lab: Lab, job: int, attempt: int, rng: random.Random, times: Times) -> None:
    before = len(log_of(lab, job)) if attempt else 0
    until("a checkpoint", lambda: "(global)" in log_of(lab, job)[before:], 120.0)
    nodes = slurm.client(lab, ["squeue", "-h", "-j", str(job), "-o", "%N"]).strip()
    node = rng.choice(slurm.client(lab, ["scontrol", "show", "hostnames", nodes]).split())
    mark = len(log_of(lab, job))
    began = time.time()
    inject(lab, node, rng.randrange(lab.spec.gpus), 79)
    until("the next attempt", partial(runs_again, lab, job, attempt + 1), 150.0, step_s=0.05)
    running = time.time()

    def steps() -> bool:
        begun = re.search(r"^(resumed from|starting from scratch)", log_of(lab, job)[mark:], re.MULTILINE)
        return begun is not None and STEP.search(log_of(lab, job)[mark + begun.end() :]) is not None

    until("steps of the next attempt", steps, 120.0, step_s=0.05)
    stepped = time.time()
    released = last(
        lab,
        "SELECT finished_at FROM step WHERE kind = 'release' AND job = ? AND attempt = ? ORDER BY finished_at",
        job,
        attempt,
    )
    decided = last(lab, "SELECT at FROM plan p JOIN incident i ON i.id = p.incident WHERE i.job = ? ORDER BY at", job)
    assert released is not None and decided is not None, "the ledger has what Slurm did"
    times.decided.append(decided - began)
    times.released.append(released - decided)
    times.running.append(running - decided)
    times.steps.append(stepped - decided)
    ledger = rows(
        lab,
        "SELECT kind, intended_at, finished_at FROM step WHERE job = ? AND attempt = ? ORDER BY intended_at",
        job,
        attempt,
    )
    ends = {kind: seconds(end) for kind, _, end in ledger if end}
    if "choose_checkpoint" in ends and "requeue_hold" in ends:  # it begins when the job is stopped
        times.choosing.append(ends["choose_checkpoint"] - ends["requeue_hold"])
    before, parts = decided, []
    for kind, end in sorted(ends.items(), key=lambda entry: entry[1]):
        parts.append(f"{kind} {end - before:.2f}")
        before = end
    found = times.programs.between(decided, running)
    ours = [one for one in found if "sentinel" in one.name]
    times.starts.append(len(ours))
    times.cpu.append(sum(one.cpu_s for one in ours))
    print(f"  attempt {attempt}: released {times.released[-1]:.2f} running {times.running[-1]:.2f} "
          f"steps {times.steps[-1]:.2f} s; {' '.join(parts)}; load {load()}\n    {table(found)}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--job-nodes", type=int, default=16)
    parser.add_argument("--restarts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}")
    with lab_up(options.nodes, limits=WIDE) as lab:
        plain: list[float] = []
        baseline = threading.Thread(target=plain_requeue, args=(lab, plain))
        baseline.start()
        request = Request(
            nodes=options.job_nodes,
            run="bench",
            standin=True,
            step_time_s=1.0,
            steps=100_000,
            local_every=4,
            global_every=8,
        )
        job = submit(lab, request)
        times = Times()
        for attempt in range(options.restarts):
            one(lab, job, attempt, rng, times)
        baseline.join(330.0)
        print(f"job of {options.job_nodes} nodes on {options.nodes} slurmd")
        print(line("fault to decision", times.decided, {0.5: 1.0, 0.99: 3.0}))
        print(line("decision to release", times.released, {0.5: 5.0}))
        print(line("choosing (job stopped to checkpoint chosen)", times.choosing, {0.5: 1.0}))
        print(f"programs of ours started from decision to RUNNING: median {quantile(times.starts, 0.5):.0f}, "
              f"with {quantile(times.cpu, 0.5):.2f} s of CPU")  # fmt: skip
        print(line("decision to RUNNING in Slurm", times.running, {0.5: 5.0, 0.99: 15.0}))
        print(line("decision to a step of the next attempt", times.steps, {0.5: 5.0, 0.99: 15.0}))
        if plain:
            ratio = quantile(times.running, 0.5) / plain[0]
            print(f"plain scontrol requeue (baseline, once): {plain[0]:.1f} s; ours p50 x{ratio:.3f} of it")


if __name__ == "__main__":
    main()
