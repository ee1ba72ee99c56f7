"""The entries of a flight-recorder dump, sorted into groups. Fields are read where they are; their types are checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sentinel.collectives import NEVER, Call, Channel, GroupTrace

KEEP_COMPLETED = 32  # newest completed calls of a group: enough to compare with ranks that are a little behind
KEEP_OPEN = 4096
_MAX_NUMBER = 1 << 62
_MAX_FRAMES = 12
_TEXT = 200
_PEERS = re.compile(r"^(send|recv)\s+(\d{1,7})\s*(->|<-)\s*(\d{1,7})$")
_DIGITS = re.compile(r"\d{1,7}")
_SPELLINGS = {
    "all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
}


def whole_number(value: object) -> int | None:
    """A whole number that was written as one, or as text (JSON dumps do that)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if len(value) > 20 or not re.fullmatch(r"-?\d+", value):
            return None
        value = int(value)
    if isinstance(value, int) and abs(value) <= _MAX_NUMBER:
        return value
    return None


def _text(value: object) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""


def _operation(profiling_name: str) -> tuple[str, str]:
    """Backend and operation of "nccl:_all_gather_base"."""
    backend, colon, operation = profiling_name.partition(":")
    if not colon:
        backend, operation = "", profiling_name
    operation = operation.strip()
    plain = operation.lstrip("_")
    return backend, _SPELLINGS.get(plain.lower(), plain)


def _elements(value: object) -> tuple[int, ...]:
    """Elements of each tensor; a flat list of numbers is one shape."""
    if not isinstance(value, (list, tuple)):
        return ()
    if value and all(isinstance(size, int) for size in value):
        value = [value]
    counts = []
    for shape in value[:256]:
        if isinstance(shape, (list, tuple)):
            sizes = [whole_number(size) for size in shape[:16]]
            counts.append(math.prod(size for size in sizes if size is not None))
    return tuple(counts)


def _types(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value),)
    return tuple(_text(item) for item in value[:256]) if isinstance(value, (list, tuple)) else ()


def _frames(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    frames = []
    for frame in value[:_MAX_FRAMES]:
        if isinstance(frame, dict):
            place = _text(frame.get("filename"))
            frames.append(f"{_text(frame.get('name'))} ({place}:{whole_number(frame.get('line')) or '?'})")
    return tuple(frames)


@dataclass
class _Collected:
    """One group while its entries are read."""

    name: str
    description: str
    local_name: bool
    ranks: frozenset[int] | None = None
    backend: str = ""
    open: list[Call] = field(default_factory=list)
    done: list[Call] = field(default_factory=list)
    newest: int = NEVER
    newest_done: int = NEVER
    started_known: bool = False
    p2p: dict[tuple[str, int], list[object]] = field(default_factory=dict)  # total, open, oldest open
    local_rank: int | None = None
    open_batches: int = 0
    used: bool = False
    last_frames: object = None  # of the newest completed call: where the rank was last seen


def _ranks(value: object) -> frozenset[int] | None:
    if isinstance(value, str):
        found = frozenset(int(number) for number in _DIGITS.findall(value))
    elif isinstance(value, (list, tuple, set)):
        found = frozenset(number for item in value if (number := whole_number(item)) is not None and number >= 0)
    else:
        return None
    return found or None


def _group_name(entry: Mapping[object, object]) -> tuple[str, str, bool]:
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and pair:
        return _text(pair[0]), _text(pair[1]) if len(pair) > 1 else "", False
    name = entry.get("pg_name")
    if isinstance(name, str) and name:
        return _text(name), _text(entry.get("pg_desc")), False
    number = whole_number(entry.get("pg_id")) or 0
    return ("0", "default_pg", False) if number == 0 else (f"#{number}", "", True)


def collect_groups(
    entries: list[Mapping[object, object]], config: object, status: object, *, torn: bool, wrapped: bool
) -> tuple[GroupTrace, ...]:
    """The groups of one dump, with how far each is."""
    groups: dict[str, _Collected] = {}
    names: dict[int, str] = {}  # the process's own number of a group -> its name
    if isinstance(config, dict):
        for key, item in config.items():
            if isinstance(key, str) and isinstance(item, dict):
                name = _text(item.get("name")) or _text(key)
                ranks = _ranks(item.get("ranks"))
                if ranks:
                    groups[name] = _Collected(name, _text(item.get("desc")), False, ranks)
    for entry in entries:
        name, description, local = _group_name(entry)
        group = groups.get(name)
        if group is None:
            group = groups[name] = _Collected(name, description, local)
        number = whole_number(entry.get("pg_id"))
        if number is not None:
            names.setdefault(number, name)
        _add(group, entry)
    default = next((name for name, group in groups.items() if group.description == "default_pg"), None)
    if default is not None:
        names.setdefault(0, default)
    progress = {
        names[number]: item
        for key, item in (status.items() if isinstance(status, dict) else ())
        if (number := whole_number(key)) in names and isinstance(item, dict)
    }
    complete = isinstance(status, dict) and len(progress) == len(status)
    return tuple(
        _finish(group, progress.get(group.name), missing_known=(complete or not wrapped) and not torn)
        for group in groups.values()
    )


def _add(group: _Collected, entry: Mapping[object, object]) -> None:
    group.used = True
    group.backend, operation = _operation(_text(entry.get("profiling_name")))
    state = _text(entry.get("state")) or "scheduled"
    retired = entry.get("retired") is True
    if entry.get("time_discovered_completed_ns"):
        state = "completed"
    if state == "started" or entry.get("time_discovered_started_ns"):
        group.started_known = True
    done = state == "completed" or (retired and group.backend == "gloo")  # Gloo marks its finished work only so
    peers = _PEERS.match(operation)
    point_to_point = entry.get("is_p2p") is True or peers is not None
    sequence = whole_number(entry.get("collective_seq_id"))
    if sequence is None:
        sequence = whole_number(entry.get("seq_id"))
    if sequence is None:
        return
    call = Call(
        sequence=sequence if not point_to_point else whole_number(entry.get("p2p_seq_id")) or sequence,
        operation=peers[1] if peers else operation,
        sizes=(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))),
        types=(_types(entry.get("input_dtypes")), _types(entry.get("output_dtypes"))),
        state="completed" if done else state,
        timed_out=retired and not done,
        created_ns=whole_number(entry.get("time_created_ns")),
        frames=() if done else _frames(entry.get("frames")),
    )
    if point_to_point:
        _add_peer(group, call, peers, done)
        return
    group.newest = max(group.newest, sequence)
    if done:
        group.newest_done = max(group.newest_done, sequence)
        group.done.append(call)
        group.last_frames = entry.get("frames")
        if len(group.done) > 2 * KEEP_COMPLETED:
            del group.done[:KEEP_COMPLETED]
    elif len(group.open) < KEEP_OPEN:
        group.open.append(call)


def _add_peer(group: _Collected, call: Call, peers: re.Match[str] | None, done: bool) -> None:
    if peers is None:
        group.open_batches += not done
        return
    # "send 0->1" and "recv 0<-1": the first number is the process itself.
    group.local_rank = int(peers[2])
    tally = group.p2p.setdefault((call.operation, int(peers[4])), [0, 0, None])
    assert isinstance(tally[0], int)
    assert isinstance(tally[1], int)
    tally[0] += 1
    if not done:
        tally[1] += 1
        tally[2] = tally[2] or call


def _finish(group: _Collected, progress: object, *, missing_known: bool) -> GroupTrace:
    enqueued: int | None = group.newest
    completed: int | None = group.newest_done
    # With sends and receives the status counts those, too, and says nothing certain about the collectives.
    mixed = bool(group.p2p or group.open_batches)
    if isinstance(progress, dict) and not mixed:
        told = whole_number(progress.get("last_enqueued_collective"))
        finished = whole_number(progress.get("last_completed_collective"))
        enqueued = max(group.newest, told if told is not None else NEVER)
        if finished is not None or group.newest_done == NEVER:
            completed = finished if finished is None else max(group.newest_done, finished)
        if (whole_number(progress.get("last_started_collective")) or NEVER) > 0:
            group.started_known = True
    elif not missing_known and (group.newest == NEVER or not group.used):
        enqueued = completed = None
    if group.done:
        group.done[-1] = replace(group.done[-1], frames=_frames(group.last_frames))
    calls = [call for call in group.open if completed is None or call.sequence > completed]
    channels = {
        kind: {
            peer: Channel(
                int(str(tally[0])), int(str(tally[1])), kind, tally[2] if isinstance(tally[2], Call) else None
            )
            for (operation, peer), tally in group.p2p.items()
            if operation == kind
        }
        for kind in ("send", "recv")
    }
    return GroupTrace(
        name=group.name,
        description=group.description,
        local_name=group.local_name,
        ranks=group.ranks,
        enqueued=enqueued,
        completed=completed,
        started_known=group.started_known,
        calls=(*group.done[-KEEP_COMPLETED:], *calls),
        sends=channels["send"],
        receives=channels["recv"],
        local_rank=group.local_rank,
        open_batches=group.open_batches,
    )
