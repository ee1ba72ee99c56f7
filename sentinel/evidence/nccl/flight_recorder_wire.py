"""What of a flight-recorder dump travels from a node to the daemon: enough to find who holds the others up. Pure.

A dump of a few megabytes becomes a few kilobytes: the groups, how far each is, the newest calls. The daemon does not trust
what it gets: it was made from a user's file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.errors import ProtocolError
from sentinel.model.collectives import GroupTrace, RankTrace, Unreadable
from sentinel.wire import record_from, to_json

CALLS = 48  # newest calls of a group that travel; ranks are compared where they differ, and that is near the end
FRAMES = 2  # of the call stacks that have frames: where in the program it was
GROUPS = 512
MAX_RANKS = 1 << 17


def to_wire(item: RankTrace | Unreadable) -> dict[str, Any]:
    """JSON of one dump."""
    if isinstance(item, Unreadable):
        return {"unreadable": to_json(item)}
    # A rank is in few groups, but its dump lists all that it knows of: those in which it called something come first.
    groups = sorted(item.groups, key=lambda group: not (group.calls or group.sends or group.receives))[:GROUPS]
    trace: dict[str, Any] = to_json(replace(item, groups=tuple(map(_shortened, groups))))
    return {"trace": trace}


def _shortened(group: GroupTrace) -> GroupTrace:
    newest = sorted(group.calls, key=lambda call: call.sequence)[-CALLS:]
    return replace(group, calls=tuple(replace(call, frames=call.frames[:FRAMES]) for call in newest))


def from_wire(value: object) -> RankTrace | Unreadable:
    """The inverse of ``to_wire``.

    Raises:
        ProtocolError: it is neither, or a rank is out of all bounds.
    """
    if not isinstance(value, dict):
        raise ProtocolError(f"not a dump: {value!r:.80}")
    if "unreadable" in value:
        return record_from(Unreadable, value["unreadable"])
    trace = value.get("trace")
    if not isinstance(trace, dict) or not isinstance(trace.get("groups"), (list, tuple)):
        raise ProtocolError("not a dump: it has no groups")
    made = record_from(RankTrace, {**trace, "groups": trace["groups"][:GROUPS]})
    ranks = [made.rank, *(rank for group in made.groups for rank in group.ranks or ())]
    if strange := next((rank for rank in ranks if rank is not None and not 0 <= rank < MAX_RANKS), None):
        raise ProtocolError(f"no rank of a job: {strange}")
    return made
