"""Nodes without which a job does not start: those that its user's own list names (``--nodelist``), and what follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sentinel.model.hostlist import fold
from sentinel.model.records import Fleet, JobView, NodeView, Step
from sentinel.policy.exclusions import may_get, nodes_wanted
from sentinel.policy.situation import Situation, components_with, in_maintenance, in_service, may_be_in_service


def without_required(
    bad: Sequence[str], suspect: Sequence[str], required: Collection[str], fleet: Fleet, leaving: Collection[str]
) -> tuple[list[str], list[str]]:
    """The bad and the suspect nodes without those that the job needs to start: with them in its list Slurm would never start
    it, and take its priority. A bad one that stays in service is left in: the job must not begin there.

    Args:
        leaving: nodes in service that are about to be drained.
    """
    stays = {name for name in bad if may_be_in_service(name, fleet) and name not in leaving}
    return [n for n in bad if n not in required or n in stays], [n for n in suspect if n not in required]


def own_list(
    job: JobView, situation: Situation, suspect: Collection[str], drained: Sequence[Step], excluded: Collection[str]
) -> str:
    """What follows from the nodes that the user of a job that is requeued insists on, in words; empty: nothing.

    Args:
        suspect: nodes that the job should not have.
        excluded: nodes that the requeue excludes.
    """
    nodes = situation.fleet.nodes
    kept = [name for name in suspect if name in situation.required and name in nodes and may_get(nodes[name])]
    words = (
        f"Not excluded, since the job's own --nodelist names {'it' if len(kept) == 1 else 'them'}: {', '.join(kept)}."
    )
    leaving = {step.node for step in drained if step.node is not None}
    waits = waits_for_required(job, situation.fleet, situation.required, leaving, excluded)
    return f"{words if kept else ''} {waits}".strip()


def waits_for_required(
    job: JobView,
    fleet: Fleet,
    required: Collection[str],
    leaving: Collection[str] = (),
    excluded: Collection[str] = (),
) -> str:
    """Which nodes of its user's own list the job, or a component of it, waits for, and what its user can do; empty: none.

    Args:
        required: nodes that the job's own list names; its components are asked for theirs.
        leaving: nodes in service that are about to be drained.
        excluded: nodes that Sentinel keeps the job from.
    """
    parts = [(job, required), *((part, part.required) for part in components_with(fleet, job.id))]
    return " ".join(text for part, listed in parts if (text := _waits_for(part, listed, fleet, leaving, excluded)))


def _waits_for(
    job: JobView, required: Collection[str], fleet: Fleet, leaving: Collection[str], excluded: Collection[str]
) -> str:
    known = [fleet.nodes[name] for name in required if name in fleet.nodes]
    out = [node for node in known if node.name in leaving or not may_get(node)]
    kept = [node for node in known if node.name in excluded and node not in out]
    if not out and not kept:
        return ""
    names = [node.name for node in (*out, *kept)]
    least, most = nodes_wanted(job)
    # Slurm never starts a job of a range of sizes whose list is shorter than the largest.
    others = fold(name for name in required if name not in names) if least == most else ""
    others = f"'{others}'" if "[" in others else others  # a shell would take it for a pattern
    which = [text for text in (_out(out, leaving), _kept(kept)) if text]
    until = f"{'that node is' if len(names) == 1 else 'those nodes are'} {'back' if out else 'proven good'}"
    until += " and proven good" if out and kept else ""
    return (
        f"Job {job.id}'s own --nodelist names {', and '.join(which)}: it waits until {until}, unless the list is changed "
        f"(scontrol update JobId={job.spec} ReqNodeList={others})."
    )


def _out(nodes: Sequence[NodeView], leaving: Collection[str]) -> str:
    state = "drained" if all(node.drained or node.name in leaving for node in nodes) else "drained or down"
    state = "in maintenance" if all(in_maintenance(node) and in_service(node) for node in nodes) else state
    are = "is" if len(nodes) == 1 else "are"
    return f"{fold(node.name for node in nodes)}, which {are} {state}" if nodes else ""


def _kept(nodes: Sequence[NodeView]) -> str:
    """Slurm never starts the job meanwhile (BadConstraints): it would, on a node that breaks it again."""
    are = "that node is" if len(nodes) == 1 else "those nodes are"
    return f"{fold(node.name for node in nodes)}, which it is kept from, as {are} bad and not drained" if nodes else ""
