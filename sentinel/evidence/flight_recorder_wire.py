"""What of a flight-recorder dump travels from a node to the daemon: enough to find who holds the others up. Pure.

A dump of a few megabytes becomes a few kilobytes: the groups, how far each is, the newest calls. The daemon does not trust
what it gets: it was made from a user's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel.collectives import Call, Channel, GroupTrace, RankTrace, Unreadable
from sentinel.errors import ProtocolError
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
    if not isinstance(trace, dict) or not isinstance(trace.get("groups"), list):
        raise ProtocolError("not a dump: it has no groups")
    made = record_from(RankTrace, {**trace, "groups": []})
    if made.rank is not None and not 0 <= made.rank < MAX_RANKS:
        raise ProtocolError(f"no rank of a job: {made.rank}")
    return replace(made, groups=tuple(map(_group, trace["groups"][:GROUPS])))


def _group(value: object) -> GroupTrace:
    if not isinstance(value, dict):
        raise ProtocolError(f"not a group: {value!r:.80}")
    group = record_from(GroupTrace, {**value, "calls": [], "sends": {}, "receives": {}})
    if group.ranks is not None and not all(isinstance(rank, int) and 0 <= rank < MAX_RANKS for rank in group.ranks):
        raise ProtocolError("a group with ranks that are none")
    calls = value.get("calls")
    return replace(
        group,
        calls=tuple(record_from(Call, call) for call in calls) if isinstance(calls, list) else (),
        sends=_channels(value.get("sends")),
        receives=_channels(value.get("receives")),
    )


def _channels(value: object) -> Mapping[int, Channel]:
    if not isinstance(value, dict):
        return {}
    try:
        return {int(peer): record_from(Channel, channel) for peer, channel in value.items()}
    except ValueError as error:
        raise ProtocolError(f"a peer that is no rank: {error!s:.80}") from error
