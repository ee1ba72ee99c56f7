"""The entries of a flight-recorder dump, sorted into groups. Fields are read where they are; their types are checked."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sentinel.model.collectives import NEVER, Call, Channel, GroupTrace

KEEP_COMPLETED = 32  # newest completed calls of a group: enough to compare with ranks that are a little behind
KEEP_OPEN = 4096
_MAX_OPEN = 30_000  # calls and peers of all groups together that are kept
_MAX_GROUPS = 10_000
_RETIRED_IS_DONE = frozenset(("gloo", "c10d"))
_MAX_NUMBER = 1 << 62
_MAX_FRAMES = 12
_TEXT = 200
_PEERS = re.compile(r"^(send|recv)\s+(\d{1,7})\s*(->|<-)\s*(\d{1,7})$")
_DIGITS = re.compile(r"\d{1,7}")
Entry = Mapping[object, object]
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
    plain = operation.strip("_")
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


@dataclass(slots=True)
class _Tally:
    """Sends to, or receives from, one peer."""

    total: int = 0
    open: int = 0
    oldest_open: Call | None = None


@dataclass(slots=True)
class _Collected:
    """One group while its entries are read."""

    name: str
    description: str
    local_name: bool
    ranks: frozenset[int] | None = None
    open: list[Call] = field(default_factory=list)
    done: deque[tuple[int, str, Entry]] = field(default_factory=lambda: deque(maxlen=KEEP_COMPLETED))
    newest: int = NEVER
    newest_done: int = NEVER
    started_known: bool = False
    p2p: dict[tuple[str, int], _Tally] = field(default_factory=dict)
    batch: list[tuple[tuple[str, int], Call]] = field(default_factory=list)  # sends and receives with one number
    batch_numbers: tuple[object, object] = (None, None)
    local_rank: int | None = None
    open_batches: int = 0
    used: bool = False


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


class Collector:
    """Takes the entries of one dump, in order, and keeps what the analysis needs of them."""

    def __init__(self) -> None:
        self.count = 0
        self.lowest_record: int | None = None
        self.highest_record: int | None = None
        self.newest_ns = 0
        self.any_completed = False
        self.any_collective_number = False
        self._groups: dict[str, _Collected] = {}
        self._names: dict[int, str] = {}  # the process's own number of a group -> its name
        self._operations: dict[str, tuple[str, str, re.Match[str] | None]] = {}
        self._kept = 0
        self._tail: _Collected | None = None  # the group of the newest entry, if that is a part of a batch

    @property
    def wrapped(self) -> bool:
        """A dump of active calls only has no completed one; its first record says nothing about a wrap."""
        return bool(self.lowest_record) and self.any_completed

    def add(self, entry: Entry) -> None:
        get = entry.get
        self.count += 1
        record = _number(get("record_id"))
        if record is not None:
            self._count_record(record)
        self.newest_ns = max(self.newest_ns, _number(get("time_created_ns")) or 0)
        group = self._group(entry)
        if group is None:
            return
        group.used = True
        backend, operation, peers = self._operation(_text(get("profiling_name")))
        told = get("state")
        completed = told == "completed" or bool(get("time_discovered_completed_ns"))
        self.any_completed |= told == "completed"
        state = "completed" if completed else _text(told) or "scheduled"
        if state == "started" or get("time_discovered_started_ns"):
            group.started_known = True
        # Gloo, and the hook that records for other backends, mark finished work only so.
        done = completed or (get("retired") is True and backend in _RETIRED_IS_DONE)
        number = _number(get("collective_seq_id"))
        if number is not None:
            self.any_collective_number = True
        else:
            number = _number(get("seq_id"))
        if number is None:
            return
        if group.batch and "coalesced" in operation and group.batch_numbers == (number, get("p2p_seq_id")):
            _close_batch(group, state, done)
        elif peers is not None or get("is_p2p") is True:
            self._add_peer(group, entry, number, (peers, state, done))
        else:
            group.newest = max(group.newest, number)
            if done:
                group.newest_done = max(group.newest_done, number)
                group.done.append((number, operation, entry))
            elif self._room(len(group.open)):
                group.open.append(_call(entry, number, operation, state, done=False))

    def _count_record(self, record: int) -> None:
        if self.highest_record is None or self.lowest_record is None:
            self.lowest_record = self.highest_record = record
            return
        if self._tail is not None and record > self.highest_record + 1:
            # Only a dump of active calls has gaps: what closed the batch is not there because it completed.
            self._tail.batch.clear()
        self._tail = None
        self.lowest_record, self.highest_record = min(self.lowest_record, record), max(self.highest_record, record)

    def _room(self, there: int) -> bool:
        self._kept += 1
        return there < KEEP_OPEN and self._kept <= _MAX_OPEN

    def _group(self, entry: Entry) -> _Collected | None:
        pair = entry.get("process_group")
        name = pair[0] if isinstance(pair, (list, tuple)) and len(pair) == 2 else None
        group = self._groups.get(name) if type(name) is str else None
        if group is None:
            name, description, local = _group_name(entry)
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= _MAX_GROUPS:
                    return None
                group = self._groups[name] = _Collected(name, description, local)
        number = _number(entry.get("pg_id"))
        if number is not None and number not in self._names:
            self._names[number] = group.name
        return group

    def _operation(self, profiling_name: str) -> tuple[str, str, re.Match[str] | None]:
        found = self._operations.get(profiling_name)
        if found is None:
            backend, operation = _operation(profiling_name)
            found = backend, operation, _PEERS.match(operation)
            if len(self._operations) < _MAX_GROUPS:
                self._operations[profiling_name] = found
        return found

    def _add_peer(
        self, group: _Collected, entry: Entry, number: int, made: tuple[re.Match[str] | None, str, bool]
    ) -> None:
        peers, state, done = made
        if peers is None:
            group.open_batches += not done
            return
        # "send 0->1" and "recv 0<-1": the first number is the process itself.
        group.local_rank = int(peers[2])
        numbers = (number, entry.get("p2p_seq_id"))
        if group.batch and group.batch_numbers != numbers:
            _close_batch(group)
        key = (peers[1], int(peers[4]))
        if len(group.batch) < KEEP_OPEN and (key in group.p2p or self._room(len(group.p2p))):
            sequence = _number(entry.get("p2p_seq_id")) or number
            group.batch.append((key, _call(entry, sequence, peers[1], "completed" if done else state, done=done)))
            group.batch_numbers = numbers
            self._tail = group

    def groups(self, config: object, status: object, *, torn: bool) -> tuple[GroupTrace, ...]:
        """The groups of the dump, with how far each is; what is listed in its configuration first."""
        groups: dict[str, _Collected] = {}
        for key, item in config.items() if isinstance(config, dict) else ():
            if isinstance(key, str) and isinstance(item, dict) and (ranks := _ranks(item.get("ranks"))):
                name = _text(item.get("name")) or _text(key)
                group = groups[name] = self._groups.get(name) or _Collected(name, "", False)
                group.description, group.ranks, group.local_name = _text(item.get("desc")), ranks, False
        for name, group in self._groups.items():
            groups.setdefault(name, group)
        names = dict(self._names)
        default = next((name for name, group in groups.items() if group.description == "default_pg"), None)
        if default is not None:
            names.setdefault(0, default)
        progress = {
            names[number]: item
            for key, item in (status.items() if isinstance(status, dict) else ())
            if (number := whole_number(key)) in names and isinstance(item, dict)
        }
        complete = isinstance(status, dict) and len(progress) == len(status)
        known = (complete or not self.wrapped) and not torn
        return tuple(
            _finish(group, progress.get(group.name), missing_known=known, active_only=not (self.any_completed or torn))
            for group in groups.values()
        )


def _number(value: object) -> int | None:
    """`whole_number`, with a short way for what is one."""
    return value if type(value) is int and -_MAX_NUMBER <= value <= _MAX_NUMBER else whole_number(value)


def _call(entry: Entry, sequence: int, operation: str, state: str, *, done: bool) -> Call:
    return Call(
        sequence=sequence,
        operation=operation,
        sizes=(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))),
        types=(_types(entry.get("input_dtypes")), _types(entry.get("output_dtypes"))),
        state="completed" if done else state,
        created_ns=whole_number(entry.get("time_created_ns")),
        frames=() if done else _frames(entry.get("frames")),
    )


def _close_batch(group: _Collected, state: str = "", done: bool | None = None) -> None:
    """Of a batch only the entry that closes it ever completes: its sends and receives are as far as that one."""
    for key, call in group.batch:
        finished = call.state == "completed" if done is None else done
        tally = group.p2p.get(key)
        if tally is None:
            tally = group.p2p[key] = _Tally()
        tally.total += 1
        if not finished:
            tally.open += 1
            tally.oldest_open = tally.oldest_open or (replace(call, state=state) if state else call)
    group.batch.clear()


def _all_done(progress: object) -> bool:
    """Does the status say that the newest call of the group, of whatever kind, is completed?"""
    if not isinstance(progress, dict):
        return False
    newest, done = (whole_number(progress.get(f"last_{word}_collective")) for word in ("enqueued", "completed"))
    return newest is not None and newest == done


def _finish(group: _Collected, progress: object, *, missing_known: bool, active_only: bool) -> GroupTrace:
    """``active_only``: the dump holds no completed call, so all that is pending is in it."""
    if active_only and _all_done(progress):
        group.batch.clear()
    _close_batch(group)
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
        if active_only:
            completed = max(completed or NEVER, min((call.sequence for call in group.open), default=enqueued + 1) - 1)
    elif not missing_known and (group.newest == NEVER or not group.used):
        enqueued = completed = None
    done = [_call(entry, number, operation, "completed", done=True) for number, operation, entry in group.done]
    if done:
        done[-1] = replace(done[-1], frames=_frames(group.done[-1][2].get("frames")))  # where the rank was last seen
    calls = [call for call in group.open if completed is None or call.sequence > completed]
    channels = {
        kind: {
            peer: Channel(tally.total, tally.open, kind, tally.oldest_open)
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
        calls=(*done, *calls),
        sends=channels["send"],
        receives=channels["recv"],
        local_rank=group.local_rank,
        open_batches=group.open_batches,
    )
