"""Finds the node from which a line of a job's log came: the agent that reads the log knows only where the file is.

A line names a rank at best, and the launcher decides on which node each rank runs. If that is not known, the node is not
known: the batch host must not be blamed for a line that may come from any of a hundred nodes.
"""

from __future__ import annotations

import dataclasses

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.seen import AttemptSeen
from sentinel.model.records import Evidence, Incident, Source

_WRITTEN_ELSEWHERE = frozenset({Source.JOB_LOG, Source.ERROR_FILE})
_PREFIX = 80  # characters of a line in which a launcher names the node


def located(incident: Incident, cluster: ClusterView) -> Incident:
    """``incident`` with the nodes of its log lines corrected.

    Repeated at each judgement, since later lines may be the first to show how ranks are placed.
    """
    seen = cluster.attempts.get((incident.job, incident.attempt or 0)) if incident.job is not None else None
    if seen is None or not seen.nodes:
        return incident
    for item in incident.evidence:
        if item.source in _WRITTEN_ELSEWHERE and item.where.rank is not None:
            seen.top_rank = max(item.where.rank, seen.top_rank or 0)
    evidence = tuple(_placed(item, seen, cluster) for item in incident.evidence)
    return incident if evidence == incident.evidence else dataclasses.replace(incident, evidence=evidence)


def _placed(item: Evidence, seen: AttemptSeen, cluster: ClusterView) -> Evidence:
    where = item.where
    if item.source not in _WRITTEN_ELSEWHERE or where.job != seen.view.id:
        return item
    host = seen.view.batch_host or seen.nodes[0]
    if len(seen.nodes) == 1 or where.node not in {host, None} or (where.node and where.node in item.text[:_PREFIX]):
        return item  # nowhere else, or the line itself names its node
    node = node_of_rank(where.rank, seen, gpus_per_node(seen, cluster))
    return item if node == where.node else dataclasses.replace(item, where=dataclasses.replace(where, node=node))


def node_of_rank(rank: int | None, seen: AttemptSeen, per_node: int | None) -> str | None:
    """The node of a rank, as reported by the tasks themselves; None if not known.

    Otherwise block placement with one rank per GPU is assumed, once the highest rank seen shows that all GPUs are used.
    """
    if rank is None:
        return None
    if rank in seen.rank_nodes:
        return seen.rank_nodes[rank]
    if per_node and seen.top_rank == per_node * len(seen.nodes) - 1 and rank <= seen.top_rank:
        return seen.nodes[rank // per_node]
    return None


def gpus_per_node(seen: AttemptSeen, cluster: ClusterView) -> int | None:
    """GPUs of each node of the attempt; None where they differ or Slurm's gres does not tell."""
    nodes = cluster.fleet.nodes if cluster.fleet is not None else {}
    counts = {nodes[name].gpus if name in nodes else None for name in seen.nodes}
    return counts.pop() if len(counts) == 1 else None
