"""Keeps nodes that Sentinel drained out of service where Slurm ends their drain as it switches them off or reboots them.

``scontrol update State=POWER_DOWN``, for a power cycle, does the first; the reason stays until the node is switched on, and
nobody returned it. While it is off it may be drained again, which outlives its start (``engine.drain_reasons``).

``scontrol reboot nextstate=RESUME`` does the second. Who asks for it after our drain returns the node. Who had asked before
knew nothing of the fault: then the node is drained again as soon as a snapshot shows it in service.
"""

from __future__ import annotations

import dataclasses

from sentinel.engine.node_return.state import IN_SERVICE, NodeReturn, Stage, plain_reason
from sentinel.engine.state import State
from sentinel.model.records import OURS, Fleet, NodeView
from sentinel.model.vocabulary import DRAIN_LOST, POWERED_OFF, REBOOTS


def with_drains_kept(state: State, fleet: Fleet) -> Fleet:
    """The snapshot with these nodes as drained, and marked (``DRAIN_LOST``)."""
    kept = {}
    for name, node in fleet.nodes.items():
        if node.drained:
            continue
        reason = _reason_before_reboot(state, node, fleet)
        if not reason and node.reason.startswith(OURS) and not POWERED_OFF.isdisjoint(node.flags):
            reason = node.reason if _was_drained(state, node) else ""
        if reason:
            kept[name] = dataclasses.replace(node, flags=node.flags | {"drain", DRAIN_LOST}, reason=reason)
    return dataclasses.replace(fleet, nodes={**fleet.nodes, **kept}) if kept else fleet


def _reason_before_reboot(state: State, node: NodeView, fleet: Fleet) -> str:
    """The reason of our drain that a reboot ended which was asked for before it; empty: none did.

    Somebody who returns a node before its reboot leaves it to be rebooted.
    """
    record = state.returns.known.get(node.name)
    if record is None or not record.reboot or not _is_out(record) or fleet.at <= record.changed_at:
        return ""
    if node.state == "down" or not REBOOTS.isdisjoint(node.flags):
        return ""
    return record.reason or f"{OURS}{record.incident} {record.cause}"


def _is_out(record: NodeReturn) -> bool:
    return record.stage not in IN_SERVICE and record.stage is not Stage.RETURNING


def _was_drained(state: State, node: NodeView) -> bool:
    """Whether it was drained for this reason until now. 24.11 keeps the reason of a node that is returned."""
    before = state.cluster.fleet.nodes.get(node.name) if state.cluster.fleet is not None else None
    record = state.returns.known.get(node.name)
    if record is not None and record.stage is Stage.RETURNING:
        return False  # by us
    if before is not None:
        return before.drained and before.reason == node.reason
    return record is not None and _is_out(record) and record.reason == plain_reason(node.reason)
