"""Where nodes are and for whom they are kept, as a real Slurm tells and lets us change it: topology.conf, reservations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from servers.slurm_cluster import Cluster, missing

from sentinel.adapters.slurm.commands import CommandReader, CommandWriter
from sentinel.config.settings import Limits
from sentinel.errors import Refused
from sentinel.model.records import JobView
from sentinel.model.spares import Spares
from sentinel.model.topology import leaf_of
from sentinel.policy.drains import switches

pytestmark = [pytest.mark.slurm]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if missing():
        pytest.skip(f"needs slurm: {missing()}")
    made = Cluster(6, extra="TopologyPlugin=topology/tree")
    (made.folder / "topology.conf").write_text(
        "SwitchName=leaf1 Nodes=n[1-3]\nSwitchName=leaf2 Nodes=n[4-6]\nSwitchName=spine Switches=leaf[1-2]\n"
    )
    with made:
        yield made


@pytest.fixture
def ports(cluster: Cluster) -> tuple[CommandReader, CommandWriter]:
    settings = {"SLURM_CONF": str(cluster.conf)}
    return CommandReader(environment=settings, deadline_s=60.0), CommandWriter(environment=settings, deadline_s=60.0)


async def test_each_node_is_counted_at_the_switch_of_topology_conf(ports: tuple[CommandReader, CommandWriter]) -> None:
    fleet = await ports[0].fleet()
    assert {name: leaf_of(node.topology) for name, node in fleet.nodes.items()} == {
        **dict.fromkeys(("n1", "n2", "n3"), "leaf1"),
        **dict.fromkeys(("n4", "n5", "n6"), "leaf2"),
    }
    found = switches({"n1", "n3", "n6"}, fleet)
    assert {name.rpartition(".")[2].rpartition(":")[2]: set(nodes) for name, nodes in found.items()} == {
        "leaf1": {"n1", "n3"},
        "leaf2": {"n6"},
    }
    assert Limits().drain_per_switch > 0


async def test_a_waiting_job_is_lent_nodes_of_a_reservation_until_it_runs(
    cluster: Cluster, ports: tuple[CommandReader, CommandWriter]
) -> None:
    reader, writer = ports
    assert await reader.spares("spares") is None
    cluster.command(
        "scontrol", "create", "reservation", "ReservationName=spares", "StartTime=now", "Duration=UNLIMITED",
        "NodeCnt=2", "PartitionName=train", "Users=root", "Flags=FLEX,REPLACE,IGNORE_JOBS",
    )  # fmt: skip
    try:
        kept = await reader.spares("spares")
        assert kept is not None and len(kept.nodes) == 2 and kept.users == ("root",)
        user = ("--uid=daemon", "--gid=daemon", "--chdir=/", "--output=/dev/null")
        job = cluster.submit("sleep 600", "--nodes=5", "--exclusive", *user)
        await _refused(cluster, job)
        view = await reader.job(job)
        assert view is not None and view.state == "pending" and view.reservation == ""  # 4 nodes are left for it
        for _ in range(2):  # a repeated call finds its effect in place
            await writer.give_access("spares", "daemon")
            await writer.update_job(job, excluded=[], reservation="spares")
        found = await _until(reader, job, "running")
        assert found.reservation == "spares" and len({*found.nodes} & {*kept.nodes}) >= 1
        await writer.end_loan(job, "spares")
        await writer.end_loan(job, "spares")
        await writer.end_access("spares", "daemon")
        await writer.end_access("spares", "daemon")
        after = await reader.job(job)
        assert after is not None and after.reservation == "" and after.nodes == found.nodes
        assert (await reader.spares("spares") or Spares("")).users == ("root",)
        with pytest.raises(Refused, match="users of reservation nosuch"):
            await writer.give_access("nosuch", "daemon")
    finally:
        cluster.command("scancel", "--user=daemon")
        cluster.command("scontrol", "delete", "ReservationName=spares", check=False)


async def _until(reader: CommandReader, job: int, state: str) -> JobView:
    for _ in range(120):
        view = await reader.job(job)
        if view is not None and view.state == state:
            return view
        await asyncio.sleep(0.5)
    raise AssertionError(f"job {job} is not {state}: {view}")


async def _refused(cluster: Cluster, job: int) -> None:
    """Wait until the scheduler has tried the job: it gives a reason that is not the one of a job not looked at yet."""
    for _ in range(120):
        reason = cluster.command("squeue", "-h", "-j", str(job), "-o", "%r").strip()
        if reason not in {"", "None"}:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"the scheduler has not looked at job {job}")
