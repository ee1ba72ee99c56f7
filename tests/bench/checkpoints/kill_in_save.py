"""Kill a real torch job at random moments, most of them in the middle of a save, and resume it each time.

    python tests/bench/checkpoints/kill_in_save.py --kills 50 [--mode plain|async|per_rank] [--seed 1]

After each kill the checkpoints are checked (level checksum), one is chosen, newer and invalid ones are set aside, and
the job goes on from it. Every loss that any life prints must be that of the undisturbed run, bit for bit. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from set_aside import to_set_aside

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.quarantine import quarantine
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.validate import Settings

JOB = Path(__file__).with_name("toy_job.py")
START_S = 1800.0  # a fresh process imports torch: minutes where others have the cores


def start(folder, mode, steps, resume, log):
    """Start the job, its output into the file ``log``; return it when it begins to train."""
    words = [sys.executable, str(JOB), str(folder), "--steps", str(steps), "--mode", mode]
    if resume:
        words += ["--resume", resume]
    with log.open("wb") as out:
        job = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_S
    while b"ready\n" not in log.read_bytes():
        if job.poll() is not None or time.monotonic() > deadline:
            job.kill()
            job.wait()
            raise RuntimeError(f"the job did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)
    return job


def losses_of(text):
    """The whole lines ``STEP LOSS``; the last may have been cut by the kill."""
    lines = text.split("\n")[:-1]
    return [(int(a), b) for a, _, b in (line.partition(" ") for line in lines) if a.isdigit()]


def pick(folder):
    """The checkpoint to resume from, after everything newer or invalid was set aside; and how many were not valid."""
    parts = listing(folder, "global", None, level="checksum", settings=Settings(fresh_s=0))
    candidates = join([parts])
    decision = choose(
        candidates, step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(), world_size=1,
        costs=Costs(), level="checksum",
    )  # fmt: skip
    bad = [c for c in candidates if c.valid is not True]
    if decision.chosen:
        quarantine(folder, [Path(c.path) for c in to_set_aside(decision.chosen, candidates)])
    elif bad:
        quarantine(folder, [Path(c.path) for c in bad if Path(c.path) != folder])
    return decision.chosen, len(bad)


def run(kills, mode, seed, steps=100_000):
    rng = random.Random(seed)
    root = Path(tempfile.mkdtemp())
    folder = root / "run"
    folder.mkdir()
    lives, torn, furthest, resumed = [], 0, 0, 0
    try:
        resume = None
        for _ in range(kills):
            job = start(folder, mode, steps, resume.path if resume else None, root / "log")
            time.sleep(rng.uniform(0.0, 0.8))
            job.send_signal(signal.SIGKILL)
            job.wait()
            printed = losses_of((root / "log").read_text())
            lives.append((resume.step if resume else 0, printed))
            furthest = max(furthest, *(step for step, _ in printed), 0) if printed else furthest
            resume, bad = pick(folder)
            torn += bad
            resumed += resume is not None
        whole = root / "whole"
        whole.mkdir()
        reference = dict(losses_of(undisturbed(whole, furthest)))
    finally:
        shutil.rmtree(root)
    wrong = [(step, loss) for _, printed in lives for step, loss in printed if reference[step] != loss]
    gaps = [first for first, printed in lives if printed and printed[0][0] != first + 1]
    return {
        "what": "killed while saving", "mode": mode, "kills": kills, "resumed": resumed, "not_valid_seen": torn,
        "steps": furthest, "losses_compared": sum(len(p) for _, p in lives), "losses_wrong": len(wrong),
        "resumed_at_wrong_step": len(gaps),
    }  # fmt: skip


def undisturbed(folder, steps):
    done = subprocess.run(
        [sys.executable, str(JOB), str(folder), "--steps", str(steps), "--every", "1000000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--mode", default="plain")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    result = run(asked.kills, asked.mode, asked.seed)
    print(json.dumps(result))
    return 1 if result["losses_wrong"] or result["resumed_at_wrong_step"] else 0


if __name__ == "__main__":
    sys.exit(main())
