"""What one rank knows about its collectives: the records between the readers of dumps and the analysis of hangs.

Frozen, without I/O, as ``sentinel.model.records``. ``None`` means *not known* everywhere. Ranks are global unless a
name says ``local`` (the index within a group, in order of global rank).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER = -1  # the sequence number of a group in which a rank has not called anything


@dataclass(frozen=True, slots=True)
class Call:
    """One collective that a rank has enqueued (several with one sequence number when coalesced)."""

    sequence: int
    operation: str  # without its backend: "all_reduce"
    sizes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # elements of the inputs and of the outputs
    types: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    state: str = "scheduled"  # scheduled, started, completed
    created_ns: int | None = None
    frames: tuple[str, ...] = ()  # innermost first: "name (file:line)"


@dataclass(frozen=True, slots=True)
class Channel:
    """Sends to, or receives from, one peer of a group, in the order of their calls."""

    total: int  # calls that the buffer holds
    open: int  # of them, not completed
    operation: str  # "send" or "recv"
    oldest_open: Call | None = None


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """One process group as one rank saw it."""

    name: str
    description: str
    local_name: bool = False  # the name means something in this process only (old dumps number their groups)
    ranks: frozenset[int] | None = None
    enqueued: int | None = None  # newest sequence number; NEVER when nothing was called
    completed: int | None = None
    started_known: bool = False  # the dump says when operations start on the GPU
    calls: tuple[Call, ...] = ()  # the newest ones, and all that are not completed
    sends: Mapping[int, Channel] = field(default_factory=dict)  # by local rank of the peer
    receives: Mapping[int, Channel] = field(default_factory=dict)
    local_rank: int | None = None  # own index, where a send or receive told it
    open_batches: int = 0  # open point-to-point batches of which the dump does not name the peers


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One dump."""

    source: str  # file name or address
    rank: int | None
    version: str
    groups: tuple[GroupTrace, ...]
    wrapped: bool = False  # the ring buffer lost its first entries
    torn: bool = False  # the file ended early; what is here was before the tear
    records: int | None = None  # calls since the start, lost ones included
    newest_ns: int | None = None
    entries: int = 0
    status_known: bool = False  # the dump says how far each group is, beside its entries


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A dump that was there and could not be read: evidence of nothing but that."""

    source: str
    rank: int | None
    reason: str
