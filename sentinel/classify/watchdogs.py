"""What the watchdogs of several ranks say together: ranks that wait in different calls did not call the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sentinel.classify.history import History
from sentinel.classify.readings import Reading
from sentinel.config.rules import Role, Rules
from sentinel.model.records import Cause, Evidence, Incident, Scope

# In these every rank gives as many elements as every other.
EVEN = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "BARRIER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
AT_ONE_PLACE = 5.0  # different calls under one number of the sequence
APART = 3.6  # different calls under different numbers: one may be a group's, the other the world's


def differing(
    incident: Incident, _readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One reading where the calls differ in kind, or in size where sizes must agree."""
    told: dict[str, dict[int, tuple[str, str]]] = {}
    by_rank: dict[int, str] = {}
    first: Evidence | None = None
    for evidence in incident.evidence:
        rank, op, sequence = evidence.where.rank, evidence.data.get("op"), evidence.data.get("sequence")
        if evidence.kind != "watchdog" or rank is None or not isinstance(op, str) or not isinstance(sequence, str):
            continue
        first = first or evidence
        by_rank.setdefault(rank, op)
        told.setdefault(sequence, {}).setdefault(rank, (op, str(evidence.data.get("numel") or "")))
    if first is None:
        return []
    for calls in told.values():
        ops = {op for op, _ in calls.values()}
        sizes = {numel for op, numel in calls.values() if numel}
        if len(ops) > 1 or (len(sizes) > 1 and ops <= EVEN):
            return [_mismatch(first, AT_ONE_PLACE, f"{len(calls)} ranks name different calls at one place")]
    if len(set(by_rank.values())) > 1:
        return [_mismatch(first, APART, "the watchdogs of different ranks wait in different operations")]
    return []


def _mismatch(evidence: Evidence, weight: float, note: str) -> Reading:
    return Reading(
        evidence,
        "watchdogs-differ",
        {Cause.COLLECTIVE_MISMATCH: weight},
        Role.CAUSE,
        Scope.APPLICATION,
        note=note,
    )
