"""Nodes and folders that do not answer, and a shared folder that is empty or frozen: not known, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from in_memory.checkpoints import (
    GLOBAL,
    SHARED,
    WHOLE_LOCAL,
    Nodes,
    failed,
    shared,
)
from in_memory.daemon import FakeOrders
from in_memory.watch import Seconds
from in_memory.world import World
from made_records import evidence, plan, step

from sentinel.checkpoints.records import Part
from sentinel.errors import Unavailable
from sentinel.model.records import Kind, Outcome, Result, Scalar, Source, StepKind

Worlds = Callable[..., World]


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
