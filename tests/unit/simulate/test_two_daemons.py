"""A second daemon takes over from one that is stopped or killed, and the first changes nothing when it goes on."""

from __future__ import annotations

import pytest

from sentinel.simulate.explore import run
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.world import World

FAULT = Happening("gpu-off-bus", 60.0, "job0/1")


def lines_of(*happenings: Happening) -> list[str]:
    history = History(1, 1, "doubled", Setup(daemons=2), (FAULT, *happenings), 700.0)
    assert run(history)[0] == []
    lines: list[str] = []
    World(history, tell=lambda _, line: lines.append(line)).run()
    return lines


@pytest.mark.parametrize("at_s", [60.2, 60.6, 61.0, 62.0])
def test_one_that_goes_on_after_the_other_took_over_leaves_the_recovery_to_it(at_s: float) -> None:
    lines = lines_of(Happening("freeze", at_s, data={"for_s": 12.0}))
    moments = [
        next(index for index, line in enumerate(lines) if words in line)
        for words in ("daemon-2 is the active daemon", "daemon-1 goes on", "daemon-1 has lost the lease")
    ]
    assert moments == sorted(moments)
    assert sum("requeue_hold 101" in line and line.startswith("sentinel:") for line in lines) == 1


def test_one_that_goes_on_in_time_keeps_the_lease() -> None:
    lines = lines_of(Happening("freeze", 61.0, data={"for_s": 2.0}))
    assert not any("has lost the lease" in line or "daemon-2 is the active" in line for line in lines)


def test_the_other_takes_over_from_one_that_is_killed() -> None:
    lines = lines_of(Happening("kill", 60.5, data={"nth": 4, "after": True, "down_s": 400.0}))
    assert any("daemon-2 is the active daemon" in line for line in lines)
