"""Histories of ``sentinel explore`` in which slurmctld is killed some seconds after one of their events, and forgets it.

Plain exploring has one such kill in a few hundred histories; here each one has it. What breaks a promise is printed, shrunk.
The promise that compares with the history without kills says nothing here.

Run: python tests/bench/forgotten.py [--seed 990] [--histories 4000] [--processes 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sentinel.simulate.explore import Found, history_of, run, shrunk
from sentinel.simulate.histories import Happening, History

CRASH = "slurmctld-crash"
NOT_COMPARED = frozenset({"same-end"})
AFTER_S = (0.5, 8.0)  # slurmctld saves its state every few seconds
AWAY_S = (2.0, 5.0, 30.0)


def with_crash(seed: int, number: int) -> History | None:
    """The history, with slurmctld killed after one of its events; None if it is killed in it anyway, or nothing happens."""
    history = history_of(seed, number, None)
    if not history.happenings or any(one.what == CRASH for one in history.happenings):
        return None
    drawn = random.Random(f"{seed}-{number}")
    at_s = drawn.choice(history.happenings).at_s + drawn.uniform(*AFTER_S)
    crash = Happening(CRASH, at_s, data={"for_s": drawn.choice(AWAY_S)})
    happenings = sorted((*history.happenings, crash), key=lambda one: one.at_s)
    return dataclasses.replace(history, happenings=tuple(happenings))


def explored(job: tuple[int, int]) -> tuple[int, Found | None]:
    """1 and what was found, or 0 for a history that was not run."""
    history = with_crash(*job)
    if history is None:
        return 0, None
    broken = [violation for violation in run(history)[0] if violation.promise not in NOT_COMPARED]
    return 1, shrunk(history, broken[0]) if broken else None


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seed", type=int, default=990)
    asked.add_argument("--histories", type=int, default=4000)
    asked.add_argument("--processes", type=int, default=2)
    args = asked.parse_args()
    began_s, count, found = time.monotonic(), 0, 0
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        jobs = ((args.seed, number) for number in range(args.histories))
        for ran, broken in pool.imap_unordered(explored, jobs, chunksize=20):
            count += ran
            if broken is not None:
                found += 1
                print(f"{broken.violation.promise}: {broken.violation.why}\n  {broken.name} of seed {broken.seed}")
                for one in broken.happenings:
                    print(f"  {one.at_s:8.1f} s  {one.what} {one.who} {dict(one.data) or ''}".rstrip(), flush=True)
    print(
        f"{count} histories (simulated, seed {args.seed}): {found} broke a promise, {time.monotonic() - began_s:.0f} s"
    )


if __name__ == "__main__":
    main()
