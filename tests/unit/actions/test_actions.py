"""Each action over Slurm: what is ours and what is not, what is there already, and what cannot be done."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_memory.daemon import Daemon
from in_memory.slurm import FakeSlurm
from in_memory.world import ECC, LOST, FakeCheckpoints, Fate, World
from made_records import AT, ended, evidence, incident, plan

from sentinel.actions import ACTIONS, Means, Task
from sentinel.actions.requeue import leave_held
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import JobView, Kind, Outcome, Plan, Result, Scalar, Step, StepKind

Worlds = Callable[..., World]


def means(world: World) -> Means:
    return world.means(Fate())


def task(world: World, kind: StepKind, *, node: str | None = None, attempt: int = 0, **data: Scalar) -> Task:
    job = None if node else world.job
    step = Step(kind, node=node, job=job, attempt=None if node else attempt, data=data)
    return Task(incident(ended(world.job), job=world.job), ECC, plan(step), step)


@dataclasses.dataclass
class Known:
    """A ledger that knows how one step ended."""

    step: Step
    ended: Outcome

    def outcome(self, _incident: str, step: Step) -> Outcome | None:
        return self.ended if step == self.step else None

    async def progressed(self, _task: Task, _data: Mapping[str, Scalar]) -> None:
        return None


async def do(world: World, kind: StepKind, **how: Any) -> Outcome:
    return await ACTIONS[kind](task(world, kind, **how), means(world))


def chosen(world: World, **data: Scalar) -> None:
    step = Step(StepKind.CHOOSE_CHECKPOINT, job=world.job, attempt=0)
    world.store.intend(plan(step), step, AT)
    world.store.record(plan(step), Outcome(step, Result.DONE, AT, data=data))


async def held_by_us(world: World) -> None:
    await do(world, StepKind.REQUEUE_HOLD)
    await do(world, StepKind.EXCLUDE, nodes="n1")


def test_every_step_a_plan_can_hold_has_an_action() -> None:
    assert set(ACTIONS) == set(StepKind) - {StepKind.CONFIRM}  # the engine sees that by itself


# --- nodes -------------------------------------------------------------------------------------------------------------


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


# --- stopping the job --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["running", "failed", "completed", "requeued"])
async def test_job_waits_far_off_from_whatever_state(world: Worlds, how: str) -> None:
    there = world()
    if how in ("failed", "completed"):
        there.slurm.end(there.job, exit_code=int(how == "failed"))
    if how == "requeued":
        there.slurm.lose("n1")
        there.slurm.notice("n1")
    assert (await do(there, StepKind.REQUEUE_HOLD)).result is Result.DONE
    job = there.slurm.jobs[there.job]
    found: list[object] = [job.state, job.held, job.restarts, list(job.on)]
    assert found == ["PENDING", False, 1, []]
    assert job.eligible - there.slurm.clock.now().timestamp() > 86_400


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_job_that_its_user_cancels_while_it_completes_stays_cancelled(world: Worlds, kind: StepKind) -> None:
    """Slurm calls it completing until its processes are gone, and would requeue it."""
    there = world()
    job = there.slurm.jobs[there.job]
    job.state = "COMPLETING"
    looks = 0

    async def look(number: int) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            there.slurm.cancel(number)
        return await FakeSlurm.job(there.slurm, number)

    there.slurm.job = look  # type: ignore[method-assign,assignment]
    found = await do(there, kind)
    assert "cancelled" in found.reason and found.data["cancelled"] is True
    assert there.slurm.calls == [] and job.state == "CANCELLED"


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_job_that_was_done_before_anything_happened_stays_done(world: Worlds, kind: StepKind) -> None:
    """As when a GPU falls off the bus in its epilog."""
    there = world()
    there.slurm.end(there.job, exit_code=0)
    step = Step(kind, job=there.job, attempt=0)
    after_s = (there.slurm.clock.now() - AT).total_seconds() + 1
    about = incident(evidence(Kind.GPU_LOST, at_s=after_s, node="n1"), job=there.job, nodes=["n1"])
    found = await ACTIONS[kind](Task(about, ECC, plan(step), step), means(there))
    assert found.reason == f"job {there.job} was done before this happened" and found.data["goes_on"] is True
    assert there.slurm.calls == [] and there.slurm.jobs[there.job].state == "COMPLETED"


async def test_heterogeneous_job_waits_for_the_epilogs_of_all_its_components(world: Worlds) -> None:
    """Slurm sets the start of a component anew when its epilogs are over: deferred before, it would start by itself."""
    there = world()
    other = there.slurm.submit(nodes=1)
    for number in (there.job, other):
        there.slurm.jobs[number].record["het_job_id"] = there.job
    looks = 0

    async def look(number: int) -> object:
        nonlocal looks
        component = there.slurm.jobs[other]
        if number == other:
            looks += 1
            component.state = "COMPLETING" if looks < 3 else "PENDING"
            component.on = ["n4"] if looks < 3 else []
        return await FakeSlurm.job(there.slurm, number)

    there.slurm.job = look  # type: ignore[method-assign,assignment]
    assert (await do(there, StepKind.REQUEUE_HOLD)).result is Result.DONE
    assert looks >= 3


async def test_job_that_its_user_held_before_we_stopped_it_is_left(world: Worlds) -> None:
    there = world()
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=True)  # scontrol requeuehold, by its user
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "not by Sentinel" in found.reason
    assert there.slurm.jobs[there.job].held and there.slurm.calls == []


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING"])
async def test_job_that_its_user_holds_at_the_moment_of_our_request_is_left(world: Worlds, state: str) -> None:
    there = world()
    ours, job = there.slurm.requeue_hold, there.slurm.jobs[there.job]

    async def late(number: int, attempt: int | None = None) -> bool:
        if job.restarts == 0:
            there.slurm.back_to_queue(job, held=True)
            job.state = state
        answer = await ours(number, attempt)
        job.state = "PENDING"
        return answer

    there.slurm.requeue_hold = late  # type: ignore[method-assign]
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "not by Sentinel" in found.reason
    assert job.held


async def stopped(there: World) -> Step:
    """The step that has stopped the job, with its nodes excluded since."""
    stop = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    there.store.intend(plan(stop), stop, AT)
    there.store.record(plan(stop), await do(there, StepKind.REQUEUE_HOLD))
    await do(there, StepKind.EXCLUDE, nodes="n1")
    return stop


async def test_job_that_its_user_holds_while_we_prepare_its_restart_stays_held(world: Worlds) -> None:
    there = world()
    await stopped(there)
    job = there.slurm.jobs[there.job]
    job.held, job.held_by = True, "JobHeldUser"
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "whoever held it releases it" in found.reason
    assert job.held and job.state == "PENDING"


async def test_a_job_that_slurm_could_never_start_is_not_said_to_be_held_by_somebody(world: Worlds) -> None:
    there = world()
    await stopped(there)
    job = there.slurm.jobs[there.job]
    job.feature, job.bad = ("n1",), True
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "Slurm holds job" in found.reason and "whoever" not in found.reason


async def test_job_that_its_user_holds_before_it_starts_is_held_for_its_user(world: Worlds) -> None:
    """Right after our release, which is looked at again then: nobody waits for its start, and people hear of the hold."""
    there = world()
    stop = await stopped(there)
    await do(there, StepKind.RELEASE)
    job = there.slurm.jobs[there.job]
    job.state, job.on, job.held, job.held_by = "PENDING", [], True, "JobHeldUser"
    again = dataclasses.replace(task(there, StepKind.RELEASE).step, tries=1)
    again = dataclasses.replace(task(there, StepKind.RELEASE), plan=plan(stop, again), step=again)
    found = await ACTIONS[StepKind.RELEASE](again, means(there))
    assert (found.result, found.data.get("held")) == (Result.FAILED, True) and "whoever held it" in found.reason
    assert found.data.get("held_by_others") is True
    assert job.held


async def test_words_of_others_in_the_admin_comment_stay(world: Worlds) -> None:
    there = world()
    job = there.slurm.jobs[there.job]
    job.admin_comment = "bill to project 7"
    await do(there, StepKind.REQUEUE_HOLD)
    for _ in range(2):
        await do(there, StepKind.EXCLUDE, nodes="n1")
        assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 attempt=1 || bill to project 7"
    await do(there, StepKind.HOLD)
    assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 held || bill to project 7"
    job.admin_comment = "x" * 1024
    await do(there, StepKind.EXCLUDE, nodes="n1")
    assert len(job.admin_comment) == 1024 and job.admin_comment.startswith("sentinel:inc1 ")


async def test_job_that_somebody_restarted_is_not_stopped(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].restarts = 1
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.FAILED and "meanwhile" in found.reason
    assert there.slurm.jobs[there.job].state == "RUNNING" and there.slurm.calls == []


@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD])
async def test_cancelled_job_stays_cancelled(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.cancel(there.job)
    found = await do(there, kind)
    assert "cancelled" in found.reason and there.slurm.calls == []
    assert found.result is (Result.DONE if kind is StepKind.HOLD else Result.FAILED)


@pytest.mark.parametrize(
    "kind",
    [
        StepKind.REQUEUE_HOLD,
        StepKind.HOLD,
        StepKind.CHOOSE_CHECKPOINT,
        StepKind.QUARANTINE,
        StepKind.EXCLUDE,
        StepKind.RELEASE,
    ],
)
async def test_purged_job_fails(world: Worlds, kind: StepKind) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=1)
    there.slurm.purge(there.job)
    assert (await do(there, kind)).result is Result.FAILED


async def test_job_whose_epilogs_hang_is_not_called_held(world: Worlds) -> None:
    there = world()
    there.slurm.lose("n1")
    there.slurm.notice("n1")  # requeued by Slurm, not held
    there.slurm.jobs[there.job].state = "COMPLETING"
    there.slurm.jobs[there.job].on = ("n1",)  # still on its node
    with pytest.raises(Unavailable, match="still completing after 90 s"):
        await do(there, StepKind.REQUEUE_HOLD)


async def test_job_that_slurm_lists_with_nodes_that_it_left_waits(world: Worlds) -> None:
    """Seen on 22.05: requeued when its start failed, and its node set down meanwhile; nothing clears the list."""
    there = world()
    there.slurm.lose("n1")
    there.slurm.notice("n1")
    there.slurm.jobs[there.job].on = ("n1",)
    found = await do(there, StepKind.REQUEUE_HOLD)
    assert found.result is Result.DONE and found.data["deferred"] is True


# --- letting it go -----------------------------------------------------------------------------------------------------


async def test_exclusions_are_a_union_with_the_users_own(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].excluded = ("n4",)
    await do(there, StepKind.REQUEUE_HOLD)
    found = await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    job = there.slurm.jobs[there.job]
    assert job.excluded == ("n1", "n2", "n4") and found.data["excluded"] == "n1,n2,n4"
    assert job.admin_comment == "sentinel:inc1 gpu_memory_ecc n1:3 attempt=1"
    assert job.required == ()


@pytest.mark.parametrize("which", ["excluded", "required"])
async def test_a_list_of_the_users_that_cannot_be_read_is_not_written_over(world: Worlds, which: str) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)

    async def look(number: int) -> JobView | None:
        seen = await FakeSlurm.job(there.slurm, number)
        return dataclasses.replace(seen, unread_lists=(which,)) if seen is not None else None

    there.slurm.job = look  # type: ignore[method-assign]
    found = await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    job = there.slurm.jobs[there.job]
    assert found.result is Result.DONE and job.admin_comment.startswith("sentinel:inc1 ")
    if which == "excluded":
        assert job.excluded == () and "cannot be read" in found.reason and found.data == {"added": "", "required": ""}
    else:
        assert job.excluded == ("n1", "n2") and found.data["excluded"] == "n1,n2"


async def test_a_stopped_job_that_completes_once_more_is_waited_for(world: Worlds) -> None:
    """slurmctld was started again, and its nodes report anew that its epilogs are over."""
    there = world()
    await stopped(there)
    there.slurm.jobs[there.job].completing = True
    with pytest.raises(Unavailable, match="completing"):
        await do(there, StepKind.EXCLUDE, nodes="n1,n2")
    there.slurm.jobs[there.job].completing = False
    assert (await do(there, StepKind.EXCLUDE, nodes="n1,n2")).result is Result.DONE


@pytest.mark.parametrize(("restarted", "days"), [(True, 0), (False, 0), (None, 0), (True, 2)])
async def test_a_list_that_a_person_changed_back_stays_and_with_it_what_the_job_was_lent(
    world: Worlds, restarted: bool | None, days: int
) -> None:
    """Unless slurmctld was restarted since the list was written, and that is not long ago: then it may have lost it."""
    there = world(nodes=6)
    there.slurm.clock.advance(days * 86_400.0)
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.excluded = ("n1",)
    last = {"excluded": "n1,n3", "added": "n3", "required": "n4", "spares": "kept"}
    written: list[dict[str, Scalar]] = [{"excluded": "n1"}, last]

    class Tries(Known):
        def outcome(self, _incident: str, step: Step) -> Outcome | None:
            known = step.kind is StepKind.EXCLUDE and 0 <= step.tries < len(written)
            return Outcome(step, Result.DONE, AT, "", written[step.tries]) if known else None

    async def booted() -> datetime | None:
        return None if restarted is None else AT + timedelta(seconds=5.0 if restarted else -60.0)

    again = task(there, StepKind.EXCLUDE, nodes="n1,n3", ours="n1,n3")
    again = dataclasses.replace(again, step=dataclasses.replace(again.step, tries=2))
    ledger = Tries(again.step, Outcome(again.step, Result.DONE, AT))
    found = await ACTIONS[StepKind.EXCLUDE](again, dataclasses.replace(means(there), ledger=ledger, booted_at=booted))
    if restarted and not days:
        assert job.excluded == ("n1", "n3") and found.data["excluded"] == "n1,n3"
    else:
        assert job.excluded == ("n1",) and found.data == {"added": "", "required": "n4", "spares": "kept"}


async def test_local_checkpoint_needs_its_own_nodes(world: Worlds) -> None:
    there = world()
    chosen(there, path="/nvme/s2", step=2, tier="local", hosts="n1,n2")
    await do(there, StepKind.REQUEUE_HOLD)
    await do(there, StepKind.EXCLUDE, nodes="n3")
    job = there.slurm.jobs[there.job]
    assert job.required == ("n1", "n2") and job.admin_comment.endswith("required=local")


async def test_requirement_of_ours_goes_and_one_of_the_user_stays(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.required = ("n1",)
    await do(there, StepKind.EXCLUDE, nodes="n3")
    assert list(job.required) == ["n1"]
    job.admin_comment += " required=local"
    await do(there, StepKind.EXCLUDE, nodes="n3")
    assert list(job.required) == []


@pytest.mark.parametrize("lost", [False, True], ids=["", "on a node that was set down"])
@pytest.mark.parametrize("kind", [StepKind.REQUEUE_HOLD, StepKind.HOLD, StepKind.EXCLUDE, StepKind.RELEASE])
async def test_job_that_ran_since_is_left_to_the_incident_that_stopped_it(
    world: Worlds, kind: StepKind, lost: bool
) -> None:
    there = world()
    stopped = await do(there, StepKind.REQUEUE_HOLD)
    there.store.intend(plan(stopped.step), stopped.step, AT)
    there.store.record(plan(stopped.step), stopped)
    await do(there, StepKind.EXCLUDE, nodes="n1")
    await do(there, StepKind.RELEASE)
    job = there.slurm.jobs[there.job]
    requeued = job.submitted
    there.slurm.clock.advance(60.0)
    assert job.state == "RUNNING" and job.restarts == 1
    other = dataclasses.replace(incident(ended(there.job), job=there.job), id="inc2")
    for step in (StepKind.REQUEUE_HOLD, StepKind.EXCLUDE):
        later = dataclasses.replace(task(there, step, attempt=1, nodes="n2"), incident=other)
        assert (await ACTIONS[step](later, means(there))).result is Result.DONE
    assert job.state == "PENDING" and job.restarts == 2 and job.excluded == ("n1", "n2")
    job.submitted = requeued if lost else job.submitted  # as Slurm leaves it then
    before = len(there.slurm.calls)
    found = await do(there, kind, nodes="n1")
    assert "has run since" in found.reason and there.slurm.calls[before:] == []


async def test_a_failed_step_leaves_no_job_deferred_whose_one_requeue_was_counted_twice(world: Worlds) -> None:
    there = world()
    stopped = await do(there, StepKind.REQUEUE_HOLD)
    there.store.intend(plan(stopped.step), stopped.step, AT)
    there.store.record(plan(stopped.step), stopped)
    job = there.slurm.jobs[there.job]
    job.restarts = 2
    await leave_held(dataclasses.replace(task(there, StepKind.EXCLUDE), plan=plan(stopped.step)), means(there))
    assert job.held and job.eligible < there.slurm.time_s() + 86_400


async def test_only_what_this_incident_held_is_released(world: Worlds) -> None:
    there = world()
    await held_by_us(there)
    assert (await do(there, StepKind.RELEASE)).result is Result.DONE
    assert there.slurm.jobs[there.job].state == "RUNNING"


@pytest.mark.parametrize("comment", ["", "sentinel:other gpu", "mine"])
async def test_job_held_by_somebody_else_is_never_released(world: Worlds, comment: str) -> None:
    there = world()
    job = there.slurm.jobs[there.job]
    there.slurm.back_to_queue(job, held=True)
    job.admin_comment = comment
    found = await do(there, StepKind.RELEASE)
    assert found.result is Result.FAILED and "held by somebody else" in found.reason
    assert there.slurm.jobs[there.job].held


async def test_resume_point(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    await do(there, StepKind.WRITE_RESUME)
    assert there.resume.files[there.job] == {
        "SENTINEL_JOB": str(there.job),
        "SENTINEL_ATTEMPT": "1",
        "SENTINEL_INCIDENT": "inc1",
    }
    chosen(there, path="/s/200", step=200, tier="global")
    await do(there, StepKind.WRITE_RESUME)
    assert there.resume.files[there.job]["SENTINEL_RESUME_PATH"] == "/s/200"
    assert there.resume.files[there.job]["SENTINEL_RESUME_STEP"] == "200"


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING"])
@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_the_folders_of_a_job_that_does_not_wait_any_more_are_left_alone(
    world: Worlds, kind: StepKind, state: str
) -> None:
    """What is new in them is its own next attempt's by then, or another job's that its user submitted in its place."""
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    job = there.slurm.jobs[there.job]
    job.state, job.held = state, False
    chosen(there, path="/shared/run/step-200", step=200, tier="global")
    outcome = await do(there, kind)
    assert outcome.result is (Result.FAILED if state == "CANCELLED" else Result.DONE), outcome
    assert "path" not in outcome.data and not there.checkpoints.moved and not there.resume.files  # type: ignore[attr-defined]
    assert bool(outcome.data.get("cancelled")) is (state == "CANCELLED")


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING", "PENDING"])
@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_what_ends_a_components_step_is_of_that_step_though_its_leader_was_asked(
    world: Worlds, kind: StepKind, state: str
) -> None:
    there = world()
    part = there.slurm.submit(nodes=1, het=there.job)
    there.slurm.jobs[there.job].record["het_job_id"] = there.job
    await do(there, StepKind.REQUEUE_HOLD)
    leader = there.slurm.jobs[there.job]
    leader.state, leader.held, leader.restarts = state, False, 2 if state == "PENDING" else 1
    step = Step(kind, job=part, attempt=0)
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.step == step and not there.resume.files
    assert outcome.result is (Result.FAILED if state == "CANCELLED" else Result.DONE)


@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE])
async def test_the_folders_of_a_job_that_has_left_its_allocation_are_left_alone(world: Worlds, kind: StepKind) -> None:
    there = world()
    stop, this, start = (Step(k, job=there.job, attempt=0) for k in (StepKind.STOP_RUN, kind, StepKind.START_RUN))
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(stop, this, start), this)
    assert (await ACTIONS[kind](work, means(there))).result is Result.DONE
    moved = list(there.checkpoints.moved)  # type: ignore[attr-defined]
    job = there.slurm.jobs[there.job]
    job.restarts += 1
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.result is Result.DONE and "attempt 0" in outcome.reason and "path" not in outcome.data
    assert there.checkpoints.moved == moved  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [StepKind.CHOOSE_CHECKPOINT, StepKind.QUARANTINE, StepKind.WRITE_RESUME])
async def test_the_checkpoints_of_a_later_attempt_are_left_to_it_also_by_a_step_that_is_done_again(
    world: Worlds, kind: StepKind
) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    there.slurm.jobs[there.job].restarts = 2
    step = Step(kind, job=there.job, attempt=0, tries=1)
    work = Task(incident(ended(there.job), job=there.job), ECC, plan(step), step)
    outcome = await ACTIONS[kind](work, means(there))
    assert outcome.result is Result.DONE and "that attempt is over" in outcome.reason
    assert "path" not in outcome.data and not there.checkpoints.moved and not there.resume.files  # type: ignore[attr-defined]


# --- proof -------------------------------------------------------------------------------------------------------------


async def _released(world: World) -> None:
    await held_by_us(world)
    await do(world, StepKind.RELEASE)


# --- carrying out ------------------------------------------------------------------------------------------------------


async def _carry(world: World, made: Plan) -> list[dict[str, Any]]:
    """A daemon finds the plan in its store and carries it out; rows of the ledger."""
    world.store.save_incident(incident(ended(world.job), job=world.job))
    world.store.save_verdict(made.incident, ECC, AT)
    world.store.save_plan(made)
    daemon = Daemon(world)
    await daemon.start()
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said
    return world.store.steps_of(made.incident)


def _results(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["kind"], row["result"]) for row in rows]


async def test_failed_drain_does_not_keep_the_job_waiting(world: Worlds) -> None:
    there = world()
    made = plan(Step(StepKind.DRAIN, node="ghost"), Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0))
    assert _results(await _carry(there, made)) == [("drain", "failed"), ("requeue_hold", "done")]


async def test_failed_stop_ends_the_plan_before_anything_else(world: Worlds) -> None:
    there = world()
    there.slurm.cancel(there.job)
    made = plan(*(Step(kind, job=there.job, attempt=0) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE)))
    assert _results(await _carry(there, made)) == [("requeue_hold", "failed")]
    assert _results(await _carry(there, made)) == [("requeue_hold", "failed")]  # nor after a start


async def test_refusal_of_slurm_is_a_failure_and_not_tried_again(world: Worlds) -> None:
    there = world()
    there.slurm.jobs[there.job].requeue = False
    there.slurm.end(there.job, exit_code=1)
    rows = await _carry(there, plan(Step(StepKind.HOLD, job=there.job, attempt=0)))
    assert _results(rows) == [("hold", "failed")] and "Requeue=0" in rows[0]["reason"]


async def test_choice_that_names_no_checkpoint_is_done(world: Worlds) -> None:
    there = world()
    await do(there, StepKind.REQUEUE_HOLD)
    there.checkpoints = FakeCheckpoints({})
    found = await do(there, StepKind.CHOOSE_CHECKPOINT)
    assert found.result is Result.DONE and "path" not in found.data


async def test_job_whose_restart_fails_half_way_is_left_held_and_starts_when_released(world: Worlds) -> None:
    there = world()
    stop = Step(StepKind.REQUEUE_HOLD, job=there.job, attempt=0)
    resume = Step(StepKind.WRITE_RESUME, job=there.job, attempt=0)

    async def full(_job: int, _values: Mapping[str, str]) -> None:
        raise Refused("no space left on device")

    there.resume.write = full  # type: ignore[method-assign]
    assert _results(await _carry(there, plan(stop, resume))) == [("requeue_hold", "done"), ("write_resume", "failed")]
    job = there.slurm.jobs[there.job]
    assert job.held and job.state == "PENDING"
    await there.slurm.release(there.job)
    assert job.state == "RUNNING"


async def test_held_job_starts_at_once_when_its_user_releases_it(world: Worlds) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=1)
    await do(there, StepKind.HOLD)
    job = there.slurm.jobs[there.job]
    assert job.held
    await there.slurm.release(there.job)
    assert job.state == "RUNNING"


async def test_an_epilog_that_hangs_costs_slurmctld_few_requests(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    there.slurm.times = dataclasses.replace(there.slurm.times, epilog_s=1e6)
    with_means, looks, waited = means(there), [], []

    class Counting:
        async def job(self, job: int) -> Any:
            looks.append(job)
            return await there.slurm.job(job)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("sentinel.actions.requeue.asyncio.sleep", sleep)
    stuck = dataclasses.replace(with_means, reader=Counting(), seconds=lambda: sum(waited))
    with pytest.raises(Unavailable, match="its epilogs may hang"):
        await ACTIONS[StepKind.REQUEUE_HOLD](task(there, StepKind.REQUEUE_HOLD), stuck)
    assert with_means.pending_s <= sum(waited) <= with_means.pending_s + 2.0
    assert len(looks) < with_means.pending_s  # five in the first seconds, one in two later
    assert waited[:5] == [0.2] * 5


async def test_a_slow_slurm_does_not_lengthen_the_wait_for_epilogs(world: Worlds) -> None:
    there = world()
    there.slurm.times = dataclasses.replace(there.slurm.times, epilog_s=1e6)

    class Slow:
        async def job(self, job: int) -> Any:
            await asyncio.sleep(5.0)
            return await there.slurm.job(job)

    slow = dataclasses.replace(means(there), reader=Slow())
    for state in ("RUNNING", "COMPLETING"):  # requeued by us, and on its way already
        there.slurm.jobs[there.job].state, began = state, there.slurm.clock.now()
        with pytest.raises(Unavailable, match="its epilogs may hang"):
            await ACTIONS[StepKind.REQUEUE_HOLD](task(there, StepKind.REQUEUE_HOLD), slow)
        took_s = (there.slurm.clock.now() - began).total_seconds()
        assert 90.0 <= took_s <= 90.0 + 4 * 5.0 + 2.0, state
