"""Faults of whole nodes, and of many at once."""

from __future__ import annotations

import argparse
import signal
import time

from lab import gpus, netns, processes, sentinel_config, services, slurm, storage
from lab.faults.base import Fault, Options, Record, add_node, ask, newest_job, ranks_of
from lab.layout import Lab, LabError
from lab.processes import Process


def on_node(lab: Lab, name: str) -> list[Process]:
    """Everything that runs on a node, except what holds its namespaces."""
    holder = processes.known(lab, f"ns-{name}")
    services_of = [processes.known(lab, f"{service}-{name}") for service in ("slurmd", "agent")]
    found = {process.pid: process for process in services_of if process is not None}
    folder = lab.node(name)

    def wanted(pid: int) -> bool:
        return processes.is_task_of(lab, processes.environ_of(pid), name) or processes.is_daemon_of(pid, folder)

    found |= {process.pid: process for process in processes.find(wanted)}
    if holder is not None:
        found.pop(holder.pid, None)
    return list(found.values())


def node_crash(lab: Lab, options: Options) -> list[Record]:
    """Power off. First everything is frozen, so that nothing on the node can still say a word; then it is killed."""
    name = options.node
    lab.index(name)
    if lab.spec.isolated:
        netns.cable(lab, name, up=False)  # a node without power sends no FIN either
    victims = on_node(lab, name)
    for process in victims:
        process.send(signal.SIGSTOP)
    for process in victims + on_node(lab, name):
        process.send(signal.SIGKILL)
    gone = None
    if options.disk == "gone":
        gone = lab.dir / "gone" / f"{name}-{int(time.time())}"
        gone.parent.mkdir(exist_ok=True)
        nvme = lab.node(name) / "nvme"
        storage.unmount_all(nvme)  # where disk-full put a small one in its place
        mode = nvme.stat().st_mode
        nvme.rename(gone)
        nvme.mkdir()
        nvme.chmod(mode)
    return [NODE_CRASH.record(node=name, killed=len(victims), nvme_moved_to=str(gone) if gone else None)]


def crash_arguments(parser: argparse.ArgumentParser) -> None:
    add_node(parser)
    parser.add_argument("--disk", choices=("gone", "kept"), default="gone", help="is the node's disk gone with it")


def boot(lab: Lab, record: Record) -> str:
    """The node comes back with an empty disk and healthy GPUs, as after a repair."""
    name = record["node"]
    gpus.heal(lab, name)
    if lab.spec.isolated:
        netns.cable(lab, name, up=True)
    slurm.start_slurmd(lab, name)
    if lab.spec.sentinel and "agent" in sentinel_config.SERVICES:
        services.start_agent(lab, name)
    return f"{name} is booted"


def node_cut(lab: Lab, options: Options) -> list[Record]:
    lab.index(options.node)
    netns.cable(lab, options.node, up=False)
    return [NODE_CUT.record(node=options.node)]


def plug_in(lab: Lab, record: Record) -> str:
    netns.cable(lab, record["node"], up=True)
    return f"{record['node']} is connected again"


def agent_cut(lab: Lab, options: Options) -> list[Record]:
    lab.index(options.node)
    netns.agent_cut(lab, options.node, off=True)
    return [AGENT_CUT.record(node=options.node)]


def agent_reaches(lab: Lab, record: Record) -> str:
    netns.agent_cut(lab, record["node"], off=False)
    return f"the daemon hears {record['node']} again"


def fabric(lab: Lab, options: Options) -> list[Record]:
    """A leaf switch goes: every NIC behind it loses its link, and ranks there fail in their collectives."""
    names = options.nodes.split(",") if options.nodes else lab.names
    for name in names:
        lab.index(name)
    said = links(lab, names, "down")
    job = None
    try:
        job = newest_job(lab, options.job)
    except LabError:
        hit = []  # no job runs: the links are down all the same
    else:
        hit = [rank for rank in ranks_of(lab, job) if rank.node in names]
    record = FABRIC.record(node=",".join(names), job=job, rank=[rank.rank for rank in hit], kmsg=said)
    if job is not None and hit:
        wanted = [rank.rank for rank in hit]
        ask(lab, job, {"id": record["id"], "kind": "fabric", "ranks": wanted, "attempt": hit[0].attempt})
    return [record]


def fabric_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", help="n1,n2,... (default: all)")
    parser.add_argument("--job", type=int, help="job whose ranks there fail (default: the newest that runs)")


def links(lab: Lab, names: list[str], state: str) -> list[str]:
    """The driver's line for both ports of every node."""
    return [
        gpus.kernel_line(lab, name, f"mlx5_core 0000:{slot}:00.0 ib{port}: Link {state}", level=6)
        for name in names
        for port, slot in enumerate(("1a", "3c"))
    ]


def links_up(lab: Lab, record: Record) -> str:
    links(lab, record["node"].split(","), "up")
    return "links are up again"


NODE_CRASH = Fault(
    "node-crash", "a node without power: all its processes die, its disk is gone", node_crash, boot, crash_arguments
)
NODE_CUT = Fault("node-cut", "a node without network (needs lab up --isolated)", node_cut, plug_in, add_node)
AGENT_CUT = Fault(
    "agent-cut",
    "the daemon hears nothing of a healthy node (needs lab up --isolated)",
    agent_cut,
    agent_reaches,
    add_node,
)
FABRIC = Fault("fabric", "many nodes lose their fabric links at once", fabric, links_up, fabric_arguments)
FAULTS = (NODE_CRASH, NODE_CUT, AGENT_CUT, FABRIC)
