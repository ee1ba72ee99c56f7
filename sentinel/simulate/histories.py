"""A history as data: the cluster, its jobs, and what happens to them when. Small enough to be shrunk and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that is submitted when the history begins."""

    nodes: int = 2
    opted_in: bool = True
    partition: str = "train"
    user: str = "ada"
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    requeue: bool = True
    least: int = 0  # nodes with which it can run; 0: it is not elastic
    trains_on: int = 0  # nodes on which its launcher runs; the others are spares. 0: it has none
    most: int = 0  # nodes that its comment names as its most; 0: those that it was submitted with
    kind: str = "batch"  # "batch", "array" (two tasks), "het" (two components), "after" (afterok on the first job)
    runs_s: float = 100_000.0  # until it completes by itself; the default outlasts every history

    def wishes(self, job: int) -> dict[str, object]:
        """What its comment asks of Sentinel."""
        asked: dict[str, object] = (
            {"restart": True, "global": [f"/shared/{job}"]} if self.opted_in else {"restart": False}
        )
        if self.least:
            asked["nodes"] = [self.least, self.most or self.nodes]
        if self.trains_on:
            asked["in_allocation"] = self.trains_on
        return asked


@dataclass(frozen=True, slots=True)
class Setup:
    """The cluster at the beginning."""

    nodes: int = 6
    partitions: tuple[str, ...] = ("train",)  # the nodes are shared out among them in turn
    jobs: tuple[JobSpec, ...] = (JobSpec(),)
    mode: str = "act"  # "act", "suggest" or "observe"
    limits: Mapping[str, float] = field(default_factory=dict, hash=False)  # of [limits], other than the defaults
    returns: bool = False  # whether drained nodes are tested and returned
    watched: bool = False  # agents send heartbeats, and the daemon watches for those and for steps that stay away
    restart_mode: str = ""  # of restarts, where it is another one
    approval_s: float = 7200.0
    switch_nodes: int = 0  # nodes under each switch; 0: Slurm does not say

    def place_of(self, index: int) -> str:
        """Where Slurm has the node with this number, counted from 0."""
        return f"top.leaf{index // self.switch_nodes}" if self.switch_nodes else ""


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens. ``who`` names a node ("n3"), a job ("job0": the first) or a node of a job ("job0/1").

    ``at_s`` counts from the beginning; a kill or a loss happens at the crossing that ``data`` names instead.
    """

    what: str
    at_s: float = 0.0
    who: str = ""
    data: Mapping[str, Value] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in sorted(self.data.items())]
        return " ".join([self.what, *([self.who] if self.who else []), *words])


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    number: int
    story: str
    setup: Setup
    happenings: tuple[Happening, ...]
    ends_s: float  # by then everything must have come to rest

    @property
    def name(self) -> str:
        """What ``--replay`` takes; ``sentinel.simulate.explore.named`` reads it."""
        return f"{self.story}-{self.number}"
