"""What is true in the simulated cluster, as far as promises need it: what broke, who did what, what Sentinel did when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from sentinel.engine.node_return.put_back import SAVED
from sentinel.model.records import NODE_STEPS, OURS, Notice, Result, StepKind, Task
from sentinel.model.stored import StoredStep
from sentinel.simulate.happened import AttemptBegan, Happened, NoticeArrived, SlurmWrite, StepBegan

if TYPE_CHECKING:
    from sentinel.simulate.world import World

_LOOK_S = 0.3  # a person's request between Sentinel's look at a job and its own is not seen


@dataclass(slots=True)
class Drain:
    """A node that Sentinel took out of service."""

    node: str
    at_s: float
    incident: str


@dataclass(slots=True)
class Observer:
    """Updated after the promises were checked against what happened, so that they see it as it was before."""

    world: World
    broken: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))  # node -> when, what
    convicted: dict[str, tuple[float, str]] = field(default_factory=dict)  # of these, the nodes that must go
    accused: set[str] = field(default_factory=set)  # nodes that only a user's words speak against
    cancelled: dict[int, float] = field(default_factory=dict)  # jobs, by their users, since when
    held: dict[int, float] = field(default_factory=dict)  # jobs that a person holds, since when
    resumed: dict[str, float] = field(default_factory=dict)  # nodes that a person put back into service, when last
    returned: dict[str, float] = field(default_factory=dict)  # nodes that Sentinel put back into service, when last
    answers_since: dict[str, float] = field(default_factory=dict)  # nodes that were gone and are there again
    drained_by_people: dict[str, float] = field(default_factory=dict)  # node -> since when
    maintained: dict[str, float] = field(default_factory=dict)  # nodes in a maintenance reservation, since when
    touched: set[int] = field(default_factory=set)  # jobs that a person requeued or released
    approved: dict[str, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # by incident: what a person approved
    drains: list[Drain] = field(default_factory=list)
    stops: list[tuple[float, str, int, int]] = field(
        default_factory=list
    )  # when, incident, job, attempt that was stopped
    releases: dict[int, str] = field(default_factory=dict)  # job -> incident that let it go last
    let_go_at: dict[int, datetime] = field(
        default_factory=dict
    )  # job -> when it was decided to let it go, the last time
    arrived: Counter[str] = field(default_factory=Counter)  # notices by id
    refusals: set[str] = field(default_factory=set)  # that people were told of
    notices: dict[str, dict[int, Notice]] = field(default_factory=lambda: defaultdict(dict))  # incident -> number
    ended: dict[int, tuple[int, str, float]] = field(
        default_factory=dict
    )  # job -> attempt that stopped last, how, when
    attempts: list[AttemptBegan] = field(default_factory=list)
    resumed_unseen: set[str] = field(
        default_factory=set
    )  # nodes that a person put back, and no daemon looked before slurmctld died or after
    let_go_by_people: set[int] = field(default_factory=set)  # jobs that people held and released
    good_then: dict[int, int] = field(default_factory=dict)  # by job: its newest good step as a choice of one began
    slurmctld_died: list[float] = field(default_factory=list)  # when
    fails_each: set[str] = field(default_factory=set)  # nodes on which each attempt fails before it gains a step
    broken_once: set[tuple[str, str]] = field(default_factory=set)  # promises that were reported, with what about

    # -- what happens without Sentinel -----------------------------------------------------------------------------

    def broke(self, node: str, what: str, *, must_go: bool = True) -> None:
        """Hardware of the node failed, and machines say so. ``must_go``: what they say convicts it."""
        self.broken[node].append((self.world.now_s, what))
        if self.world.history.setup.returns:
            self.world.machines.broke(node)
        if must_go:
            self.convicted.setdefault(node, (self.world.now_s, what))

    def accuse(self, node: str) -> None:
        self.accused.add(node)

    def person(self, job: int, what: str) -> None:
        """A person did this to a job: "cancel", "hold", "release", "requeue"."""
        if what == "cancel":
            self.cancelled[job] = self.world.now_s
        elif what == "hold":
            if not self._may_be_ours(job):
                self.held.setdefault(job, self.world.now_s)
        else:
            self.touched.add(job)
            if what == "release":
                if self.held.pop(job, None) is not None:
                    self.let_go_by_people.add(job)
            else:
                self.cancelled.pop(job, None)

    def _may_be_ours(self, job: int) -> bool:
        """Whether a hold on the job looks like Sentinel's own: it said that it would hold the job, and has no answer.

        Slurm answers alike whoever did (docs/limits.md), and shows alike who holds a cancelled job that is requeued.
        """
        this = self.world.slurm.jobs[job]
        if this.held and this.over:
            return True
        rows = self._in_doubt({StepKind.REQUEUE_HOLD})
        return any(row.step.job == job and row.outcome is not None and row.outcome.data.get("asked") for row in rows)

    def _nobody_looks(self) -> bool:
        return self.world.daemon is None or not self.world.daemon.ready

    def node_drained(self, node: str) -> None:
        self.drained_by_people[node] = self.world.now_s

    def node_resumed(self, node: str) -> None:
        self.drained_by_people.pop(node, None)
        self.resumed[node] = self.world.now_s
        self.resumed_unseen.discard(node)
        in_doubt = any(row.step.node == node for row in self._in_doubt(NODE_STEPS))
        unseen = self.slurmctld_died and not self._looked_since(self.slurmctld_died[-1])
        if self._nobody_looks() or in_doubt or unseen:
            self.resumed_unseen.add(node)

    def slurmctld_dies(self) -> None:
        self.slurmctld_died.append(self.world.now_s)
        self.resumed_unseen.update(node for node, at_s in self.resumed.items() if not self._looked_since(at_s))
        # Put back so soon after its drain that slurmctld may not have saved that: a limit (docs/limits.md).
        soon = {d.node for d in self.drains if 0.0 <= self.resumed.get(d.node, -1.0) - d.at_s <= SAVED.total_seconds()}
        self.resumed_unseen.update(soon)
        # Seen, and asked about whether slurmctld had lost the drain: now it was started, whatever it had lost before.
        self.resumed_unseen.update(row.step.node for row in self._in_doubt(NODE_STEPS) if row.step.node in self.resumed)

    def _looked_since(self, at_s: float) -> bool:
        """Whether the daemon has a snapshot that is newer."""
        daemon = self.world.daemon
        fleet = daemon.runner.state.cluster.fleet if daemon is not None and daemon.ready else None
        return fleet is not None and fleet.at >= self.world.own_now(at_s - self.world.now_s)

    def seems_forgotten(self, node: str, incident: str) -> bool:
        """Whether nothing tells that a person put the node back: slurmctld died before it had surely saved this incident's
        drain, or the daemon before it knew that the drain was done, and nobody looked in between."""
        if node not in self.resumed_unseen:
            return False
        if any(row.step.node == node and row.incident == incident for row in self._in_doubt(NODE_STEPS)):
            return True
        drains = [drain.at_s for drain in self.drains if drain.node == node and drain.incident == incident]
        # The daemon knows when slurmctld answered last, not when it died.
        unsaved_s = SAVED.total_seconds() + self.world.settings.slurm.reconcile_s
        return any(0.0 <= at_s - drained_s <= unsaved_s for at_s in self.slurmctld_died for drained_s in drains)

    def _in_doubt(self, kinds: Collection[StepKind]) -> list[StoredStep]:
        """The steps of these kinds that began, and of which nobody knows whether they were done."""
        rows = [row for row in self.world.store.steps.values() if row.step.kind in kinds]
        return [row for row in rows if row.outcome is None or row.outcome.result is Result.NOT_KNOWN]

    def repaired(self, node: str) -> None:
        self.broken.pop(node, None)
        self.convicted.pop(node, None)

    def rebooted(self, node: str) -> None:
        """A node that was gone is there again, and need not go; whatever else broke there has still to be proven good."""
        self.answers_since[node] = self.world.now_s
        if self.convicted.get(node, (0.0, ""))[1] == "node-lost":
            del self.convicted[node]

    # -- what Sentinel does ----------------------------------------------------------------------------------------

    def after(self, what: Happened) -> None:
        if isinstance(what, SlurmWrite):
            self._wrote(what)
        elif isinstance(what, NoticeArrived):
            self.arrived[what.notice.id] += 1
            self.notices[what.notice.incident][number_of(what.notice)] = what.notice
            self.refusals.add(str(what.notice.data.get("refusal", "")))
        elif isinstance(what, AttemptBegan):
            self.attempts.append(what)
        elif isinstance(what, StepBegan) and what.task.step.kind is StepKind.START_RUN:
            self._let_go(what.task)
        elif isinstance(what, StepBegan) and what.task.step.kind is StepKind.CHOOSE_CHECKPOINT:
            self.good_then[what.task.job] = max(self.world.programs.good(what.task.job), default=0)

    def _wrote(self, what: SlurmWrite) -> None:
        incident = what.task.incident.id if what.task is not None else ""
        if puts_back(what):
            self.returned[what.target] = self.world.now_s
        if takes_out(what):
            self.drains.append(Drain(what.target, self.world.now_s, incident))
        if what.job is None:
            return
        if stops(what):
            self.stops.append((self.world.now_s, incident, what.job.id, what.job.attempt))
        if what.verb == "requeue_hold" and self.world.now_s - self.held.get(what.job.id, -_LOOK_S) < _LOOK_S:
            del self.held[what.job.id]  # Slurm answers as if the hold were ours (docs/limits.md)
        if what.task is not None and what.task.step.kind is StepKind.RELEASE:
            self._let_go(what.task)

    def _let_go(self, task: Task) -> None:
        incident = task.incident.id
        self.releases[task.job] = incident
        self.let_go_at[task.job] = self.world.store.steps[task.step.key(incident)].intended_at

    # -- asked by promises -----------------------------------------------------------------------------------------

    def ours(self) -> list[str]:
        """Nodes that are out of service by Sentinel now."""
        return [n.name for n in self.world.slurm.nodes.values() if n.drained and n.reason.startswith(OURS)]

    def back_since(self, node: str) -> float:
        """When the node was last put back into service, by a person or by Sentinel; -1 if it never was."""
        return max(self.resumed.get(node, -1.0), self.returned.get(node, -1.0))

    def acting(self) -> bool:
        """Whether Sentinel may act at all."""
        saved = self.world.store.settings.get("paused")  # the daemon may have been killed before it saved a command
        setup = self.world.history.setup
        return setup.mode == "act" and setup.restart_mode in ("", "act") and not (self.world.paused or saved)


def number_of(notice: Notice) -> int:
    """Which message of its incident's thread it is, from 1."""
    told = notice.data.get("told")
    return len(told) if isinstance(told, list) else 1


def stops(what: SlurmWrite) -> bool:
    """Whether this request stops a job, or has one that has ended run again."""
    if what.verb != "requeue_hold" or what.job is None or what.job.state == "PENDING":
        return False
    return what.job.state == "RUNNING" or "Incomplete" not in what.fields


def puts_back(what: SlurmWrite) -> bool:
    """Whether this request puts a node back into service."""
    return what.verb == "set_node" and what.fields["state"] == "RESUME"


def lends(what: SlurmWrite) -> bool:
    """Whether this request says who may use the nodes kept for restarts, and nothing else."""
    return what.verb == "set_reservation" or what.fields.keys() == {"ReservationName"}


def takes_out(what: SlurmWrite) -> bool:
    """Whether this request takes a node out of service that is in it."""
    return (
        what.verb == "set_node"
        and what.fields["state"] in ("DRAIN", "DOWN")
        and what.node is not None
        and not what.node.drained
    )
