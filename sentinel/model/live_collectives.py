"""What a running job tells when it is asked: the records between the live readers and the analysis. Vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of an NCCL communicator, as NCCL's RAS subsystem reports it."""

    local_rank: int
    host: str = ""
    pid: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # operation -> launched so far; sends are not counted
    unresponsive: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Communicator:
    key: str  # NCCL's hash
    size: int | None
    members: tuple[Member, ...]
    told: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # operation -> counts, also of ranks not listed


@dataclass(frozen=True, slots=True)
class RasPoll:
    """One answer; as JSON it holds the counts of all members, as text only of those that differ."""

    communicators: tuple[Communicator, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process, innermost frame first: "function (file:line)"."""

    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackGroups:
    dominant: tuple[str, ...]  # frames of the stack that most ranks are in
    ranks: tuple[int, ...]  # in it
    outliers: Mapping[int, tuple[str, ...]]  # rank -> its frames
    clear: bool  # the dominant stack holds more than half of the ranks
