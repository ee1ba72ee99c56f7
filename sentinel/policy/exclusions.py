"""Chooses the nodes that a job must not get again: bad ones first, and never so many that the job could not run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sentinel.model.intent import intent_of
from sentinel.model.records import Fleet, JobView, NodeView, Verdict
from sentinel.policy.situation import in_service, is_startable

IN_TURN = "in_turn"  # in the data of the step that excludes: see ``excluded``
BESIDE = "beside"  # likewise: the other nodes under the switch of nodes that failed the job in turn


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What a restart excludes."""

    nodes: tuple[str, ...]
    spared: tuple[str, ...]  # suspects that are not excluded, since the job could not run without them
    needed: int  # nodes that the job needs
    left: int  # nodes that it may get
    kept_out: tuple[str, ...] = ()  # of those in turn: excluded although too few are left, so that the job waits
    in_turn: tuple[str, ...] = ()  # suspects on which attempts in a row failed


def bad_and_suspect(
    verdict: Verdict,
    *,
    good: Collection[str],
    convicted: Collection[str],
    bad_elsewhere: Collection[str],
    slow: Sequence[str],
    excluded_by_us: Sequence[str],
    on_probation: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Nodes that the job's next attempt must not have, and those that it should not have; the most likely first.

    Args:
        good: nodes proven good since the verdict.
        convicted: nodes in service that any incident convicts that acts: a job that begins there is stopped again.
        bad_elsewhere: nodes whose agent says now that they are bad: their prologs refuse jobs, whoever has put them back.
        slow: nodes on which this attempt was slower than on the others.
        excluded_by_us: nodes that earlier attempts were kept from.
        on_probation: nodes that hurt this job and were returned lately.
    """
    own = (name for name in verdict.drain if name not in good)
    bad = list(dict.fromkeys((*own, *sorted(convicted))))  # good for this incident is not good for another one
    named = (*verdict.suspect, *slow, *excluded_by_us)
    suspect = dict.fromkeys((*on_probation, *sorted(bad_elsewhere), *(name for name in named if name not in good)))
    return bad, [name for name in suspect if name not in bad]


def excluded(
    job: JobView,
    fleet: Fleet,
    *,
    bad: Sequence[str],
    suspect: Sequence[str],
    leaving: Collection[str],
    added_by_us: Collection[str],
    in_turn: Collection[str] = (),
) -> Exclusions:
    """The largest part of these nodes that leaves the job as many usable nodes as it needs; worse nodes go first.

    Args:
        bad: nodes with a proven fault, the surest first. One in service is excluded even if too few usable ones are left:
            the caller then lets the restart wait. But one without which Slurm could never start the job is not: Slurm
            would take its priority (BadConstraints), and a repair of the node would not give it back. One that is out of
            service gets no job anyway.
        suspect: nodes under suspicion, the most likely first.
        leaving: nodes in service that are about to be drained.
        added_by_us: nodes in the job's own list that Sentinel put there, and may take out again.
        in_turn: suspects on which attempts in a row failed. They go before other suspects, and are excluded even if too few
            are left: the job waits in the queue rather than failing on them again.
    """
    theirs = {name for name in job.excluded if name not in added_by_us}
    partitions = set(job.asked_partitions)
    there = [
        node for node in fleet.nodes.values() if node.name not in theirs and not partitions.isdisjoint(node.partitions)
    ]
    pool = {node.name for node in there if may_get(node) and node.name not in leaving}
    needed = nodes_wanted(job)[1]
    may_begin = pool | {node.name for node in there if in_service(node) and node.name not in leaving}
    must = sorted((name for name in _known(bad, fleet) if name in may_begin), key=lambda name: name not in pool)
    pool -= set(must)
    left = len(pool)
    must = must[: max(0, len(there) - nodes_wanted(job)[0])]
    # Out of service already, or soon: named too while there are enough others, so that they are not the first that the job
    # gets back. One whose record cannot be read may be in service: named wherever the job could start on the others.
    unread = {name for name in bad if name not in fleet.nodes and len(there) >= nodes_wanted(job)[0]}
    out = [name for name in _known(bad, fleet) if name not in must and (left >= needed or name in unread)]
    if must:
        in_turn = ()  # what the caller may wait for is another node than these
    chosen: list[str] = []
    spared: list[str] = []
    kept_out: list[str] = []
    for name in sorted(_known(suspect, fleet), key=lambda name: name not in in_turn):
        if name in must or name in out:
            continue
        # With fewer nodes in its partitions than it needs, in service or not, Slurm would never start the job.
        startable = len(there) - len(out) - len(chosen) > needed
        if name in pool and left - 1 < needed and name in in_turn and startable:
            kept_out.append(name)
        elif name in pool and left - 1 < needed:
            spared.append(name)
            continue
        elif name not in pool and left < needed:
            continue
        chosen.append(name)
        left -= name in pool
    ordered = [name for name in (*bad, *chosen) if name in {*must, *out, *chosen}]
    return Exclusions(tuple(dict.fromkeys(ordered)), tuple(spared), needed, left, tuple(kept_out), tuple(in_turn))


def may_get(node: NodeView) -> bool:
    """Whether the job may get the node. After slurmctld was started a node is unknown until it registers, within seconds:
    counted, a node that never does leaves the job waiting for it, and not counted, each of them lets the job onto bad nodes.
    """
    return is_startable(node) or (node.state == "unknown" and not node.drained)


def nodes_wanted(job: JobView) -> tuple[int, int]:
    """The least nodes with which the job can run, and the most; the same unless its comment says that it is elastic, or
    on how many it trains while it holds spare ones."""
    intent, count = intent_of(job.comment), job.node_count or len(job.nodes)
    if intent.nodes is not None and job.het is None:
        return intent.nodes
    if intent.in_allocation is not None and job.het is None:
        return min(intent.in_allocation, count), count
    return count, count


def _known(names: Iterable[str], fleet: Fleet) -> list[str]:
    """Slurm would refuse to exclude a node that it does not have."""
    return [name for name in dict.fromkeys(names) if fleet.may_have_node(name)]
