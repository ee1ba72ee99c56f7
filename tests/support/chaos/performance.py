"""A random story while it is performed: its jobs and nodes, and what was made so, the facts that promises are held to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lab.layout import LabError
from stories.timeline import Story

from chaos.drawn import Act, Drawn
from chaos.jobs import Witnessed, nodes_of

AFTER_S = 15.0  # so long is waited for a line of the daemon's log, which may never come


@dataclass
class Facts:
    """What people and faults did so far."""

    jobs: list[Witnessed]
    faulty: set[str] = field(default_factory=set)  # nodes that must be out of service
    ever_faulty: set[str] = field(default_factory=set)
    touched: set[str] = field(
        default_factory=set
    )  # nodes where something happened that may cost the jobs there a restart
    drained_by_user: dict[str, str] = field(default_factory=dict)  # node: reason
    returned_by_user: set[str] = field(default_factory=set)
    node_faults: int = 0
    controller_forgot: bool = False
    paused: bool = False  # by an operator, so that Sentinel does not act
    said: list[str] = field(default_factory=list)  # what was done, for people


class Performance:
    """One story in one lab."""

    def __init__(self, story: Story, drawn: Drawn) -> None:
        self.story = story
        self.slurm = story.lab.slurm
        self.drawn = drawn
        self.facts = Facts([])
        self.left = list(drawn.acts)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self.facts.said.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def wait_for(self, act: Act) -> None:
        time.sleep(act.pause_s)
        deadline = time.monotonic() + AFTER_S
        while act.after and act.after not in self.story.daemon_log() and time.monotonic() < deadline:
            time.sleep(0.02)

    # --- victims ------------------------------------------------------------------------------------------------------

    def job(self, act: Act) -> Witnessed:
        assert act.job is not None
        return self.facts.jobs[act.job]

    def node(self, act: Act) -> str:
        """A node of the job as it runs now; without one, or where it runs nowhere, one that is idle."""
        nodes = nodes_of(self.job(act)) if act.job is not None else []
        if not nodes:
            said = self.slurm("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()
            nodes = [name for name in said if name not in self.facts.ever_faulty | set(self.facts.drained_by_user)]
        if not nodes:
            raise LabError("no node is left for it")
        return nodes[act.place % len(nodes)]

    def jobs_on(self, node: str) -> list[Witnessed]:
        return [job for job in self.facts.jobs if node in nodes_of(job)]

    def blame(self, *jobs: Witnessed) -> None:
        for job in jobs:
            job.faults += 1


def undo(self: Performance, fault: str, node: str) -> None:
    """In a process of the lab: what it starts must not be a child of this one."""
    words = f"inject.undo(lab, ALL[{fault!r}], {node!r}, as_json=True)"
    self.story.call_lab(f"from lab import inject; from lab.faults import ALL; {words}")
