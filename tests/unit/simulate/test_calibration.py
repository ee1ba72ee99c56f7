"""The simulator's times of steps against those that were measured in the lab, and the criterion itself."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from stories.calibration import FEWEST, MOST, apart

from sentinel.simulate.long_run.assumptions import Span, Times

# As tests/acceptance/lab/test_calibration.py wrote it, with SENTINEL_CALIBRATION.
MEASURED = json.loads((Path(__file__).parents[2] / "support" / "stories" / "lab_times.json").read_text())


def drawn(times: Times) -> Mapping[str, Sequence[float]]:
    """What the simulator draws for each step, by its kind; the deep test compares whole runs."""
    rng = random.Random(1)
    write = [times.slurm_write.draw(rng) for _ in range(500)]
    return {
        "requeue_hold": [times.requeue.draw(rng) for _ in range(500)],
        "choose_checkpoint": [times.choose.draw(rng) for _ in range(500)],
        "write_resume": [times.write_resume.draw(rng) for _ in range(500)],
        "quarantine": write,
        "drain": write,
        "exclude": write,
        "release": write,
    }


def differing(name: str, times: Times) -> dict[str, str]:
    """The steps that the lab and the simulator tell apart."""
    lab, slowdown = MEASURED[name]["phases"], min(MOST, MEASURED[name]["slowdown"])
    found = {kind: apart(lab[kind], there, slowdown) for kind, there in drawn(times).items() if kind in lab}
    assert {"requeue_hold", "choose_checkpoint", "quarantine", "write_resume", "exclude", "release"} <= found.keys()
    return {kind: why for kind, why in found.items() if why}


@pytest.mark.parametrize("name", ["xid", "hang"])
def test_the_simulators_steps_take_as_long_as_the_labs(name: str) -> None:
    assert all(len(took) >= FEWEST for took in MEASURED[name]["phases"].values())
    assert not differing(name, Times())


@pytest.mark.parametrize("name", ["xid", "hang"])
def test_minutes_in_place_of_seconds_and_what_is_left_out_are_told_apart(name: str) -> None:
    minutes = differing(name, Times(choose=Span(140.0, 270.0), requeue=Span(60.0, 90.0)))
    assert all("simulated longer" in minutes[kind] for kind in ("choose_checkpoint", "requeue_hold"))
    nothing = Span(0.001, 0.001)
    left_out = differing(name, Times(choose=nothing, requeue=nothing, slurm_write=nothing))
    assert all(
        "simulated shorter" in left_out[kind] for kind in ("choose_checkpoint", "requeue_hold", "quarantine", "release")
    )


def test_a_choice_of_the_checkpoint_as_long_as_it_once_was_is_told_apart() -> None:
    assert "simulated longer" in differing("xid", Times(choose=Span(2.3, 4.5)))["choose_checkpoint"]


def test_a_process_started_for_each_move_as_it_once_was_is_told_apart() -> None:
    """It took 0.8 to 1.4 s at a load of 12, each time with something to move; and 1.3 to 3.0 s at one of 16."""
    simulated = drawn(Times())["quarantine"]
    assert "simulated shorter" in apart([1.426, 0.844, 0.997, 0.82], simulated, 1.0)
    assert "simulated shorter" in apart([1.26, 1.5, 2.2, 3.0], simulated, MOST)


def test_the_criterion_needs_the_intervals_to_meet() -> None:
    times = [1.0 + 0.01 * number for number in range(100)]  # 1 to 2 s
    assert not apart([0.5, 0.8, 1.0, 1.2], times, 1.0)
    assert "simulated longer" in apart([0.5, 0.6, 0.8, 0.9], times, 1.0)
    assert "simulated shorter" in apart([2.5, 2.6, 2.8, 3.0], times, 1.0)
    assert not apart([2.5, 2.6, 2.8, 3.0], times, 2.0)
    with pytest.raises(ValueError, match="too few"):
        apart([1.0, 1.0], times, 1.0)
