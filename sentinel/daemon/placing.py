"""On which node a line of a job's log was said: the agent that reads the log knows only where the file is written.

A line names a rank at best, and ranks lie on nodes as the launcher put them. Where that is not known, the node is not known:
the batch host must not answer for what any of a hundred nodes said.
"""

from __future__ import annotations

import dataclasses

from sentinel.daemon.live import AttemptSeen, Live
from sentinel.model import Evidence, Source

_WRITTEN_ELSEWHERE = frozenset({Source.JOB_LOG, Source.ERROR_FILE})
_PREFIX = 80  # characters of a line in which a launcher names the node


def placed(item: Evidence, live: Live) -> Evidence:
    """``item`` with the node on which it was said, or without one."""
    where = item.where
    if item.source not in _WRITTEN_ELSEWHERE or where.job is None:
        return item
    attempt = where.attempt if where.attempt is not None else live.newest_attempt(where.job)
    seen = live.attempts.get((where.job, attempt)) if attempt is not None else None
    if seen is None or not seen.nodes:
        return item
    if where.rank is not None and (seen.top_rank is None or where.rank > seen.top_rank):
        seen.top_rank = where.rank
    host = seen.view.batch_host or seen.nodes[0]
    if len(seen.nodes) == 1 or where.node not in {host, None} or (where.node and where.node in item.text[:_PREFIX]):
        return item  # nowhere else, or the line itself names its node
    node = node_of_rank(where.rank, seen, _gpus_per_node(seen, live))
    return item if node == where.node else dataclasses.replace(item, where=dataclasses.replace(where, node=node))


def node_of_rank(rank: int | None, seen: AttemptSeen, per_node: int | None) -> str | None:
    """The node of a rank: as the tasks themselves told, else as launchers fill nodes, one rank to a GPU, once a rank was
    seen that shows that all of them are filled."""
    if rank is None:
        return None
    if rank in seen.rank_nodes:
        return seen.rank_nodes[rank]
    if per_node and seen.top_rank == per_node * len(seen.nodes) - 1 and rank <= seen.top_rank:
        return seen.nodes[rank // per_node]
    return None


def _gpus_per_node(seen: AttemptSeen, live: Live) -> int | None:
    """GPUs of each node of the attempt; None where they differ or Slurm's gres does not tell."""
    nodes = live.fleet.nodes if live.fleet is not None else {}
    counts = {nodes[name].gpus if name in nodes else None for name in seen.nodes}
    return counts.pop() if len(counts) == 1 else None
