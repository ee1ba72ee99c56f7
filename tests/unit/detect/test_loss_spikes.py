"""Spikes of the loss: seen with their first step, and nothing that training does by itself is one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.detect.numbers.loss_spikes import Losses, Spike, observe


def run(losses: Iterable[float], first: int = 1) -> tuple[Losses, list[Spike]]:
    state, spikes = Losses(), []
    for step, loss in enumerate(losses, first):
        state, spike = observe(state, step, loss)
        spikes += [spike] if spike is not None else []
    return state, spikes


def noisy(count: int, level: float = 2.0, spread: float = 0.1, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [level + rng.gauss(0, spread) for _ in range(count)]


def test_spike_is_told_once_with_the_step_at_which_it_began() -> None:
    _, spikes = run([*noisy(100), 6.0, 7.0, 8.0, 8.0, 8.0])
    (spike,) = spikes
    assert (spike.onset_step, spike.step, spike.loss) == (101, 103, 8.0) and 1.8 < spike.usual < 2.2


def test_one_that_is_out_of_all_bounds_is_enough() -> None:
    _, spikes = run([*noisy(100), 40.0])
    assert [spike.onset_step for spike in spikes] == [101]


def test_single_high_losses_are_no_spike() -> None:
    assert run([*noisy(60), 6.0, *noisy(20), 7.0, 7.0, *noisy(20)])[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_what_training_does_by_itself_is_no_spike(seed: int) -> None:
    rng = random.Random(seed)
    warm_up = [11.0 * math.exp(-step / 30) + 2.5 + rng.gauss(0, 0.15) for step in range(200)]
    restart = [
        2.5 + 0.7 * math.exp(-step / 20) + rng.gauss(0, 0.1) for step in range(150)
    ]  # the learning rate begins anew
    uneven = [2.5 + abs(rng.gauss(0, 0.4)) for _ in range(300)]
    even = [0.5 + rng.gauss(0, 0.0005) for _ in range(100)]
    for losses in ([*warm_up, *restart, *uneven], even, [*even, *(0.6 for _ in range(20))]):
        assert run(losses)[1] == []


def test_high_losses_in_the_first_steps_are_warm_up() -> None:
    assert run([2.0] * 10 + [900.0] * 5)[1] == []


def test_loss_that_stays_high_becomes_the_habit() -> None:
    state, spikes = run([*noisy(100), *noisy(300, level=9.0), *noisy(5, level=40.0)])
    assert [spike.onset_step for spike in spikes] == [101, 401], spikes
    assert state.high == 5


def test_bad_numbers_after_a_spike_began_with_it() -> None:
    assert run([*noisy(100), 6.0, 7.0, 9.0, math.nan])[0].began == 101
    assert run([*noisy(100), math.inf, math.nan])[0].began == 101
    assert run([*noisy(100), 6.0, 2.0, 2.0, math.nan])[0].began == 104  # that one was over
    assert run(noisy(100))[0].began is None


def test_numbers_that_are_good_again_leave_no_onset() -> None:
    assert run([*noisy(50), math.nan, *noisy(3)])[0].began is None


@given(st.lists(st.floats(), max_size=200))
def test_any_losses_are_taken(losses: list[float]) -> None:
    state, spikes = run(losses)
    assert len(state.usual) <= 64 and all(1 <= spike.onset_step <= spike.step <= len(losses) for spike in spikes)
