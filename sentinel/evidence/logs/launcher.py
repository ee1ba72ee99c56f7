"""Reads which worker failed first from torchelastic's block after "Root Cause (first observed ...)"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sentinel.model.records import Evidence, Scalar

BLOCK = 2048  # bytes behind the headline that may belong to the block
_FIELD = re.compile(rb"^.{0,40}?\b(time|host|rank|exitcode|error_file|traceback) {0,6}: ([^\n]{0,200})", re.MULTILINE)
_WHOLE = re.compile(r"-?\d{1,9}")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """``exit_code`` below zero: the signal that ended it. Unknown fields are None."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    pid: int | None = None

    @property
    def data(self) -> Mapping[str, Scalar]:
        signal = -self.exit_code if self.exit_code is not None and self.exit_code < 0 else None
        found = {"exit_code": self.exit_code, "signal": signal, "pid": self.pid}
        return {name: value for name, value in found.items() if value is not None}


def named(evidence: Evidence, behind: bytes) -> Evidence:
    """Rank, host and status of the worker that the lines behind the headline name."""
    first = first_failure(behind)
    where = replace(
        evidence.where,
        node=first.host or evidence.where.node,
        rank=first.rank if first.rank is not None else evidence.where.rank,
    )
    return replace(evidence, where=where, data={**evidence.data, **first.data})


def first_failure(block: bytes) -> FirstFailure:
    """The fields of the first entry of a block; a later entry, or a line of another kind of block, ends it."""
    seen: dict[str, str] = {}
    for name, value in _FIELD.findall(block[:BLOCK]):
        key = name.decode()
        if key in seen:
            break
        seen[key] = value.decode("utf-8", "replace").strip()
    host = _HOST.match(seen.get("host", ""))
    pid = re.search(r"\(pid: (\d{1,9})\)", seen.get("exitcode", ""))
    return FirstFailure(
        rank=_whole(seen.get("rank")),
        host=host[0] if host and host[0] != "localhost" else None,
        exit_code=_whole(seen.get("exitcode")),
        pid=int(pid[1]) if pid else None,
    )


def _whole(text: str | None) -> int | None:
    found = _WHOLE.match(text or "")
    return int(found[0]) if found else None
