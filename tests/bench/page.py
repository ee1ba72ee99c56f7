"""How long each page takes and how large it is: `python tests/bench/page.py [--nodes 2048] [--serve PORT]`.

The store holds a month of history; nodes are in switches of 32, some of them drained, down, silent or suspect. With
``--serve`` the page stays on that port of loopback, for a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import math
import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from core_records import evidence, plan, step
from core_world import World
from month import Month
from page_world import ServedPage, serving_page

from sentinel.adapters.store.store import Store, sqlite_url
from sentinel.model.records import Fleet, JobView, Kind, NodeView, Outcome, Result, Source, StepKind, Where

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
)
HOSTILE = "<script>alert(1)</script> http://evil.example"


class Slurm:
    """Answers with a fleet of this bench's own making."""

    def __init__(self, nodes: int, now: datetime) -> None:
        rng = random.Random(3)
        made, jobs = {}, {}
        running = JobView(
            id=9001, state="running", user="ada", name="pretrain-70b", partition="train", restarts=2,
            nodes=tuple(f"n{number:04d}" for number in range(1, nodes // 2)), started_at=now - timedelta(hours=2),
        )  # fmt: skip
        hostile = JobView(
            id=9002, state="running", user="eve", name=HOSTILE, partition="train",
            nodes=(f"n{nodes // 2:04d}",), started_at=now - timedelta(hours=1),
        )  # fmt: skip
        jobs = {9001: running, 9002: hostile}
        for number in range(1, nodes + 1):
            name = f"n{number:04d}"
            state, flags, reason = ("allocated" if number < nodes * 0.75 else "idle"), frozenset(), ""
            if (luck := rng.random()) < 0.004:
                flags, reason = frozenset({"drain"}), "sentinel:0a1b2c3d gpu_fallen_off_bus " + name + ":3"
            elif luck < 0.006:
                state, flags, reason = "down", frozenset({"not_responding"}), "Not responding"
            elif luck < 0.01:
                state, flags, reason = "idle", frozenset({"drain"}), "fan, ticket 4711"
            made[name] = NodeView(
                name=name, state=state, flags=flags, reason=reason, partitions=("train",) if number % 16 else ("debug",),
                gpus=8, topology=f"fabric:spine{(number - 1) // 512 + 1}.leaf{(number - 1) // 32 + 1:02d}",
            )  # fmt: skip
        self.answer = Fleet(now, made, jobs)

    async def fleet(self) -> Fleet:
        return self.answer


def fill(page: ServedPage, nodes: int) -> str:
    """A month of failures, and one incident of today from its first line to the job that runs again; returns its id."""
    now, store, live = page.world.slurm.clock.now(), page.world.store, page.daemon.live
    month = Month(store, now)
    month.names = [f"n{number:04d}" for number in range(1, min(nodes, 200) + 1)]
    month.fill()
    rows = store.incident_rows(limit=1000)
    chosen = next(row for row in rows if row["cause"] == "gpu_fallen_off_bus")
    job = chosen["job"]
    base = JobView(id=9001, state="failed", user="ada", name="pretrain-70b", partition="train",
                   nodes=tuple(month.names[:64]))  # fmt: skip
    steps = [(0, 1, 400), (1, 351, 700), (2, 651, 900)]
    for attempt, first, last in steps:
        started = now - timedelta(hours=8 - 3 * attempt)
        ended = started + timedelta(hours=2.8) if attempt < 2 else None
        view = dataclasses.replace(base, restarts=attempt, started_at=started, ended_at=ended,
                                   state="failed" if ended else "running")  # fmt: skip
        store.save_attempt(view, first_step=first, last_step=last, step_time_s=18.0)
        live.see_attempt(view)
        rng = random.Random(attempt)
        for number in range(first, last + 1):
            at = started + timedelta(seconds=18.0 * (number - first))
            loss = 2.0 + 9 * math.exp(-number / 140) + rng.gauss(0, 0.06)
            live.note(dataclasses.replace(
                evidence(Kind.STEP, source=Source.JOB_LOG, data={
                    "step": number, "loss": loss, "step_time_s": 18 + rng.gauss(0, 0.5) + (6 if number > 860 else 0)}),
                at=at, seen_at=at, where=Where(job=9001, attempt=attempt),
            ))  # fmt: skip
    made = plan(step(StepKind.DRAIN, node="n12"), step(StepKind.REQUEUE_HOLD, job=job, attempt=0),
                step(StepKind.CHOOSE_CHECKPOINT, job=job, attempt=0), step(StepKind.RELEASE, job=job, attempt=0),
                step(StepKind.CONFIRM, job=job, attempt=0), incident=chosen["id"])  # fmt: skip
    made = dataclasses.replace(made, at=chosen["opened_at"] + timedelta(seconds=1))
    store.save_plan(made)
    for number, one in enumerate(made.steps):
        at = chosen["opened_at"] + timedelta(seconds=1.2 + 2 * number)
        store.intend(made, one, at)
        store.record(made, Outcome(one, Result.DONE, at + timedelta(seconds=1), ""))
    return str(chosen["id"])


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
            page.daemon.fleets._reader = Slurm(nodes, world.slurm.clock.now())
            await page.daemon.fleets.take()
            incident = fill(page, nodes)
            for name in list(page.daemon.live.fleet.nodes)[::7]:
                page.daemon.live.node(name).state = "heard"
            page.daemon.live.node("n0040").state = "silent"
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
