"""Histories on the simulated cluster: repeatable, cut at every crossing, and told event by event."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.errors import UserError
from sentinel.simulate.explore import named, part_of, same_end
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.stories import STORIES, history_of
from sentinel.simulate.world import World

ROOT = Path(__file__).resolve().parents[4]
BUS = Happening("gpu-off-bus", 60.0, "job0/1")


def one_fault(*more: Happening, ends_s: float = 500.0) -> History:
    return History(1, 0, "killed", Setup(), (BUS, *more), ends_s)


def test_a_lost_gpu_is_drained_and_its_job_runs_on_from_the_newest_checkpoint() -> None:
    world = World(one_fault())
    assert world.run() == []
    job = world.slurm.jobs[101]
    assert world.slurm.nodes["n2"].drained and world.slurm.nodes["n2"].reason.startswith("sentinel:")
    assert (job.state, job.restarts, job.on, job.excluded) == ("RUNNING", 1, ("n1", "n3"), ("n2",))
    assert [began.resumed for began in world.observer.attempts] == [None, 25]
    assert len(world.observer.notices) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_crossing_and_started_again(after: bool) -> None:
    whole = World(one_fault(ends_s=200.0))
    whole.run()
    wrong, reached = [], 0
    for nth in range(whole.crossings.count):
        killed = Happening("kill", 60.0, data={"nth": nth, "after": after, "down_s": 1.0})
        cut = World(one_fault(killed, ends_s=200.0))
        violations = [*cut.run(), *same_end(cut, whole)]
        if not cut.crossings.cut_at:  # so many did not come
            break
        reached += 1
        if violations or len(cut.crossings.cut_at) > 1:
            wrong.append((nth, violations))
    assert reached > 50 and not wrong, wrong[:3]


def test_the_same_history_happens_the_same_way_whatever_the_hashes_are() -> None:
    """A seed that fails for somebody must fail for everybody: no set's order may decide anything."""
    program = (
        "from sentinel.simulate.explore import named, run\n"
        "from sentinel.simulate.stories import STORIES\n"
        "def tell(at_s, line): print(at_s, line)\n"
        "for story in STORIES: run(named(5, f'{story}-3'), tell)\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}"},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert told[0] == told[1] and len(told[0].splitlines()) > 10 * len(STORIES)


def test_an_id_names_the_history_and_what_is_kept_of_it() -> None:
    whole = history_of(3, 17, "people")
    assert named(3, "people-17") == whole
    assert named(3, "people-17:0,1") == part_of(whole, [0, 1])
    assert history_of(3, 17, "people") == whole != dataclasses.replace(history_of(4, 17, "people"), seed=3)


@pytest.mark.parametrize("name", ["", "17", "people", "people-", "people-x", "people-17:", "people-17:99", "people-٣",
                                  "people-17:0,", "nobody-3", "people--1", "people-99999999999"])  # fmt: skip
def test_what_is_no_id_is_refused_with_what_to_give(name: str) -> None:
    with pytest.raises(UserError) as caught:
        named(1, name)
    assert caught.value.fix
