"""Which checkpoint is chosen of what nodes list: the nearest that is whole and that nothing speaks against."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from in_memory.checkpoints import (
    GLOBAL,
    LOCAL,
    LOST,
    NEITHER,
    NOBODY,
    SHARED,
    WHOLE_LOCAL,
    Case,
    Nodes,
    failed,
    shared,
)
from in_memory.world import World
from made_records import AT, evidence, plan, step, verdict

from sentinel.model.orders import read_order
from sentinel.model.records import Cause, Kind, Outcome, Result, Scalar, Source, StepKind

Worlds = Callable[..., World]


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "n3"}, {"root": "/home/ada", "path": "/home/ada/src"}, {"path": "/home/ada/src"}, {"tier": "local"},
        {"path": f"{GLOBAL}/../src"},
    ],
)  # fmt: skip
async def test_a_node_answers_for_itself_and_for_the_folders_it_was_asked_for(
    world: Worlds, changed: dict[str, Any]
) -> None:
    """Root on one node could have folders of the job's user moved on another, and name what its ranks load."""
    forged = replace(shared(249), **changed)

    class Rogue(Nodes):
        async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
            if str(kind) == "inventory" and node == "n1":
                return {"listings": [[forged.to_json()]]}
            return await super().ask(node, kind, arguments, deadline_s=deadline_s)

    case = await failed(world(), orders := Rogue(shared(100)), comment=SHARED)
    chosen = await case.choose()
    assert (chosen.get("path"), chosen.get("step")) == (f"{GLOBAL}/step-100", 100), "another node was asked"
    await case.quarantine(chosen)
    assert orders.moved == []


async def test_listings_are_read_and_compared_outside_of_the_event_loop(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be megabytes of what users made."""
    case = await failed(world(), Nodes(shared(200)), comment=SHARED)
    in_thread, seen = asyncio.to_thread, []

    async def noted(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        seen.append(work.__name__)
        return await in_thread(work, *arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    await case.choose()
    assert [name for name in seen if name in ("_parts_of", "joined_by_root", "_decide")] == [
        "_parts_of", "joined_by_root", "_decide",
    ]  # fmt: skip


async def test_nearest_is_on_the_nodes_themselves(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    case.stepped(310)
    found = await case.choose()
    assert (found["path"], found["step"], found["tier"]) == (f"{LOCAL}/step-300", 300, "local")
    assert (found["hosts"], found["last_step"], found["lost_steps"]) == ("n1,n2", 310, 10)
    assert "checkpoint-choice incident=inc1 step=300 tier=local" in case.daemon.said


async def test_no_node_is_needed_where_slurm_starts_the_job_on_none_in_particular(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    case.stepped(310)
    task = case.task()
    anywhere = replace(task, step=replace(task.step, data={"anywhere": True}))
    found = await case.checkpoints.choose(anywhere, await case.view())
    assert (found["step"], found["tier"], found["hosts"]) == (200, "global", "")


async def test_a_save_that_an_older_run_left_in_the_folder(world: Worlds) -> None:
    """At a step that this run never reached, which has saved others since: not its own."""
    old, own = shared(5000), shared(200)
    nodes = Nodes(old, own)
    case = Case(world(), nodes, comment=SHARED)
    began = (await case.view()).started_at
    assert began is not None
    began_s = began.timestamp()
    nodes.parts = (replace(old, newest_mtime_s=began_s - 86_400), replace(own, newest_mtime_s=began_s + 60))
    await case.ended()
    case.stepped(1)
    case.stepped(230)
    found = await case.choose()
    assert (found["step"], found["lost_steps"]) == (200, 30), found
    assert "of another run" in found["explanation"]


async def test_shards_of_a_lost_node_are_gone(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    found = await case.choose(LOST)
    assert (found["path"], found["tier"], found["hosts"]) == (f"{GLOBAL}/step-200", "global", "")
    assert "n2" not in {node for node, _ in case.orders.listed()}  # type: ignore[attr-defined]


async def test_lost_node_that_held_the_highest_rank_is_not_taken_for_a_smaller_job(world: Worlds) -> None:
    """What is left names ranks 0 and 1 only, and says nothing of a world size: it must not look complete."""
    parts = [replace(part, world_size=None) for part in WHOLE_LOCAL]
    case = await failed(world(), Nodes(replace(shared(200), world_size=None), *parts))
    assert (await case.choose(LOST))["tier"] == "global"


async def test_suspect_nodes_do_not_count_as_places(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    assert (await case.choose(verdict(Cause.NCCL_HANG_UNKNOWN, suspect=("n1",))))["tier"] == "global"


async def test_node_that_somebody_drained_meanwhile_is_no_home(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    case.world.slurm.person_drains("n2", "a person")
    assert (await case.choose())["tier"] == "global"


async def test_node_that_another_job_took_is_no_home(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    case.world.slurm.submit(nodes=1, required=("n2",), name="other")
    assert (await case.choose())["tier"] == "global"


async def test_local_folders_that_do_not_outlive_the_job_are_not_chosen(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL), local_survives=False)
    assert (await case.choose())["tier"] == "global"


async def test_allocation_of_the_attempt_before_may_be_asked_for_again(world: Worlds) -> None:
    """The second attempt died with n3 before it saved anything; the first one's nodes still hold its shards."""
    there = world()
    case = Case(there, Nodes(shared(200), *WHOLE_LOCAL))
    await case.daemon.fleets.take()
    this = there.slurm.jobs[there.job]
    this.restarts, this.on = 1, ("n1", "n3")
    await case.daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    found = await case.choose(verdict(Cause.NODE_FAILURE, drain=("n3",)), attempt=1)
    assert (found["tier"], found["step"], found["hosts"]) == ("local", 300, "n1,n2")


async def test_allocation_of_long_ago_is_not_asked_for(world: Worlds) -> None:
    there = world()
    case = Case(there, Nodes(shared(200), *WHOLE_LOCAL))
    await case.daemon.fleets.take()
    this = there.slurm.jobs[there.job]
    for attempt in (1, 2, 3):
        this.restarts, this.on = attempt, ("n1", "n3")
        await case.daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    found = await case.choose(verdict(Cause.NODE_FAILURE, drain=("n3",)), attempt=3)
    assert found["tier"] == "global"


async def test_numbers_that_went_bad_lead_to_before_their_onset(world: Worlds) -> None:
    parts = [shared(s, level="content") for s in (100, 200, 300)] + [shared(150)]
    case = await failed(world(), Nodes(*parts))
    found = await case.choose(verdict(Cause.GPU_MEMORY_ECC, onset_step=200))
    assert (found["step"], found["level"]) == (100, "content")
    assert {a["level"] for _, kind, a in case.orders.asked if kind == "inventory"} == {"content"}


@pytest.mark.parametrize(("valid", "level"), [(False, "checksum"), (None, "checksum"), (True, "structural")])
async def test_what_is_not_proven_is_passed_over(world: Worlds, valid: bool | None, level: str) -> None:
    case = await failed(world(), Nodes(shared(300, valid=valid, level=level), shared(200)), comment=SHARED)
    found = await case.choose()
    assert found["step"] == 200 and "passed over 1 newer" in found["explanation"]


async def test_none_that_is_whole_is_an_answer(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(300, valid=False)), comment=SHARED)
    case.stepped(310)
    found = await case.choose()
    assert "path" not in found and found["last_step"] == 310 and "none of 1 candidates" in found["explanation"]


@pytest.mark.parametrize("comment", [NEITHER, "", "{torn sentinel"])
async def test_job_that_named_no_folders_asks_nobody(world: Worlds, comment: str) -> None:
    case = await failed(world(), Nodes(shared(200)), comment=comment)
    assert "no checkpoint folders" in (await case.choose())["explanation"] and case.orders.asked == []
    assert await case.quarantine({}) == {"moved": 0}


async def test_nodes_are_told_the_job_and_no_user(world: Worlds) -> None:
    """As whom they read is their own to know: what the daemon says of it they refuse."""
    case = await failed(world(), Nodes(shared(200)), comment=SHARED)
    await case.choose()
    ((_, _, arguments),) = case.orders.asked
    assert arguments["job"] == case.world.job
    assert set(arguments) == {"job", "roots", "level", "before_step"}


async def test_what_nodes_list_is_moved_by_orders_that_they_accept(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300, valid=False)), comment=SHARED)
    await case.quarantine(await case.choose())
    orders = [{"id": "x", "kind": kind, "arguments": a, "deadline_s": 9.0} for _, kind, a in case.orders.asked]
    assert [read_order(order, "x").request.kind for order in orders] == ["inventory", "quarantine"]


def chose(case: Case, attempt: int, path: str, step_: int, **data: Scalar) -> None:
    """The store has it that this was chosen after the attempt had failed."""
    before = step(StepKind.CHOOSE_CHECKPOINT, job=case.world.job, attempt=attempt)
    of = plan(before, incident=f"old{attempt}")
    case.world.store.intend(of, before, AT)
    case.world.store.record(of, Outcome(before, Result.DONE, AT, data={"path": path, "step": step_, **data}))


async def test_path_that_the_program_could_not_read_is_not_chosen_again(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    chose(case, -1, f"{GLOBAL}/step-300", 300)
    found = await case.choose(verdict(Cause.CHECKPOINT_CORRUPT))
    assert (found["step"], found["failed_before"]) == (200, f"{GLOBAL}/step-300@300")
    assert (await case.choose(NOBODY))["step"] == 300  # a fault of a GPU is not the checkpoint's
    case.stepped(301)  # that attempt did resume from it
    assert (await case.choose(verdict(Cause.CHECKPOINT_CORRUPT)))["step"] == 300


async def test_only_what_the_failed_attempt_was_to_read_is_left_out(world: Worlds) -> None:
    """An attempt before it ended for another reason, without a step as well."""
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    chose(case, -2, f"{GLOBAL}/step-300", 300)
    chose(case, -1, f"{GLOBAL}/step-200", 200)
    assert (await case.choose(verdict(Cause.CHECKPOINT_CORRUPT)))["step"] == 300


async def test_what_was_left_out_stays_so_until_a_step_is_gained(world: Worlds) -> None:
    """It could not be moved aside, and the one before cannot be read either."""
    case = await failed(world(), Nodes(shared(100), shared(200), shared(300)), comment=SHARED)
    chose(case, -2, f"{GLOBAL}/step-300", 300)
    chose(case, -1, f"{GLOBAL}/step-200", 200, failed_before=f"{GLOBAL}/step-300@300")
    assert (await case.choose(verdict(Cause.CHECKPOINT_CORRUPT)))["step"] == 100


@pytest.mark.parametrize(("times", "chosen"), [(1, 300), (2, 200)])
async def test_one_attempt_without_a_step_leaves_nothing_out(world: Worlds, times: int, chosen: int) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    told = evidence(
        Kind.NOT_RESUMED, source=Source.CHECKPOINT, job=case.world.job, attempt=0, text="attempts 0 and 1, found valid",
        data={"path": f"{GLOBAL}/step-300", "step": 300, "times": times},
    )  # fmt: skip
    task = case.task(verdict(Cause.UNKNOWN))
    task = replace(task, incident=replace(task.incident, evidence=(told,)))
    found = await case.checkpoints.choose(task, await case.view())
    assert (found["step"], found["failed_before"]) == (chosen, f"{GLOBAL}/step-300@300")
    moved = await case.quarantine(found)
    assert case.orders.moved == ([("n1", [f"{GLOBAL}/step-300"])] if times == 2 else [])  # type: ignore[attr-defined]
    if times == 2:
        assert "attempts 0 and 1, found valid" in str(found["explanation"])
        command = f"`sentinel checkpoints quarantine {GLOBAL} {GLOBAL}/step-300 --undo`"
        assert f"1 of them were found valid: {command} brings back what it names" in moved["explanation"]


async def test_a_local_checkpoint_is_left_out_on_all_nodes(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    chose(case, -1, f"{LOCAL}/step-300", 300)
    assert (await case.choose(verdict(Cause.CHECKPOINT_CORRUPT)))["step"] == 200
