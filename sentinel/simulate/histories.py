"""A history as data: the cluster, its jobs, and what happens to them when. Small enough to be shrunk and printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.config.return_settings import ReturnSettings
from sentinel.config.settings import Diagnostics, Limits, Mode, Modes, Recovery, Settings

RETURNS = ReturnSettings(  # as a site that allows all of it, in minutes instead of hours
    reset_command=["/site/reset", "{node}"], reboot_command=["/site/reboot", "{node}"], command_s=10.0, boot_s=120.0,
    retry_s=60.0, automatic=True, probation_s=200.0, probation_run_s=60.0,
)  # fmt: skip
SPARES = "spares"

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
    feature: tuple[str, ...] = ()  # the nodes that have the feature that it asks for; empty: it asks for none
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
    daemons: int = 1  # two: one stands by
    spares: int = 0  # nodes in a reservation for restarts
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


def settings_of(setup: Setup) -> Settings:
    """The daemon's settings in this history."""
    mode = Mode(drain=setup.mode, restart=setup.restart_mode or setup.mode)
    limits = dataclasses.replace(Limits(drain_fraction=0.5), **setup.limits)  # type: ignore[arg-type]
    modes = Modes(default=mode, approval_s=setup.approval_s)
    if not setup.returns:
        tests = Diagnostics(suspect_level=0, idle_level=0)  # the simulated agents run none
        recovery = Recovery(spares=SPARES if setup.spares else "")
        return Settings(modes=modes, limits=limits, diagnostics=tests, recovery=recovery)
    return Settings(
        modes=modes,
        limits=limits,
        returns=RETURNS,
        diagnostics=Diagnostics(deadline_s=[20.0, 30.0, 40.0, 60.0], settled_s=10.0),
    )
