"""Decides what a node may state: about itself and its jobs, and nothing that only the daemon finds out."""

from __future__ import annotations

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, Source, Trust

# What only the daemon finds out by itself; no node states it.
_DAEMONS_OWN = frozenset({Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR})
# Read from what users' programs wrote, which names other nodes as well.
_USERS_WORDS = frozenset({Source.JOB_LOG, Source.ERROR_FILE, Source.FLIGHT_RECORDER})


def may_state(live: ClusterView, node: str, item: Evidence) -> bool:
    """Whether a node may state this. What users' programs print may name any node; it proves nothing about one."""
    where = item.where
    if item.source in _DAEMONS_OWN:
        return False
    if where.node not in (None, node) and item.trust is not Trust.USER and item.source not in _USERS_WORDS:
        return False
    return where.job is None or live.may_run_on(where.job, where.attempt, node)
