"""What is old is forgotten for good: by which clock, and once it is known which nodes are out of service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from in_memory.daemon import Daemon, incidents_of
from in_memory.world import World
from made_records import AT, incident, job, later

from sentinel.config.settings import Settings
from sentinel.daemon.clock import SteadyClock
from sentinel.daemon.pruning import prune
from sentinel.log import Log
from sentinel.model.records import IncidentState

DAYS = timedelta(days=Settings().daemon.retention_days + 2)


class Site:
    """A daemon whose host's clock is ``off``; of its store an incident that was closed at ``AT``."""

    def __init__(self, there: World, *, off: timedelta) -> None:
        self.off, self.passed = off, timedelta(0)
        self.store = there.store
        old = incident(id="old1", job=None, nodes=("n1",), state=IncidentState.CLOSED)
        self.store.save_incident(dataclasses.replace(old, closed_at=old.updated_at))
        self.daemon, self.jobs = Daemon(there), [job(started_s=0.0)]
        self.clock = SteadyClock(lambda: AT + self.passed + self.off, lambda: self.passed.total_seconds())

    async def prune(self) -> bool:
        """Whether the incident is forgotten."""
        await self.daemon.fleets.take()
        fleet = self.daemon.live.fleet
        assert fleet is not None
        jobs = {found.id: found for found in self.jobs}
        base = SimpleNamespace(
            settings=Settings(), store=self.store, live=SimpleNamespace(fleet=dataclasses.replace(fleet, jobs=jobs)),
            clock=self.clock, log=Log(self.daemon.stream),
        )  # fmt: skip
        await prune(base, self.daemon.runner)  # type: ignore[arg-type]
        return "old1" not in incidents_of(self.store)


def years_later(there: World, daemon: Daemon) -> SimpleNamespace:
    clock = SteadyClock(lambda: later(2.0 * 365 * 86_400), lambda: 0.0)
    clock.go_on_from(clock.now())
    return SimpleNamespace(
        settings=Settings(), store=there.store, live=daemon.live, clock=clock, log=Log(daemon.stream)
    )


async def test_a_clock_that_was_ahead_until_it_was_set_forgets_nothing(world: Callable[..., World]) -> None:
    site = Site(world(), off=DAYS)
    site.passed, site.off = timedelta(minutes=10), timedelta(0)  # NTP has set it since the start
    assert site.clock.now() - AT > DAYS - timedelta(days=1)
    assert not await site.prune()
    assert "clock-contradicted" in site.daemon.said and "by=host" in site.daemon.said


async def test_nor_does_one_that_stays_ahead_of_what_was_written_and_of_slurm(world: Callable[..., World]) -> None:
    site = Site(world(), off=DAYS)
    site.clock.go_on_from(AT - timedelta(minutes=5))
    site.passed = timedelta(minutes=10)
    assert not await site.prune()


async def test_nor_one_that_the_clock_of_the_database_contradicts(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(world(), off=DAYS)
    site.clock.go_on_from(AT + DAYS)  # a start before this one was ahead, too
    monkeypatch.setattr(site.store, "server_time", lambda: AT)
    assert not await site.prune()
    assert "by=database" in site.daemon.said


@pytest.mark.parametrize("told", ["by slurm", "by the store"])
async def test_what_is_old_by_all_of_them_is_forgotten(world: Callable[..., World], told: str) -> None:
    """Also after years in which no daemon ran, where jobs did."""
    site = Site(world(), off=DAYS)
    site.clock.go_on_from(AT + DAYS if told == "by the store" else AT)
    site.jobs = [job(started_s=DAYS.total_seconds())] if told == "by slurm" else []
    assert await site.prune()
    assert "clock-contradicted" not in site.daemon.said


async def test_nothing_is_forgotten_before_slurm_said_which_nodes_are_out_of_service(
    world: Callable[..., World],
) -> None:
    """Nobody knows until then for which incidents they are: these stay however old they are."""
    there = world()
    store = there.store
    old = incident(id="old1", job=None, nodes=("n1",), state=IncidentState.CLOSED)
    store.save_incident(dataclasses.replace(old, closed_at=old.updated_at))
    there.slurm.nodes["n1"] = dataclasses.replace(there.slurm.nodes["n1"], drained=True, reason="sentinel:old1 pcie")
    daemon = Daemon(there)
    base = years_later(there, daemon)
    await prune(base, daemon.runner)  # type: ignore[arg-type]
    assert "old1" in incidents_of(store) and "not-pruned" in daemon.said
    await daemon.fleets.take()
    await prune(base, daemon.runner)  # type: ignore[arg-type]
    assert "old1" in incidents_of(store)
    there.slurm.nodes["n1"] = dataclasses.replace(there.slurm.nodes["n1"], drained=False, reason="")
    await daemon.fleets.take()
    await prune(base, daemon.runner)  # type: ignore[arg-type]
    assert "old1" not in incidents_of(store)
