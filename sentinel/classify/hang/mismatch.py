"""Members of a group that called different things under one sequence number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.classify.hang.group_state import GroupStates, GroupView
from sentinel.model.collectives import Call

# Operations in which members may differ in size: unequal splits, or lists that only one member has.
_SIZES_FREE = frozenset(("all_to_all", "gather", "scatter", "send", "recv", "coalesced"))
_TYPES_FREE = frozenset(("gather", "scatter", "coalesced"))
# The side on which all members must agree; NCCL counts elements and knows no shapes.
_OUTPUT_COUNTS = frozenset(("all_gather",))


@dataclass(frozen=True, slots=True)
class Mismatch:
    group: GroupView
    sequence: int
    parties: tuple[tuple[frozenset[int], str], ...]  # ranks and what they called; the largest party first
    difference: str  # "operation", "element type" or "size"
    created_ns: int

    @property
    def odd(self) -> frozenset[int]:
        """The minority; everybody when there is no majority."""
        sizes = [len(ranks) for ranks, _ in self.parties]
        if sizes[0] == sizes[1]:
            return self.everyone
        return frozenset().union(*(ranks for ranks, _ in self.parties[1:]))

    @property
    def even(self) -> bool:
        return len(self.parties[0][0]) == len(self.parties[1][0])

    @property
    def everyone(self) -> frozenset[int]:
        return frozenset().union(*(ranks for ranks, _ in self.parties))


def find_mismatches(picture: GroupStates) -> list[Mismatch]:
    """The first one of each group among the calls that are not completed everywhere; earliest first."""
    found = [mismatch for group in picture.groups if (mismatch := _first(group)) is not None]
    found.extend(
        mismatch for group in _sisters(picture) if (mismatch := _first(group)) is not None and not mismatch.even
    )
    return sorted(found, key=lambda mismatch: mismatch.created_ns)


def _sisters(picture: GroupStates) -> list[GroupView]:
    """Groups known only by a number in their process: those of one number make the same calls and are compared as one."""
    together: dict[str, GroupView] = {}
    for group in picture.groups:
        for rank, trace in group.traces.items():
            if trace.local_name:
                view = together.setdefault(group.name, GroupView(group.name, "", frozenset(), closed=False))
                view.members |= {rank}
                view.traces[rank] = trace
                view.enqueued[rank], view.completed[rank] = trace.enqueued, trace.completed
    return list(together.values())


def _first(group: GroupView) -> Mismatch | None:
    if len(group.traces) < 2:
        return None
    done = [group.completed.get(rank) for rank in group.traces if group.outstanding(rank) is not None]
    if not done:
        return None
    floor = min(-1 if number is None else number for number in done)
    by_sequence: dict[int, dict[int, list[Call]]] = {}
    for rank, trace in group.traces.items():
        for call in trace.calls:
            if call.sequence > floor:
                by_sequence.setdefault(call.sequence, {}).setdefault(rank, []).append(call)
    for sequence in sorted(by_sequence):
        mismatch = _compare(group, sequence, by_sequence[sequence])
        if mismatch is not None:
            return mismatch
    return None


def _proper(calls: Sequence[Call]) -> list[Call]:
    """Without the entry that stands for the batch as a whole."""
    parts = [call for call in calls if "coalesced" not in call.operation.lower()]
    return parts or list(calls)


def _compare(group: GroupView, sequence: int, calls: dict[int, list[Call]]) -> Mismatch | None:
    if len(calls) < 2:
        return None
    proper = {rank: _proper(made) for rank, made in calls.items()}
    for difference, signature in (("operation", _operations), ("element type", _element_types), ("size", _counts)):
        parties: dict[object, set[int]] = {}
        for rank, made in proper.items():
            mark = signature(made)
            if mark is not None:
                parties.setdefault(mark, set()).add(rank)
        if len(parties) > 1:
            ordered = sorted(parties.values(), key=lambda ranks: (-len(ranks), min(ranks)))
            times = [call.created_ns for made in proper.values() for call in made if call.created_ns]
            return Mismatch(
                group,
                sequence,
                tuple((frozenset(ranks), describe(proper[min(ranks)])) for ranks in ordered),
                difference,
                min(times, default=0),
            )
    return None


def _operations(calls: Iterable[Call]) -> object:
    return tuple(sorted(call.operation for call in calls))


def _element_types(calls: Iterable[Call]) -> object:
    marks = []
    for call in calls:
        if call.operation not in _TYPES_FREE and call.types[0]:
            marks.append((call.operation, tuple(sorted(set(call.types[0])))))
    return tuple(sorted(marks)) or None


def _counts(calls: Iterable[Call]) -> object:
    marks = []
    for call in calls:
        inputs, outputs = call.sizes
        if call.operation in _SIZES_FREE or not inputs or "barrier" in call.operation:
            continue
        side = outputs if call.operation in _OUTPUT_COUNTS and outputs else inputs
        marks.append((call.operation, sum(side)))
    return tuple(sorted(marks)) or None


def describe(calls: Sequence[Call]) -> str:
    """ "all_reduce of 32 Float", or the number of parts of a batch."""
    if not calls:
        return "nothing"
    call = calls[0]
    kinds = "/".join(sorted(set(call.types[0])))
    size = f" of {sum(call.sizes[0])} {kinds}".rstrip() if call.sizes[0] else ""
    return f"{call.operation}{size}" + (f" and {len(calls) - 1} more" if len(calls) > 1 else "")
