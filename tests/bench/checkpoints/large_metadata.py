"""The structural check of a job of very many ranks: seconds and peak memory, by the number of pieces.

    python tests/bench/checkpoints/large_metadata.py [--ranks 1000] [--tensors 1000] [--plans] [--dir DIR]

The metadata is made and pickled by torch's own classes (needs torch, and about 2 GB while it is made); the shards are files
with holes, each with the ends of archives where a structural check looks. One JSON line; exit status 1 when the answer is
not *valid*.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_CHECK = (
    "import sys, json, time; from pathlib import Path; from sentinel.checkpoints.validate import validate\n"
    "began = time.monotonic(); a = validate(Path(sys.argv[1]), 'structural'); took = time.monotonic() - began\n"
    # not ru_maxrss: that one remembers the process we were forked from
    "peak = next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
    "print(json.dumps({'valid': a.valid, 'reason': a.reason, 'seconds': round(took, 2), 'peak_mb': peak // 1024}))"
)


def make(folder: Path, ranks: int, tensors: int, plans: bool) -> int:
    """One piece of every tensor on every rank, each with an object of its own, as the ranks' answers arrive."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    shapes = [(8, 16), (4, 32), (16, 16), (2, 8)]
    described, stored, size = {}, {}, 2048
    kept = [[] for _ in range(ranks)]
    for number in range(tensors):
        rows, width = shapes[number % len(shapes)]
        name, properties = f"model.layers.{number}.weight", TensorProperties(dtype=torch.float32)
        full = torch.Size((rows * ranks, width))
        chunks = []
        for rank in range(ranks):
            place, cut = torch.Size((rank * rows, 0)), torch.Size((rows, width))
            chunk = ChunkStorageMetadata(place, cut)
            chunks.append(chunk)
            index = MetadataIndex(name, torch.Size(tuple(place)), rank)
            stored[index] = _StorageInfo(f"__{rank}_0.distcp", number * size, size)
            if plans:
                data = TensorWriteData(chunk, properties, full)
                again = MetadataIndex(name, place, rank)  # the plans and the results are gathered one after the other
                kept[rank].append(WriteItem(again, WriteItemType.SHARD, data))
        described[name] = TensorStorageMetadata(properties, full, chunks)
    metadata = Metadata(described, {name: ("model", name[6:]) for name in described}, stored)
    if plans:
        metadata.all_local_plans = [SavePlan(items) for items in kept]
    for rank in range(ranks):
        with open(folder / f"__{rank}_0.distcp", "wb") as file:
            file.truncate(tensors * size)
            for piece in range(tensors) if ranks * tensors <= 50_000 else (0, tensors - 1):
                os.pwrite(file.fileno(), b"PK\x03\x04", piece * size)
                os.pwrite(file.fileno(), b"PK\x05\x06", (piece + 1) * size - 22)
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(metadata, file)
    return (folder / ".metadata").stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--plans", action="store_true", help="with the plans of all ranks, as Megatron keeps them")
    parser.add_argument("--dir", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        path = Path(folder) / "step-10"
        path.mkdir()
        metadata_bytes = make(path, asked.ranks, asked.tensors, asked.plans)
        time.sleep(0.1)
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        done = subprocess.run(
            [sys.executable, "-c", _CHECK, path], env=environment, capture_output=True, text=True, check=True
        )
    answer = json.loads(done.stdout)
    pieces = asked.ranks * asked.tensors
    print(json.dumps({"ranks": asked.ranks, "pieces": pieces, "metadata_bytes": metadata_bytes} | answer))
    return 0 if answer["valid"] is True else 1


if __name__ == "__main__":
    sys.exit(main())
