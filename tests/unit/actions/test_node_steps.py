"""Steps on nodes: drains and downs, what is ours and what is not, nodes that answer again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_memory.actions import Known, do, means, task
from in_memory.world import LOST, World
from made_records import AT, evidence, incident

from sentinel.actions import ACTIONS
from sentinel.model.records import Kind, Outcome, Result, Step, StepKind

Worlds = Callable[..., World]


async def test_drain_carries_our_name_and_the_incident(world: Worlds) -> None:
    there = world()
    assert (await do(there, StepKind.DRAIN, node="n1")).result is Result.DONE
    assert there.slurm.nodes["n1"].drained
    assert there.slurm.nodes["n1"].reason == "sentinel:inc1 gpu_memory_ecc n1:3"


@pytest.mark.parametrize("reason", ["a person: fan", "NHC: check failed", ""])
async def test_somebody_elses_drain_is_left_as_it_is(world: Worlds, reason: str) -> None:
    there = world()
    there.slurm.person_drains("n1", reason)
    found = await do(there, StepKind.DRAIN, node="n1")
    assert found.result is Result.DONE and "somebody else" in found.reason
    assert there.slurm.calls == [] and there.slurm.nodes["n1"].reason == reason


async def test_person_who_drains_between_look_and_request_keeps_the_node(world: Worlds) -> None:
    there = world()
    real = there.slurm.node
    looks = 0

    async def node(name: str) -> Any:
        nonlocal looks
        looks += 1
        seen = await real(name)
        if looks == 1:
            there.slurm.person_drains("n1", "a person")
        return seen

    there.slurm.node = node  # type: ignore[method-assign]
    found = await do(there, StepKind.DRAIN, node="n1")
    assert found.result is Result.DONE and there.slurm.nodes["n1"].reason == "a person" and there.slurm.calls == []


async def test_drained_node_of_ours_needs_nothing(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.DRAIN, node="n1")
    calls = list(there.slurm.calls)
    assert (await do(there, StepKind.DRAIN, node="n1")).reason == ""
    assert there.slurm.calls == calls


@pytest.mark.parametrize("kind", [StepKind.DRAIN, StepKind.DOWN])
async def test_unknown_node_fails(world: Worlds, kind: StepKind) -> None:
    assert (await do(world(), kind, node="ghost")).result is Result.FAILED


@pytest.mark.parametrize(
    ("old_s", "answers"), [(5.0, True), (15.0, True), (300.0, True), (300.0, False), (-300.0, True)]
)
async def test_node_that_answers_again_when_its_absence_is_old_news_is_not_set_down(
    world: Worlds, old_s: float, answers: bool
) -> None:
    """Of news from the future, dated by a clock that was set since, nobody knows how old it is."""
    there = world()
    there.slurm.clock.advance(max(old_s, 0.0))

    async def asked(_node: Any) -> bool:
        return answers

    gone = evidence(Kind.NODE_UNREACHABLE, node="n1", at_s=max(-old_s, 0.0))
    absent = dataclasses.replace(task(there, StepKind.DOWN, node="n1"), incident=incident(gone, job=there.job))
    found = await ACTIONS[StepKind.DOWN](absent, dataclasses.replace(means(there), answers=asked))
    left = answers and old_s != 5.0
    assert found.result is Result.DONE and there.slurm.nodes["n1"].out is not left
    assert there.slurm.jobs[there.job].state == ("RUNNING" if left else "PENDING")
    assert found.data.get("left_in_service", False) is left


@pytest.mark.parametrize("drained_before", [False, True])
async def test_node_that_answers_again_and_is_convicted_all_the_same_is_drained(
    world: Worlds, drained_before: bool
) -> None:
    """Its newest line, of the kernel, says that the machine runs; only its absence asks whether it is still gone."""
    there = world()
    there.slurm.clock.advance(100.0)
    if drained_before:
        there.slurm.person_drains("n1", "sentinel:other gpu_memory_ecc")

    async def there_again(_node: Any) -> bool:
        return True

    told = evidence(Kind.NODE_UNREACHABLE, node="n1"), evidence(Kind.XID, node="n1", at_s=99.0, data={"xid": 79})
    judged = dataclasses.replace(LOST, broken=("n1",))
    asked = dataclasses.replace(
        task(there, StepKind.DOWN, node="n1"), incident=incident(*told, job=there.job), verdict=judged
    )
    found = await ACTIONS[StepKind.DOWN](asked, dataclasses.replace(means(there), answers=there_again))
    was_out = {"was_out": True} if drained_before else {}
    assert (found.result, found.reason, dict(found.data)) == (Result.DONE, "", was_out)
    node = there.slurm.nodes["n1"]
    assert node.drained and not node.down and there.slurm.jobs[there.job].state == "RUNNING"


@pytest.mark.parametrize("broken", [(), ("n3",)], ids=["", "convicted of more"])
async def test_a_node_that_slurm_has_switched_off_meanwhile_is_not_set_down(
    world: Worlds, broken: tuple[str, ...]
) -> None:
    there = world()
    there.slurm.nodes["n3"].power = "POWERED_DOWN"
    judged = dataclasses.replace(LOST, broken=broken)
    found = await ACTIONS[StepKind.DOWN](
        dataclasses.replace(task(there, StepKind.DOWN, node="n3"), verdict=judged), means(there)
    )
    assert found.result is (Result.DONE if broken else Result.FAILED)
    assert (there.slurm.nodes["n3"].drained, there.slurm.nodes["n3"].down) == (bool(broken), False)


async def test_lost_node_is_down_and_stays_drained_when_it_answers_again(world: Worlds) -> None:
    there = world()
    there.slurm.lose("n1")
    assert (await do(there, StepKind.DOWN, node="n1")).result is Result.DONE
    assert there.slurm.nodes["n1"].down and there.slurm.nodes["n1"].drained
    there.slurm.revive("n1")
    assert there.slurm.nodes["n1"].drained


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD, StepKind.STOP_RUN])
@pytest.mark.parametrize("back", [True, False])
async def test_job_that_runs_is_not_stopped_for_nodes_that_are_there_again(
    world: Worlds, kind: StepKind, back: bool
) -> None:
    there = world()
    out = Step(StepKind.DOWN, node="n1")
    whole = task(there, kind)
    whole = dataclasses.replace(whole, plan=dataclasses.replace(whole.plan, steps=(out, whole.step)))
    data = {"left_in_service": True, "answers_again": back}
    ledger = dataclasses.replace(means(there), ledger=Known(out, Outcome(out, Result.DONE, AT, "", data)))
    found = await ACTIONS[kind](whole, ledger)
    assert there.slurm.jobs[there.job].state == ("RUNNING" if back or kind is StepKind.STOP_RUN else "PENDING")
    assert bool(found.data.get("goes_on")) is back and ("n1 answers again" in found.reason) is back


@pytest.mark.parametrize(
    ("old_s", "broken", "drained", "left"),
    [(100.0, (), False, True), (5.0, (), False, False), (100.0, ("n1",), False, False), (100.0, (), True, False)],
    ids=["there again", "not asked again yet", "broken", "drained"],
)
async def test_job_is_not_stopped_for_another_incidents_node_that_is_there_again(
    world: Worlds, old_s: float, broken: tuple[str, ...], drained: bool, left: bool
) -> None:
    """A job that shares the node with the incident's own; or the node's drain waits for a budget."""
    there = world()
    there.slurm.clock.advance(old_s)
    if drained:
        there.slurm.person_drains("n1", "sentinel:other node_failure")

    async def there_again(_node: Any) -> bool:
        return True

    gone = incident(evidence(Kind.NODE_UNREACHABLE, node="n1"), job=there.job)
    judged = dataclasses.replace(LOST, broken=broken)
    whole = dataclasses.replace(task(there, StepKind.REQUEUE_HOLD), incident=gone, verdict=judged)
    found = await ACTIONS[StepKind.REQUEUE_HOLD](whole, dataclasses.replace(means(there), answers=there_again))
    assert there.slurm.jobs[there.job].state == ("RUNNING" if left else "PENDING")
    assert ("n1 answers again" in found.reason) is left


@pytest.mark.parametrize("reached", [7, 8])
async def test_job_that_hangs_since_its_nodes_were_gone_is_stopped_although_they_are_there_again(
    world: Worlds, reached: int
) -> None:
    """Its stall was reported, and nobody watches it for another: left alone, it would hang for ever."""
    there = world()
    there.slurm.clock.advance(100.0)

    async def there_again(_node: Any) -> bool:
        return True

    known = evidence(Kind.NODE_UNREACHABLE, node="n1"), evidence(Kind.STALL, job=there.job, data={"step": 7})
    whole = dataclasses.replace(
        task(there, StepKind.REQUEUE_HOLD), incident=incident(*known, job=there.job), verdict=LOST
    )
    progress = cast("Any", SimpleNamespace(last_step=lambda _job, _attempt: reached))
    found = await ACTIONS[StepKind.REQUEUE_HOLD](
        whole, dataclasses.replace(means(there), answers=there_again, progress=progress)
    )
    assert there.slurm.jobs[there.job].state == ("RUNNING" if reached > 7 else "PENDING")
    assert ("n1 answers again" in found.reason) is (reached > 7)


async def test_several_nodes_answer_again(world: Worlds) -> None:
    there = world()
    out = tuple(Step(StepKind.DOWN, node=name) for name in ("n1", "n2"))
    whole = task(there, StepKind.REQUEUE_HOLD)
    whole = dataclasses.replace(whole, plan=dataclasses.replace(whole.plan, steps=(*out, whole.step)))

    class Both(Known):
        def outcome(self, _incident: str, step: Step) -> Outcome | None:
            return Outcome(step, Result.DONE, AT, "", {"answers_again": True}) if step in out else None

    known = Both(out[0], Outcome(out[0], Result.DONE, AT))
    found = await ACTIONS[StepKind.REQUEUE_HOLD](whole, dataclasses.replace(means(there), ledger=known))
    assert found.reason == "job 101 runs, and n1, n2 answer again: it is left alone"


async def test_lost_node_that_a_person_drained_keeps_their_reason(world: Worlds) -> None:
    there = world()
    there.slurm.person_drains("n1", "a person")
    there.slurm.lose("n1")
    found = await do(there, StepKind.DOWN, node="n1")
    assert (found.result, found.reason) == (Result.DONE, "was drained by somebody else already")  # it costs no budget
    assert there.slurm.nodes["n1"].reason == "a person" and there.slurm.nodes["n1"].down
