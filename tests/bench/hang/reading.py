"""What it costs to read flight-recorder dumps: processor seconds per dump, beside a bare decoder, and peak memory.

    python tests/bench/hang/reading.py [--calls 2000] [--frames 8] [--ranks 64]

One JSON line per form for one dump, and one for `sentinel hang` over a folder of so many.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sentinel.evidence.nccl.flight_recorder import read_dump

ROOT = Path(__file__).resolve().parents[3]


def dump(rank: int, world: int, calls: int, frames: int) -> dict:
    rng = random.Random(1)
    groups = {"0": ("default_pg", range(world)), "3": ("tp", range(rank // 8 * 8, rank // 8 * 8 + 8))}
    groups["7"] = ("dp", range(rank % 8, world, 8))
    stacks = [
        [{"name": f"call_{i}_{j}", "filename": f"/opt/venv/lib/python3.11/site-packages/part{j}.py", "line": 9 * i + j}
         for j in range(frames)]
        for i in range(12)
    ]  # fmt: skip
    numbers, entries = dict.fromkeys(groups, 9000), []
    for at in range(calls):
        name = rng.choice(("3", "3", "3", "7", "0"))
        numbers[name] += 1
        made = 1_795_246_206_309_471_617 + at * 1_000_003
        entries.append({
            "frames": [dict(frame) for frame in rng.choice(stacks)],
            "record_id": 50_000 + at, "pg_id": list(groups).index(name), "process_group": (name, groups[name][0]),
            "collective_seq_id": numbers[name], "p2p_seq_id": 0, "op_id": at, "profiling_name": "nccl:all_reduce",
            "time_created_ns": made, "input_sizes": [[4096, 1024]], "input_dtypes": ["BFloat16"],
            "output_sizes": [[4096, 1024]], "output_dtypes": ["BFloat16"],
            "state": "completed" if at < calls - 3 else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": made + 5 if at < calls - 3 else None, "retired": at < calls - 3,
            "timeout_ms": 600_000, "is_p2p": False, "thread_id": "140135001500544", "thread_name": "pt_main_thread",
        })  # fmt: skip
    config = {n: {"name": n, "desc": d, "ranks": str(list(r))} for n, (d, r) in groups.items()}
    return {"version": "2.10", "comm_lib_version": "2.27.5", "pg_config": config, "entries": entries}


def least(work, times: int = 5) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return round(min(taken), 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=64)
    asked = parser.parse_args()
    value = dump(3, asked.ranks, asked.calls, asked.frames)
    forms = (("pickle", pickle.dumps(value, 2), pickle.loads), ("json", json.dumps(value).encode(), json.loads))
    for form, data, bare in forms:
        ours = least(lambda data=data: read_dump(data, "trace_3"))
        line = {
            "form": form,
            "bytes": len(data),
            "cpu_s": ours,
            "bare_decoder_cpu_s": least(lambda d=data, f=bare: f(d)),
        }
        print(json.dumps(line))
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(asked.ranks):
            Path(folder, f"trace_{rank}").write_bytes(
                pickle.dumps(dump(rank, asked.ranks, asked.calls, asked.frames), 2)
            )
        command = [sys.executable, "-m", "sentinel", "hang", "--json", folder]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(ROOT)), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        line = {"command": "sentinel hang", "ranks": asked.ranks, "cpu_s": round(cpu, 2)}
        print(json.dumps(line | {"wall_s": round(time.monotonic() - start, 2), "peak_mib": after.ru_maxrss >> 10}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
