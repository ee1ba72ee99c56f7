"""All dumps of one failure put together: per process group, how far each member is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.collectives import NEVER, Call, GroupTrace, RankTrace

MAX_WORLD = 1 << 17  # ranks beyond this in a dump are damage, not a job
_UNKNOWN = None
_Members = tuple[str, frozenset[int]]  # name and members of a group


@dataclass(slots=True)
class GroupView:
    """One process group over all ranks. Members without a dump are in ``members`` and not in ``enqueued``."""

    name: str
    description: str
    members: frozenset[int]
    closed: bool  # the membership is known; else only those seen in it
    enqueued: dict[int, int | None] = field(default_factory=dict)
    completed: dict[int, int | None] = field(default_factory=dict)
    traces: dict[int, GroupTrace] = field(default_factory=dict)

    @property
    def label(self) -> str:
        if self.description and self.description not in (self.name, "undefined"):
            return f"{self.name} ({self.description})"
        return self.name or "(unnamed)"

    def outstanding(self, rank: int) -> int | None:
        """The newest call of the rank that is not completed."""
        newest, done = self.enqueued.get(rank), self.completed.get(rank)
        if newest is None or newest == NEVER:
            return None
        return newest if done is None or newest > done else None

    def calls_at(self, rank: int, sequence: int) -> list[Call]:
        trace = self.traces.get(rank)
        return [call for call in trace.calls if call.sequence == sequence] if trace else []

    def call_at(self, sequence: int) -> Call | None:
        """Somebody's call with the sequence number."""
        for rank in sorted(self.traces):
            for call in self.calls_at(rank, sequence):
                return call
        return None


@dataclass(frozen=True, slots=True)
class GroupStates:
    traces: Mapping[int, RankTrace]
    groups: tuple[GroupView, ...]
    without_dump: frozenset[int]  # members of groups of which no dump was read


def newest_of_each(traces: Iterable[RankTrace]) -> dict[int, RankTrace]:
    """One dump per rank: the newest, then the whole, then the one with more in it (a pickle has stacks, JSON has not)."""
    chosen: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank is None or trace.rank >= MAX_WORLD:
            continue
        other = chosen.get(trace.rank)
        if other is None or _worth(trace) > _worth(other):
            chosen[trace.rank] = trace
    return {rank: chosen[rank] for rank in sorted(chosen)}  # the order in which dumps arrive decides nothing


def _worth(trace: RankTrace) -> tuple[int, bool, int, int]:
    stacks = sum(len(call.frames) for group in trace.groups for call in group.calls)
    return trace.newest_ns or 0, not trace.torn, trace.entries, stacks


def build(traces: Mapping[int, RankTrace], also: Iterable[int] = ()) -> GroupStates:
    """``also``: ranks known from elsewhere (a dump that could not be read tells at least that its rank existed)."""
    world = _world(traces, also)
    views: dict[object, GroupView] = {}
    known: dict[tuple[str, int], _Members] = {}  # (name, rank) -> key of the group with known members
    for rank, trace in traces.items():
        for group in trace.groups:
            if group.ranks and not group.local_name and rank in group.ranks and max(group.ranks) < MAX_WORLD:
                known[group.name, rank] = (group.name, group.ranks)
    for name, members in _by_support(known.values()):
        for rank in members:
            known.setdefault((name, rank), (name, members))
    for rank, trace in traces.items():
        for group in trace.groups:
            if not group.name and not group.calls and not group.sends and not group.receives:
                continue  # Gloo's empty configuration
            key = _key(rank, group, known)
            view = views.get(key)
            if view is None:
                view = views[key] = _view(key, group, world)
            if not view.closed:
                view.members |= {rank}
            if rank not in view.members:
                continue
            view.traces[rank] = group
            view.enqueued[rank], view.completed[rank] = group.enqueued, group.completed
    for view in views.values():
        for rank, trace in traces.items():
            if rank in view.members and rank not in view.traces:
                certain = not trace.torn and (trace.status_known or not trace.wrapped)
                view.enqueued[rank] = view.completed[rank] = NEVER if certain else _UNKNOWN
    everyone = frozenset().union(world, *{view.members for view in views.values() if view.closed})
    return GroupStates(traces, tuple(views.values()), everyone.difference(traces))


def _by_support(stated: Iterable[_Members]) -> list[_Members]:
    """Groups of one name may claim the same rank: those that most dumps state come first, never as strings hash."""
    votes = Counter(stated)
    return sorted(votes, key=lambda key: (-votes[key], key[0], sorted(key[1])))


def _world(traces: Mapping[int, RankTrace], also: Iterable[int]) -> frozenset[int]:
    """All ranks of the job as far as dumps tell; where no group lists its members, up to the highest rank seen."""
    listed = frozenset().union(*(g.ranks for t in traces.values() for g in t.groups if g.ranks and g.calls))
    seen = frozenset(traces) | frozenset(rank for rank in also if rank < MAX_WORLD)
    if listed:
        return seen | frozenset(rank for rank in listed if rank < MAX_WORLD)
    return frozenset(range(max(seen) + 1)) if seen else frozenset()


def _key(rank: int, group: GroupTrace, known: Mapping[tuple[str, int], _Members]) -> object:
    if group.local_name:
        return group.name, rank
    return known.get((group.name, rank), (group.name, group.description, "members not known"))


def _view(key: object, group: GroupTrace, world: frozenset[int]) -> GroupView:
    assert isinstance(key, tuple)
    if isinstance(key[1], frozenset):
        return GroupView(group.name, group.description, key[1], closed=True)
    if group.name == "0" or group.description == "default_pg":
        return GroupView(group.name, group.description, world, closed=True)
    members = frozenset((key[1],)) if isinstance(key[1], int) else frozenset()
    return GroupView(group.name, group.description, members, closed=False)
