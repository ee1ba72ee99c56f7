"""A refusal is a wait: what is not allowed now stays wanted, is judged anew when that changes, and ends with its cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import RULES, SETTINGS, Daemon, FakeSink, fail, incidents_of, states
from in_memory.world import World
from made_records import AT, OPTED_IN, ended, evidence, fleet, incident, later, lost_gpu, node, plan, verdict

from sentinel.config.settings import Limits, Mode, Modes, Settings
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine
from sentinel.engine.events import (
    EffectCompleted,
    Event,
    FleetObserved,
    FleetUnavailable,
    OperatorCommand,
    TimerDue,
)
from sentinel.engine.reconcile import waits as reconcile_waits
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, StartTimer
from sentinel.log import Log
from sentinel.model.records import Evidence, Fleet, Kind, NodeView, Plan, Scalar, Source, Wait

Worlds = Callable[..., World]


def limited(**how: float) -> Settings:
    limits = {"drain_fraction": 1.0, "drain_count": 99, "drain_per_hour": 99, **how}
    return dataclasses.replace(SETTINGS, limits=Limits(**limits))  # type: ignore[arg-type]


def observing(drain: str = "observe", restart: str = "observe") -> Settings:
    return dataclasses.replace(SETTINGS, modes=Modes(default=Mode(drain, restart)))


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


def waits(there: World) -> list[str]:
    return [wait.kind for plan in there.store.open_plans() for wait in plan.waits]


def only_plan(there: World) -> Plan:
    (name,) = incidents_of(there.store)
    plan = there.store.plan_of(name)
    assert plan is not None
    return plan


def agent_says(daemon: Daemon, node: str, word: str) -> None:
    seen = daemon.live.node(node)
    seen.state, seen.verdict = "heard", {"word": word}


async def command(daemon: Daemon, name: str) -> None:
    there = daemon.world
    made = OperatorCommands(
        store=there.store, live=daemon.live, fleets=daemon.fleets, clock=there.slurm.clock, reader=there.slurm,
        writer=there.slurm, runner=daemon.runner, log=Log(daemon.stream),
    )  # fmt: skip
    await made.make(name, {}, 0)
    await daemon.quiet()


# --- drain budget ------------------------------------------------------------------------------------------------------


async def test_a_job_is_restarted_around_a_node_that_may_not_be_drained_which_goes_when_there_is_room(
    world: Worlds,
) -> None:
    there, sink = world(nodes=6), FakeSink()
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    daemon = Daemon(there, [sink], settings=limited(drain_count=1))
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and job.state == "RUNNING" and "n1" not in job.on
    assert drained(there) == {"n6"} and states(there) == ["waiting"] and waits(there) == ["drain-budget"]
    there.slurm.nodes["n6"].drained = False  # repaired and returned
    await daemon.pass_time(20.0)
    assert drained(there) == {"n1"} and states(there) == ["closed"] and job.restarts == 1
    assert there.store.open_plans() == [] and daemon.bugs() == 0


@pytest.mark.parametrize(
    ("data", "good"),
    [
        ({"level": 1}, False),
        ({"level": 2}, False),
        ({"level": 3}, True),
        ({"level": 4}, True),
        ({}, False),
        ({"level": 3, "gpus": 1}, False),
    ],
)
async def test_a_passed_test_of_a_node_that_waits_to_be_drained_ends_the_wait(
    world: Worlds, data: dict[str, Scalar], good: bool
) -> None:
    """Its evidence comes to the incident that waits: no new word against the node. Its cause asks for level 3, all GPUs."""
    there = world(nodes=6)
    daemon = Daemon(there, settings=limited(drain_count=0))
    await fail(daemon, lost_gpu("n1"))
    assert states(there) == ["waiting"] and waits(there) == ["drain-budget"]
    await daemon.pass_time(600.0)
    await daemon.observe([evidence(Kind.DIAG_PASSED, source=Source.DIAGNOSTIC, node="n1", at_s=590.0, data=data)])
    await daemon.quiet()
    await daemon.pass_time(20.0)
    assert drained(there) == set() and states(there) == ["closed" if good else "waiting"]
    assert (there.store.open_plans() == []) is good


async def test_a_budget_of_an_hour_lets_go_when_the_hour_is_over_without_any_event(world: Worlds) -> None:
    there = world(nodes=10, wide=1)
    daemon = Daemon(there, settings=limited(drain_per_hour=2))
    await fail(daemon, *(lost_gpu(f"n{i}") for i in range(2, 5)))
    assert len(drained(there)) == 2 and "waiting" in states(there)
    await daemon.pass_time(3590.0)
    assert len(drained(there)) == 2
    await daemon.pass_time(20.0)
    assert len(drained(there)) == 3 and states(there) == ["closed"] * 3


async def test_a_restart_that_waits_for_a_node_gets_one_that_another_incident_convicted_once_it_is_proven_good(
    world: Worlds,
) -> None:
    there = world(nodes=3)
    daemon = Daemon(there, settings=limited(drain_count=0))
    await daemon.observe([lost_gpu("n3")])
    await daemon.pass_time(30.0)
    await fail(daemon, lost_gpu("n1", 30.0))
    await daemon.pass_time(60.0)
    job = there.slurm.jobs[there.job]
    assert "no-node" in waits(there) and job.restarts == 0
    passed = evidence(Kind.DIAG_PASSED, source=Source.DIAGNOSTIC, node="n3", at_s=89.0, data={"level": 3})
    await daemon.observe([passed])
    await daemon.quiet()
    for _ in range(2):
        await daemon.pass_time(30.0)
    assert job.restarts == 1 and "n3" in job.on and "n1" not in job.on


async def test_a_restart_waits_while_only_the_bad_node_is_left_for_it(world: Worlds) -> None:
    there = world(nodes=2)
    daemon = Daemon(there, settings=limited(drain_count=0))
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 0 and waits(there) == ["drain-budget", "no-node"]
    there.slurm.nodes["n3"] = dataclasses.replace(there.slurm.nodes["n2"], name="n3", port=17_010)
    await daemon.pass_time(20.0)
    assert job.restarts == 1 and set(job.on) == {"n2", "n3"} and waits(there) == ["drain-budget"]


async def test_what_waits_for_nodes_goes_on_when_its_partition_is_given_some_of_another(world: Worlds) -> None:
    there = world(nodes=3)
    there.slurm.nodes["n3"].partitions = ("other",)
    daemon = Daemon(there, settings=limited(keep_healthy=2))
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 0 and waits(there) == ["last-healthy", "no-node"]
    await daemon.pass_time(40.0)
    there.slurm.nodes["n3"].partitions = ("other", "train")
    await daemon.pass_time(20.0)
    assert drained(there) == {"n1"} and job.restarts == 1 and set(job.on) == {"n2", "n3"} and waits(there) == []


async def test_what_waits_for_its_switch_goes_on_when_all_nodes_are_said_to_hang_on_it(world: Worlds) -> None:
    """A topology that Slurm is given anew: what all nodes share tells nothing of two of them."""
    there = world(nodes=12, wide=1)
    for number, known in enumerate(there.slurm.nodes.values()):
        known.topology = f"leaf{number // 4}"
    daemon = Daemon(there, settings=limited(breaker_nodes=9, breaker_switch_nodes=2))
    await fail(daemon, lost_gpu("n2"), lost_gpu("n3"))
    await daemon.pass_time(400.0)
    assert drained(there) == set() and set(waits(there)) == {"switch"}
    for known in there.slurm.nodes.values():
        known.topology = "leaf0"
    await daemon.pass_time(20.0)
    assert drained(there) == {"n2", "n3"} and waits(there) == []


async def test_who_has_looked_at_a_switch_while_its_nodes_are_in_maintenance_is_not_asked_again(world: Worlds) -> None:
    there = world(nodes=12, wide=1)
    for number, known in enumerate(there.slurm.nodes.values()):
        known.topology = f"leaf{number // 4}"
    daemon = Daemon(there, settings=limited(breaker_nodes=9, breaker_switch_nodes=2))
    await fail(daemon, lost_gpu("n2"), lost_gpu("n3"))
    assert set(waits(there)) == {"switch"}
    there.slurm.person_reserves(["n2", "n3"])
    await daemon.pass_time(11.0)
    assert drained(there) == set() and set(waits(there)) == {"maintenance", "switch"}
    await command(daemon, "resume")
    await daemon.pass_time(11.0)
    assert drained(there) == set() and set(waits(there)) == {"maintenance"}
    there.slurm.reservation_ends(["n2", "n3"])
    await daemon.pass_time(11.0)
    assert drained(there) == {"n2", "n3"} and waits(there) == []


async def test_a_wait_is_kept_over_a_restart_of_the_daemon(world: Worlds) -> None:
    there, sink = world(nodes=10, wide=1), FakeSink()
    await fail(Daemon(there, [sink], settings=limited(drain_count=0)), lost_gpu("n5"))
    since = only_plan(there).waits[0].since
    there.slurm.clock.advance(300.0)
    second = Daemon(there, [sink], settings=limited(drain_count=0))
    await second.start()
    await second.quiet()
    assert drained(there) == set() and only_plan(there).waits[0].since == since and states(there) == ["waiting"]
    third = Daemon(there, [sink], settings=limited(drain_count=1))  # the limit was raised
    await third.start()
    await third.quiet()
    assert drained(there) == {"n5"} and states(there) == ["closed"] and sink.stages == ["waiting", "handled"]


async def test_what_a_person_has_done_meanwhile_ends_the_wait(world: Worlds) -> None:
    there = world(nodes=10, wide=1)
    daemon = Daemon(there, settings=limited(drain_count=0))
    await fail(daemon, lost_gpu("n5"))
    there.slurm.person_drains("n5", "ticket 7")
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and there.slurm.nodes["n5"].reason == "ticket 7"


async def test_another_job_on_a_bad_node_that_may_not_be_drained_leaves_it_too(world: Worlds) -> None:
    there = world(nodes=6)
    other = there.slurm.submit(nodes=99, comment=OPTED_IN)
    this = there.slurm.jobs[other]
    this.state, this.on, this.nodes = "RUNNING", ("n1",), 1
    daemon = Daemon(there, settings=limited(drain_count=0))
    await fail(daemon, lost_gpu("n1"))
    for job in (there.job, other):
        assert there.slurm.jobs[job].restarts == 1 and "n1" not in there.slurm.jobs[job].on


# --- breaker -----------------------------------------------------------------------------------------------------------


async def storm(there: World, daemon: Daemon) -> int:
    """Five nodes fail within a second, two jobs run on them."""
    other = there.slurm.submit(nodes=2, comment=OPTED_IN, user="bo", uid=1002)
    await fail(daemon, *(lost_gpu(f"n{i}") for i in (1, 3, 5, 6, 7)))
    return other


async def test_resume_lets_go_on_what_the_breaker_froze_and_each_job_is_told_of(world: Worlds) -> None:
    there, sink = world(nodes=12), FakeSink()
    daemon = Daemon(there, [sink], settings=limited(breaker_nodes=5))
    other = await storm(there, daemon)
    assert set(waits(there)) == {"breaker"} and drained(there) == set()
    assert {notice.data["job"] for notice in sink.got} == {there.job, other}
    await daemon.pass_time(120.0)
    assert drained(there) == set(), "five nodes are bad still, and nobody has looked"
    await command(daemon, "resume")
    assert drained(there) == {"n1", "n3", "n5", "n6", "n7"}
    for job in (there.job, other):
        assert there.slurm.jobs[job].restarts == 1 and there.slurm.jobs[job].state == "RUNNING"
    assert set(states(there)) == {"closed"} and daemon.bugs() == 0


async def test_the_breaker_lets_go_by_itself_when_its_cause_is_over(world: Worlds) -> None:
    there = world(nodes=12)
    daemon = Daemon(there, settings=limited(breaker_nodes=5))
    await storm(there, daemon)
    for name in ("n5", "n6", "n7"):
        agent_says(daemon, name, "BAD")
    await daemon.pass_time(70.0)
    assert drained(there) == set()
    for name in ("n5", "n6", "n7"):
        agent_says(daemon, name, "OK")
    await daemon.pass_time(20.0)
    assert drained(there) == {"n1", "n3"} and set(states(there)) == {"closed"}


async def test_silent_jobs_that_the_breaker_of_hangs_froze_and_that_go_on_are_left_alone(world: Worlds) -> None:
    there = world(nodes=12)
    jobs = [there.job, *(there.slurm.submit(nodes=2, comment=OPTED_IN) for _ in range(3))]
    daemon = Daemon(there)
    await fail(daemon, *(stall(job) for job in jobs))
    assert set(waits(there)) == {"hang-breaker"} and len(states(there)) == 4
    for job in jobs[:3]:
        await daemon.observe([printed(job, at_s=30.0)])
    await daemon.pass_time(150.0)
    assert [there.slurm.jobs[job].restarts for job in jobs] == [0, 0, 0, 1]
    assert set(states(there)) == {"closed"}


def stall(job: int) -> Evidence:
    return evidence(Kind.STALL, source=Source.PROGRESS, job=job, attempt=0, data={"step": 250, "silent_s": 60.0})


def printed(job: int, at_s: float, step: int = 251, attempt: int = 0) -> Evidence:
    return evidence(Kind.STEP, source=Source.PROGRESS, job=job, attempt=attempt, at_s=at_s, data={"step": step})


# --- pause and modes ---------------------------------------------------------------------------------------------------


async def test_a_fault_during_a_pause_is_recovered_after_it(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await command(daemon, "pause")
    await fail(daemon, lost_gpu("n1"))
    assert drained(there) == set() and states(there) == ["waiting"] and waits(there) == ["paused"]
    await command(daemon, "resume")
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 1 and states(there) == ["closed"]


async def test_an_observed_fault_stays_open_and_is_acted_on_after_the_switch(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink], settings=observing())
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(600.0)
    await daemon.housekeeping()
    assert there.slurm.calls == [] and states(there) == ["waiting"] and waits(there) == ["observe"]
    acting = Daemon(there, [sink])
    await acting.start()
    await acting.quiet()
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 1 and states(there) == ["closed"]


async def test_an_observed_fault_is_over_when_its_node_is_good_and_its_job_gone(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there, settings=observing())
    await fail(daemon, lost_gpu("n1"))
    agent_says(daemon, "n1", "BAD")
    await daemon.pass_time(20.0)
    there.slurm.cancel(there.job)
    await daemon.pass_time(20.0)
    assert states(there) == ["waiting"]
    agent_says(daemon, "n1", "OK")
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and there.slurm.calls == []


async def test_more_of_an_observed_fault_opens_no_second_incident(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink], settings=observing())
    await fail(daemon, lost_gpu("n1"))
    for minute in range(1, 6):
        there.slurm.clock.at = later(300.0 * minute)
        await fail(daemon, lost_gpu("n1", at_s=300.0 * minute))
    assert states(there) == ["waiting"] and len(sink.got) == 1


async def test_a_job_that_failed_while_observed_is_forgotten_with_its_record(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there, settings=observing(drain="act"))
    there.slurm.end(there.job, exit_code=1)
    await fail(daemon, ended(there.job), lost_gpu("n1"))
    assert drained(there) == {"n1"} and waits(there) == ["observe"]
    there.slurm.purge(there.job)
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"]


def outcome_of(there: World) -> Any:
    return [row["outcome"] for row in there.store.incident_rows()]


async def test_a_wait_says_what_waits_for_what_and_since_when(world: Worlds) -> None:
    there = world(nodes=10, wide=1)
    await fail(Daemon(there, settings=limited(drain_count=0)), lost_gpu("n5"))
    (wait,) = only_plan(there).waits
    assert (wait.kind, wait.what) == ("drain-budget", ("drain n5",)) and wait.since >= later(0.0)
    assert outcome_of(there) == ["0 nodes are drained by Sentinel; 0 are allowed."]


# --- many that wait -----------------------------------------------------------------------------------------------------


def many_waiting(count: int, **limits: float) -> tuple[Engine, Fleet]:
    """Incidents whose drains exceed the budget of this hour, or these limits, all judged at the same time."""
    there = fleet([node(f"n{number}") for number in range(count)])
    view, settings = ClusterView(), limited(**(limits or {"drain_per_hour": 0}))
    state = State(rules=RULES, settings=settings, cluster=view, onsets=OnsetTracker(view, settings.judgement))
    for number in range(count):
        name = f"n{number}"
        found = incident(lost_gpu(name), id=f"i{number}", job=None, attempt=None, nodes=[name])
        state.put(found)
        state.verdicts[found.id] = verdict(drain=(name,))
        waits_for = Wait("drain-budget", AT, "full", (f"drain {name}",))
        state.plans[found.id] = dataclasses.replace(plan(incident=found.id), waits=(waits_for,))
        state.open_plans.add(found.id)
    return Engine(state), there


def judged_in(engine: Engine, events: list[Event]) -> list[int]:
    """Handles these events and the timers that follow from them; how many incidents each judged again."""
    counts, state = [], engine.state
    while events:
        event, before = events.pop(0), dict(state.judged_again)
        out = engine.handle(event)
        counts.append(sum(before.get(name) != at for name, at in state.judged_again.items()))
        for effect in out.effects:
            if isinstance(effect, StartTimer) and effect.id == reconcile_waits.NEXT:
                events.append(TimerDue(effect.due, effect.id))
            elif isinstance(effect, ObserveFleet):
                assert state.cluster.fleet is not None
                fresh = dataclasses.replace(state.cluster.fleet, at=event.at)
                events += [FleetObserved(event.at, fresh), EffectCompleted(event.at, effect.id)]
    return counts


def test_no_event_judges_many_that_wait_and_a_snapshot_still_brings_all_of_them_to_it() -> None:
    engine, there = many_waiting(30)
    counts = judged_in(engine, [FleetObserved(later(60.0), dataclasses.replace(there, at=later(60.0)))])
    assert max(counts) <= 2 and sum(counts) == 30 == len(engine.state.judged_again)


def test_no_event_judges_many_that_wait_when_an_operator_resumes() -> None:
    engine, there = many_waiting(70)
    engine.handle(FleetObserved(later(1.0), dataclasses.replace(there, at=later(1.0))))
    counts = judged_in(engine, [OperatorCommand(later(2.0), "resume", "operator")])
    assert max(counts) <= 2 and len(engine.state.judged_again) == 70


def test_what_waits_is_not_judged_from_an_old_snapshot_while_slurm_cannot_be_read() -> None:
    engine, there = many_waiting(30)
    engine.handle(FleetObserved(later(60.0), dataclasses.replace(there, at=later(60.0))))
    engine.handle(FleetUnavailable(later(61.0), "down", "look"))
    assert judged_in(engine, [TimerDue(later(65.0), reconcile_waits.NEXT)]) == [0]
    counts = judged_in(engine, [FleetObserved(later(70.0), dataclasses.replace(there, at=later(70.0)))])
    assert sum(counts) == 30


# --- asked again only for a reason ----------------------------------------------------------------------------------------


def seen_at(engine: Engine, there: Fleet, second: float, **views: NodeView) -> list[str]:
    """Handles a snapshot with these nodes changed, and what follows; which incidents policy was asked about."""
    before = dict(engine.state.judged_again)
    at = later(second)
    judged_in(engine, [FleetObserved(at, dataclasses.replace(there, at=at, nodes={**there.nodes, **views}))])
    return sorted(name for name, when in engine.state.judged_again.items() if before.get(name) != when)


def test_a_snapshot_that_shows_nothing_new_asks_policy_about_no_plan_that_waits() -> None:
    engine, there = many_waiting(30)
    assert len(seen_at(engine, there, 70.0)) == 30, "nothing was compared before"
    asked = [seen_at(engine, there, 70.0 + 20.0 * number) for number in range(1, 50)]
    assert asked == [[]] * 49


def test_policy_is_asked_about_the_one_plan_whose_node_changed() -> None:
    engine, there = many_waiting(30)
    seen_at(engine, there, 70.0)
    assert seen_at(engine, there, 90.0, n7=node("n7", reason="somebody wrote this")) == ["i7"]
    assert seen_at(engine, there, 110.0, n7=node("n7", reason="somebody wrote this")) == []
    engine.state.cluster.node("n9").verdict = {"word": "BAD"}
    assert seen_at(engine, there, 130.0) == ["i7", "i9"], "n7 has its old reason again"


def test_room_in_a_budget_asks_about_the_plans_that_wait_for_it_until_it_is_taken() -> None:
    drained_by_us = node("n30", flags=frozenset({"drain"}), reason="sentinel:old gpu_memory_ecc")
    engine, there = many_waiting(30, drain_count=1)
    there = dataclasses.replace(there, nodes={**there.nodes, "n30": drained_by_us})
    seen_at(engine, there, 70.0)
    assert seen_at(engine, there, 90.0) == []
    assert seen_at(engine, there, 110.0, n30=node("n30")) == ["i0"], "it takes the only place"
    assert [name for name, plan in engine.state.plans.items() if plan.to_do] == ["i0"]
