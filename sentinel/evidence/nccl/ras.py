"""Answers of NCCL's RAS port: JSON (NCCL 2.28.7 and newer) and the text for people (2.24 and newer). Pure.

Both forms as NCCL 2.24.3 to 2.30.7 write them. A process that reports to be in no such communicator is missing from it and
well; only one that did not answer, or is told dead, is out of reach.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from sentinel.evidence.nccl.flight_recorder_entries import whole_number
from sentinel.model.collectives import Unreadable
from sentinel.model.live_collectives import Communicator, Member, RasPoll
from sentinel.text import json_of, objects_in

MAX_BYTES = 32 << 20
MAX_MEMBERS = 1 << 17
_TEXT = 200
_WORDS = re.compile(r"\b(?:NCCL version|ommunicator|SERVER PROTOCOL)\b|ommunicator")
# 2.28.7 and 2.28.9 leave out the comma before the status of a missing rank, so that exactly their reports of lost
# processes are no JSON.
_NO_COMMA = re.compile(rb'("nvml_dev"\s*:\s*-?\d+)(\s+"status"\s*:)')

_HEADING = re.compile(r"^\s*#\d{1,6}-\d{1,6}\s+\(([0-9a-fA-F]{1,32})\)\s*(\w*)")
_DIFFERENT = re.compile(r"^\s*Communicator ranks have different (\w+)(?: \w+)? counts")
_OTHER_TOPIC = re.compile(
    r"^\s*(?:Communicator ranks have different status|Initialization error|Asynchronous error|Missing communicator data)"
)
_GROUP = re.compile(r"^\s*(\d{1,7}) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched any)")
_RANK = re.compile(
    r"^\s*Rank (\d{1,7})(?: has launched up to operation (\d{1,18})| (has not launched any operations)"
    r"| has status (\w{1,40})| reported ([\w ]{1,60}?))?(?: -- |\s*$)"
)
_PLACE = re.compile(r"managed by process (\d{1,10}) on node (\S{1,200})")
_MISSING = re.compile(r"^\s*The (?:missing|unknown) ranks?: ([\d,]{1,4000})\s*$")
_DEAD_PROCESS = re.compile(r"^\s*Process (\d{1,10}) on node (\S{1,200}) managing GPU")
_TITLE = re.compile(r"^\s*(INCOMPLETE|DEAD|TIMEOUT|Errors|Warnings)\s*$")


def read_ras(data: bytes, source: str) -> RasPoll | Unreadable:
    """The answer to STATUS, in either form."""
    if len(data) > MAX_BYTES:
        return Unreadable(source, None, f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    start = data.find(b"{")
    text = data.decode("utf-8", "replace")
    if start >= 0 and not any(_HEADING.match(line) for line in text[:start].splitlines()):
        # Answers to the commands before (SERVER PROTOCOL 2, OK) may stand in front.
        try:
            value = _parsed(data[start:])
        except (ValueError, RecursionError) as error:
            return Unreadable(source, None, f"JSON that ends early or is damaged ({type(error).__name__})")
        return _ras_json(value, source)
    return _ras_text(text, source)


def slim(data: bytes) -> bytes:
    """The same answer in a quarter of the bytes: what is read of JSON, without indentation; other answers as they are."""
    start = data.find(b"{")
    if start < 0:
        return data
    try:
        value = _parsed(data[start:])
    except (ValueError, RecursionError):
        return data
    if not isinstance(value, dict) or not isinstance(value.get("communicators"), list):
        return data
    communicators = []
    for item in objects_in(value["communicators"]):
        kept: dict[object, object] = {name: item[name] for name in ("hash", "secondary_hash", "size") if name in item}
        for name in ("ranks", "missing_ranks"):
            kept[name] = [
                {key: entry[key] for key in ("rank", "host", "pid", "status", "collective_counts") if key in entry}
                for entry in objects_in(item.get(name))
            ]
        communicators.append(kept)
    return json.dumps({"communicators": communicators, "ras": value.get("ras")}, separators=(",", ":")).encode()


def _parsed(data: bytes) -> object:
    try:
        return json_of(data)
    except ValueError:
        return json_of(_NO_COMMA.sub(rb"\1,\2", data))


# --- JSON -------------------------------------------------------------------------------------------------------------


def _ras_json(value: object, source: str) -> RasPoll | Unreadable:
    listed = value.get("communicators") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(listed, list):
        return Unreadable(source, None, "no list of communicators")
    found = []
    for item in objects_in(listed):
        members = [
            member
            for key, missing in (("ranks", False), ("missing_ranks", True))
            for entry in objects_in(item.get(key))
            if (member := _member(entry, missing=missing)) is not None
        ]
        key = "-".join(_plain(item.get(name)) for name in ("hash", "secondary_hash") if item.get(name) is not None)
        found.append(Communicator(key, whole_number(item.get("size")), tuple(members[:MAX_MEMBERS])))
    return RasPoll(tuple(found))


def _plain(value: object) -> str:
    return str(value)[:_TEXT] if isinstance(value, (str, int)) else ""


def _member(entry: Mapping[object, object], *, missing: bool) -> Member | None:
    rank = whole_number(entry.get("rank"))
    if rank is None:
        return None
    told = entry.get("status")
    status = told if isinstance(told, dict) else {}
    counts = entry.get("collective_counts")
    pid = whole_number(entry.get("pid"))
    silent = status.get("unresponsive")
    return Member(
        local_rank=rank,
        host=_plain(entry.get("host")),
        pid=pid if pid is not None and pid > 0 else None,  # -1: NCCL does not know it either
        counts={
            str(name)[:_TEXT]: number
            for name, raw in (counts.items() if isinstance(counts, dict) else ())
            if (number := whole_number(raw)) is not None
        },
        unresponsive=silent if isinstance(silent, bool) else missing,
        dead=status.get("considered_dead") is True,
    )


# --- the text for people ----------------------------------------------------------------------------------------------


class _TextCommunicator:
    """One communicator of the text form, while it is parsed."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.counts: dict[int, dict[str, int]] = {}
        self.groups: dict[str, set[int]] = {}

    def member(self, rank: int, place: re.Match[str] | None, **changes: object) -> None:
        known = self.members.get(rank) or Member(rank)
        if place is not None:
            known = dataclasses.replace(known, host=place[2], pid=int(place[1]))
        self.members[rank] = dataclasses.replace(known, **changes)  # type: ignore[arg-type]

    def count(self, rank: int, place: re.Match[str] | None, operation: str, count: int) -> None:
        self.member(rank, place, counts=self.counts.setdefault(rank, {}))
        self.counts[rank][operation] = count
        self.groups.setdefault(operation, set()).add(count)


def _ras_text(text: str, source: str) -> RasPoll | Unreadable:
    """Parse the text form. It lists only unusual ranks: those with differing counts, and those that did not answer."""
    found: dict[str, _TextCommunicator] = {}
    dead: set[tuple[str, int]] = set()
    here: _TextCommunicator | None = None
    topic = operation = ""
    count: int | None = None
    for line in text.splitlines():
        if title := _TITLE.match(line):
            here, topic, operation, count = None, title[1], "", None
        elif heading := _HEADING.match(line):
            here, topic, operation, count = found.setdefault(heading[1], _TextCommunicator()), heading[2], "", None
        elif topic == "DEAD" and (process := _DEAD_PROCESS.match(line)):
            dead.add((process[2], int(process[1])))
        elif here is None:
            continue
        elif different := _DIFFERENT.match(line):
            operation, count = different[1], None
        elif _OTHER_TOPIC.match(line):
            operation, count = "", None
        elif operation and (group := _GROUP.match(line)):
            count = int(group[2] or 0)
            here.groups.setdefault(operation, set()).add(count)
        elif missing := _MISSING.match(line):
            for rank in missing[1].split(","):
                if rank and topic == "INCOMPLETE":
                    here.member(int(rank), None, unresponsive=True)
        elif named := _RANK.match(line):
            _named(here, named, line, topic, operation, count)
    if not found and not _WORDS.search(text):
        return Unreadable(source, None, "not an answer of NCCL's RAS port")
    return RasPoll(
        tuple(
            Communicator(
                key,
                None,
                tuple(
                    dataclasses.replace(member, dead=True) if (member.host, member.pid) in dead else member
                    for member in told.members.values()
                ),
                told={name: tuple(sorted(counts)) for name, counts in told.groups.items()},
            )
            for key, told in found.items()
        )
    )


def _named(
    here: _TextCommunicator, named: re.Match[str], line: str, topic: str, operation: str, count: int | None
) -> None:
    """A line about one rank: its own count, that of the group above it, or what is wrong with it."""
    rank, place = int(named[1]), _PLACE.search(line)
    if named[2] or named[3]:
        here.count(rank, place, operation or "collective", int(named[2] or 0))
    elif named[5]:
        here.member(rank, place)
    elif named[4]:
        return  # its status differs, which is no count and no silence
    elif topic == "INCOMPLETE":
        here.member(rank, place, unresponsive=True)
    elif operation and count is not None:
        here.count(rank, place, operation, count)
