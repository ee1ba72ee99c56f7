"""How long each page takes and how large it is: `python tests/bench/page.py [--nodes 2048] [--serve PORT]`.

The store holds a month of history; nodes are in switches of 32, some of them drained, down, silent or suspect. With
``--serve`` the page stays on that port of loopback, for a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from core_world import World
from page_fleet import furnish
from page_world import ServedPage, serving_page

from sentinel.adapters.store.store import Store, sqlite_url

PATHS = (
    "/",
    "/nodes",
    "/nodes/{node}",
    "/incidents",
    "/incidents/{incident}",
    "/jobs",
    "/jobs/9001",
    "/history",
    "/plan",
    "/report",
)


async def measured(page: ServedPage, path: str) -> tuple[float, int, int]:
    """Best of three: seconds, bytes of the page, bytes on the wire."""
    best_s, size, sent = math.inf, 0, 0
    for _ in range(3):
        began_s = time.perf_counter()
        status, text, headers = await page.get(path)
        best_s = min(best_s, time.perf_counter() - began_s)
        assert status == 200, f"{path}: {status} {text[:300]}"
        size, sent = len(text.encode()), int(headers.get("Content-Length", 0))
    return best_s, size, sent


async def run(nodes: int, port: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(sqlite_url(Path(folder)))
        world = World(store)
        world.slurm.clock.at = datetime.now(UTC)
        settings: dict[str, Any] = {"listen": f"127.0.0.1:{port or 0}"}
        if port:  # a browser names nobody: give it a token, "page"
            tokens = Path(folder) / "tokens"
            tokens.write_text(f"wall {hashlib.sha256(b'page').hexdigest()} operator\n")
            tokens.chmod(0o600)
            settings |= {"user_header": "", "proxies": [], "tokens": str(tokens)}
        async with serving_page(world, cluster="lab", **settings) as page:
            incident = await furnish(page, nodes)
            print(f"ready http://127.0.0.1:{port}", incident, flush=True)
            while port:
                world.slurm.clock.at = datetime.now(UTC)
                await asyncio.sleep(1)
            print(f"{nodes} nodes\n{'page':16} {'seconds':>8} {'kB':>6} {'sent kB':>8}")
            for path in PATHS:
                path = path.format(node="n0012", incident=incident)
                took_s, size, sent = await measured(page, path)
                print(f"{path[:16]:16} {took_s:8.3f} {size / 1000:6.0f} {sent / 1000:8.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--serve", type=int)
    given = parser.parse_args()
    asyncio.run(run(given.nodes, given.serve))
