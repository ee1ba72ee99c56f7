"""The agent's GPU probe over a DCGM host engine: faults injected in random order, and what watching costs.

    python tests/bench/node_dcgm.py [--faults 200] [--rest-s 60] [--seed 1]

Over the double, or over a real engine where SENTINEL_DCGM names an installed DCGM (tests/README.md). Prints one JSON object:
how many faults were told once, twice, never, or made up; seconds from an injection to its evidence; and of the probe alone
its share of a core and its memory at rest. Evidence is made in this process, as the agent makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from nodes.installed_dcgm import REAL, Dcgm, DoubleDcgm, RealDcgm  # noqa: E402

from sentinel.config.rules_files import load_convictions  # noqa: E402
from sentinel.evidence.dcgm import DcgmReader  # noqa: E402
from sentinel.evidence.gpu_samples import sample_from  # noqa: E402

XID = 230  # DCGM_FI_DEV_XID_ERRORS
CODES = (13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140)
TICKS = os.sysconf("SC_CLK_TCK")


def probe(dcgm: Dcgm, interval_s: float) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sentinel.agent.probes.dcgm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, **dcgm.environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdin is not None
    arguments = {"bindings": dcgm.bindings, **dcgm.where, "connect_s": 30, "interval_s": interval_s, "health_s": 30,
                 "dcgmi": "/nowhere/dcgmi"}  # fmt: skip
    process.stdin.write(json.dumps(arguments).encode() + b"\n")
    process.stdin.flush()
    return process


def cost(pid: int) -> tuple[float, float]:
    """CPU seconds so far, and resident memory in MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return (int(fields[11]) + int(fields[12])) / TICKS, resident / 2**20


def at_rest(dcgm: Dcgm, seconds: float) -> dict[str, float]:
    process = probe(dcgm, 1.0)
    assert process.stdout is not None
    for _ in range(5):  # connected, and past its start
        process.stdout.readline()
    before, begun = cost(process.pid)[0], time.monotonic()
    while time.monotonic() - begun < seconds:
        process.stdout.readline()
    used, memory = cost(process.pid)
    took = time.monotonic() - begun
    process.kill()
    process.wait()
    return {"core_share": round((used - before) / took, 5), "memory_mib": round(memory, 1)}


def faults(dcgm: Dcgm, count: int, rng: random.Random) -> dict[str, Any]:
    process, reader = probe(dcgm, 0.5), DcgmReader("n1", load_convictions(ROOT / "rules"))
    assert process.stdout is not None
    injected: list[tuple[float, int, int]] = []
    found: list[tuple[float, int, int]] = []
    done = threading.Event()

    def inject() -> None:
        for _ in range(count):
            gpu, code = rng.randrange(dcgm.gpus), rng.choice(CODES)
            injected.append((time.monotonic(), gpu, code))
            dcgm.inject(gpu, XID, code)
            # DCGM keeps one Xid of a GPU and millisecond: faults overlap, not coincide.
            time.sleep(rng.uniform(0.05, 1.2) * 4 / dcgm.gpus)
        done.set()

    names: dict[str, int] = {}
    injector, ends = threading.Thread(target=inject, daemon=True), float("inf")
    for number, line in enumerate(process.stdout):
        message = json.loads(line)
        if message["type"] != "sample":
            continue
        names |= {gpu["uuid"]: gpu["id"] for gpu in message["gpus"]}
        for item in reader.read(sample_from(message, datetime.now(UTC))):
            if item.kind == "xid":
                found.append(
                    (time.monotonic(), names[str(item.where.gpu_uuid or item.where.gpu)], int(item.data["xid"]))
                )
        if number == 5:
            injector.start()
        if done.is_set():
            ends = min(ends, time.monotonic() + 5.0)
        if time.monotonic() > ends:
            break
    process.kill()
    process.wait()
    wanted, told = Counter(key[1:] for key in injected), Counter(key[1:] for key in found)
    delays = []
    for at, gpu, code in injected:
        match = next((one for one in found if one[1:] == (gpu, code) and one[0] >= at), None)
        if match is not None:
            found.remove(match)
            delays.append(match[0] - at)
    delays.sort()
    return {
        "injected": count,
        "never_told": sum((wanted - told).values()),
        "made_up_or_twice": sum((told - wanted).values()),
        "p50_s": share(delays, 0.5), "p99_s": share(delays, 0.99), "max_s": share(delays, 1.0),
    }  # fmt: skip


def share(delays: list[float], fraction: float) -> float | None:
    """The delay that this fraction of them does not exceed."""
    return round(delays[min(len(delays) - 1, int(len(delays) * fraction))], 2) if delays else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--rest-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dcgm = (RealDcgm if REAL else DoubleDcgm)(Path(folder), "15766")
        dcgm.start()
        rest = at_rest(dcgm, options.rest_s)
        told = faults(dcgm, options.faults, random.Random(options.seed))
        dcgm.kill()
    print(json.dumps({"engine": REAL or "double", "at_rest": rest, "faults": told}))


if __name__ == "__main__":
    main()
