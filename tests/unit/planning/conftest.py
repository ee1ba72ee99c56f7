"""Simulations of the processes that the closed forms describe: plain event loops, written without the formulas.

Each takes a seed; the number of failures makes the standard error a third of the 2 % or less.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Simulated:
    """Clock time per useful time, and its parts per useful time."""

    wall_per_work: float
    save: float
    restart: float
    lost: float

    @property
    def overhead(self) -> float:
        return self.wall_per_work - 1


def one_tier(
    interval_s: float, save_s: float, mtbf_s: float, restart_s: float, *, failures: int = 40_000, seed: int = 1
) -> Simulated:
    """Work, save, fail, restart; a failure may strike anything, a restart too."""
    dice = random.Random(seed)
    work = saves = restarts = lost = 0.0
    left = dice.expovariate(1 / mtbf_s)
    while failures > 0:
        if left >= interval_s + save_s:
            left -= interval_s + save_s
            work += interval_s
            saves += save_s
            continue
        lost += left
        failures -= 1
        left = dice.expovariate(1 / mtbf_s)
        while left < restart_s:
            restarts += left
            failures -= 1
            left = dice.expovariate(1 / mtbf_s)
        restarts += restart_s
        left -= restart_s
    wall = work + saves + restarts + lost
    return Simulated(wall / work, saves / work, restarts / work, lost / work)


def two_tiers(
    interval_s: float,
    n: int,
    saves_s: tuple[float, float],
    restarts_s: tuple[float, float],
    mtbf_s: float,
    local_share: float,
    *,
    failures: int = 60_000,
    seed: int = 2,
) -> float:
    """Clock time per useful time of the pattern of n stretches; a failure is local with the given chance."""
    dice = random.Random(seed)
    clock = work = 0.0
    at = 0  # stretches of the current pattern that are saved
    left = dice.expovariate(1 / mtbf_s)
    while failures > 0:
        cost = interval_s + (saves_s[1] if at == n - 1 else saves_s[0])
        if left >= cost:
            left -= cost
            clock += cost
            at += 1
            if at == n:
                work += n * interval_s
                at = 0
            continue
        clock += left
        failures -= 1
        local = dice.random() < local_share
        left = dice.expovariate(1 / mtbf_s)
        while left < restarts_s[0 if local else 1]:
            clock += left
            failures -= 1
            local = local and dice.random() < local_share
            left = dice.expovariate(1 / mtbf_s)
        cost = restarts_s[0 if local else 1]
        clock += cost
        left -= cost
        if not local:
            at = 0
    return clock / (work + at * interval_s)


def spare_waits(
    spares: int, rate: float, repair: Callable[[random.Random], float], *, failures: int = 200_000, seed: int = 3
) -> list[float]:
    """Waiting times of the failed nodes' replacements, first come first served from one pool."""
    dice = random.Random(seed)
    times, now = [], 0.0
    for _ in range(failures):
        now += dice.expovariate(rate)
        times.append(now)
    returns = sorted(t + repair(dice) for t in times)
    return [max(0.0, returns[i - spares] - t) if i >= spares else 0.0 for i, t in enumerate(times)]


@pytest.fixture
def simulate_one_tier() -> Callable[..., Simulated]:
    return one_tier


@pytest.fixture
def simulate_two_tiers() -> Callable[..., float]:
    return two_tiers


@pytest.fixture
def simulate_spares() -> Callable[..., list[float]]:
    return spare_waits


@pytest.fixture
def history_document() -> dict[str, object]:
    """Ten days of 64 nodes: twelve failures, saves of both tiers, repairs; some things not known."""
    failures: list[dict[str, object]] = []
    for i in range(12):
        failures.append(
            {
                "time": f"2025-06-{1 + i * 10 // 12:02d}T{(i * 7) % 24:02d}:30:00Z",
                "cause": ("gpu_memory", "nic", "software")[i % 3],
                "repaired_by": (None, "local", "local", "global")[i % 4],
                "node_lost": (True, False, None)[i % 3],
                "detection_s": 20.0,
                "restart_s": 300.0,
            }
        )
    return {
        "start": "2025-06-01T00:00:00Z",
        "end": "2025-06-11T00:00:00Z",
        "gpus": 512,
        "failures": failures,
        "saves": [
            {"tier": "global", "duration_s": 80, "bytes": 1e12, "blocking": True},
            {"tier": "global", "duration_s": 100, "bytes": 1e12, "blocking": True},
            {"tier": "global", "duration_s": 600, "bytes": 1e12, "blocking": False},
            {"tier": "local", "duration_s": 5},
        ],
        "repairs_s": [80000, 100000],
    }


@pytest.fixture
def history_file(tmp_path: Path, history_document: dict[str, object]) -> Path:
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history_document))
    return path


@pytest.fixture
def vectors() -> dict[str, object]:
    """The shared vectors, where they are."""
    for folder in Path(__file__).resolve().parents:
        path = folder.parent / "shared" / "samples" / "math" / "vectors.json"
        if path.is_file():
            loaded = json.loads(path.read_text())
            assert isinstance(loaded, dict)
            return loaded
    pytest.skip("shared/samples/math/vectors.json is not beside this checkout")
