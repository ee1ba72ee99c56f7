"""Builds the graph of which rank waits for which, and finds where its chains end. Pure.

A rank waits for another when it has called something in a group that the other, a member, has not called. What a rank
without a dump has called is not known: waiting for it is possible, not certain. The culprits are those that are waited
for and wait for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.classify.hang.group_state import GroupStates, GroupView
from sentinel.classify.hang.order import Front, fronts, global_ranks, offenders
from sentinel.graphs import components
from sentinel.model.collectives import Call, Channel, GroupTrace

_MAX_EDGES = 2_000_000
_MAX_UNSEEN = (
    2_000_000  # ranks without a dump, of all groups; a dump may state that there are 131,072 in each of hundreds
)
_OTHER_SIDE = {"sends": "receives", "receives": "sends"}


@dataclass(slots=True)
class Wait:
    """One group (or one pair of ranks) in which somebody waits."""

    group: GroupView
    waiting: dict[int, int]  # rank -> the sequence number that it waits in
    absent: dict[int, int]  # rank -> the first sequence number that it has not called
    unseen: frozenset[int] = frozenset()  # members without a dump, or whose state is not known
    call: Call | None = None  # of a send or receive; a collective's is looked up
    operation: str = ""

    def edges(self) -> Iterable[tuple[int, int]]:
        for rank, sequence in self.waiting.items():
            for other, first in self.absent.items():
                if first <= sequence and other != rank:
                    yield rank, other


@dataclass(slots=True)
class Waits:
    waits: list[Wait] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)  # waits for certain
    waited: set[int] = field(default_factory=set)
    unsure: dict[int, list[frozenset[int]]] = field(
        default_factory=dict
    )  # may wait for one of these, or for whom not known
    # rank -> calls that are pending although every member has made them
    running: dict[int, list[tuple[GroupView, int]]] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)  # in a call that the devices of all members have reached
    meeting: set[int] = field(default_factory=set)  # has a send or receive pending that has its counterpart
    open: bool = False  # somebody has a call that is not completed
    unseen_left: int = _MAX_UNSEEN

    def named(self, members: frozenset[int], known: Mapping[int, int], possible: frozenset[int]) -> frozenset[int]:
        """The members that are not known, and ``possible``; none where these would be too many to be kept."""
        if members <= known.keys():
            return possible  # one for all groups
        if self.unseen_left <= 0:
            return frozenset()
        unseen = members.difference(known) | possible
        self.unseen_left -= len(unseen)
        return unseen

    def graph(self, limit: int = _MAX_EDGES) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        count = 0
        for wait in self.waits:
            for rank, other in wait.edges():
                found.setdefault(rank, set()).add(other)
                count += 1
                if count >= limit:
                    return found
        return found


def find_waits(picture: GroupStates) -> Waits:
    result = Waits()
    for group in picture.groups:
        _collective_waits(group, result, frozenset() if group.closed else picture.without_dump)
        _peer_waits(picture, group, result)
    _device_waits(picture, result)
    return result


def _device_waits(picture: GroupStates, result: Waits) -> None:
    """Everybody has made the call, but somebody's device is still at an earlier one: the others wait for that rank."""
    front = fronts(picture)
    at: dict[Front, set[int]] = {}
    for rank, place in front.items():
        at.setdefault(place, set()).add(rank)
    for place, present in at.items():
        group = picture.groups[place.group]
        behind = {}
        if place.peer is None:
            for other in group.traces.keys() - present:
                newest, done = group.enqueued.get(other), group.completed.get(other)
                pending = newest is not None and newest >= place.sequence and (done is None or done < place.sequence)
                if pending and other in front and front[other] != place:
                    behind[other] = place.sequence
        elif place.peer not in result.unsure.get(next(iter(present)), ()) and place.peer in front:
            facing = front[place.peer]
            if facing.group != place.group or facing.peer not in present:
                behind[place.peer] = place.sequence
        if place.peer is None and not behind and _all_there(picture, group, present):
            result.met |= present
        if behind:
            result.waits.append(Wait(group, dict.fromkeys(present, place.sequence), behind))
            result.blocked |= present
            result.waited |= behind.keys()


def _all_there(picture: GroupStates, group: GroupView, present: set[int]) -> bool:
    if group.closed:
        return present >= group.members
    local = any(trace.local_name for trace in group.traces.values())
    return not local and not picture.without_dump and len(present) > 1 and present >= group.traces.keys()


def _collective_waits(group: GroupView, result: Waits, possible: frozenset[int]) -> None:
    active = {rank: newest for rank in group.traces if (newest := group.outstanding(rank)) is not None}
    if not active:
        return
    result.open = True
    known = {rank: newest for rank, newest in group.enqueued.items() if newest is not None}
    hidden = bool(possible) or any(rank not in known for rank in group.members)
    unseen = result.named(group.members, known, possible) if hidden else frozenset()
    lowest, highest = min(known.values()), max(active.values())
    waiting = {rank: newest for rank, newest in active.items() if newest > lowest}
    absent = {rank: newest + 1 if newest >= 0 else 0 for rank, newest in known.items() if newest < highest}
    for rank, newest in active.items():
        if rank in waiting:
            result.blocked.add(rank)
        elif hidden or not group.closed:
            result.unsure.setdefault(rank, []).append(unseen)
        else:
            result.running.setdefault(rank, []).append((group, newest))
    if waiting:
        result.waited |= absent.keys()
    if waiting or unseen:
        result.waits.append(Wait(group, waiting or active, absent, unseen))


def _peer_waits(picture: GroupStates, group: GroupView, result: Waits) -> None:
    order = sorted(group.members)
    peers = {rank: global_ranks(group, order, rank, {*t.sends, *t.receives}) for rank, t in group.traces.items()}
    facing = {  # of each rank by its peer
        (side, rank, peers[rank].get(number)): channel
        for side in _OTHER_SIDE
        for rank, trace in group.traces.items()
        for number, channel in _channels(trace, side).items()
    }
    for rank, trace in group.traces.items():
        if trace.open_batches:
            result.open = True
            result.unsure.setdefault(rank, []).append(frozenset())
        for side, other_side in _OTHER_SIDE.items():
            for number, channel in _channels(trace, side).items():
                if not channel.open:
                    continue
                result.open = True
                peer = peers[rank].get(number)
                if peer is None or (peer not in group.traces and peer not in picture.traces):
                    result.unsure.setdefault(rank, []).append(frozenset() if peer is None else frozenset((peer,)))
                    if peer is not None:
                        result.waits.append(_peer_wait(group, rank, None, channel, unseen=frozenset((peer,))))
                elif _owes(picture, rank, peer, channel, facing.get((other_side, peer, rank))):
                    result.blocked.add(rank)
                    result.waited.add(peer)
                    result.waits.append(_peer_wait(group, rank, peer, channel))
                else:
                    result.meeting.add(rank)


def _channels(trace: GroupTrace, side: str) -> Mapping[int, Channel]:
    return trace.sends if side == "sends" else trace.receives


def _peer_wait(
    group: GroupView, rank: int, peer: int | None, channel: Channel, unseen: frozenset[int] = frozenset()
) -> Wait:
    call = channel.oldest_open
    sequence = call.sequence if call else 0
    absent = {} if peer is None else {peer: sequence}
    return Wait(group, {rank: sequence}, absent, unseen, call=call, operation=channel.operation)


def _owes(picture: GroupStates, rank: int, peer: int, channel: Channel, other: Channel | None) -> bool:
    """Has the peer made fewer calls on this channel than the rank? ``other``: its side of it."""
    if picture.traces[rank].wrapped or picture.traces[peer].wrapped:
        # The start is lost on one side: compare what is pending. Completed calls have met their counterpart.
        return channel.open > (other.open if other else 0)
    return channel.total > (other.total if other else 0)


def final(picture: GroupStates, waits: Waits) -> tuple[frozenset[int], str]:
    """Culprits and on what grounds: ``idle``, ``unseen``, ``cycle``, ``order``,
    ``inside`` or ``rest``.

    ``inside``: whoever is waited for sits in a call that all its members have made, so the fault is in that call.
    ``order``: ranks wait for one another because these left out a call that others make first.
    ``rest``: memberships are not known, and these alone have nothing pending (or nobody is named).
    """
    idle = waits.waited - waits.blocked
    free = frozenset(rank for rank in idle if rank not in waits.unsure)
    quiet = free.difference(waits.running, waits.meeting)
    if quiet:
        return quiet, "idle"
    if waits.met:
        return frozenset(waits.met), "inside"
    if free:
        return free, "inside"
    if idle:
        unseen = _silent(picture, [targets for rank in idle for targets in waits.unsure[rank]])
        if unseen:
            return min(unseen, key=lambda targets: (len(targets), sorted(targets))), "unseen"
        return frozenset(idle), "inside"
    if ranks := _last_component(waits.graph()):  # none where ranks wait for themselves alone
        odd = offenders(picture, ranks)
        return (odd, "order") if odd else (_most_waited(waits, ranks), "cycle")
    sets = _silent(picture, [wait.unseen for wait in waits.waits])
    if sets:
        common = frozenset.intersection(*sets)
        return common or min(sets, key=lambda targets: (len(targets), sorted(targets))), "unseen"
    return _without_calls(picture, waits), "rest"


def _silent(picture: GroupStates, targets: list[frozenset[int]]) -> list[frozenset[int]]:
    """Ranks without any dump are likelier culprits than those of which one group is not known."""
    named = list(dict.fromkeys(targets))
    silent = [found for each in named if (found := each & picture.without_dump)]
    return silent or [each for each in named if each]


def _most_waited(waits: Waits, ranks: frozenset[int]) -> frozenset[int]:
    """Of ranks that wait for one another, the one for which clearly most wait; all of them where there is none."""
    counts = dict.fromkeys(ranks, 0)
    for others in waits.graph().values():
        for other in others & counts.keys():
            counts[other] += 1
    first, *rest = sorted(ranks, key=lambda rank: -counts[rank])
    return frozenset((first,)) if rest and counts[first] >= 2 * counts[rest[0]] else ranks


def _without_calls(picture: GroupStates, waits: Waits) -> frozenset[int]:
    if all(group.closed for group in picture.groups):
        return frozenset()
    pending = waits.blocked | waits.unsure.keys() | waits.running.keys()
    rest = frozenset(picture.traces) - pending
    return rest if len(rest) < len(pending) else frozenset()


def _last_component(graph: dict[int, set[int]]) -> frozenset[int]:
    """The ranks of the components that wait for nobody outside themselves."""
    last = (part for part in components(graph) if all(graph.get(rank, set()) <= part for rank in part))
    return frozenset().union(*last)
