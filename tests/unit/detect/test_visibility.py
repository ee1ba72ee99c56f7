"""While the cluster is not heard as a whole, silence says nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sentinel.config.settings import Judgement
from sentinel.detect.visibility import Visibility, after_check, after_count, after_own_fault, initial, is_sufficient
from sentinel.model.records import utc

LIMITS = Judgement()
START = utc(1_900_000_000)
NODES = [f"n{number}" for number in range(100)]


class Watching:
    """A daemon that looks four times a second."""

    def __init__(self, nodes: int = 100) -> None:
        self.now_s, self.expected = 0.0, nodes
        self.view: Visibility = initial(0.0, START)

    def run(self, span_s: float, heard: int, *, lost: int = 0) -> Watching:
        for _ in range(round(span_s * 4)):
            self.now_s += 0.25
            self.view = after_check(self.view, self.now_s, START + timedelta(seconds=self.now_s), LIMITS)
            names = frozenset(NODES[:heard])
            gone = set(NODES[heard : heard + lost])
            self.view = after_count(self.view, names, gone, self.expected, self.now_s, LIMITS)
        return self

    @property
    def judged(self) -> bool:
        return is_sufficient(self.view, self.now_s, LIMITS)


def test_a_daemon_that_has_just_started_has_heard_nobody_yet() -> None:
    assert not Watching().run(2.0, 0).run(9.0, 100).judged
    assert Watching().run(2.0, 0).run(11.0, 100).judged


@pytest.mark.parametrize(("heard", "judged"), [(99, True), (91, True), (90, False), (50, False), (0, False)])
def test_a_sizable_share_that_falls_silent_at_once_disturbs(heard: int, judged: bool) -> None:
    assert Watching().run(40.0, 100).run(1.0, heard).judged is judged


def test_nodes_that_fall_silent_one_after_another_within_the_window_are_one_change() -> None:
    there = Watching().run(60.0, 100)
    for heard in range(99, 89, -1):
        there.run(2.0, heard)
    assert not there.judged


def test_nodes_that_fail_now_and_then_are_none() -> None:
    there = Watching().run(60.0, 100)
    for heard in range(99, 80, -1):
        assert there.run(20.0, heard).judged


def test_it_is_whole_again_so_long_after_the_last_came_back() -> None:
    there = Watching().run(40.0, 100).run(5.0, 80).run(1.0, 100)
    assert not there.judged and "20 of 100 nodes" in there.view.why
    assert there.run(LIMITS.view_settle_s, 100).judged


def test_nodes_that_stay_away_are_no_change_any_more() -> None:
    """A rack that is switched off must not keep the others' hangs from being found."""
    assert Watching().run(40.0, 100).run(40.0, 70).judged


def test_more_lost_than_heard_is_no_view_however_long_it_lasts() -> None:
    there = Watching().run(40.0, 100).run(600.0, 40, lost=60)
    assert not there.judged and "60 nodes with jobs are silent" in there.view.why
    assert Watching().run(40.0, 100).run(600.0, 40).judged  # idle ones that were switched off


@pytest.mark.parametrize(("nodes", "heard", "judged"), [(4, 3, True), (4, 1, False), (2, 1, True), (1, 0, True)])
def test_in_a_small_cluster_one_node_is_no_share(nodes: int, heard: int, judged: bool) -> None:
    assert Watching(nodes).run(40.0, nodes).run(1.0, heard, lost=nodes - heard).judged is judged


@pytest.mark.parametrize(("late_s", "judged"), [(4.5, True), (6.0, False), (30.0, False)])
def test_a_turn_that_comes_late_tells_that_we_stood_still(late_s: float, judged: bool) -> None:
    there = Watching().run(40.0, 100)
    there.now_s += late_s
    there.run(0.25, 100)
    assert there.judged is judged and (there.view.own_fault_s > 0.0) is not judged
    assert there.run(LIMITS.view_settle_s, 100).judged


def test_a_suspended_machine_is_known_by_its_wall_clock() -> None:
    there = Watching().run(40.0, 100)
    later = START + timedelta(seconds=there.now_s + 3600.25)
    view = after_check(there.view, there.now_s + 0.25, later, LIMITS)
    assert not is_sufficient(view, there.now_s + 0.25, LIMITS) and "suspended" in view.why


def test_want_of_our_own_disturbs() -> None:
    there = Watching().run(40.0, 100)
    there.view = after_own_fault(there.view, there.now_s, "Too many open files")
    assert not there.judged and there.view.own_fault_s == there.now_s
    assert there.run(LIMITS.view_settle_s, 100).judged
