"""Start smaller or wait: what loses less work."""

from __future__ import annotations

import pytest

from sentinel.planning.limits import PlanningError
from sentinel.planning.restart_size import RestartSize, restart_size

HOUR = 3600.0


@pytest.mark.parametrize(
    ("left", "wait_h", "smaller_h", "nodes"),
    [
        (7, 4, 4, 7),  # one of eight for four hours, against eight for four hours
        (7, 1, 24, 8),  # 24 node-hours against 8: another node comes soon
        (7, 4, 24, 7),  # 24 against 32
        (6, 4, 24, 8),  # 48 against 32
        (3, 4, 4, 8),  # fewer than it can run with
        (9, 4, 4, 8),  # all are there
        (4, 0, 1, 8),  # waiting costs nothing
    ],
)
def test_what_loses_less(left: int, wait_h: float, smaller_h: float, nodes: int) -> None:
    assert restart_size(left, 4, 8, wait_h * HOUR, smaller_h * HOUR).nodes == nodes


def test_the_costs_are_said() -> None:
    assert restart_size(7, 4, 8, HOUR, 24 * HOUR) == RestartSize(8, 24 * HOUR, 8 * HOUR)


def test_refused() -> None:
    with pytest.raises(PlanningError):
        restart_size(-1, 4, 8, HOUR, HOUR)
