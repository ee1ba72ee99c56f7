"""Which of DCGM's readings are current, whatever is done to clocks. Its behaviour as DcgmCacheManager.cpp of 4.6 has it."""

from __future__ import annotations

import pytest

from sentinel.agent.probes.dcgm import SLOW_STALE_S, STALE_S, Ages
from sentinel.evidence.gpu_samples import MINOR, POWER_W, TEMPERATURE, TEMPERATURE_SLOWDOWN

HOUR_US = 3_600_000_000


class Probe:
    def __init__(self) -> None:
        self.now_s, self.date_us = 50.0, 1_900_000_000_000_000
        self.ages = Ages(lambda: self.now_s)
        self.read_us = dict.fromkeys((TEMPERATURE, POWER_W, TEMPERATURE_SLOWDOWN, MINOR), self.date_us)

    def seconds(self, count: int, *renewed: int) -> set[int]:
        """Looks once a second at one GPU, of which DCGM reads these fields again each second; fields known at the end."""
        for _ in range(count):
            self.now_s += 1.0
            self.date_us += 1_000_000
            self.read_us |= dict.fromkeys(renewed, self.date_us)
            found = self.ages.current({0: {number: (7, at_us) for number, at_us in self.read_us.items()}})
        return set(found[0])


@pytest.mark.parametrize("step_us", [HOUR_US, -HOUR_US])
def test_a_step_of_the_clock_makes_no_value_old(step_us: int) -> None:
    probe = Probe()
    probe.seconds(5, TEMPERATURE, POWER_W)
    probe.date_us += step_us
    assert probe.seconds(1, TEMPERATURE, POWER_W) >= {TEMPERATURE, POWER_W}
    assert not probe.ages.trouble


def test_what_dcgm_does_not_read_again_is_not_known_and_said_when_it_is_all() -> None:
    probe = Probe()
    probe.seconds(5, TEMPERATURE, POWER_W)
    probe.date_us -= HOUR_US
    assert POWER_W in probe.seconds(int(STALE_S) - 1, TEMPERATURE)
    assert probe.seconds(3, TEMPERATURE) == {TEMPERATURE, TEMPERATURE_SLOWDOWN, MINOR}
    assert not probe.ages.trouble, "others are current"
    assert probe.seconds(int(STALE_S) + 2) == {TEMPERATURE_SLOWDOWN, MINOR}
    assert "nv-hostengine" in probe.ages.trouble
    assert probe.seconds(int(SLOW_STALE_S), TEMPERATURE) == {TEMPERATURE, MINOR}
    assert not probe.ages.trouble


def test_a_value_that_is_old_at_the_first_look_is_not_known() -> None:
    """The engine kept it from somebody who watched it before us."""
    probe = Probe()
    probe.read_us[POWER_W] -= HOUR_US
    assert probe.seconds(1, TEMPERATURE) == {TEMPERATURE, TEMPERATURE_SLOWDOWN, MINOR}


def test_blank_stays_blank() -> None:
    ages = Ages(lambda: 0.0)
    assert ages.current({0: {POWER_W: (None, 0)}}) == {0: {POWER_W: None}}
    assert not ages.trouble
