"""Arranges nodes as a map: one cell each, by switch or rack. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.model.hostlist import fold, natural
from sentinel.model.topology import leaf_of

ROW = 32  # nodes per group where neither switch nor rack is known
NO_SWITCH = "no switch named"

# States of a node's cell, the worst first: (id, description). The first that applies is shown.
STATES = (
    ("down", "down or not responding"),
    ("drained", "drained"),
    ("draining", "draining: its job goes on"),
    ("silent", "agent not heard"),
    ("suspect", "suspect: fails more than others, or its parts age"),
    ("unknown", "state not known"),
    ("busy", "at work"),
    ("idle", "idle"),
)
WORDS = dict(STATES)
HEALTHY = frozenset({"busy", "idle"})

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    cells: list[tuple[Row, str]] = field(default_factory=list)  # node's row, id of its state

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Number of nodes in each state, the worst state first."""
        return counted(state for _, state in self.cells)


def state_of(row: Row) -> str:
    """The id of a node's state in ``STATES``."""
    state = row["state"]
    if state in ("down", "not responding", "fail", "error"):
        return "down"
    if state in ("drained", "draining"):
        return str(state)
    if row["agent"] in ("silent", "unreachable"):
        return "silent"
    if row["suspect"]:
        return "suspect"
    if state in ("allocated", "mixed", "completing"):
        return "busy"
    return "idle" if state == "idle" else "unknown"


def counted(states: Iterable[str]) -> list[tuple[str, int]]:
    found = list(states)
    return [(state, number) for state, _ in STATES if (number := found.count(state))]


def groups(rows: Sequence[Row], racks: re.Pattern[str] | None = None) -> list[Group]:
    """Group nodes by rack if the site configured rack names, else by Slurm's switches, else in order of names.

    Args:
        rows: as the view ``nodes`` shows them, in any order.
        racks: its first group, matched in a node's name, is the rack.
    """
    ordered = sorted(rows, key=lambda row: natural(row["node"]))
    if racks is None and not any(row["topology"] for row in ordered):
        return [_run(ordered[start : start + ROW]) for start in range(0, len(ordered), ROW)]
    found: dict[str, Group] = {}
    for row in ordered:
        name = place_of(row, racks)
        found.setdefault(name, Group(name)).cells.append((row, state_of(row)))
    return sorted(found.values(), key=lambda group: (group.name == NO_SWITCH, natural(group.name)))


def place_of(row: Row, racks: re.Pattern[str] | None) -> str:
    if racks is not None:
        match = racks.search(row["node"])
        return (match[1] or NO_SWITCH) if match else NO_SWITCH
    return leaf_of(str(row["topology"])) or NO_SWITCH


def _run(rows: Sequence[Row]) -> Group:
    return Group(fold([row["node"] for row in rows]), [(row, state_of(row)) for row in rows])
