"""What a drained node needs next, by its record, its cause's row and what its agent says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules

from sentinel.config.return_settings import ReturnSettings
from sentinel.engine.node_return.next_step import Needed, NodeNow, PutBack, RunTest, Wait, next_step
from sentinel.engine.node_return.state import NodeReturn
from sentinel.model.records import Cause

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CAUSE = Cause.NODE_FAILURE  # asks for levels 1 and 2


def needed(passed: int, seen: NodeNow, test_level: int = 4) -> Needed:
    record = NodeReturn("0f3a", CAUSE, NOW, NOW, passed=passed)
    settings = ReturnSettings(automatic=True, test_level=test_level)
    return next_step(record, shipped_rules().returns.of(CAUSE), settings, seen, NOW)[0]


@pytest.mark.parametrize(("level", "tests"), [(0, [1, 2]), (1, [1, 2]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4])])
def test_what_the_agent_knows_of_that_only_a_deeper_test_disproves_is_tested_after_what_the_cause_asks_for(
    level: int, tests: list[int]
) -> None:
    bad = NodeNow(heard=True, sentence="Xid 64 on 5d", level=level)
    assert [needed(passed, bad) for passed in range(len(tests))] == [RunTest(one) for one in tests]
    assert needed(len(tests), bad) == Wait("its agent: Xid 64 on 5d", passed=True), "its next heartbeat may say so"
    assert needed(len(tests), NodeNow(heard=True, good=True)) == PutBack()


def test_a_deeper_test_than_the_site_allows_is_left_to_a_person() -> None:
    bad = NodeNow(heard=True, level=4)
    assert [needed(passed, bad, test_level=3) for passed in (0, 1)] == [RunTest(1), RunTest(2)]
    left = needed(2, bad, test_level=3)
    assert isinstance(left, Wait) and left.passed and "level 4 of the diagnostic (returns.test_level)" in left.words


def test_a_node_that_slurm_has_switched_off_says_who_switches_it_on() -> None:
    """As it switches off drained nodes that are idle, too (22.05), and none on that gets no jobs."""
    off = NodeNow(off=True)
    for passed in (0, 2):
        waits = needed(passed, off)
        assert isinstance(waits, Wait) and "scontrol update State=POWER_UP" in waits.words
    assert needed(0, NodeNow()) == Wait("its agent is not heard")
    assert needed(0, NodeNow(off=True, heard=True)) == RunTest(1), "it is just being switched off: the test tells"
