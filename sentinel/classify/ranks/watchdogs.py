"""Compares the watchdog messages of several ranks: ranks in different calls did not make the same calls.

A watchdog names a call by its number, kind and size; a dump or a person says how many calls each rank enqueued and completed
(``sentinel/evidence/logs/rank_states.py``). Ranks are compared within one process group. On the CPU (Gloo) there is no
watchdog: there the calling thread waits, and its traceback names the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from fractions import Fraction

from sentinel.classify.history import History
from sentinel.classify.readings import Reading
from sentinel.config.rules import Role, Rules
from sentinel.model.rank_states import RANK_STATE, RankState, states_of
from sentinel.model.records import Cause, Evidence, Incident, Kind, Scope

_CALLS = frozenset({"collective-frame", "backward-frame"})  # rules of a traceback's frames
# In these every rank gives as many elements as every other.
EVEN = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "BARRIER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
_BATCH = "COALESCED"  # has this name whatever it holds
AT_ONE_PLACE = 5.0  # different calls under one number of the sequence
APART = 3.6  # different calls under different numbers: one may be a group's, the other the world's
LOST = 1.5  # natural-log odds from which a line says that ranks lost or await each other
BEHIND = 3.4  # a rank that never made the call for which the others wait
# Of Gloo, torch's backend of the CPU: what ends a call in which the calling thread waits.
_GLOO = re.compile(r"(?i)\bgloo/transport\b.{0,80}(?:closed by peer|timed out waiting|timeout caused pair closure)")
_RAN_OUT = re.compile(r"(?i)timed out waiting|timeout caused pair closure")
_TRACEBACK = 24  # lines from the frame that names the call to the exception
_GROUP = re.compile(r"\bPG (?:ID |GUID )?(\w{1,32})")


def differing(
    incident: Incident, _readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One reading where the calls differ in kind, or in size where sizes must agree, or where one rank is behind.

    A rank that is behind in NCCL's calls and waits in one of Gloo has taken another way through the program.
    """
    told: dict[str, list[RankState]] = {}
    first: Evidence | None = None
    for evidence in incident.evidence:
        states = list(_said(evidence))
        first = first or (evidence if states else None)
        for state in states:
            told.setdefault(state.group, []).append(state)
    if first is None:
        return []
    for group in told.values():
        if (words := _mismatch(group)) is not None:
            return [_reading(first, Cause.COLLECTIVE_MISMATCH, AT_ONE_PLACE, words, Scope.APPLICATION)]
    for group in told.values():
        if len({state.op for state in {state.rank: state for state in group if state.op}.values()}) > 1:
            words = "the watchdogs of different ranks wait in different operations"
            return [_reading(first, Cause.COLLECTIVE_MISMATCH, APART, words, Scope.APPLICATION)]
    for group in told.values():
        if behind := _behind(group):
            names = ", ".join(f"rank {rank}" for rank in behind[:8])
            if any(e.where.rank in behind and _GLOO.search(e.text) for e in incident.evidence):
                words = f"{names} waited in a call on the CPU while the others waited in one of NCCL"
                return [_reading(first, Cause.COLLECTIVE_MISMATCH, APART, words, Scope.APPLICATION)]
            words = f"{names} never made the call of the others"
            return [_reading(first, Cause.NCCL_HANG_UNKNOWN, BEHIND, words, None)]
    return []


def waiting_apart(
    incident: Incident, _readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One reading where a rank's wait on the CPU ran out while another waited in a different call."""
    called: dict[tuple[str | None, int], Evidence] = {}
    waited: dict[int, tuple[str, Evidence]] = {}
    for evidence in sorted(incident.evidence, key=lambda e: (e.where.path or "", e.line or 0)):
        rank, op = evidence.where.rank, str(evidence.data.get("op") or "")
        if rank is None:
            continue
        if op and evidence.rule in _CALLS:
            called[evidence.where.path, rank] = evidence
        elif _GLOO.search(evidence.text):
            frame = called.pop((evidence.where.path, rank), None)
            if frame is not None and (evidence.line or 0) - (frame.line or 0) <= _TRACEBACK:
                waited.setdefault(rank, (str(frame.data["op"]), evidence))
    ran_out = next(((op, e) for op, e in waited.values() if _RAN_OUT.search(e.text)), None)
    if ran_out is None or len(ops := {op for op, _ in waited.values()}) < 2:
        return []
    words = f"ranks waited in different calls: {', '.join(sorted(ops))}"
    return [_reading(ran_out[1], Cause.COLLECTIVE_MISMATCH, APART, words, Scope.APPLICATION)]


def uneven(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One reading where ranks lost each other and had been given different numbers of steps: the shortest is done first."""
    totals: dict[int, set[object]] = {}
    for evidence in incident.evidence:
        data, rank = evidence.data, evidence.where.rank
        if evidence.kind == Kind.STEP and rank is not None and data.get("loss") is not None and data.get("total"):
            totals.setdefault(rank, set()).add(data["total"])
    lost = next((r.evidence for r in readings if r.weights.get(Cause.NCCL_HANG_UNKNOWN, 0.0) >= LOST), None)
    if lost is None or len(totals) < 2 or set.intersection(*totals.values()):
        return []
    told = ", ".join(f"rank {rank} {min(map(str, totals[rank]))}" for rank in sorted(totals)[:8])
    words = f"the ranks have different numbers of steps to make: {told}"
    return [_reading(lost, Cause.COLLECTIVE_MISMATCH, APART, words, Scope.APPLICATION)]


def behind_others(incident: Incident) -> list[int]:
    """Ranks that never made the call for which others of their group wait."""
    told: dict[str, list[RankState]] = {}
    for evidence in incident.evidence:
        if evidence.kind == RANK_STATE:
            for state in _said(evidence):
                told.setdefault(state.group, []).append(state)
    return sorted({rank for group in told.values() for rank in _behind(group)})


def _said(evidence: Evidence) -> Iterable[RankState]:
    data = evidence.data
    if evidence.kind == RANK_STATE:
        yield from states_of(str(data.get("states") or ""))
    op, sequence, rank = data.get("op"), data.get("sequence"), evidence.where.rank
    if evidence.kind == "watchdog" and rank is not None and isinstance(op, str) and isinstance(sequence, str):
        group = _GROUP.search(evidence.text)
        size = str(data.get("numel") or "")
        if op == _BATCH and data.get("numel_out"):
            size = f"{size}/{data['numel_out']}"
        yield RankState(rank, group[1] if group else "", sequence=int(sequence), op=op, size=size)


def _even_batch(sizes: Iterable[str]) -> bool:
    """Whether each rank takes the same multiple, or part, of what it gives: tensors are gathered or reduced, not sent."""
    shares = {Fraction(size) if re.fullmatch(r"[1-9]\d*/[1-9]\d*", size) else Fraction(1) for size in sizes}
    share = shares.pop()
    return not shares and share != 1 and 1 in share.as_integer_ratio()


def _mismatch(group: Sequence[RankState]) -> str | None:
    """Words where ranks name different calls, or sizes that must agree and do not, at one place."""
    calls: dict[int, dict[int, RankState]] = {}
    for state in group:
        if state.call is not None and state.op:
            calls.setdefault(state.call, {}).setdefault(state.rank, state)
    for states in calls.values():
        ops = {state.op for state in states.values()}
        sizes = {state.size for state in states.values() if state.size}
        if len(ops) > 1 or (len(sizes) > 1 and (ops <= EVEN or (ops == {_BATCH} and _even_batch(sizes)))):
            return f"{len(states)} ranks name different calls at one place"
    return None


def _behind(group: Sequence[RankState]) -> list[int]:
    """Ranks that have completed all they enqueued while others wait in a call that these never enqueued."""
    last = {state.rank: state for state in group if state.enqueued is not None and state.completed is not None}
    waiting = [state for state in last.values() if (state.enqueued or 0) > (state.completed or 0)]
    if not waiting:
        return []
    ahead = min(state.completed or 0 for state in waiting) + 1
    return sorted(state.rank for state in last.values() if (state.enqueued or 0) < ahead)


def _reading(evidence: Evidence, cause: Cause, weight: float, note: str, scope: Scope | None) -> Reading:
    return Reading(evidence, "watchdogs-differ", {cause: weight}, Role.CAUSE, scope, note=note)
