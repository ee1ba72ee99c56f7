"""Keeps nodes that Sentinel drained out of service where Slurm ends their drain as it switches them off.

That is what ``scontrol update State=POWER_DOWN`` does, for a power cycle; the reason stays until the node is switched on,
and nobody returned it. While it is off it may be drained again, which outlives its start (``engine.drain_reasons``).
"""

from __future__ import annotations

import dataclasses

from sentinel.engine.node_return.state import IN_SERVICE, Stage, plain_reason
from sentinel.engine.state import State
from sentinel.model.records import OURS, Fleet, NodeView
from sentinel.model.vocabulary import DRAIN_LOST, POWERED_OFF


def with_drains_kept(state: State, fleet: Fleet) -> Fleet:
    """The snapshot with these nodes as drained, and marked (``DRAIN_LOST``)."""
    kept = {
        name: dataclasses.replace(node, flags=node.flags | {"drain", DRAIN_LOST})
        for name, node in fleet.nodes.items()
        if not node.drained
        and node.reason.startswith(OURS)
        and not POWERED_OFF.isdisjoint(node.flags)
        and _was_drained(state, node)
    }
    return dataclasses.replace(fleet, nodes={**fleet.nodes, **kept}) if kept else fleet


def _was_drained(state: State, node: NodeView) -> bool:
    """Whether it was drained for this reason until now. 24.11 keeps the reason of a node that is returned."""
    before = state.cluster.fleet.nodes.get(node.name) if state.cluster.fleet is not None else None
    record = state.returns.known.get(node.name)
    if record is not None and record.stage is Stage.RETURNING:
        return False  # by us
    if before is not None:
        return before.drained and before.reason == node.reason
    return record is not None and record.stage not in IN_SERVICE and record.reason == plain_reason(node.reason)
