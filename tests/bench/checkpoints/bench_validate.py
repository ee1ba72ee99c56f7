"""How fast a check is, beside the least it could take: a stat per file, and a bare CRC-32 over the same files.

    python tests/bench/checkpoints/bench_validate.py [--ranks 1000] [--mib 1024] [--dir DIR]

One JSON line per measurement; exit status 1 where a check takes more memory than it may.
The files are in the page cache for both sides.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sentinel.checkpoints.validate import validate

MEMORY_MIB = 200  # that no check may need
SUPPORT = Path(__file__).resolve().parents[2] / "support"


def load_maker():
    sys.path.insert(0, str(SUPPORT))
    return importlib.import_module("saves.made_checkpoints")


def timed(work, times=3):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), result


def big(maker, folder, mib, pieces=8, ranks=4):
    """A DCP checkpoint of a few large tensors per rank, of one random block repeated, begun elsewhere by each rank."""
    path = maker.root / folder
    path.mkdir(parents=True)
    rows = (mib << 20) // (ranks * pieces * 4 * 1024)
    block = os.urandom(1 << 20).replace(b"\x7f", b"\x3f").replace(b"\xff", b"\xbf")
    count = rows * 1024 * 4
    payload = (block * (count // len(block) + 1))[:count]
    tensors, stored = {}, []
    for rank in range(ranks):
        item = maker.torch_file(maker.tensor((rows, 1024)), [payload[4096 * rank :] + payload[: 4096 * rank]])
        with open(path / f"__{rank}_0.distcp", "wb") as file:
            for piece in range(pieces):
                name = f"model.layers.{piece}.w"
                place = (rank * rows, 0)
                tensors.setdefault(name, ("float32", (rows * ranks, 1024), []))[2].append((place, (rows, 1024)))
                stored.append((name, place, f"__{rank}_0.distcp", piece * len(item), len(item)))
                file.write(item)
    (path / ".metadata").write_bytes(maker.metadata(tensors, [], stored))
    return path


def bare_crc(path, threads):
    """What it takes to read every byte and compute its CRC-32, with nothing else done."""

    def one(file):
        buffer = memoryview(bytearray(1 << 20))
        crc = 0
        with open(file, "rb", buffering=0) as handle:
            while count := handle.readinto(buffer):
                crc = zlib.crc32(buffer[:count], crc)
        return crc

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, sorted(path.iterdir())))


def peak_of(path, level):
    """The most memory, in MiB, that a process of its own has while it checks this, Python and imports included."""
    code = """
import sys
from pathlib import Path
from sentinel.checkpoints.validate import validate
assert validate(Path(sys.argv[1]), sys.argv[2]).valid is True
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", code, str(path), level], check=True, capture_output=True, text=True)
    return int(done.stdout) >> 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--names", type=int, default=16)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dir", default=None)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=asked.dir))
    maker = load_maker().Maker(root)
    try:
        wide = maker.dcp(
            "wide/step-10",
            ranks=asked.ranks,
            rows=1,
            width=16,
            names=[f"model.layers.{i}.w" for i in range(asked.names)],
        )
        for path in (wide,):
            cpu = time.process_time()
            seconds, answer = timed(lambda path=path: validate(path, "structural"), 3)
            cpu = (time.process_time() - cpu) / 3
            assert answer.valid is True, answer
            print(
                json.dumps(
                    {
                        "what": "structural",
                        "ranks": asked.ranks,
                        "pieces": asked.ranks * asked.names,
                        "metadata_bytes": (path / ".metadata").stat().st_size,
                        "seconds": round(seconds, 3),
                        "cpu_seconds": round(cpu, 3),
                        "load": os.getloadavg()[0],
                    }
                )
            )
        path = big(maker, "big/step-10", asked.mib)
        size = sum(f.stat().st_size for f in path.iterdir())
        threads = len(os.sched_getaffinity(0))
        bare_crc(path, threads)
        for level in ("checksum", "content"):
            ours, bare = [], []
            for _ in range(11):
                seconds, _ = timed(lambda: bare_crc(path, threads), 1)
                bare.append(seconds)
                seconds, answer = timed(lambda level=level: validate(path, level), 1)
                assert answer.valid is True, answer
                ours.append(seconds)
            print(
                json.dumps(
                    {
                        "what": level,
                        "bytes": size,
                        "threads": threads,
                        "ours_bytes_per_s": round(size / statistics.median(ours)),
                        "bare_crc_bytes_per_s": round(size / statistics.median(bare)),
                        "share_of_bare_crc": round(
                            statistics.median(b / o for b, o in zip(bare, ours, strict=True)), 3
                        ),
                    }
                )
            )
        peaks = [peak_of(wide, "structural"), peak_of(path, "checksum"), peak_of(path, "content")]
        print(
            json.dumps(
                {"what": "peak memory", "mib": dict(zip(("structural", "checksum", "content"), peaks, strict=True))}
            )
        )
        if max(peaks) >= MEMORY_MIB:
            sys.exit(f"more than {MEMORY_MIB} MiB")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
