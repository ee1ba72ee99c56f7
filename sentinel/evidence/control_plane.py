"""Answers of a running job: NCCL's RAS port (JSON and text) and the debug endpoints of a PyTorch worker.

Pure: bytes in, records out; who asks, and how often, is an adapter's business. What a process says of itself is what its
user's program may have made it say.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping

from sentinel.collectives import RankTrace, Unreadable
from sentinel.collectives_live import Communicator, Member, RasPoll, Stack, StackGroups
from sentinel.evidence.flight_recorder import read_dump
from sentinel.evidence.flight_recorder_entries import whole_number

MAX_BYTES = 32 << 20
_MAX_MEMBERS = 1 << 17
_MAX_FRAMES = 64
_TEXT = 200
_COMMUNICATOR = re.compile(r"^\s*#(\d{1,6})-(\d{1,6})\s+\(([0-9a-fA-F]{1,32})\)\s*(.*)$")
_DIFFERENT = re.compile(r"^\s*Communicator ranks have different (\w+) operation counts")
_COUNT = re.compile(r"^\s*(\d{1,7}) ranks? ha(?:ve|s) launched up to operation (\d{1,18})")
_RANK = re.compile(r"^\s*Rank (\d{1,7})\b.*?managed by process (\d{1,10}) on node (\S{1,200})")
_DEAD = re.compile(r"\b(considered dead|DEAD|unreachable)\b", re.IGNORECASE)
_SILENT = re.compile(r"\b(unresponsive|NO ?RESPONSE)\b", re.IGNORECASE)
_SPIED = re.compile(r"^Thread (?:0x)?[0-9a-fA-F]{1,32}[^\"\n]{0,60}(?:\"([^\"\n]{0,100})\")?")
_SPIED_FRAME = re.compile(r"^\s+(\S.{0,200}?) \(([^()\n]{1,400}:\d{1,9})\)$")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+")
_FRAME = re.compile(r'^\s+File "([^"]{0,400})", line (\d{1,9})(?: in (.{1,200}))?$')


def read_ras(data: bytes, source: str) -> RasPoll | Unreadable:
    """The answer to STATUS, in either form."""
    if len(data) > MAX_BYTES:
        return Unreadable(source, None, f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    start = data.find(b"{")
    text = data.decode("utf-8", "replace")
    if start >= 0 and not any(_COMMUNICATOR.match(line) for line in text[:start].splitlines()):
        # Answers to the commands before (SERVER PROTOCOL 2, OK) may stand in front.
        try:
            value = json.loads(data[start:])
        except (ValueError, RecursionError) as error:
            return Unreadable(source, None, f"JSON that ends early or is damaged ({type(error).__name__})")
        return _ras_json(value, source)
    return _ras_text(text, source)


def _ras_json(value: object, source: str) -> RasPoll | Unreadable:
    listed = value.get("communicators") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(listed, list):
        return Unreadable(source, None, "no list of communicators")
    found = []
    for item in listed:
        if not isinstance(item, dict):
            continue
        members = [
            member
            for key, missing in (("ranks", False), ("missing_ranks", True))
            for entry in _dicts(item.get(key))
            if (member := _member(entry, missing=missing)) is not None
        ]
        key = "-".join(_plain(item.get(name)) for name in ("hash", "secondary_hash") if item.get(name) is not None)
        found.append(Communicator(key, whole_number(item.get("size")), tuple(members[:_MAX_MEMBERS])))
    meta = value.get("ras")
    timeouts = whole_number(meta.get("timeouts_count")) if isinstance(meta, dict) else None
    return RasPoll(tuple(found), complete=True, timeouts=timeouts or 0)


def _dicts(value: object) -> list[dict[object, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _plain(value: object) -> str:
    return str(value)[:_TEXT] if isinstance(value, (str, int)) else ""


def _member(entry: Mapping[object, object], *, missing: bool) -> Member | None:
    rank = whole_number(entry.get("rank"))
    if rank is None:
        return None
    status = entry.get("status")
    status = status if isinstance(status, dict) else {}
    counts = entry.get("collective_counts")
    error = whole_number(status.get("async_error"))
    return Member(
        local_rank=rank,
        host=_plain(entry.get("host")),
        pid=whole_number(entry.get("pid")),
        counts={
            str(name)[:_TEXT]: number
            for name, raw in (counts.items() if isinstance(counts, dict) else ())
            if (number := whole_number(raw)) is not None
        },
        unresponsive=missing or status.get("unresponsive") is True,
        dead=status.get("considered_dead") is True,
        error=f"NCCL error {error}" if error else "",
    )


def _ras_text(text: str, source: str) -> RasPoll | Unreadable:
    """The form for people: a line per group of equal counts, with the ranks of the smaller groups below."""
    found: list[tuple[str, dict[int, Member]]] = []
    operation, count = "", None
    for line in text.splitlines():
        heading = _COMMUNICATOR.match(line)
        if heading:
            found.append((heading[3], {}))
            operation, count = "", None
        elif different := _DIFFERENT.match(line):
            operation, count = different[1], None
        elif counted := _COUNT.match(line):
            count = int(counted[2])
        elif (named := _RANK.match(line)) and found:
            members = found[-1][1]
            rank = int(named[1])
            before = members.get(rank) or Member(rank, named[3], int(named[2]))
            counts = {**before.counts, operation: count} if operation and count is not None else before.counts
            members[rank] = dataclasses.replace(
                before,
                counts=counts,
                dead=before.dead or bool(_DEAD.search(line)),
                unresponsive=before.unresponsive or bool(_SILENT.search(line)),
            )
    if not found and "NCCL" not in text and "ommunicator" not in text:
        return Unreadable(source, None, "not an answer of NCCL's RAS port")
    return RasPoll(tuple(Communicator(key, None, tuple(members.values())) for key, members in found), complete=False)


def read_trace_answer(data: bytes, rank: int, source: str) -> RankTrace | Unreadable:
    """The answer of ``fr_trace_json`` (or the pickled form) of the worker with this rank."""
    found = read_dump(data, source)
    if isinstance(found, RankTrace):
        return dataclasses.replace(found, rank=rank)
    return Unreadable(source, rank, found.reason if found else "no flight-recorder answer")


def read_stack(data: bytes) -> Stack | None:
    """The main thread in an answer of ``dump_traceback``: the one whose outermost frame is a module. None: no such."""
    threads: list[list[tuple[str, str]]] = []
    for line in data[:MAX_BYTES].decode("utf-8", "replace").splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)) and len(threads[-1]) < _MAX_FRAMES:
            name = frame[3] or ""
            threads[-1].append((name, f"{name} ({frame[1]}:{frame[2]})"))
    main = [thread for thread in threads if thread and thread[-1][0] == "<module>"]
    chosen = main or [thread for thread in threads if thread][-1:]
    return Stack(tuple(text for _, text in chosen[-1])) if chosen else None


def read_py_spy(data: bytes) -> Stack | None:
    """The main thread in the output of ``py-spy dump``: by its name, else by its outermost frame, a module."""
    threads: list[tuple[str, list[tuple[str, str]]]] = []
    for line in data[:MAX_BYTES].decode("utf-8", "replace").splitlines():
        if heading := _SPIED.match(line):
            threads.append((heading[1] or "", []))
        elif threads and (frame := _SPIED_FRAME.match(line)) and len(threads[-1][1]) < _MAX_FRAMES:
            threads[-1][1].append((frame[1], f"{frame[1]} ({frame[2]})"))
    found = [frames for name, frames in threads if name == "MainThread" and frames]
    found = found or [frames for _, frames in threads if frames and frames[-1][0] == "<module>"]
    return Stack(tuple(text for _, text in found[0])) if found else None


def group_stacks(stacks: Mapping[int, Stack]) -> StackGroups:
    """Ranks by the frames they are in; the stack of most ranks is taken as the one that waits."""
    kinds = Counter(stack.frames for stack in stacks.values())
    if not kinds:
        return StackGroups((), (), {}, clear=False)
    dominant = max(kinds, key=lambda frames: (kinds[frames], frames))
    inside = tuple(sorted(rank for rank, stack in stacks.items() if stack.frames == dominant))
    outliers = {rank: stacks[rank].frames for rank in sorted(stacks) if stacks[rank].frames != dominant}
    return StackGroups(dominant, inside, outliers, clear=2 * len(inside) > len(stacks))
