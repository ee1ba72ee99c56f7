"""How far a log is read: a look counts once the daemon has all that was read before it."""

from __future__ import annotations

from sentinel.agent.collectors.log_reading import Reading


def test_nothing_is_said_before_the_first_look() -> None:
    assert Reading().looked_ago_s(10**9, 5.0) is None


def test_a_look_ages() -> None:
    reading = Reading()
    reading.looked(10.0)
    reading.looked(10.4)
    assert reading.looked_ago_s(0, 10.5) == 0.09999999999999964 and reading.looked_ago_s(0, 40.4) == 30.0


def test_a_look_behind_evidence_that_waits_is_not_said() -> None:
    reading = Reading()
    reading.looked(10.0)
    reading.kept(7)
    reading.looked(11.0)
    reading.kept(8)
    reading.looked(12.0)
    assert reading.looked_ago_s(6, 12.0) == 2.0
    assert reading.looked_ago_s(7, 12.0) == 1.0
    assert reading.looked_ago_s(8, 12.0) == 0.0


def test_looks_of_a_long_time_without_the_daemon_are_bounded_and_end_with_the_newest() -> None:
    reading = Reading()
    for number in range(1, 5000):
        reading.kept(number)
        reading.looked(float(number))
    assert len(reading._looks) == 256
    assert reading.looked_ago_s(4000, 5000.0) is None
    assert reading.looked_ago_s(4999, 5000.0) == 1.0


def test_a_clock_that_stands_still_gives_no_negative_age() -> None:
    reading = Reading()
    reading.looked(10.0)
    assert reading.looked_ago_s(0, 9.0) == 0.0
