"""Examines calls that all members made and that do not complete: which ranks differ. Pure."""

from __future__ import annotations

from sentinel.classify.hang.group_state import GroupStates, GroupView

_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})  # a member may be done before others have begun


def first_pending(group: GroupView, rank: int) -> int | None:
    newest = group.outstanding(rank)
    if newest is None:
        return None
    done = group.completed.get(rank)
    pending = [
        c.sequence for c in group.traces[rank].calls if c.state != "completed" and (done is None or c.sequence > done)
    ]
    return min(pending, default=newest)


def oldest_pending(picture: GroupStates, within: frozenset[int]) -> tuple[GroupView | None, int]:
    """The pending call that was made first, over the groups of these ranks (or all)."""
    best: tuple[int, GroupView, int] | None = None
    for group in picture.groups:
        firsts = [
            first
            for rank in group.traces
            if (not within or rank in within) and (first := first_pending(group, rank)) is not None
        ]
        if firsts:
            sequence = min(firsts)
            times = [c.created_ns for rank in group.traces for c in group.calls_at(rank, sequence) if c.created_ns]
            candidate = (min(times, default=1 << 62), group, sequence)
            if best is None or candidate[0] < best[0]:
                best = candidate
    return (best[1], best[2]) if best else (None, 0)


def not_started(picture: GroupStates) -> tuple[frozenset[int], frozenset[int]]:
    """Ranks whose GPU has not begun what runs elsewhere, and who waits for them; empty when dumps do not tell.

    The chain is followed as on the host: a GPU that itself sits in another running operation is not the end of it.
    """
    running = {
        rank
        for group in picture.groups
        for rank, trace in group.traces.items()
        for channel in (*trace.sends.values(), *trace.receives.values())
        if channel.oldest_open is not None and channel.oldest_open.state == "started"
    }
    idle: set[int] = set()
    waiting: set[int] = set()
    if not any(group.started_known for trace in picture.traces.values() for group in trace.groups):
        return frozenset(), frozenset()
    for group in picture.groups:
        firsts = {rank: first for rank in group.traces if (first := first_pending(group, rank)) is not None}
        if not firsts:
            continue
        started = {rank for rank, at in firsts.items() if any(c.state == "started" for c in group.calls_at(rank, at))}
        lowest = min(firsts.values())
        late = {rank for rank, at in firsts.items() if rank not in started and at == lowest}
        running |= started
        if started and late and all(firsts[rank] == lowest for rank in started):
            idle |= late
            waiting |= started
    culprits = frozenset(idle - running) or _at_rest(picture, running)
    return (culprits, frozenset(waiting)) if culprits else (frozenset(), frozenset())


def _at_rest(picture: GroupStates, running: set[int]) -> frozenset[int]:
    """The few whose device has begun nothing of what is pending, although their dumps tell when it begins something."""
    pending, told = set[int](), set[int]()
    for group in picture.groups:
        for rank, trace in group.traces.items():
            channels = (*trace.sends.values(), *trace.receives.values())
            if group.outstanding(rank) is not None or any(channel.open for channel in channels):
                pending.add(rank)
            if trace.started_known:
                told.add(rank)
    quiet = (pending & told) - running
    return frozenset(quiet) if 2 * len(quiet) < len(pending & running) else frozenset()


def left_behind(picture: GroupStates) -> tuple[frozenset[int], GroupView | None, int]:
    """Ranks on which calls are pending that other members finished, and went beyond; one such group, and the number.

    Nobody finishes a collective of all without every member's part in it, so the network did its work: the device of
    such a rank no longer finishes anything. Dumps of active calls only do not list what is done; the first call that
    they list tells as much.
    """
    found: dict[int, tuple[int, GroupView, int]] = {}
    for group in picture.groups:
        firsts = {rank: first for rank in group.traces if (first := first_pending(group, rank)) is not None}
        done = {rank: _done(group, rank, firsts.get(rank)) for rank in group.traces}
        furthest = max(done.values(), default=0)
        for rank, first in firsts.items():
            lead = furthest - first
            if any(call.operation in _ONE_SIDED for call in group.calls_at(rank, first)):
                continue
            if lead >= 1 and lead > found.get(rank, (0,))[0]:
                found[rank] = (lead, group, first)
    if not found or 2 * len(found) >= len(picture.traces):
        return frozenset(), None, 0
    _, group, first = max(found.values(), key=lambda place: place[0])
    return frozenset(found), group, first


def _done(group: GroupView, rank: int, first: int | None) -> int:
    """The newest number that the rank has finished, as far as its dump tells."""
    completed = group.completed.get(rank)
    return max(-1 if completed is None else completed, -1 if first is None else first - 1)


def not_completed(group: GroupView, sequence: int) -> frozenset[int]:
    """The minority on which a call is pending that is done on the others."""
    pending = {rank for rank in group.traces if first_pending(group, rank) == sequence}
    done = {
        rank
        for rank in group.traces
        if rank not in pending and any(c.state == "completed" for c in group.calls_at(rank, sequence))
    }
    return frozenset(pending) if 0 < len(pending) < len(done) else frozenset()
