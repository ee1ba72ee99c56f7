"""Log screening: lines a second of one core with all rules, against grep and plain Python; and `classify` of a short log.

Five logs are generated: one of Megatron-LM (step lines with all that it prints, timers, memory, NCCL, a failure at the
end), a mix of step lines, NCCL's information lines and chatter, the same in records as Docker writes them (a fifth as many),
chatter of which no two lines are alike, and lines full of words of failures, of which none is like another (a thirtieth).
Peers on the same bytes: `grep -c -E` with 12 patterns (kept small, as people do), and a Python loop with the same 12.
"python" is the screen without Hyperscan.

Run: python tests/bench/judgement_screen.py [--lines N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from sentinel.adapters.hyperscan import best_screen
from sentinel.cli.offline.log_blocks import blocks
from sentinel.config.rules_files import load_rules
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.evidence.logs.screen.prefilter import PlainScreen
from sentinel.model.records import Kind

GREP = [
    "NVRM: Xid", "CUDA out of memory", "Watchdog caught collective", "Traceback", "Segmentation fault", "DUE TO TIME LIMIT",
    "Connection refused", "No space left", "oom.kill", "Stale file handle", "found NaN", "ECC error",
]  # fmt: skip


def megatron(path: Path, lines: int, seed: int = 3) -> None:
    rng = random.Random(seed)
    written = step = 0
    with path.open("w", encoding="utf-8") as file:
        while written < lines:
            step += 1
            clock = (
                f"2026-01-{1 + step // 86400 % 28:02d} {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
            )
            file.write(
                f" [{clock}] iteration {step:8d}/ 1500000 | consumed samples: {step * 512:12d} | elapsed time per iteration "
                f"(ms): {400 + rng.random() * 30:.1f} | throughput per GPU (TFLOP/s/GPU): {400 + rng.random() * 30:.1f} | "
                f"learning rate: {1.5e-4 * rng.random():.6E} | global batch size:   512 | lm loss: {2 + rng.random():.6E} | "
                f"loss scale: 1.0 | grad norm: {rng.random() * 2:.3f} | num zeros: 0.0 | params norm: "
                f"{500 + rng.random():.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            )
            written += 1
            if step % 10 == 0:
                rank = rng.randrange(64)
                file.write("(min, max) time across ranks (ms):\n")
                for name in ("forward-backward", "forward-compute", "optimizer"):
                    file.write(
                        f"    {name} {'.' * (47 - len(name))}: ({rng.random() * 99:.2f}, {rng.random() * 99:.2f})\n"
                    )
                file.write(
                    f"[Rank {rank}] (after {step} iterations) memory (MB) | allocated: {rng.random() * 9e4:.8f} | max\n"
                )
                file.write(
                    f"gpu{rank // 8:03d}:4711:{4800 + rank} [{rank % 8}] NCCL INFO Channel {rank:02d}/0 : via P2P/CUMEM\n"
                )
                written += 6
        file.write("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def mix(path: Path, lines: int, seed: int = 3) -> None:
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for i in range(lines - 1):
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
            else:
                file.write(
                    f"2026-01-02 03:04:{i % 60:02d},123 INFO data: shard {i % 997} opened, {rng.randrange(9999)} samples\n"
                )
        file.write("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def records(path: Path, lines: int, seed: int = 3) -> None:
    """The mix, each line in a record of Docker's."""
    mix(path, lines, seed)
    said = path.read_text(encoding="utf-8").splitlines()
    beside = {"stream": "stdout", "time": "2026-01-02T03:04:05.123456789Z"}
    path.write_text("".join(f"{json.dumps({'log': line + chr(10)} | beside)}\n" for line in said), encoding="utf-8")


def distinct(path: Path, lines: int, seed: int = 3) -> None:
    """Lines that differ in more than their numbers: names of shards and their hashes."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for i in range(lines - 1):
            name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8))
            file.write(
                f"2026-01-02 03:04:{i % 60:02d},123 INFO data: shard {name}-{rng.randrange(997)} of "
                f"{rng.getrandbits(128):032x}.tar opened, {rng.randrange(9999)} samples read in {rng.random():.3f} s\n"
            )
        file.write("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def failing(path: Path, lines: int, seed: int = 3) -> None:
    """Lines that all differ and hold several words of failures each: what costs the screens most."""
    rng = random.Random(seed)
    words = (
        "CUDA error", "NCCL WARN", "out of memory", "checkpoint corrupt", "Traceback", "filesystem", "connection refused",
        "segmentation fault", "Stale file handle", "assert", "RuntimeError: ", "ValueError: ", "uncorrectable",
    )  # fmt: skip
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines - 1):
            said = (rng.choice(words) + "".join(rng.choices("abcdefgh", k=6)) for _ in range(6))
            file.write(" ".join(said) + "\n")
        file.write("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def screen(path: Path, signatures: Signatures) -> float:
    """Seconds of CPU."""
    reader = LogReader(signatures, own_times=True, last_steps=64)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    start = time.process_time()
    found = [item for block in blocks(path) for item in reader.feed(block, now)] + reader.finish(now)
    taken = time.process_time() - start
    assert any(item.kind != Kind.STEP for item in found)
    return taken


def classify_s(path: Path, cache: Path) -> float:
    """Seconds of `sentinel classify` as a command of its own."""
    command = [sys.executable, "-m", "sentinel", "classify", "--json", str(path)]
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    return time.perf_counter() - start


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


def run(lines: int) -> list[dict[str, object]]:
    rules = load_rules()
    screens = {"as installed": Signatures(rules, best_screen), "python": Signatures(rules, PlainScreen)}
    answers: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        for write, part in ((megatron, 1), (mix, 1), (records, 5), (distinct, 1), (failing, 30)):
            write(path, lines // part)
            count = path.read_bytes().count(b"\n")
            peer = min(grep(path) for _ in range(3))
            loop, looped = plain(path, min(lines, 300_000))
            for how, signatures in screens.items():
                ours = min(screen(path, signatures) for _ in range(3))
                answers.append(
                    {
                        "log": write.__name__,
                        "lines": count,
                        "bytes": path.stat().st_size,
                        "rules": len(rules.rules),
                        "screen": f"{how} ({signatures.screen.name})",
                        "lines_per_s": round(count / ours),
                        "grep_12_lines_per_s": round(count / peer),
                        "ratio_to_grep": round(peer / ours, 3),
                        "ratio_to_python": round((count / ours) / (looped / loop), 2),
                    }
                )
        short = Path(folder) / "short.log"
        short.write_text(
            "".join(f"line {i} of a short log\n" for i in range(49)) + "RuntimeError: CUDA out of memory\n"
        )
        first, *later = (classify_s(short, Path(folder) / "cache") for _ in range(6))
        grepped = grep(short)
    later.sort()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answers.append(
        {
            "log": "50 lines",
            "classify_first_s": round(first, 2),
            "classify_later_s": round(later[len(later) // 2], 2),
            "grep_12_s": round(grepped, 3),
            "resident_mb": round(resident, 1),
        }
    )
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_500_000)
    for answer in run(parser.parse_args().lines):
        print(json.dumps(answer))
