"""A fleet of any size and a month of its history, for the page: some nodes drained, down, silent, one job with curves."""

from __future__ import annotations

import dataclasses
import math
import random
from datetime import datetime, timedelta

from made_records import evidence, plan, step

from in_memory.month import Month
from in_memory.page import ServedPage
from sentinel.model.approvals import APPROVAL
from sentinel.model.records import Cause, Fleet, JobView, Kind, NodeView, Outcome, Result, Source, StepKind, Wait, Where

HOSTILE = "<script>alert(1)</script> http://evil.example"


class LargeFleet:
    """Answers with a fleet of its own making."""

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
    for attempt, (hours, node) in enumerate(((5.2, "n0012"), (2.2, "n0031"))):
        month.failed(Cause.GPU_FALLEN_OFF_BUS, hours / 24, node, gpu=2, job=9001, user="ada")
        newest = store.incident_rows(job=9001, limit=1)[0]
        store.save_incident(dataclasses.replace(store.incident(newest["id"]), attempt=attempt), user="ada")
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


async def furnish(page: ServedPage, nodes: int) -> str:
    """Fleet, history and curves; returns the id of the incident that is told from its first line to its end."""
    page.daemon.fleets._reader = LargeFleet(nodes, page.world.slurm.clock.now())
    await page.daemon.fleets.take()
    incident = fill(page, nodes)
    for name in list(page.daemon.live.fleet.nodes)[::7]:
        page.daemon.live.node(name).state = "heard"
    page.daemon.live.node("n0040").state = "silent"
    store = page.world.store
    waiting = next(row["id"] for row in store.incident_rows(limit=1000) if row["state"] == "open")
    wait = Wait(APPROVAL, page.world.slurm.clock.now() - timedelta(minutes=4), "drain n0185, restart 9001 elsewhere")
    store.save_plan(dataclasses.replace(plan(incident=waiting), waits=(wait,)))
    page.views._daemons = lambda: [
        {"address": "head1:9478", "state": "active"}, {"address": "head2:9478", "state": "standby"},
    ]  # fmt: skip
    return incident
