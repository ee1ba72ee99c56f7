"""What is left of the budgets, as people and monitoring see it: what policy counts, no more and no less."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon, fail
from in_memory.direct_store import DirectStore
from in_memory.world import World
from made_records import AT, evidence, fleet, incident, job, later, plan, step

from sentinel.config.settings import Limits
from sentinel.daemon.api.status import budget
from sentinel.engine.reconcile.situations import ClusterNow
from sentinel.model.changes import PlanFinished
from sentinel.model.records import OURS, Fleet, Kind, Outcome, Result, Scalar, Step, StepKind, Unread
from sentinel.model.vocabulary import WAS_OUT

Worlds = Callable[..., World]
NOW = later(600.0)


def did(
    store: DirectStore, name: str, one: Step, *, at_s: float = 60.0, reason: str = "", result: Result | None = Result.DONE,
    data: dict[str, Scalar] | None = None,
) -> None:  # fmt: skip
    """An incident with a plan of one step, and what became of it; ``result`` None: it is under way."""
    made = dataclasses.replace(plan(one, incident=name), at=later(at_s))
    store.save_incident(incident(id=name))
    store.save_plan(made)
    store.intend(made, one, later(at_s))
    if result is not None:
        store.record(made, Outcome(one, result, later(at_s + 1.0), reason, data or {}))
        store.commit([PlanFinished(made.id)])


def used(store: DirectStore, there: Fleet | None = None, limits: Limits | None = None) -> tuple[int | None, ...]:
    found = budget(store, there or dataclasses.replace(fleet(4), at=NOW), limits or Limits(), NOW)
    return tuple(found[name]["used"] for name in ("drained_at_once", "drains_last_hour", "restarts_last_hour"))


def test_a_node_that_was_out_already_costs_nothing_and_one_that_is_set_down_as_well_once(world: Worlds) -> None:
    store = world().store
    did(store, "i1", step(StepKind.DRAIN, node="n1"), reason="was drained by somebody else already")
    did(store, "i2", step(StepKind.DRAIN, node="n2"), data={WAS_OUT: True})
    did(store, "i3", step(StepKind.DRAIN, node="n3"), result=Result.FAILED, reason="Slurm does not know node n3")
    assert used(store)[1] == 0
    did(store, "i4", step(StepKind.DRAIN, node="n4"))
    did(store, "i4", step(StepKind.DOWN, node="n4"), at_s=120.0)
    assert used(store)[1] == 1


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD, StepKind.STOP_RUN])
def test_each_attempt_that_was_stopped_counts(world: Worlds, kind: StepKind) -> None:
    store = world().store
    for attempt in range(4):
        did(store, f"i{attempt}", Step(kind, job=7, attempt=attempt), at_s=60.0 + attempt)
    did(store, "i9", Step(kind, job=8, attempt=0), result=Result.FAILED)
    assert used(store)[2] == 4


def test_what_is_under_way_counts_and_what_is_an_hour_old_does_not(world: Worlds) -> None:
    store = world().store
    did(store, "i1", step(StepKind.DRAIN, node="n1"), result=None)
    did(store, "i2", Step(StepKind.REQUEUE_HOLD, job=7, attempt=0), result=None)
    assert used(store) == (1, 1, 1)
    did(store, "i3", step(StepKind.DRAIN, node="n2"), at_s=-3002.0)
    did(store, "i4", Step(StepKind.REQUEUE_HOLD, job=8, attempt=0), at_s=-3002.0)
    assert used(store) == (1, 1, 1)
    did(store, "i5", step(StepKind.DRAIN, node="n3"), at_s=-3001.0, result=None)  # it waited, and goes on now
    assert used(store) == (2, 2, 1)


def test_what_was_planned_and_given_up_costs_nothing(world: Worlds) -> None:
    store = world().store
    made = dataclasses.replace(plan(step(StepKind.DRAIN, node="n1"), incident="i1"), at=AT)
    store.save_plan(made)
    store.commit([PlanFinished(made.id)])
    store.save_plan(plan(step(StepKind.DRAIN, node="n2"), incident="i2", observe_only=True))
    assert used(store) == (0, 0, 0)


def test_a_node_whose_record_cannot_be_read_may_be_one_of_ours(world: Worlds) -> None:
    there = dataclasses.replace(fleet(4), at=NOW, unread=(Unread("node", "n9", "why"), Unread("job", "7", "why")))
    out = dataclasses.replace(there.nodes["n1"], flags=frozenset({"drain"}), reason=f"{OURS}root: fan")
    assert used(world().store, dataclasses.replace(there, nodes={**there.nodes, "n1": out}))[0] == 2


def test_without_slurm_what_was_done_is_known_and_what_is_out_is_not(world: Worlds) -> None:
    store = world().store
    did(store, "i1", step(StepKind.DRAIN, node="n1"), at_s=599.0)
    did(store, "i2", step(StepKind.DRAIN, node="n2"), at_s=599.0, reason="was drained by somebody else already")
    found = budget(store, None, Limits(), NOW)
    assert found["drained_at_once"]["used"] is None and found["drains_last_hour"]["used"] == 1
    assert found["restarts_last_hour"] == {"used": 0, "limit": 100}


def test_the_limit_of_restarts_is_a_share_of_the_begun_jobs(world: Worlds) -> None:
    there = fleet(2, [job(number) for number in range(1, 101)])
    limits = Limits(restarts_per_hour=1, restarts_fraction=0.29)
    assert budget(world().store, there, limits, NOW)["restarts_last_hour"]["limit"] == 29


async def test_people_see_what_policy_counts(world: Worlds) -> None:
    """A node breaks under a job, is drained and set down, the job is restarted, and fails once more."""
    there = world()
    daemon = Daemon(there)
    await daemon.start()
    await fail(daemon, evidence(Kind.XID, node="n1", text="NVRM: Xid 79", data={"xid": 79}, job=there.job, attempt=0))
    for _ in range(3):
        await daemon.pass_time(30.0)
        now = there.slurm.clock.now()
        cluster = ClusterNow(daemon.state, daemon.live.fleet or fleet(1), now, lambda _: pytest.fail("none waits"))
        found = budget(there.store, daemon.live.fleet, daemon.state.settings.limits, now)
        assert found["drains_last_hour"]["used"] == len(cluster.drains)
        assert found["restarts_last_hour"]["used"] == len(cluster.stops)
        assert found["drained_at_once"]["used"] == sum(node.drained for node in cluster.fleet.nodes.values())
    assert found["drains_last_hour"]["used"] == found["restarts_last_hour"]["used"] == 1
