"""What is old is forgotten for good: by which clock, and once it is known which nodes are out of service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink, incidents_of, states
from in_memory.held_job import NO_RESTARTS, held
from in_memory.world import World
from made_records import AT, evidence, incident, job, later, plan, step

from sentinel.config.settings import Limits, Settings
from sentinel.daemon.clock import SteadyClock
from sentinel.daemon.pruning import prune
from sentinel.log import Log
from sentinel.model.records import IncidentState, Kind, Outcome, Result, StepKind

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


async def test_a_drain_that_waits_for_the_budget_is_done_however_full_the_store_was(
    world: Callable[..., World],
) -> None:
    """A daemon that starts knows what the store does: with the incident the drain would be forgotten."""
    there = world()
    for name in ("n3", "n4"):
        reason = "sentinel:abcabcabca gpu_fallen_off_bus"
        there.slurm.nodes[name] = dataclasses.replace(there.slurm.nodes[name], drained=True, reason=reason)
    tight = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=0.3, drain_count=1, drain_per_hour=99))
    daemon = Daemon(there, settings=tight)
    await daemon.start()
    bus = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="Xid (PCI:0000:3b:00): 79, pid=7")
    await daemon.observe([bus])
    await daemon.quiet()
    await daemon.pass_time(3 * 86_400.0)
    await daemon.housekeeping()
    base = years_later(there, daemon)
    base.clock = SimpleNamespace(
        now=there.slurm.clock.now, host=there.slurm.clock.now, since_written=there.slurm.clock.now
    )
    base.settings = dataclasses.replace(Settings(), daemon=dataclasses.replace(Settings().daemon, store_bytes=1))
    await prune(base, daemon.runner)  # type: ignore[arg-type]
    assert {state for state, *_ in incidents_of(there.store).values()} == {"waiting"}
    again = Daemon(there, settings=tight)
    await again.start()
    for name in ("n3", "n4"):
        there.slurm.nodes[name] = dataclasses.replace(there.slurm.nodes[name], drained=False, reason="")
    await again.pass_time(3600.0)
    await again.housekeeping()
    await again.quiet()
    assert there.slurm.nodes["n1"].drained


async def test_a_held_job_of_a_drained_node_is_over_for_people_too_however_full_the_store_was(
    world: Callable[..., World],
) -> None:
    """The incident stays in the store for its drain: whoever returns the node and releases the job is told its end."""
    there, sink = world(), FakeSink()
    daemon = await held(there, sink)
    await daemon.pass_time(3 * 86_400.0)
    await daemon.housekeeping()
    base = years_later(there, daemon)
    base.clock = SimpleNamespace(
        now=there.slurm.clock.now, host=there.slurm.clock.now, since_written=there.slurm.clock.now
    )
    base.settings = dataclasses.replace(NO_RESTARTS, daemon=dataclasses.replace(NO_RESTARTS.daemon, store_bytes=1))
    await prune(base, daemon.runner)  # type: ignore[arg-type]
    assert states(there) == ["held"]
    there.slurm.nodes["n1"] = dataclasses.replace(there.slurm.nodes["n1"], drained=False, reason="")
    job = there.slurm.jobs[there.job]
    job.held, job.requeue_held, job.held_by, job.eligible = False, False, "", 0.0
    there.slurm.schedule()
    for _ in range(30):
        await daemon.pass_time(60.0)
        await daemon.housekeeping()
        await daemon.quiet()
    assert states(there) == ["closed"] and sink.all[-1].data["stage"] == "resolved"


@pytest.mark.parametrize(("left", "stays"), [("n3", True), ("", False)])
async def test_an_incident_stays_as_long_as_a_job_has_the_exclusions_that_it_wrote(
    world: Callable[..., World], left: str, stays: bool
) -> None:
    """The job may run for months: nobody else takes them back."""
    there = world()
    made = plan(step(StepKind.EXCLUDE, job=101, attempt=0), incident="old1")
    old = incident(id="old1", job=101, nodes=(), state=IncidentState.CLOSED)
    there.store.save_incident(dataclasses.replace(old, closed_at=old.updated_at))
    there.store.save_plan(made)
    there.store.intend(made, made.steps[0], AT)
    there.store.record(made, Outcome(made.steps[0], Result.DONE, AT))
    there.slurm.jobs[101] = dataclasses.replace(there.slurm.jobs[101], excluded=(left,) if left else (), restarts=1)
    daemon = Daemon(there)
    await daemon.start()
    await prune(years_later(there, daemon), daemon.runner)  # type: ignore[arg-type]
    assert ("old1" in incidents_of(there.store)) == stays
