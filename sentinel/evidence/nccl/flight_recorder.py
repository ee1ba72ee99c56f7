"""PyTorch flight-recorder dumps: pickled or JSON, of every version, under any name.

Pure: bytes in, records out. Versions are told apart by the fields that are present, not by their number. A pickle is
interpreted and never run; a torn one gives what was before the tear (the state of the groups comes first). Only the newest
calls of each group are kept, and all that are not completed, so that thousands of ranks fit in memory.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping

from sentinel import inert_pickle
from sentinel.evidence.nccl.flight_recorder_entries import Collector, whole_number
from sentinel.inert_pickle import plain
from sentinel.model.collectives import RankTrace, Unreadable
from sentinel.text import json_of

MAX_BYTES = 64 << 20  # a buffer of 2,000 calls with stacks takes about 3 MB
_MEMORY_BYTES = 120 << 20
_LIMITS = inert_pickle.Limits(data_bytes=MAX_BYTES, memory_bytes=_MEMORY_BYTES)
_RANK_WORD = re.compile(r"rank[_.\-= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
_OTHER_SUFFIX = re.compile(r"\.(log|txt|out|err|py|sh|md|csv|html|toml|ya?ml|stacks?|tb)(\.\d+)?$", re.IGNORECASE)
_DATA_SUFFIX = re.compile(r"\.(json|pkl|pickle|bin|dump|trace|fr)$", re.IGNORECASE)
_NAMED_AS_DUMP = re.compile(r"(trace|fr|dump|flight|recorder|nccl|comm_lib)", re.IGNORECASE)
_TOP_KEYS = frozenset(("entries", "pg_config", "pg_status", "nccl_comm_state", "comm_lib_version", "nccl_version"))
_ENTRY_KEYS = frozenset(("profiling_name", "seq_id", "collective_seq_id", "pg_id", "process_group"))


def _plain_list(items: object) -> object:
    return items


# PyTorch's own pickler writes lists of numbers as calls of these; each stands for its argument.
_MAKERS: inert_pickle.Makers = {
    ("torch.jit._pickle", name): _plain_list
    for name in ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
}


def rank_of_name(name: str) -> int | None:
    """The rank that a file name tells: after the word "rank", else the last number of the name, else the folder's."""
    parts = name.replace("\\", "/").split("/")
    words = _RANK_WORD.findall(parts[-1])
    if words:
        return int(words[-1])
    number = _NUMBER.search(_DATA_SUFFIX.sub("", parts[-1]))
    if number:
        return int(number[1])
    for part in reversed(parts[:-1]):
        words = _RANK_WORD.findall(part)
        if words:
            return int(words[-1])
    return None


def named_as_dump(name: str) -> bool:
    """Would a person take the file for a dump by its name? Decides only what is said about unreadable content."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return bool(_NAMED_AS_DUMP.search(last)) and not _OTHER_SUFFIX.search(last)


def read_dump(data: bytes, name: str) -> RankTrace | Unreadable | None:
    """One file. `Unreadable` for a dump that is damaged or too large; None for what is no dump at all."""
    rank = rank_of_name(name)
    if len(data) > MAX_BYTES:
        return Unreadable(name, rank, f"{len(data)} bytes, more than the {MAX_BYTES} that are read of one dump")
    head = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return Unreadable(name, rank, "empty") if named_as_dump(name) else None
    if head[:1] in b"{[" and data[:1] != b"\x80":
        return _read_json(data, name, rank)
    return _read_pickle(data, name, rank)


def _read_json(data: bytes, name: str, rank: int | None) -> RankTrace | Unreadable | None:
    # From above: a list or a text of a few bytes in the file takes tens in memory.
    memory = len(data) * 2 + 64 * data.count(b"[") + 250 * data.count(b"{") + 30 * data.count(b",")
    if memory > 4 * _MEMORY_BYTES:
        return Unreadable(name, rank, "JSON that would take more memory than one dump may")
    try:
        value = json_of(data.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        looks = any(f'"{key}"'.encode() in data[:65536] for key in _TOP_KEYS | _ENTRY_KEYS)
        if not (looks or named_as_dump(name)):
            return None
        return Unreadable(name, rank, f"JSON that ends early or is damaged ({type(error).__name__})")
    return _trace(value, name, rank, torn=False)


def _read_pickle(data: bytes, name: str, rank: int | None) -> RankTrace | Unreadable | None:
    found = _read_plain(data, name, rank)
    if found is not None:
        return found
    try:
        value, whole = inert_pickle.salvage(data, limits=_LIMITS, makers=_MAKERS)
    except inert_pickle.PickleError as error:
        if data[:1] == b"\x80" or named_as_dump(name):
            return Unreadable(name, rank, f"no sound pickle: {error}")
        return None
    trace = _trace(value, name, rank, torn=not whole)
    if trace is None and (named_as_dump(name) or data[:1] == b"\x80"):
        if whole and not named_as_dump(name):
            return None
        return Unreadable(name, rank, "ends before anything of use" if not whole else "a pickle of something else")
    return trace


def _read_plain(data: bytes, name: str, rank: int | None) -> RankTrace | None:
    """A whole dump of plain data, a part at a time; None for all else."""
    parts = plain.parts(data, "entries")
    if parts is None:
        return None
    collector, top = Collector(), dict[object, object]()
    try:
        for value in parts:
            entries = _entries(value)
            if entries is None and collector.count == 0:
                return None
            for entry in entries or ():
                collector.add(entry)
            if isinstance(value, dict):
                top |= {key: item for key, item in value.items() if key != "entries"}
    except ValueError:
        return None
    return _collected(collector, top, name, rank, torn=False)


def _entries(value: object) -> list[Mapping[object, object]] | None:
    """The entries of a dump of any version; None when the value is no dump."""
    raw: object
    if isinstance(value, dict):
        if not _TOP_KEYS & value.keys():
            return None
        raw = value.get("entries") or []
        if isinstance(raw, dict):
            raw = list(raw.values())
    else:
        raw = value
    if not isinstance(raw, (list, tuple)):
        return None
    entries: list[Mapping[object, object]] = [entry for entry in raw if isinstance(entry, dict)]
    if not isinstance(value, dict) and not any(_ENTRY_KEYS & entry.keys() for entry in entries):
        return None
    return entries


def _trace(value: object, name: str, rank: int | None, *, torn: bool) -> RankTrace | None:
    entries = _entries(value)
    if entries is None:
        return None
    collector = Collector()
    for entry in entries:
        collector.add(entry)
    return _collected(collector, value if isinstance(value, dict) else {}, name, rank, torn=torn)


def _collected(
    collector: Collector, top: Mapping[object, object], name: str, rank: int | None, *, torn: bool
) -> RankTrace:
    status = top.get("pg_status")
    groups = collector.groups(top.get("pg_config"), status, torn=torn)
    members = [group.ranks for group in groups if group.ranks and (group.calls or group.sends or group.receives)]
    told = whole_number(top.get("rank"))
    return RankTrace(
        source=name,
        rank=told if told is not None else _own_rank(rank, members),
        version=_version(top, collector),
        groups=groups,
        wrapped=collector.wrapped,
        torn=torn,
        records=collector.highest_record + 1 if collector.highest_record is not None else None,
        newest_ns=collector.newest_ns or None,
        entries=collector.count,
        status_known=isinstance(status, dict) and bool(status),
    )


def _own_rank(named: int | None, members: list[frozenset[int]]) -> int | None:
    """The rank of the name, unless the groups in which the process called something say that it is another."""
    if not members:
        return named
    possible = frozenset.intersection(*members)
    if named in possible or not possible:
        return named
    return next(iter(possible)) if len(possible) == 1 else named


def _version(top: Mapping[object, object], collector: Collector) -> str:
    version = top.get("version")
    if isinstance(version, str) and len(version) <= 32:
        return version
    if collector.any_collective_number:
        return "2.x"
    return "1.x" if collector.count else ""
