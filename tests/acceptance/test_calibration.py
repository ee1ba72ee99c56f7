"""The long runs of ``sentinel simulate`` against the lab: the same failures under real Slurm take as long as is simulated.

Compared are the medians of detection, decision and restart. The lab's machine is shared and may be loaded twentyfold: its
median may be ``LOADED`` times the simulated one, and no less than ``IDLE`` of it. A time that was left out, or assumed in
minutes instead of seconds, fails.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from statistics import median
from typing import Any

import pytest
from timeline import Job, Story

from sentinel.simulate.long_run.rates import Rates
from sentinel.simulate.long_run.scenario import Scenario
from sentinel.simulate.long_run.seeds import Ran, run_one

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

LOADED, IDLE = 5.0, 0.2
FAULTS = 3


def simulated(cause: str, step_s: float) -> Ran:
    """Some hundred failures of one cause, so that chance hardly shows, on a cluster that has room for them."""
    rates = Rates("calibration", 20.0, {cause: 1.0}, "this test")
    return run_one(Scenario(nodes=64, days=100, spares=8, rates=rates, start_s=5.0, step_s=step_s), 1, "sentinel")


def rows(story: Story, query: str, *values: object) -> list[tuple[Any, ...]]:
    path = story.paths.state / "sentinel" / "sentinel.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as store:
        return store.execute(query, values).fetchall()


def seconds(stored: str) -> float:
    at = datetime.fromisoformat(stored)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def measured(story: Story, job: Job, attempt: int, began: float) -> tuple[float, float]:
    """From the fault to the plan, and from the plan to RUNNING."""
    query = (
        "SELECT p.at FROM plan p JOIN incident i ON i.id = p.incident WHERE i.job = ? AND i.attempt = ? ORDER BY p.at"
    )
    decided = seconds(rows(story, query, job.id, attempt)[0][0])
    query = "SELECT data FROM step WHERE kind = 'confirm' AND job = ? AND attempt = ?"
    running = seconds(json.loads(rows(story, query, job.id, attempt)[0][0])["running_at"])
    return decided - began, running - decided


def alike(what: str, lab: list[float], simulated: list[float] | tuple[float, ...]) -> None:
    there, here = median(lab), median(simulated)
    print(f"{what}: lab {there:.2f} s ({len(lab)} times, {min(lab):.2f} to {max(lab):.2f}), simulated {here:.2f} s")
    assert IDLE * here <= there <= LOADED * here, f"{what}: {there:.2f} s in the lab, {here:.2f} s simulated"


def test_a_lost_gpu_is_judged_and_its_job_back_as_quickly_as_simulated(story: Story):
    decision, restart = [], []
    for number in range(FAULTS):
        job = story.job(2)
        victim = job.nodes[number % 2]
        began = time.time()
        story.inject("xid", "--node", victim, "--gpu", str(number), "--xid", "79")
        story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
        decided, back = measured(story, job, 0, began)
        decision.append(decided)
        restart.append(back)
        story.cancel(job)
    ran = simulated("faulty GPU", 1.0)
    alike("fault to decision", decision, ran.decision_s)
    alike("decision to RUNNING", restart, ran.restart_s)


def test_a_hang_is_seen_as_soon_as_simulated(story: Story):
    seen = []
    for rank in range(2):
        job = story.job(2, pace=1.0)
        began = time.time()
        story.inject("hang", "--job", str(job.id), "--rank", str(rank))
        story.expect(restarts=[job], messages=["nccl_hang_unknown"])
        seen.append(measured(story, job, 0, began)[0])
        story.cancel(job)
    ran = simulated("NCCL watchdog timeout", 1.0)
    alike("hang to decision", seen, [one + median(ran.decision_s) for one in ran.detection_s])
