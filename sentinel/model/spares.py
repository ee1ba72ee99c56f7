"""A reservation of Slurm in which idle nodes are kept for restarted jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spares:
    """The reservation as Slurm shows it: its nodes now, and the users whose jobs may ask for it."""

    name: str
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
