"""Folders in which several jobs save: whose checkpoint may be chosen or moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from counted_calls import within_calls
from in_memory.checkpoints import (
    BOTH,
    GLOBAL,
    NOBODY,
    SHARED,
    Case,
    Nodes,
    failed,
    local,
    shared,
)
from in_memory.world import World
from made_records import incident, plan, step

from sentinel.actions.means import Task
from sentinel.checkpoints.records import Part
from sentinel.daemon.effects.other_runs import folders_of_others, may_be_anothers
from sentinel.model.intent import intent_of
from sentinel.model.records import Outcome, Result, StepKind

Worlds = Callable[..., World]


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


async def test_many_jobs_that_name_many_folders_cost_the_daemon_little(world: Worlds) -> None:
    """The comments are one user's, and the choice is made in the daemon's event loop."""
    case = await failed(world(), Nodes(shared(100)), comment=SHARED)
    fleet = await case.daemon.fleets.take()
    this = fleet.jobs[case.world.job]
    comments = [json.dumps({"sentinel": {"global": [f"/of/{n}/{m}" for m in range(50)]}}) for n in range(200)]
    jobs = {n: replace(this, id=n, comment=comment) for n, comment in enumerate(comments, 10_000)}
    others = folders_of_others(replace(fleet, jobs=jobs), this)
    intent = intent_of(this.comment)

    def look() -> None:
        for number in range(200):
            assert may_be_anothers(f"{GLOBAL}/step-{number}", others, intent) is None

    assert within_calls(50_000, look)


async def test_a_job_at_work_counts_beside_others_that_are_over_and_name_the_same_folder(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200), shared(300)), comment=SHARED)
    case.world.slurm.end(case.world.slurm.submit(nodes=1, comment=SHARED), exit_code=0)
    at_work = case.world.slurm.submit(nodes=1, comment=SHARED)
    found = await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200})
    assert found["moved"] == 0 and f"job {at_work} names it, too" in found["explanation"]
