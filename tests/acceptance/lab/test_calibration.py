"""The long runs of ``sentinel simulate`` against the lab: the same failures under real Slurm take as long as is simulated.

Compared are the distributions of decision, each step and the restart, by ``calibration.apart``. What was measured is written
into the file that SENTINEL_CALIBRATION names; ``tests/unit/simulate/test_calibration.py`` holds the simulator to one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stories.calibration import FEWEST, Slowdown, apart
from stories.simulated_times import simulated
from stories.timeline import Job, Story

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def rows(story: Story, query: str, *values: object) -> list[tuple[Any, ...]]:
    path = story.paths.state / "sentinel" / "sentinel.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as store:
        return store.execute(query, values).fetchall()


def seconds(stored: str) -> float:
    at = datetime.fromisoformat(stored)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def measured(story: Story, job: Job, attempt: int, began: float) -> dict[str, float]:
    """Seconds of each phase after a failure: until it is decided, of each step, and from the decision to RUNNING."""
    query = (
        "SELECT p.at FROM plan p JOIN incident i ON i.id = p.incident WHERE i.job = ? AND i.attempt = ? ORDER BY p.at"
    )
    decided = seconds(rows(story, query, job.id, attempt)[0][0])
    found = {"decision": decided - began}
    query = (
        "SELECT kind, intended_at, finished_at, data FROM step "
        "WHERE job = ? OR incident IN (SELECT id FROM incident WHERE job = ?)"
    )
    running = None
    for kind, intended, finished, data in rows(story, query, job.id, job.id):
        if kind == "confirm":
            running = seconds(json.loads(data)["running_at"])
        elif finished is not None:
            found.setdefault(kind, seconds(finished) - seconds(intended))
    assert running is not None
    return found | {"restart": running - decided}


def compared(name: str, lab: list[dict[str, float]], slowdown: Slowdown) -> None:
    phases: dict[str, list[float]] = defaultdict(list)
    for one in lab:
        for phase, took in one.items():
            phases[phase].append(round(took, 3))
    kept = os.environ.get("SENTINEL_CALIBRATION")
    if kept:
        path = Path(kept)
        whole = json.loads(path.read_text()) if path.exists() else {}
        whole[name] = {"slowdown": round(slowdown.factor, 2), "phases": phases}
        path.write_text(json.dumps(whole, indent=1) + "\n")
    there = simulated(name)
    wrong = {
        phase: apart(took, there[phase], slowdown.factor)
        for phase, took in phases.items()
        if phase in there and len(took) >= FEWEST
    }
    assert {"decision", "restart"} <= wrong.keys()
    assert not any(wrong.values()), wrong


def test_a_lost_gpu_is_judged_and_its_job_back_as_quickly_as_simulated(story: Story):
    lab, slowdown = [], Slowdown()
    for number in range(FEWEST):
        job = story.job(2)
        victim = job.nodes[number % 2]
        began = time.time()
        story.inject("xid", "--node", victim, "--gpu", str(number % 4), "--xid", "79")
        slowdown.look()
        story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
        slowdown.look()
        lab.append(measured(story, job, 0, began))
        story.cancel(job)
    compared("xid", lab, slowdown)


def test_a_hang_is_seen_as_soon_as_simulated(story: Story):
    lab, slowdown = [], Slowdown()
    for number in range(FEWEST):
        job = story.job(2, pace=1.0)
        began = time.time()
        story.inject("hang", "--job", str(job.id), "--rank", str(number % 2))
        slowdown.look()
        story.expect(restarts=[job], messages=["nccl_hang_unknown"])
        slowdown.look()
        lab.append(measured(story, job, 0, began))
        story.cancel(job)
    compared("hang", lab, slowdown)
