"""A folder of very many steps of which one low one is whole: it is found, in bounded time and memory.

    python tests/bench/checkpoints/many_steps.py [--dir DIR] [--steps 100000]

Needs torch for the whole one. All others are folders with a shard and no metadata, as saves leave them that were cut off.
Prints one JSON object; exit status 1 when another one is chosen or none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOWER = 10  # steps below the whole one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where the folders go for a while (default: the temporary folder)")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--make-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_in:
        make(options.make_in, options.steps)
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        # By another process: a child's memory is counted from that of its parent on, and torch is large.
        subprocess.run([sys.executable, __file__, "--make-in", folder, "--steps", str(options.steps)], check=True)
        words = ["checkpoints", "find", "--global", folder, "--limit", str(options.steps + 1), "--no-cache", "--json"]
        words += ["--level", "structural"]
        began_s = time.monotonic()
        with subprocess.Popen([sys.executable, "-m", "sentinel", *words], cwd=ROOT, stdout=subprocess.PIPE) as found:
            output = found.stdout.read() if found.stdout else b""
            _, _, used = os.wait4(found.pid, 0)  # of this child alone
            found.returncode = 0
        took_s = time.monotonic() - began_s
    chosen = (json.loads(output).get("chosen") or {}).get("step")
    answer = {"steps": options.steps, "chosen": chosen, "seconds": round(took_s, 1), "peak_mb": used.ru_maxrss // 1024}
    print(json.dumps(answer))
    sys.exit(0 if chosen == LOWER else 1)


def make(root: Path, steps: int) -> None:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({"weight": torch.ones(16)}, storage_writer=FileSystemWriter(root / f"step-{LOWER}"), no_dist=True)
    for step in (*range(LOWER), *range(LOWER + 1, steps)):
        torn = root / f"step-{step}"
        torn.mkdir()
        (torn / "__0_0.distcp").write_bytes(b"PK")


if __name__ == "__main__":
    main()
