"""Compares the calls that NCCL logs for each communicator (NCCL_DEBUG_SUBSYS=COLL) across the processes of a job.

``AllReduce: opCount 28c sendbuff 0x7f count 9437184 ... comm 0x5 [nranks=8] stream 0x6``: the lines say neither the rank nor
which communicators are one group. Only those with the most ranks are compared, where as many processes made one as it has
ranks, each as its n-th of that size: of smaller ones several may be taken for one. Grouped calls share an opCount, and of a
long log only some lines are kept: where a process made calls of several kinds at one opCount, some may be missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from sentinel.classify.history import History
from sentinel.classify.readings import Reading
from sentinel.config.rules import Role, Rules
from sentinel.model.rank_states import OP_COUNT
from sentinel.model.records import Cause, Evidence, Incident, Scope

AT_ONE_COUNT = 5.0  # natural-log odds: ranks that are in different calls at one place
_BETWEEN_TWO = frozenset({"Send", "Recv"})  # not every rank makes the same

Process = tuple[str, str]  # node and pid
Calls = dict[int, set[str]]  # kinds of call by opCount


def differing_calls(
    incident: Incident, _readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One reading where processes of one group are in different calls at one opCount."""
    made: dict[tuple[Process, str], tuple[int, Calls]] = {}
    first: Evidence | None = None
    for evidence in incident.evidence:
        data = evidence.data
        op, count = str(data.get("op") or ""), _hex(data.get("sequence"))
        if evidence.kind != OP_COUNT or count is None or op in _BETWEEN_TWO:
            continue
        first = first or evidence
        process = (evidence.where.node or "", str(data.get("pid")))
        ranks = data.get("nranks")
        size = int(ranks) if isinstance(ranks, (int, str)) and str(ranks).isdecimal() else 0
        made.setdefault((process, str(data.get("comm"))), (size, {}))[1].setdefault(count, set()).add(op)
    groups: dict[tuple[int, int], list[Calls]] = defaultdict(list)
    seen: dict[tuple[Process, int], int] = defaultdict(int)
    for (process, _comm), (size, calls) in made.items():
        groups[size, seen[process, size]].append(calls)
        seen[process, size] += 1
    most = max((size for size, _nth in groups), default=0)
    for (size, _nth), members in groups.items():
        if first is not None and len(members) == size == most and (found := _different(members)) is not None:
            count, kinds = found
            note = f"at opCount {count:x} some ranks are in {kinds[0]} and some in {kinds[1]}"
            weights = {Cause.COLLECTIVE_MISMATCH: AT_ONE_COUNT}
            return [Reading(first, "op-counts-differ", weights, Role.CAUSE, Scope.APPLICATION, note=note)]
    return []


def _different(members: Sequence[Calls]) -> tuple[int, tuple[str, str]] | None:
    """The lowest opCount at which two processes made different kinds of call, and these; None where calls were grouped."""
    if any(len(kinds) > 1 for calls in members for kinds in calls.values()):
        return None
    for count in sorted({count for calls in members for count in calls}):
        kinds = [calls[count] for calls in members if count in calls]
        for other in kinds[1:]:
            if not other & kinds[0]:
                return count, (min(kinds[0]), min(other))
    return None


def _hex(value: object) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None
