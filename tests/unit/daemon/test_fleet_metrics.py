"""Metrics of the cluster: what may be done, what is open, what was lost; label sets that are over go away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS
from in_memory.views import Shown, name_people
from in_memory.world import World
from made_records import AT, evidence, incident, job, later, step
from made_records import plan as made_plan

from sentinel import __version__
from sentinel.config.settings import Mode, Modes
from sentinel.daemon import incident_search
from sentinel.daemon.fleet_metrics import FleetMetrics
from sentinel.detect.seen import NodeSeen
from sentinel.model.changes import VerdictCorrected
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, Evidence, IncidentState, Kind, Outcome, Result, Scope, Source, StepKind
from sentinel.model.vocabulary import END_NOT_SEEN
from sentinel.wire import to_json

Worlds = Callable[..., World]


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


class Measured:
    def __init__(self, world: World, **settings: Any) -> None:
        self.shown = Shown(world)
        self.telemetry = self.shown.daemon.telemetry
        made = dataclasses.replace(SETTINGS, **settings)
        self.metrics = FleetMetrics(world.store, self.shown.daemon.live, made, self.telemetry, world.slurm.clock)

    def read(self, name: str, **labels: str) -> float | None:
        self.metrics.read()
        return self.telemetry.registry.get_sample_value(f"sentinel_{name}", labels)


async def test_before_slurm_answered_what_needs_it_is_not_known(world: Worlds) -> None:
    seen = Measured(world())
    assert seen.read("build_info", version=__version__) == 1.0
    assert seen.read("acting", partition="train", step="drain") is None
    assert seen.read("nodes_drained", by="others") == 0.0
    assert seen.read("budget_left", budget="drained_at_once") is None, "zero is the alert that it is used up"
    assert seen.read("budget_left", budget="drains_last_hour") == SETTINGS.limits.drain_per_hour


async def test_nothing_is_said_of_budgets_before_they_were_read(world: Worlds) -> None:
    assert b"sentinel_budget_left{" not in Measured(world()).telemetry.exposition()


async def test_modes_by_partition_and_a_pause(world: Worlds) -> None:
    modes = Modes(default=Mode("act", "observe"), partitions={"gone": Mode("act", "act")})
    seen = Measured(world(), modes=modes)
    await seen.shown.daemon.fleets.take()
    assert seen.read("acting", partition="train", step="drain") == 1.0
    assert seen.read("acting", partition="train", step="restart") == 0.0 and seen.read("paused") == 0.0
    seen.shown.world.store.put("paused", True)
    assert seen.read("paused") == 1.0 and seen.read("acting", partition="train", step="drain") == 0.0
    seen.metrics._settings = SETTINGS
    assert seen.read("acting", partition="gone", step="drain") is None  # the settings name it no more


async def test_what_is_open_and_what_is_left_of_the_budget(world: Worlds) -> None:
    seen = Measured(world())
    await seen.shown.daemon.fleets.take()
    store, clock = seen.shown.world.store, seen.shown.world.slurm.clock
    assert seen.read("incidents_open_by_cause", cause="gpu_memory_ecc") == 3.0
    before = seen.read("budget_left", budget="drains_last_hour")
    drain = step(StepKind.DRAIN, node="n1")
    plan = made_plan(drain, incident="aaa1")
    store.save_plan(plan)
    store.intend(plan, drain, clock.now())
    store.record(plan, Outcome(drain, Result.DONE, clock.now()))
    assert before is not None and seen.read("budget_left", budget="drains_last_hour") == before - 1
    store.put("breaker_told", {"incident": "aaa1", "at": clock.now().isoformat()})
    assert (
        seen.read("breaker_open", breaker="breaker") == 1.0 and seen.read("breaker_open", breaker="hang-breaker") == 0.0
    )


async def test_what_is_open_counts_however_long_it_is_by_the_cause_that_an_operator_gave(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_search, "SEARCHED", 1)  # of a listing
    seen = Measured(world())
    store = seen.shown.world.store
    store.save_incident(dataclasses.replace(incident(id="aaa1"), opened_at=AT - timedelta(days=35)))
    told = Correction(at=AT, by="root", cause=Cause.PCIE, scope=Scope.NODE)
    store.commit([VerdictCorrected("aaa1", told)])
    assert seen.read("incidents_open_by_cause", cause="pcie") == 1.0
    assert seen.read("incidents_open_by_cause", cause="gpu_memory_ecc") == 2.0


async def test_what_is_open_counts_from_the_start_on_and_no_more_when_it_was_pruned(world: Worlds) -> None:
    """As the store has it: no incident changes for that, and not each is in memory."""
    there = world()
    there.store.save_incident(incident(id="held1", job=7, nodes=("n9",), state=IncidentState.HELD))
    seen = Measured(there)
    assert seen.read("incidents_open") == 4.0, "the three of the views, and this one that nothing judged yet"
    there.store.forget_beyond(1 << 30, later(10.0), later(10.0))
    assert seen.read("incidents_open") == 3.0


@pytest.mark.parametrize(("takes_s", "reads"), [(2.0, 3), (0.1, 18)], ids=["a large cluster", "a small one"])
async def test_sums_over_a_month_that_take_long_are_kept_between_scrapes(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, takes_s: float, reads: int
) -> None:
    """What a month cost changes little in a minute, and takes seconds of a core to read; all else is read each time."""
    there, now_s, taken = world(), [1000.0], []
    seen = Measured(there)
    seen.metrics = FleetMetrics(
        there.store, seen.shown.daemon.live, SETTINGS, seen.telemetry, there.slurm.clock, seconds=lambda: now_s[0]
    )
    attempts = there.store.attempts

    def slow(**how: Any) -> Any:
        now_s[0] += takes_s
        taken.append(now_s[0])
        return attempts(**how)

    monkeypatch.setattr(there.store, "attempts", slow)
    for number in range(9):
        now_s[0] = 1000.0 + 30.0 * number
        there.store.put("paused", bool(number % 2))
        assert seen.read("paused") == number % 2
        assert seen.read("lost_gpu_seconds", cause="pcie") == 0.0
    assert len(set(taken)) == reads, taken


async def test_for_how_long_a_step_is_under_way_or_tried_again(world: Worlds) -> None:
    seen = Measured(world())
    store, clock = seen.shown.world.store, seen.shown.world.slurm.clock
    hold = step(StepKind.HOLD, job=8)
    plan = made_plan(hold, incident="aaa1")
    store.save_plan(plan)
    store.intend(plan, hold, clock.now())
    clock.advance(60.0)
    store.record(plan, Outcome(hold, Result.NOT_KNOWN, clock.now(), "Slurm refuses job 8"))
    clock.advance(60.0)
    assert seen.read("step_under_way_seconds", kind="hold") == 120.0
    again = dataclasses.replace(hold, tries=1)  # under another id, as slurmctld had forgotten something
    store.intend(plan, again, clock.now())
    assert seen.read("step_under_way_seconds", kind="hold") == 0.0
    store.record(plan, Outcome(again, Result.DONE, clock.now()))
    clock.advance(60.0)
    assert seen.read("step_under_way_seconds", kind="hold") == 0.0 and store.steps_under_way() == []


async def test_agents_and_saves_that_come_while_they_are_counted(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics are read in a thread: at any moment the event loop may note another node, or another save."""
    seen = Measured(world())
    daemon, job = seen.shown.daemon, seen.shown.world.job
    await seen.shown.daemon.fleets.take()

    class Busy(NodeSeen):
        """Whenever it is looked at, another agent has just come."""

        def __getattribute__(self, name: str) -> Any:
            if name == "state":
                daemon.live.node(f"new{len(daemon.live.nodes)}")
            return super().__getattribute__(name)

    class Saved(Evidence):
        """Whenever it is looked at, another save has just come."""

        def __getattribute__(self, name: str) -> Any:
            if name in ("at", "data"):
                daemon.live.attempts[job, 0].saves.append(later_save)
            return super().__getattribute__(name)

    for name in ("n1", "n2"):
        daemon.live.nodes[name] = Busy(state="heard", version="1.0")
    later_save = evidence(Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=job, attempt=0, data={"time_s": 20.0})
    saves = [Saved(**{field.name: getattr(later_save, field.name) for field in dataclasses.fields(later_save)})] * 3
    daemon.live.attempts[job, 0].saves.extend(saves)
    assert seen.read("agents", version="1.0") == 2.0
    attempt = daemon.live.attempts[job, 0]
    assert attempt.save_s() == 20.0 and attempt.save_interval_s() == 0.0


async def test_who_drained_what(world: Worlds) -> None:
    seen = Measured(world())
    slurm = seen.shown.world.slurm
    slurm.person_drains("n3", "a person")
    slurm.nodes["n2"].drained, slurm.nodes["n2"].reason = True, "sentinel:inc1 ecc"
    await seen.shown.daemon.fleets.take()
    assert seen.read("nodes_drained", by="sentinel") == 1.0 and seen.read("nodes_drained", by="others") == 1.0


async def test_gpu_time_lost_and_the_share_that_was_training(world: Worlds) -> None:
    seen = Measured(world())
    await seen.shown.daemon.fleets.take()
    world_ = seen.shown.world
    world_.slurm.clock.advance(600.0)
    again = job(201, user="ada", nodes=("n1", "n2"), restarts=1, started_s=60.0, state="failed")
    again = dataclasses.replace(again, ended_at=later(600.0))
    world_.store.save_attempt(again, first_step=201, last_step=300, step_time_s=2.0)
    lost = seen.read("lost_gpu_seconds", cause="gpu_memory_ecc")
    assert lost == pytest.approx(16 * (100.0 + 60.0), rel=0.01)  # 50 steps again, 60 s down
    share = seen.read("effective_training_time_ratio", partition="train")
    assert share is not None and 0.0 < share < 1.0


async def test_oldest_of_the_newest_saves_and_agents_by_release(world: Worlds) -> None:
    seen = Measured(world())
    daemon, slurm = seen.shown.daemon, seen.shown.world.slurm
    await daemon.fleets.take()
    daemon.live.node("n1").state, daemon.live.node("n1").version = "heard", "1.0"
    daemon.live.node("n2").state, daemon.live.node("n2").version = "silent", "1.1"
    for number in range(2):
        daemon.live.note(evidence(Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=seen.shown.world.job, attempt=0,
                                  at_s=600.0 * number))  # fmt: skip
    slurm.clock.advance(1600.0)
    assert seen.read("checkpoint_age_seconds", partition="train") == pytest.approx(1000.0, abs=1.0)
    assert seen.read("agents", version="1.0") == 1.0 and seen.read("agents", version="1.1") is None
    daemon.live.node("n1").version = "1.2"
    assert seen.read("agents", version="1.2") == 1.0 and seen.read("agents", version="1.0") is None


async def test_share_of_training_is_that_of_the_report_where_an_end_was_not_seen(world: Worlds) -> None:
    """An attempt whose work counts nothing has its failure's cost all the same, in the partition where it was."""
    seen = Measured(world())
    shown = seen.shown
    await shown.daemon.fleets.take()
    shown.world.slurm.clock.advance(600.0)
    blind = dataclasses.replace(job(201, nodes=("n1", "n2"), state=END_NOT_SEEN), ended_at=later(0.0))
    shown.world.store.save_attempt(blind, first_step=1, last_step=250, step_time_s=2.0)
    again = job(201, nodes=("n1", "n2"), restarts=1, started_s=60.0, state="failed", partition="debug")
    again = dataclasses.replace(again, ended_at=later(600.0))
    shown.world.store.save_attempt(again, first_step=201, last_step=300, step_time_s=2.0)
    other = dataclasses.replace(job(300, state="completed"), ended_at=later(0.0))
    shown.world.store.save_attempt(other, first_step=None, last_step=None, step_time_s=None)
    made = await shown("report", since=to_json(later(-30 * 86_400.0 + 600.0)))
    told = {row["partition"]: row["ettr"] for row in made["partitions"]}
    assert told == {name: seen.read("effective_training_time_ratio", partition=name) for name in ("train", "debug")}
    assert told["debug"] == 1.0 and 0.0 < told["train"] < 1.0
