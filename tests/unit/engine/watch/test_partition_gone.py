"""A partition that is taken out of slurm.conf, or renamed: Slurm ends its jobs as it does when a node failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from in_memory.daemon import Daemon, FakeSink, fail, silent, states
from in_memory.world import World
from made_records import AT, evidence, fleet, job, node

from sentinel.detect.job_end import partition_gone
from sentinel.engine.watch.reconciliation import ended
from sentinel.model.records import Cause, Source, Unread
from sentinel.simulate.slurm.records import SimulatedNode

Worlds = Callable[..., World]
SAID = (
    "slurmstepd: error: *** JOB 101 ON n1 CANCELLED AT 2026-03-01T12:00:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
)


async def partition_ends(there: World, daemon: Daemon, nodes: Sequence[SimulatedNode]) -> None:
    """The partition leaves ``nodes``, and its job ends, with what its log and Slurm say of it."""
    await daemon.fleets.take()
    for one in nodes:
        one.partitions = ("debug",)
    there.slurm.end(there.job, exit_signal=1, state="NODE_FAIL")
    await daemon.fleets.take()
    end = ended(daemon.state, daemon.live.fleet.jobs[there.job], there.slurm.clock.now())  # type: ignore[union-attr]
    at_s = (there.slurm.clock.now() - AT).total_seconds()
    where = {"source": Source.JOB_LOG, "job": there.job, "attempt": 0, "node": "n1"}
    line = evidence("due-node-failure", text=SAID, at_s=at_s, **where)
    await fail(daemon, end, dataclasses.replace(line, rule="due-node-failure"))


async def test_a_job_whose_partition_is_gone_accuses_no_node_and_is_told_to_its_owner(world: Worlds) -> None:
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    await partition_ends(there, daemon, [*there.slurm.nodes.values()])
    (verdict,), (plan,) = daemon.state.verdicts.values(), daemon.state.plans.values()
    assert verdict.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT and not verdict.suspect and not verdict.culprits.nodes
    assert plan.steps == () and states(there) == ["closed"]
    assert not any(node.drained or node.down for node in there.slurm.nodes.values())
    (told,) = sink.all
    words = str(told.data["owner_text"])
    assert "partition train is gone" in words and "no node is to blame" in words and "submit it again" in words


@pytest.mark.parametrize("left", ["n4", "n1"], ids=["another node", "its own"])
async def test_a_partition_that_has_nodes_is_not_gone(world: Worlds, left: str) -> None:
    there = silent(world())
    daemon = Daemon(there)
    await partition_ends(there, daemon, [node for name, node in there.slurm.nodes.items() if name != left])
    assert daemon.state.verdicts[next(iter(daemon.state.plans))].cause is Cause.NODE_FAILURE


@pytest.mark.parametrize("unread", [True, False], ids=["not readable", "down"])
async def test_a_node_that_may_be_out_may_be_why(world: Worlds, unread: bool) -> None:
    there = silent(world())
    daemon = Daemon(there)
    if unread:
        there.slurm.unreadable.add("n4")
    else:
        there.slurm.nodes["n2"].down = True
    await partition_ends(there, daemon, [*there.slurm.nodes.values()])
    assert daemon.state.verdicts[next(iter(daemon.state.plans))].cause is Cause.NODE_FAILURE


@pytest.mark.parametrize("reason", ["PartitionDown", "NodeDown"])
def test_slurms_reason_tells_from_26_05_on_although_nodes_cannot_be_read(reason: str) -> None:
    told = dataclasses.replace(job(7, nodes=["n1"], state="node_fail"), reason=reason)
    seen = dataclasses.replace(fleet([node("n1"), node("n2")], []), unread=(Unread("node", "n3", "spoiled"),))
    assert partition_gone(told, ("n1",), seen) == ("train" if reason == "PartitionDown" else "")


def test_nodes_of_which_no_partition_is_told_say_of_none_that_it_is_gone() -> None:
    told = job(7, nodes=["n1"], state="node_fail")
    nodes = [dataclasses.replace(node(name), partitions=()) for name in ("n1", "n2")]
    assert partition_gone(told, ("n1",), fleet(nodes, [])) == ""
    other = dataclasses.replace(nodes[1], partitions=("debug",))
    assert partition_gone(told, ("n1",), fleet([nodes[0], other], [])) == "train"
