"""The choice over what nodes list: shards that were lost with a node, nodes that do not answer, and what is moved aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from in_memory.checkpoints import (
    BOTH,
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
    local,
    shared,
)
from in_memory.daemon import FakeOrders
from in_memory.watch import Seconds
from in_memory.world import World
from made_records import AT, evidence, incident, plan, step, verdict

from sentinel.actions.means import Task
from sentinel.checkpoints.records import Part
from sentinel.daemon.effects import checkpoints
from sentinel.errors import Refused, Unavailable
from sentinel.model.orders import read_order
from sentinel.model.records import Cause, Kind, Outcome, Result, Scalar, Source, StepKind

Worlds = Callable[..., World]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(checkpoints, "time", made)
    return made


# --- choosing ------------------------------------------------------------------------------------------------------------


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
        assert f"`sentinel checkpoints quarantine {GLOBAL} --undo` brings them back" in moved["explanation"]


async def test_a_local_checkpoint_is_left_out_on_all_nodes(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL))
    chose(case, -1, f"{LOCAL}/step-300", 300)
    assert (await case.choose(verdict(Cause.CHECKPOINT_CORRUPT)))["step"] == 200


# --- nodes that do not answer ----------------------------------------------------------------------------------------------


async def test_shards_on_a_node_that_does_not_answer_are_not_known(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), *WHOLE_LOCAL, silent=("n2",)))
    found = await case.choose()
    assert found["tier"] == "global" and "n2 did not answer" in found["explanation"]


async def test_shared_folders_are_listed_by_the_next_that_answers(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), silent=("n1", "n2")), comment=SHARED)
    assert (await case.choose())["step"] == 200
    assert case.orders.listed() == [("n1", "global"), ("n2", "global"), ("n3", "global")]  # type: ignore[attr-defined]


def unread(host: str, why: str) -> Part:
    """As a node lists a folder that it cannot read."""
    return replace(
        shared(0), host=host, path=GLOBAL, key=".", step=None, format="", valid=None, reason=f"cannot be read ({why})"
    )


class Unmounted(Nodes):
    """On these nodes the shared folder cannot be read."""

    def __init__(self, *parts: Part, nodes: tuple[str, ...], why: str) -> None:
        super().__init__(*parts)
        self.nodes, self.why = nodes, why

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        found = await super().ask(node, kind, arguments, deadline_s=deadline_s)
        roots = arguments["roots"]
        assert isinstance(roots, list)
        if node in self.nodes and roots[0]["tier"] == "global":
            return {"listings": [[unread(node, self.why).to_json()]]}
        return found


@pytest.mark.parametrize("why", ["Stale file handle", "No such file or directory", "Permission denied"])
async def test_a_shared_folder_that_one_node_cannot_read_is_listed_by_another(world: Worlds, why: str) -> None:
    """Its mount may be what the job failed of."""
    case = await failed(world(), Unmounted(shared(200), nodes=("n1", "n2"), why=why), comment=SHARED)
    assert (await case.choose())["step"] == 200


@pytest.mark.parametrize("saved", [True, False])
async def test_a_shared_folder_that_no_node_can_read_is_waited_for_once_the_job_has_saved(
    world: Worlds, seconds: Seconds, saved: bool
) -> None:
    why = "No such file or directory"
    case = await failed(world(), Unmounted(nodes=("n1", "n2", "n3", "n4"), why=why), comment=SHARED)
    if saved:
        save = evidence(
            Kind.CHECKPOINT_SAVED, source=Source.PROGRESS, job=case.world.job, attempt=0, data={"step": 200}
        )
        case.world.store.append([save])  # by a daemon that has been restarted since
        with pytest.raises(Unavailable, match="No such file"):
            await case.choose()
        seconds.now_s += 600.0
    found = await case.choose()
    assert "path" not in found and found["explanation"].startswith("not checked") is saved, found


async def test_a_folder_that_cannot_be_read_is_waited_for_whatever_is_known_of_saves(world: Worlds) -> None:
    """Only one that does not exist may be one that the job has yet to make."""
    case = await failed(world(), Unmounted(nodes=("n1", "n2", "n3", "n4"), why="Stale file handle"), comment=SHARED)
    with pytest.raises(Unavailable, match="Stale file handle"):
        await case.choose()


@pytest.mark.parametrize("tier", ["global", "local"])
async def test_an_empty_shared_folder_is_waited_for_where_saves_were_seen_in_it(
    world: Worlds, seconds: Seconds, tier: str
) -> None:
    """So looks the place where a file system is mounted, without it."""
    case = await failed(world(), Nodes(), comment=SHARED)
    data: dict[str, Scalar] = {"step": 200, "tier": tier}
    case.world.store.append(
        [evidence(Kind.CHECKPOINT_SAVED, source=Source.CHECKPOINT, job=case.world.job, attempt=0, data=data)]
    )
    if tier == "global":
        with pytest.raises(Unavailable, match="saves were seen in /shared/run, and nothing is there now"):
            await case.choose()
        seconds.now_s += 600.0
    found = await case.choose()
    assert "path" not in found and bool(found.get("by_script")) is (tier == "global"), found


def of_run(run: str, step_: int) -> Part:
    return replace(shared(step_), path=f"{GLOBAL}/{run}/step-{step_}", key=f"{run}/step-{step_}")


@pytest.mark.parametrize("root", [GLOBAL, f"{GLOBAL}/ahead"])
async def test_a_job_does_not_go_on_from_the_checkpoint_of_another_job_in_its_folder(world: Worlds, root: str) -> None:
    """Two runs below one folder, or two tasks of an array, which have one comment."""
    case = await failed(world(), orders := Nodes(of_run("ahead", 170), of_run("behind", 10)), comment=SHARED)
    case.stepped(15)
    comment = json.dumps({"sentinel": {"restart": True, "global": [root]}})
    other = case.world.slurm.submit(nodes=1, comment=comment)
    chosen = await case.choose()
    if root == GLOBAL:
        assert "path" not in chosen and chosen["by_script"]
        assert f"job {other} names /shared/run, too, and which of the runs below is this" in chosen["explanation"]
    else:
        assert chosen["path"] == f"{GLOBAL}/behind/step-10"
    await case.quarantine(chosen)
    assert orders.moved == []


async def test_components_of_a_heterogeneous_job_that_save_in_one_folder_get_one_choice(world: Worlds) -> None:
    """Its own node-local save would be nearer for the one whose nodes are all there."""
    there = world(nodes=6)
    orders = Nodes(shared(200), local("n1", 300, 0, 1), local("n2", 300, 2, 3))
    case = Case(there, orders, comment=BOTH)
    part = there.slurm.submit(nodes=1, comment=BOTH, het=there.job)
    there.slurm.jobs[there.job].record["het_job_id"] = there.job
    case.stepped(310)
    await case.ended()
    steps = [step(StepKind.CHOOSE_CHECKPOINT, job=number, attempt=0) for number in (part, there.job)]
    made = plan(*steps)
    jobs = (await case.daemon.fleets.take()).jobs
    found = []
    for this in steps:
        task = Task(incident(job=there.job, attempt=0), NOBODY, made, this)
        assert this.job is not None
        chosen = dict(await case.checkpoints.choose(task, jobs[this.job]))
        there.store.intend(made, this, there.slurm.clock.now())
        there.store.record(made, Outcome(this, Result.DONE, there.slurm.clock.now(), data=chosen))
        orders.parts = (*orders.parts, shared(250))  # what comes later is for neither
        found.append((chosen["step"], chosen["tier"]))
    assert found == [(200, "global"), (200, "global")]


async def test_tasks_of_an_array_name_folders_of_their_own_by_their_ids(world: Worlds) -> None:
    comment = json.dumps({"sentinel": {"restart": True, "global": ["/shared/%j"]}})
    case = Case(world(), orders := Nodes(), comment=comment)
    root = f"/shared/{case.world.job}"
    orders.parts = (replace(shared(100), root=root, path=f"{root}/step-100"),)
    await case.ended()
    case.world.slurm.submit(nodes=1, comment=comment)
    assert (await case.choose())["path"] == f"{root}/step-100"


async def test_jobs_that_work_on_one_run_share_its_checkpoints(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(100), shared(200)), comment=SHARED)
    case.world.slurm.submit(nodes=1, comment=SHARED)
    assert (await case.choose())["step"] == 200


@pytest.mark.parametrize("root", [GLOBAL, "/shared"])
@pytest.mark.parametrize("over", [False, True], ids=["at work", "over"])
async def test_a_job_that_has_not_saved_yet_does_not_go_on_from_another_ones_checkpoint(
    world: Worlds, root: str, over: bool
) -> None:
    case = await failed(world(), orders := Nodes(of_run("ahead", 180)), comment=SHARED)
    comment = json.dumps({"sentinel": {"restart": True, "global": [root]}})
    other = case.world.slurm.submit(nodes=1, comment=comment)
    if over:
        case.world.slurm.end(other, exit_code=0)
    chosen = await case.choose()
    assert "path" not in chosen and chosen["by_script"], chosen
    await case.quarantine({"path": f"{GLOBAL}/behind/step-10", "step": 10})
    assert orders.moved == []


@pytest.mark.parametrize(("root", "moved"), [(GLOBAL, 0), ("/shared", 1), (f"{GLOBAL}/step-300", 0)])
async def test_what_another_job_of_the_user_may_be_saving_is_not_moved(world: Worlds, root: str, moved: int) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    comment = json.dumps({"sentinel": {"restart": True, "global": [root]}})
    other = case.world.slurm.submit(nodes=1, comment=comment)
    found = await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200})
    assert found["moved"] == moved
    assert (f"nothing was moved in {root}: job {other} names it, too" in found["explanation"]) is not bool(moved)


async def test_a_folder_of_another_job_that_is_itself_a_save_is_not_chosen(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    case.world.slurm.submit(nodes=1, comment=json.dumps({"sentinel": {"global": [f"{GLOBAL}/step-300"]}}))
    assert (await case.choose())["step"] == 200


async def test_a_job_that_was_cancelled_in_the_queue_has_saved_nothing(world: Worlds) -> None:
    case = await failed(world(), Nodes(of_run("version_0", 170)), comment=SHARED)
    case.world.slurm.cancel(case.world.slurm.submit(nodes=1, comment=SHARED, held=True))
    assert (await case.choose())["step"] == 170


async def test_of_two_folders_of_a_job_the_inner_one_is_its_own(world: Worlds) -> None:
    inner = f"{GLOBAL}/ckpt"
    comment = json.dumps({"sentinel": {"restart": True, "global": [GLOBAL, inner]}})
    save = replace(shared(200), root=inner, path=f"{inner}/step-200", key="step-200")
    torn = replace(shared(300), root=inner, path=f"{inner}/step-300", key="step-300", valid=False)
    case = await failed(world(), Nodes(save, torn), comment=comment)
    above = json.dumps({"sentinel": {"restart": True, "global": ["/shared"]}})
    case.world.slurm.end(case.world.slurm.submit(nodes=1, comment=above), exit_code=0)
    assert (await case.choose())["step"] == 200
    assert (await case.quarantine({"path": save.path, "step": 200}))["moved"] == 1


async def test_a_run_that_is_over_leaves_its_next_job_the_torn_saves_to_move(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    case.world.slurm.end(case.world.slurm.submit(nodes=1, comment=SHARED), exit_code=0)
    assert (await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200}))["moved"] == 1


async def test_a_folder_that_an_earlier_restart_emptied_is_not_waited_for(world: Worlds) -> None:
    case = await failed(world(), Nodes(), comment=SHARED)
    data: dict[str, Scalar] = {"step": 200, "tier": "global"}
    case.world.store.append(
        [evidence(Kind.CHECKPOINT_SAVED, source=Source.CHECKPOINT, job=case.world.job, attempt=0, data=data)]
    )
    aside = step(StepKind.QUARANTINE, job=case.world.job, attempt=0)
    case.world.store.intend(plan(aside), aside, case.world.slurm.clock.now())
    case.world.store.record(plan(aside), Outcome(aside, Result.DONE, case.world.slurm.clock.now(), data={"moved": 1}))
    assert (await case.choose(attempt=0))["explanation"].startswith("there is no checkpoint")
    case.world.store.append(
        [evidence(Kind.CHECKPOINT_SAVED, source=Source.CHECKPOINT, job=case.world.job, attempt=1, data=data)]
    )
    with pytest.raises(Unavailable, match="nothing is there now"):
        await case.choose(attempt=0)


async def test_a_save_in_a_folder_of_nodes_says_nothing_of_one_that_was_never_made(world: Worlds) -> None:
    case = await failed(
        world(), Unmounted(nodes=("n1", "n2", "n3", "n4"), why="No such file or directory"), comment=SHARED
    )
    data: dict[str, Scalar] = {"step": 200, "tier": "local"}
    case.world.store.append(
        [evidence(Kind.CHECKPOINT_SAVED, source=Source.CHECKPOINT, job=case.world.job, attempt=0, data=data)]
    )
    assert "path" not in await case.choose()


async def test_a_listing_that_leaves_old_saves_out_is_a_listing(world: Worlds) -> None:
    left_out = replace(unread("n1", ""), reason="4 older checkpoints under this root were not looked at (limit 60)")
    case = await failed(world(), Nodes(shared(200), left_out), comment=SHARED)
    assert (await case.choose())["step"] == 200
    assert case.orders.listed() == [("n1", "global")]  # type: ignore[attr-defined]


async def test_three_nodes_are_asked_and_no_more(world: Worlds, seconds: Seconds) -> None:
    case = await failed(world(), Nodes(shared(200), silent=("n1", "n2", "n3")), comment=SHARED, storage_s=600.0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no node could list"):
            await case.choose()
        seconds.now_s += 599.0
    assert "n4" not in {node for node, _ in case.orders.listed()}  # type: ignore[attr-defined]


async def test_frozen_storage_is_waited_for_and_then_the_job_resumes_by_itself(world: Worlds, seconds: Seconds) -> None:
    case = await failed(world(), FakeOrders(), storage_s=600.0)
    with pytest.raises(Unavailable):
        await case.choose()
    seconds.now_s += 600.0
    found = await case.choose()
    assert "path" not in found and found["explanation"].startswith("not checked, the job resumes as its script does")


@pytest.mark.parametrize("answer", ["torn", {}, {"listings": "torn"}, {"listings": [[{"host": 7}]]}, {"listings": [7]}])
async def test_torn_listing_is_no_listing(world: Worlds, seconds: Seconds, answer: object) -> None:
    orders = FakeOrders({(f"n{i}", "inventory"): answer for i in range(1, 5)})
    case = await failed(world(), orders, comment=SHARED)
    with pytest.raises(Unavailable, match="no node could list"):
        await case.choose()


async def test_slurm_that_does_not_answer_is_waited_for(world: Worlds, seconds: Seconds) -> None:
    case = await failed(world(), Nodes(shared(200)))
    view = await case.view()
    case.world.slurm.answers = False
    case.daemon.fleets._taken_s = float("-inf")
    with pytest.raises(Unavailable):
        await case.checkpoints.choose(case.task(), view)


# --- moving aside ----------------------------------------------------------------------------------------------------


async def test_newer_and_broken_ones_are_moved_where_they_lie(world: Worlds) -> None:
    orders = Nodes(
        shared(100, valid=False), shared(200), shared(250, valid=None), shared(300), local("n1", 150, 0, 1),
        local("n1", 300, 0, 1), local("n2", 300, 2, 3), local("n2", 120, 2, 3, valid=False),
    )  # fmt: skip
    case = await failed(world(), orders)
    await case.choose()
    found = await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200})
    moved = {(node, path) for node, paths in orders.moved for path in paths}
    assert {path for _, path in moved if path.startswith(GLOBAL)} == {f"{GLOBAL}/step-{s}" for s in (100, 250, 300)}
    assert {(node, path) for node, path in moved if path.startswith("/nvme")} == {
        ("n1", "/nvme/n1/run/step-300"), ("n2", "/nvme/n2/run/step-300"), ("n2", "/nvme/n2/run/step-120"),
    }  # fmt: skip
    assert found["moved"] == 6 and found["explanation"].startswith("quarantined 6: ")


async def test_chosen_one_and_older_sound_ones_stay(world: Worlds) -> None:
    orders = Nodes(shared(100), shared(200), *WHOLE_LOCAL)
    case = await failed(world(), orders)
    chosen = await case.choose()
    assert chosen["step"] == 300
    assert await case.quarantine(chosen) == {"moved": 0} and orders.moved == []


async def test_a_torn_save_that_no_longer_states_its_step_is_moved_by_its_number(world: Worlds) -> None:
    saves = [replace(shared(number), path=f"{GLOBAL}/ckpt_{number}.pt", key=f"ckpt_{number}.pt") for number in (20, 30)]
    torn = replace(shared(40, valid=None), path=f"{GLOBAL}/ckpt_40.pt", key="ckpt_40.pt", step=None, number=40)
    case = await failed(world(), nodes := Nodes(*saves, torn), comment=SHARED)
    assert (chosen := await case.choose())["step"] == 30
    assert (await case.quarantine(chosen))["moved"] == 1
    assert nodes.moved == [("n1", [torn.path])]


async def test_of_an_attempt_that_is_over_nothing_is_being_written(world: Worlds) -> None:
    """It is all that there is: its script would take it again."""
    torn = replace(shared(40, valid=None), reason="changed less than 120 s ago", unfinished="no end record")
    case = await failed(world(), nodes := Nodes(torn), comment=SHARED)
    chosen = await case.choose()
    assert "invalid: no end record" in chosen["explanation"]
    await case.quarantine(chosen)
    assert nodes.moved == [("n1", [torn.path])]


async def test_what_becomes_of_links_is_told(world: Worlds) -> None:
    class Linked(Nodes):
        async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
            made = await super().ask(node, kind, arguments, deadline_s=deadline_s)
            if str(kind) != "quarantine":
                return made
            assert arguments["chosen"] == f"{GLOBAL}/step-200"
            return {"moved": [], "links": [[f"{GLOBAL}/latest", "step-200"], [f"{GLOBAL}/best", ""], "nonsense"]}

    case = await failed(world(), Linked(shared(200), shared(300, valid=False)), comment=SHARED)
    told = (await case.quarantine(await case.choose()))["explanation"]
    assert f"the link {GLOBAL}/latest now names step-200" in told and f"the link {GLOBAL}/best was moved, too" in told


async def test_without_a_choice_only_broken_ones_are_moved(world: Worlds) -> None:
    """After a restart of the daemon nothing is remembered of what was seen: it is looked at again."""
    orders = Nodes(shared(200), shared(300, valid=False))
    case = await failed(world(), orders, comment=SHARED)
    assert (await case.quarantine({}))["moved"] == 1
    assert orders.moved == [("n1", [f"{GLOBAL}/step-300"])]


async def test_move_that_fails_is_tried_again_and_then_given_up(world: Worlds, seconds: Seconds) -> None:
    orders = Nodes(shared(200), shared(300, valid=False))
    case = await failed(world(), orders, comment=SHARED, quarantine_s=60.0)
    orders.stuck = {"n1"}
    with pytest.raises(Unavailable, match="not moved: the agent of n1"):
        await case.quarantine({"step": 200})
    seconds.now_s += 59.0
    with pytest.raises(Unavailable):
        await case.quarantine({"step": 200})
    seconds.now_s += 1.0
    with pytest.raises(Refused, match="not moved after 60 s"):
        await case.quarantine({"step": 200})


async def test_what_was_seen_for_old_incidents_is_forgotten(world: Worlds, seconds: Seconds) -> None:
    case = await failed(world(), Nodes(shared(200)), comment=SHARED)
    view = await case.view()
    for number in range(200):
        task = case.task()
        await case.checkpoints.choose(replace(task, incident=replace(task.incident, id=f"inc{number}")), view)
    assert len(case.checkpoints._seen) <= 64
