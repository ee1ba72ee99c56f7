"""Kill real libraries' training loops in the middle of a save, and resume each time from what Sentinel chooses.

    JAX_PLATFORMS=cpu python tests/bench/checkpoints/kill_real_writers.py [--kills 30] [--seed 1] [--only NAME ...]

For each writer a process has the libraries imported and forks a trainer per life. Each life saves after every step and is
killed (SIGKILL) at a random time within one of its next saves. Then the folder is listed, one checkpoint is chosen, what is
newer or invalid is set aside, and the next life resumes from it with the library's own code: its weights and optimizer state
must be those that were saved, bit for bit, and no save that the library had finished may be passed over. Needs the
libraries of `real_trainers.py`. A table, then one JSON line; exit status 1 where something was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from real_trainers import TRAINERS, run_forked
from set_aside import to_set_aside

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.quarantine import quarantine
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.validate import Settings

PATIENCE_S = 300.0


class Life:
    """One forked trainer, until it is killed."""

    def __init__(self, trainer, root, resume, errors):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            run_forked(trainer, root, resume, write, errors)
        os.close(write)
        self.pipe, self.text = read, b""

    def line(self):
        """The next line as words; None when there is none any more."""
        until = time.monotonic() + PATIENCE_S
        while b"\n" not in self.text:
            ready, _, _ = select.select([self.pipe], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self.pipe, 1 << 16) if ready else b""
            if not more:
                return None
            self.text += more
        line, _, self.text = self.text.partition(b"\n")
        return line.decode().split(" ", 2)

    def kill(self):
        """All the lines that it had written when it was dead."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        left = []
        while (words := self.line()) is not None:
            left.append(words)
        os.close(self.pipe)
        return left


def pick(root, level):
    """The checkpoint to resume from, after what is newer or invalid was set aside; how many were not valid."""
    parts = listing(root, "global", None, level=level, settings=Settings(fresh_s=0))
    candidates = join([parts])
    decision = choose(
        candidates, step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(), world_size=1,
        costs=Costs(), level=level,
    )  # fmt: skip
    bad = [c for c in candidates if c.valid is not True]
    moved = to_set_aside(decision.chosen, candidates) if decision.chosen else bad
    quarantine(root, [Path(c.path) for c in moved if Path(c.path) != root])
    return decision.chosen, bad


def run(name, kills, seed, errors):
    trainer, rng = TRAINERS[name], random.Random(f"{seed} {name}")
    trainer.prepare()
    folder = Path(tempfile.mkdtemp())
    root = folder / "run"
    root.mkdir()
    found = dict.fromkeys(("kills", "in_save", "not_valid_seen", "resumed"), 0)
    found |= {"resumed_wrong": [], "passed_over": [], "failed": []}
    hashes, chosen, began = {}, None, time.monotonic()
    try:
        while found["kills"] < kills:
            life = Life(trainer, root, chosen.path if chosen else None, errors)
            saves, target, took_s, saving_s, resumed = 0, rng.randrange(2, 5), 0.05, 0.0, chosen is None
            finished = chosen.step if chosen else 0
            words = []
            while saves < target and (words := life.line()) is not None and words[0] != "failed":
                what, step, *rest = words
                if what == "resumed":
                    resumed = True
                    found["resumed"] += 1
                    if int(step) != chosen.step or rest != [hashes.get(int(step))]:
                        found["resumed_wrong"].append((chosen.path, step, rest, hashes.get(int(step))))
                elif what == "saving":
                    hashes[int(step)] = rest[0]
                    saves, saving_s = saves + 1, time.monotonic()
                elif what == "saved":
                    finished, took_s = int(step), time.monotonic() - saving_s
            if words is None or words[0] == "failed" or not resumed:
                found["failed"].append(words)
                os.kill(life.pid, signal.SIGKILL)
                os.waitpid(life.pid, 0)
                break
            time.sleep(rng.uniform(0.0, 1.1 * took_s))
            left = life.kill()
            found["kills"] += 1
            for what, step, *rest in left:
                if what == "saving":
                    hashes[int(step)] = rest[0]
                elif what == "saved":
                    finished = max(finished, int(step))
            found["in_save"] += finished < max(hashes)
            chosen, bad = pick(root, trainer.level)
            found["not_valid_seen"] += len(bad)
            if finished and (chosen is None or chosen.step < finished):
                reasons = [c.reason for c in bad]
                found["passed_over"].append((finished, chosen.step if chosen else None, reasons[:3]))
            for old in list(hashes):  # a step that is made again after a rollback is saved again
                if chosen is None or old > chosen.step:
                    del hashes[old]
            keep_few(root, chosen)
    finally:
        shutil.rmtree(folder)
    return found | {"seconds": round(time.monotonic() - began, 1)}


def keep_few(root, chosen):
    """Only the chosen one and one before it: what lies longer costs time and shows nothing."""
    entries = sorted((p for p in root.iterdir() if not p.name.startswith(".")), key=lambda p: p.stat().st_mtime)
    for path in entries[:-2]:
        if chosen is None or Path(chosen.path) != path:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=sorted(TRAINERS))
    asked = parser.parse_args()
    results = {}
    errors = os.open(os.devnull if not os.environ.get("SHOW") else "/dev/stderr", os.O_WRONLY)
    print("writer       kills in a save not valid resumed wrong passed over seconds")
    for name in asked.only or TRAINERS:
        results[name] = one = run(name, asked.kills, asked.seed, errors)
        wrong = len(one["resumed_wrong"]) + len(one["failed"])
        print(f"{name:<12} {one['kills']:>5} {one['in_save']:>9} {one['not_valid_seen']:>9} {one['resumed']:>7} {wrong:>5} "
              f"{len(one['passed_over']):>11} {one['seconds']:>7}", flush=True)  # fmt: skip
    print(json.dumps(results))
    return 1 if any(one["resumed_wrong"] or one["failed"] or one["passed_over"] for one in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
