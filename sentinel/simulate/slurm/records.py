"""Nodes and jobs of the simulated Slurm, and how slurmctld tells them: records of Slurm's JSON, read by the real parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sentinel.adapters.slurm.parse import REQUEUE_HELD, fleet_of, job_of, job_view, node_of, node_view
from sentinel.adapters.slurm.pyslurm_child import UNREAD
from sentinel.model.records import Fleet, JobView, NodeView

if TYPE_CHECKING:
    from sentinel.simulate.slurm.cluster import SimulatedSlurm

REQUEUE_WAIT_S = 121  # Slurm's own wait before a requeued job may start again
LIMITS_S = 30.0  # between two looks of slurmctld at the time limits of running jobs
FOREVER_PRIORITY = 4_294_901_760
_OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})


class StandingClock:
    """``Clock`` whose time is set by hand."""

    def __init__(self) -> None:
        self.at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """How long Slurm takes, in seconds. The defaults are those of a unit test: what can happen at once does."""

    epilog_s: float = 0.0  # from the end of a job's processes to its nodes being free
    requeue_s: float = REQUEUE_WAIT_S
    min_job_age_s: float | None = None  # ended jobs are forgotten after this; None: never
    ghost_s: float = 300.0  # until Slurm finds that a job listed as running has no processes
    launch_s: float = 11.0  # until Slurm gives up starting a job on a node that does not answer, and requeues it
    save_s: float = 5.0  # between two saves of slurmctld's state


@dataclass
class SimulatedNode:
    name: str
    port: int
    gpus: int = 8
    alive: bool = True
    down: bool = False
    drained: bool = False
    silent: bool = False  # Slurm has noticed that it does not answer
    maintenance: bool = False  # in a reservation with the flag MAINT
    rebooting: bool = False  # as an operator asked of Slurm (scontrol reboot)
    reboot_asked: bool = False  # the same, and it waits for the end of its jobs
    power: str = ""  # flag of Slurm while it switches the node off, has done so, or switches it on
    reserved_for: str = ""  # user of a reservation of another kind
    reason: str = ""
    partitions: tuple[str, ...] = ("train",)
    topology: str = ""

    @property
    def out(self) -> bool:
        """Whether Slurm gives it no work."""
        return self.down or self.drained or self.silent


@dataclass
class KeptNodes:
    """A reservation with Flags=FLEX,REPLACE: its jobs run on other nodes, too, and Slurm keeps as many idle nodes in it."""

    name: str
    count: int
    users: set[str] = field(default_factory=lambda: {"root"})
    nodes: tuple[str, ...] = ()


@dataclass
class SimulatedJob:
    id: int
    nodes: int
    submitted: float
    record: dict[str, Any] = field(default_factory=dict)  # what the submitter chose
    state: str = "PENDING"
    completing: bool = False  # its nodes run their epilogs
    requeues: bool = False  # goes back to the queue when they are done
    counted: bool = False  # its restart is counted already: Slurm does so when it stops the job
    held: bool = False
    held_by: str = ""
    requeue_held: bool = False  # by the request that requeued it
    waits_for_node: bool = False  # completing: only a node that is gone has not said that its epilog is over
    launch_failed: bool = False  # ever
    special: bool = False  # SPECIAL_EXIT: it failed, and RequeueExitHold requeued and held it
    bad: bool = False  # BadConstraints: no node could ever do
    never: bool = False  # DependencyNeverSatisfied
    limit: str = ""  # Slurm's reason, where a limit keeps it waiting
    ghost: bool = False  # listed as running, and no process is there
    # Of a range of nodes, where tasks per node are given; 0: of none. 22.05 never starts it with a shorter node list.
    most: int = 0
    after_ok: int | None = None
    on: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    requeue: bool = True
    batch: bool = True
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()  # the nodes that have the feature that it asks for; empty: it asks for none
    admin_comment: str = ""
    reservation: str = ""
    eligible: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    no_kill: bool = False  # goes on without a node that fails, but for its first
    steps: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # running: name and nodes
    next_step: int = 0
    printed: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.state in _OVER

    @property
    def attempt(self) -> int:
        """The attempt that holds its nodes, or that ran last."""
        return self.restarts - self.counted

    @property
    def forecast(self) -> bool:
        """Whether slurmctld (22.05) writes its forecast over the start: during epilogs, where nothing holds the job."""
        return self.completing and self.requeues and not self.held

    @property
    def has_nodes(self) -> bool:
        return self.state == "RUNNING" or self.completing

    def hold(self, now_s: float) -> None:
        """scontrol hold: of a job that could start already, Slurm empties the eligible time (22.05, 26.05)."""
        self.held, self.held_by = True, self.held_by or "JobHeldUser"
        self.eligible = self.eligible if self.eligible >= now_s else 0.0


def waits_for_a_lost_node(job: SimulatedJob, nodes: Mapping[str, SimulatedNode]) -> bool:
    return any(not nodes[name].alive and not nodes[name].down for name in job.on)


def waited_only_for(node: str, job: SimulatedJob, nodes: Mapping[str, SimulatedNode]) -> bool:
    """Whether this node, which has just been set down or started anew, is the last that a completing job waited for."""
    if not job.completing or node not in job.on or waits_for_a_lost_node(job, nodes):
        return False
    return job.waits_for_node or not any(nodes[name].alive for name in job.on if name != node)


def copied(
    nodes: dict[str, SimulatedNode], jobs: dict[int, SimulatedJob], kept: KeptNodes | None
) -> tuple[dict[str, SimulatedNode], dict[int, SimulatedJob], KeptNodes | None]:
    """The same, which what changes here does not change; ten times as fast as ``copy.deepcopy``."""
    return (
        {name: replace(node) for name, node in nodes.items()},
        {
            name: replace(job, record=dict(job.record), steps=dict(job.steps), printed=[*job.printed])
            for name, job in jobs.items()
        },
        replace(kept, users={*kept.users}) if kept is not None else None,
    )


class Views:
    """What slurmctld answers. A record that did not change since the last question is not read again."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self._slurm = slurm
        self._nodes: dict[str, tuple[tuple[Any, ...], NodeView]] = {}
        self._jobs: dict[int, tuple[dict[str, Any], JobView]] = {}

    def fleet(self, at: datetime) -> Fleet:
        slurm = self._slurm
        if slurm.unreadable:
            nodes = [self.node_record(name) for name in slurm.nodes]
            return fleet_of(at, nodes, [self.job_record(job) for job in slurm.jobs.values()])
        return Fleet(
            at,
            self._all_nodes(),
            {job.id: self._job(job) for job in slurm.jobs.values()},
        )

    def node(self, name: str) -> NodeView | None:
        if self._slurm.unreadable:
            return node_of([self.node_record(name)], name)
        return self._node(self._slurm.nodes[name], self._is_busy(name))

    def job(self, job: SimulatedJob) -> JobView | None:
        return job_of(self.job_record(job)) if self._slurm.unreadable else self._job(job)

    def _all_nodes(self) -> dict[str, NodeView]:
        busy = {name for job in self._slurm.jobs.values() if job.has_nodes for name in job.on}
        return {name: self._node(node, name in busy) for name, node in self._slurm.nodes.items()}

    def _node(self, node: SimulatedNode, busy: bool) -> NodeView:
        kept = self._slurm.kept
        state = (busy, kept is not None and node.name in kept.nodes, *vars(node).values())
        known = self._nodes.get(node.name)
        if known is None or known[0] != state:
            known = self._nodes[node.name] = (state, node_view(self.node_record(node.name)))
        return known[1]

    def _is_busy(self, name: str) -> bool:
        return any(job.has_nodes and name in job.on for job in self._slurm.jobs.values())

    def _job(self, job: SimulatedJob) -> JobView:
        record = self.job_record(job)
        known = self._jobs.get(job.id)
        if known is None or known[0] != record:
            known = self._jobs[job.id] = (record, job_view(record))
        return known[1]

    def node_record(self, name: str) -> dict[str, Any]:
        node = self._slurm.nodes[name]
        busy = self._is_busy(name)
        seen = {
            "DRAIN": node.drained,
            "NOT_RESPONDING": node.silent and not node.down,
            "MAINTENANCE": node.maintenance,
            "REBOOT_ISSUED": node.rebooting,
            "REBOOT_REQUESTED": node.reboot_asked,
            "RESERVED": bool(node.reserved_for) or (self._slurm.kept is not None and name in self._slurm.kept.nodes),
        }
        flags = [*(flag for flag, there in seen.items() if there), *([node.power] if node.power else [])]
        return {
            "name": name,
            "state": "down" if node.down else "mixed" if busy else "idle",
            "state_flags": flags,
            "reason": node.reason,
            "partitions": list(node.partitions),
            "topology": node.topology,
            "address": "127.0.0.1",
            "port": node.port,
            "gres": f"gpu:{node.gpus}",
            **self._spoiled(name),
        }

    def _spoiled(self, what: int | str) -> dict[str, str]:
        return {UNREAD: "spoiled"} if what in self._slurm.unreadable else {}

    def job_record(self, job: SimulatedJob) -> dict[str, Any]:
        return {
            **job.record,
            **self._spoiled(job.id),
            "job_id": job.id,
            "job_state": f"{job.state},COMPLETING" if job.completing else "SPECIAL_EXIT" if job.special else job.state,
            "state_reason": self._reason(job),
            "state_description": REQUEUE_HELD if job.requeue_held else "",
            "priority": 0 if job.held or job.bad else FOREVER_PRIORITY,
            # slurmctld lists a completing job's nodes as long as their epilogs run; here the last of them is the slow one.
            "nodes": ",".join(job.on[-1:] if job.completing else job.on),
            "batch_host": job.on[0] if job.on else "",
            "batch_flag": job.batch and not job.launch_failed,  # as the JSON of 22.05 has it
            "restart_cnt": job.restarts,
            "requeue": job.requeue,
            "dependency": f"afterok:{job.after_ok}(unfulfilled)"
            if job.after_ok is not None
            else job.record.get("dependency", ""),
            "admin_comment": job.admin_comment,
            "resv_name": job.reservation,
            "excluded_nodes": ",".join(job.excluded),
            "required_nodes": ",".join(job.required),
            "node_count": len(job.on) or job.nodes,
            "exit_code": 256 if job.special else (job.exit_code << 8) | job.exit_signal,
            "submit_time": int(job.submitted),
            "eligible_time": int(job.eligible),
            "start_time": int(self._slurm.time_s() if job.forecast else job.started),
            "end_time": int(job.ended),
        }

    def _reason(self, job: SimulatedJob) -> str:
        if job.held:
            return job.held_by
        if job.state != "PENDING":
            return "None"
        if job.bad:
            return "BadConstraints"
        if job.limit:
            return job.limit
        if job.after_ok is not None:
            return "DependencyNeverSatisfied" if job.never else "Dependency"
        return "BeginTime" if job.eligible > self._slurm.time_s() else "None"
