"""What a snapshot of Slurm has beside nodes and jobs: a reservation of idle nodes, and records that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spares:
    """The reservation in which nodes are kept for restarts: its nodes now, and the users whose jobs may ask for it."""

    name: str
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unread:
    """A record of Slurm's that could not be read, and so was left out of a snapshot."""

    what: str  # "job", "node", or "switches": on which of these nodes are, for the limits per switch
    name: str  # the job's id or the node's name; empty when not even that could be read
    reason: str
