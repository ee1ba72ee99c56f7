"""A torch.save file beyond 4 GiB: its 64-bit directory is read, its checksum holds, and a flipped bit beyond 4 GiB is found.

    python tests/bench/checkpoints/large_archive.py [--dir DIR] [--gigabytes 4.4]

Needs torch, and as much space as the file takes. Prints one JSON object; exit status 1 when an answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from sentinel.checkpoints.validate import Settings, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where the file goes for a while (default: the temporary folder)")
    parser.add_argument("--gigabytes", type=float, default=4.4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "step-10.pt"
        bytes_written = save(path, options.gigabytes)
        began_s = time.monotonic()
        whole = validate(path, "checksum", settings=Settings())
        took_s = time.monotonic() - began_s
        flipped_at = bytes_written - (64 << 20)
        flip(path, flipped_at)
        damaged = validate(path, "checksum", settings=Settings())
    answer = {
        "bytes": bytes_written,
        "flipped_beyond_4_gib": flipped_at > 1 << 32,
        "checksum_s": round(took_s, 2),
        "whole": whole.valid,
        "damaged": damaged.valid,
        "reason": damaged.reason,
        "peak_mb_with_saving": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(answer))
    sys.exit(0 if whole.valid is True and damaged.valid is False and damaged.level == "checksum" else 1)


def save(path: Path, gigabytes: float) -> int:
    """Tensors of 256 MiB, as many as it takes."""
    import torch

    torch.manual_seed(1)
    piece = torch.randn(64 << 20)  # 256 MiB
    count = math.ceil(gigabytes * 1e9 / (piece.numel() * 4))
    torch.save({f"layer{i}": piece + i for i in range(count)}, path)
    return path.stat().st_size


def flip(path: Path, offset: int) -> None:
    """One bit, and nothing of it in the times."""
    kept = path.stat()
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


if __name__ == "__main__":
    main()
