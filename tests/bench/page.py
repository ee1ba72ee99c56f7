"""How long each page takes and how large it is: `python tests/bench/page.py [--nodes 2048] [--incidents 10000]`.

The store holds a month of history, with so many more incidents, each with verdict, plan and outcomes. Nodes are in switches
of 32, some of them drained, down, silent or suspect. With ``--serve PORT`` the page stays there, for a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import random
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from in_memory.direct_store import DirectStore
from in_memory.page import ServedPage, serving_page
from in_memory.page_fleet import furnish
from in_memory.world import World
from made_records import evidence, plan, step

from sentinel.adapters.store.database import sqlite_url
from sentinel.adapters.store.store import Store
from sentinel.model.changes import (
    Change,
    EvidenceAdded,
    IncidentChanged,
    PlanMade,
    StepEnded,
    StepIntended,
    VerdictReached,
)
from sentinel.model.records import (
    Cause,
    Culprits,
    Ground,
    Incident,
    IncidentState,
    Kind,
    Outcome,
    Result,
    Scope,
    StepKind,
    Verdict,
    stable_id,
)

CAUSES = (Cause.GPU_FALLEN_OFF_BUS, Cause.GPU_MEMORY_ECC, Cause.GPU_NVLINK, Cause.NETWORK_FABRIC)
XID_79 = "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus."

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


def add_incidents(store: Store, nodes: int, count: int, now: datetime) -> None:
    """Closed incidents of the last 30 days: a machine's fault on one node, drained and restarted."""
    rng = random.Random(1)
    kept: list[Change] = []
    for number in range(count):
        at, node, job = now - timedelta(days=30 * rng.random()), f"n{rng.randint(1, nodes):04d}", 100_000 + number
        name = stable_id("bench", number)
        line = replace(evidence(Kind.XID, node=node, data={"xid": 79}, text=XID_79), id=f"e{number}", at=at, seen_at=at)
        found = Incident(
            id=name, opened_at=at, updated_at=at, state=IncidentState.CLOSED, job=job, attempt=0, nodes=(node,),
            evidence=(line,), outcome="gains steps again",
        )  # fmt: skip
        verdict = Verdict(
            cause=rng.choice(CAUSES), scope=Scope.GPU, confidence=0.97, culprits=Culprits(nodes=(node,)),
            grounds=(Ground(line, 3.0, "xid-79"),), drain=(node,),
        )  # fmt: skip
        made = replace(
            plan(step(StepKind.DRAIN, node=node), step(StepKind.REQUEUE_HOLD, job=job), incident=name), at=at
        )
        kept += [
            EvidenceAdded((line,)),
            IncidentChanged(found, f"u{number % 50}"),
            VerdictReached(name, verdict, at),
            PlanMade(made),
        ]
        for wanted in made.steps:
            kept += [
                StepIntended(made, wanted, at),
                StepEnded(name, Outcome(wanted, Result.DONE, at + timedelta(seconds=2), "")),
            ]
        if number % 500 == 499 or number == count - 1:
            store.commit(kept)
            kept.clear()


async def measured(page: ServedPage, path: str) -> tuple[float, float, int, int]:
    """Best of three: seconds, seconds of a core (of both ends), bytes of the page, bytes on the wire."""
    best_s, best_cpu_s, size, sent = math.inf, math.inf, 0, 0
    for _ in range(3):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        status, text, headers = await page.get(path)
        best_s = min(best_s, time.perf_counter() - began_s)
        best_cpu_s = min(best_cpu_s, time.process_time() - began_cpu_s)
        assert status == 200, f"{path}: {status} {text[:300]}"
        size, sent = len(text.encode()), int(headers.get("Content-Length", 0))
    return best_s, best_cpu_s, size, sent


async def run(nodes: int, more: int, port: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = DirectStore(sqlite_url(Path(folder)))
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
            add_incidents(store, nodes, more, world.slurm.clock.now())
            print(f"ready http://127.0.0.1:{port}", incident, flush=True)
            while port:
                world.slurm.clock.at = datetime.now(UTC)
                await asyncio.sleep(1)
            print(
                f"{nodes} nodes, {more} more incidents\n{'page':16} {'seconds':>8} {'of a core':>9} {'kB':>6} {'sent kB':>8}"
            )
            for path in PATHS:
                path = path.format(node="n0012", incident=incident)
                took_s, cpu_s, size, sent = await measured(page, path)
                print(f"{path[:16]:16} {took_s:8.3f} {cpu_s:9.3f} {size / 1000:6.0f} {sent / 1000:8.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--incidents", type=int, default=0, help="closed ones of the last 30 days")
    parser.add_argument("--serve", type=int)
    given = parser.parse_args()
    asyncio.run(run(given.nodes, given.incidents, given.serve))
