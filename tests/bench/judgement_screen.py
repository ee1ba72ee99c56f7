"""Log screening: lines a second on one core with all rules loaded, step lines included, against grep and plain Python.

The log is generated: step lines, NCCL information lines and dataloader chatter of a training job, and a failure now and
then. Peers on the same bytes: `grep -c -E` with 12 patterns (kept small, as people do), and a Python loop with the same 12.

Run: python tests/bench/judgement_screen.py [--lines N]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from sentinel.adapters.hyperscan import best_screen
from sentinel.adapters.rules_files import load_rules
from sentinel.evidence.logs import LogReader, Signatures
from sentinel.model import Kind

GREP = [
    "NVRM: Xid", "CUDA out of memory", "Watchdog caught collective", "Traceback", "Segmentation fault", "DUE TO TIME LIMIT",
    "Connection refused", "No space left", "oom.kill", "Stale file handle", "found NaN", "ECC error",
]  # fmt: skip
BLOCK = 1 << 20


def generate(path: Path, lines: int, seed: int = 3) -> None:
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for i in range(lines):
            draw = rng.random()
            rank = rng.randrange(64)
            if draw < 0.15:
                file.write(
                    f"[rank{rank}]: step {i} | loss {2 + rng.random():.4f} | step time {rng.random():.3f} s | 12 tokens/s\n"
                )
            elif draw < 0.30:
                file.write(
                    f" iteration {i:8d}/  500000 | consumed samples: {i * 8:12d} | elapsed time per iteration (ms): 412.5 | "
                    f"learning rate: 1.5E-04 | lm loss: {2 + rng.random():.6E} | loss scale: 1.0 | grad norm: 1.2 |\n"
                )
            elif draw < 0.6:
                file.write(
                    f"gpu{rank // 8:03d}:4711:{4800 + rank} [{rank % 8}] NCCL INFO Channel {i % 16:02d}/0 : "
                    f"{rank}[{rank % 8}] -> {rank + 1}[{(rank + 1) % 8}] via P2P/CUMEM\n"
                )
            elif draw < 0.99999:
                file.write(
                    f"2026-01-02 03:04:{i % 60:02d},123 INFO data: shard {i % 997} opened, {rng.randrange(9999)} samples\n"
                )
            else:
                file.write(f"[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def screen(path: Path, signatures: Signatures) -> tuple[float, dict[str, int]]:
    """Seconds of CPU, and what was found."""
    reader = LogReader(signatures)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    found = {"evidence": 0, "steps": 0}
    start = time.process_time()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            for item in reader.feed(block, now):
                found["steps" if item.kind == Kind.STEP else "evidence"] += 1
    for item in reader.finish(now):
        found["steps" if item.kind == Kind.STEP else "evidence"] += 1
    return time.process_time() - start, found


def grep(path: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["grep", "-c", "-E", "|".join(GREP), str(path)], stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plain(path: Path, limit: int) -> tuple[float, int]:
    patterns = [re.compile(pattern) for pattern in GREP]
    start, count = time.process_time(), 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            count += 1
            any(pattern.search(line) for pattern in patterns)
            if count >= limit:
                break
    return time.process_time() - start, count


def run(lines: int) -> dict[str, object]:
    rules = load_rules()
    signatures = Signatures(rules, best_screen)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        generate(path, lines)
        size = path.stat().st_size
        screen(path, signatures)  # once to warm the page cache
        ours, found = min((screen(path, signatures) for _ in range(3)), key=lambda pair: pair[0])
        peer = min(grep(path) for _ in range(3))
        loop, looped = plain(path, min(lines, 300_000))
    return {
        "lines": lines,
        "bytes": size,
        "rules": len(rules.rules),
        "screen": signatures.screen.name,
        "lines_per_s": round(lines / ours),
        "bytes_per_s": round(size / ours),
        "grep_12_lines_per_s": round(lines / peer) if peer else None,
        "python_12_lines_per_s": round(looped / loop),
        "ratio_to_grep": round(peer / ours, 3),
        "ratio_to_python": round((lines / ours) / (looped / loop), 2),
        "resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        **found,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2_000_000)
    print(json.dumps(run(parser.parse_args().lines)))
