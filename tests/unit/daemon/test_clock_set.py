"""A daemon whose host's clock was set by years starts anew, unless its nodes do not say that the host is right."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from made_records import AT

from sentinel.daemon.clock import ClockSet, HostClock, SteadyClock
from sentinel.detect.cluster_view import ClusterView

YEARS = timedelta(days=20_000)


class Site:
    """A daemon that was started while its host's clock was ``off``, and its nodes' are right."""

    def __init__(self, off: timedelta, *, nodes: int = 3) -> None:
        self.off, self.passed = off, timedelta(0)
        self.clock = SteadyClock(lambda: AT + self.passed + self.off, lambda: self.passed.total_seconds())
        self.live, self.nodes = ClusterView(), nodes
        self.again: list[ClockSet] = []
        self.set_back: list[tuple[datetime, timedelta]] = []

    async def look(self, after_s: float = 30.0) -> bool:
        """Whether it starts anew, after another half minute."""
        self.passed += timedelta(seconds=after_s)
        for number in range(self.nodes):
            seen = self.live.node(f"n{number}")
            seen.state, seen.clock_offset_s = "heard", (AT + self.passed - self.clock.now()).total_seconds()
        store = SimpleNamespace(set_back=lambda *how: self.set_back.append(how))
        await HostClock(self.clock, self.live, store, self.again.append).look()  # type: ignore[arg-type]
        return bool(self.again)


@pytest.mark.parametrize("off", [-YEARS, YEARS], ids=["behind", "ahead"])
async def test_it_starts_anew_once_the_clock_of_its_host_was_set_by_years(off: timedelta) -> None:
    site = Site(off)
    assert not await site.look()  # the host's is wrong, too
    site.off = timedelta(0)
    assert await site.look()
    assert f"says {AT + timedelta(minutes=1):%F %T} where" in site.again[0].message


@pytest.mark.parametrize("off", [timedelta(hours=23), timedelta(hours=-23), timedelta(0)])
async def test_of_hours_its_own_clock_follows(off: timedelta) -> None:
    site = Site(off)
    site.off = timedelta(0)
    assert not await site.look()


@pytest.mark.parametrize(("nodes", "set_to"), [(2, timedelta(0)), (3, timedelta(days=3))], ids=["few nodes", "wrong"])
async def test_it_goes_on_where_nobody_says_that_the_host_is_right(nodes: int, set_to: timedelta) -> None:
    site = Site(-YEARS, nodes=nodes)
    site.off = set_to
    assert not await site.look()


async def test_what_a_clock_of_years_ahead_wrote_is_dated_back_by_a_clock_that_is_right() -> None:
    site = Site(timedelta(0))
    site.clock.go_on_from(AT + YEARS)
    assert await site.look()
    assert site.set_back == [(AT + timedelta(seconds=30), YEARS)]


@pytest.mark.parametrize(
    ("off", "nodes", "written"),
    [(-YEARS, 3, AT), (timedelta(0), 2, AT + YEARS), (timedelta(0), 3, AT + timedelta(hours=3)), (timedelta(0), 3, AT)],
    ids=["by a clock that is behind", "few nodes", "hours", "past"],
)
async def test_nothing_else_is_dated_back(off: timedelta, nodes: int, written: datetime) -> None:
    site = Site(off, nodes=nodes)
    site.clock.go_on_from(written)
    assert not await site.look()
    assert site.set_back == []
