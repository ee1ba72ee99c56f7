"""How long ``sentinel replay`` takes over a quarter of a year, and how much memory: ``python tests/bench/replay.py``.

The past is generated: jobs that fail, some of a GPU that falls off the bus and is repaired in hours, most of their own bugs.
What was judged and done is what a first replay with the same rules says: a second one must find no difference, and one with
a smaller budget must.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sentinel.config.rules_files import load_rules
from sentinel.config.settings import Mode, Modes, Settings
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id
from sentinel.replay.bundle import lines_of, write_bundle
from sentinel.replay.run import Replay

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NODES = 2048
NODES_OF_JOB = 8
RUNS_S = 2 * 3600.0  # of an attempt that fails, on average
BACK_S = 4 * 3600.0  # until a node with a failed GPU is proven good and has work again
HARDWARE = 0.15  # of the failures; the others are the programs' own
BUG = "IndexError: list index out of range"


def past(incidents: int, days: float, seed: int) -> Recording:
    """``incidents`` failures, one a job, of which a share breaks a node and the others are bugs."""
    rng = random.Random(seed)
    evidence: list[Evidence] = []
    attempts: list[RecordedAttempt] = []
    free_at = {f"n{number:05d}": BEGIN for number in range(NODES)}
    for number in range(incidents):
        started = BEGIN + timedelta(days=days * number / incidents)
        free = [name for name, at in free_at.items() if at <= started]
        nodes = tuple(sorted(rng.sample(free, NODES_OF_JOB)))
        failed = started + timedelta(seconds=60 + rng.expovariate(1 / RUNS_S))
        ended = failed + timedelta(seconds=4)
        free_at |= dict.fromkeys(nodes, ended)
        job = 1000 + number
        bad = rng.choice(nodes) if rng.random() < HARDWARE else None
        if bad is not None:
            free_at[bad] = ended + timedelta(seconds=BACK_S)
            evidence.append(_proof(job, bad, free_at[bad]))
        evidence += _failure(job, bad, nodes, failed)
        attempts.append(RecordedAttempt(job, 0, started, nodes, "ada", "train", "pretrain", ended, "failed"))
    return Recording(tuple(sorted(evidence, key=lambda item: item.seen_at)), (), tuple(attempts))


def _proof(job: int, node: str, at: datetime) -> Evidence:
    """The node was repaired: what waits to take it out has nothing to wait for any more."""
    return Evidence(
        stable_id("proof", job), at, at, Source.DIAGNOSTIC, Kind.DIAG_PASSED, Where(node=node),
        f"{node} passed diagnostic level 3", data={"level": 3},
    )  # fmt: skip


def _failure(job: int, node: str | None, nodes: tuple[str, ...], at: datetime) -> Iterator[Evidence]:
    seen = at + timedelta(seconds=0.3)
    if node is not None:
        yield Evidence(
            stable_id("xid", job), at, seen, Source.KERNEL, Kind.XID, Where(node=node, gpu=3),
            "NVRM: Xid (PCI:0000:5d:00): 79, pid=7, GPU has fallen off the bus.", data={"xid": 79, "pci": "0000:5d:00"},
        )  # fmt: skip
    else:
        yield Evidence(
            stable_id("bug", job),
            at,
            seen,
            Source.JOB_LOG,
            "x",
            Where(job=job, attempt=0, rank=3),
            BUG,
            rule="python-bug",
        )
    ended = at + timedelta(seconds=4)
    yield Evidence(
        stable_id("end", job), ended, ended, Source.SLURM, Kind.JOB_ENDED, Where(job=job, attempt=0),
        f"job {job} ended as failed", data={"state": "failed", "exit_code": 1, "signal": 0, "nodes": ",".join(nodes)},
    )  # fmt: skip


def judged(recording: Recording) -> Recording:
    settings = Settings(modes=Modes(default=Mode(drain="act", restart="act")))
    replay = Replay(recording, rules=load_rules(), settings=settings)
    found = replay.run()
    incidents = [
        RecordedIncident(one.incident, tuple(item.id for item in one.incident.evidence), "ada", one.verdict, one.plan)
        for one in found
    ]
    return Recording(recording.evidence, tuple(incidents), (*recording.attempts, *replay.begun))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=10_000)
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        recording = judged(past(given.incidents, given.days, given.seed))
        print(
            f"made {len(recording.incidents)} incidents in {time.process_time() - began:.1f} s of CPU", file=sys.stderr
        )
        bundle, policy = Path(folder) / "past.bundle", Path(folder) / "policy.toml"
        write_bundle(bundle, lines_of(recording), anonymised=False)
        policy.write_text('[limits]\ndrain_count = 2\n[modes.default]\ndrain = "act"\nrestart = "act"\n')
        for name, words in (("same", []), ("drain_count = 2", ["--policy", str(policy)])):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            done = subprocess.run(
                [sys.executable, "-m", "sentinel", "replay", str(bundle), "--json", *words],
                capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())},
            )  # fmt: skip
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            counts = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": done.stderr[-300:]}
            shown = {
                "policy": name,
                **counts,
                "user_s": round(used.ru_utime - before, 1),
                "most_mb": used.ru_maxrss // 1024,
            }
            print(json.dumps(shown | {"bundle_mb": round(bundle.stat().st_size / 1e6, 1), "status": done.returncode}))


if __name__ == "__main__":
    main()
