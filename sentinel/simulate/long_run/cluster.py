"""Slurm as the long runs need it: nodes in and out of service, jobs that run, wait, are held; told as snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sentinel.model.records import Fleet, JobView, NodeView

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)  # when every run begins
PARTITION = "train"
USER = "ada"
LEAF_NODES = 16  # nodes of one leaf switch
REQUEUE_S = 121.0  # Slurm's own wait before a requeued job may start again
COMMENT = '{{"sentinel": {{"restart": true, "errors": "{}", "global": ["/shared/run1"]}}}}'


def moment(at_s: float) -> datetime:
    return BEGIN + timedelta(seconds=at_s)


@dataclass(slots=True)
class Job:
    """``on``: the nodes it holds or held last. ``state``: as Slurm says, lower case."""

    index: int
    id: int
    size: int
    state: str = "pending"
    on: tuple[str, ...] = ()
    restarts: int = 0
    held: bool = False
    excluded: tuple[str, ...] = ()
    admin_comment: str = ""
    eligible_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int = 0
    exit_signal: int = 0
    comment: str = ""

    @property
    def runs(self) -> bool:
        return self.state == "running"

    def view(self) -> JobView:
        over = self.state not in ("pending", "running", "completing")
        return JobView(
            id=self.id,
            state=self.state,
            user=USER,
            uid=1000,
            name="train",
            partition=PARTITION,
            nodes=self.on if self.state != "pending" else (),
            batch_host=self.on[0] if self.on and self.state != "pending" else "",
            restarts=self.restarts,
            reason="JobHeldUser" if self.held else "Resources" if self.state == "pending" else "None",
            held=self.held,
            comment=self.comment,
            admin_comment=self.admin_comment,
            excluded=self.excluded,
            node_count=self.size,
            exit_code=self.exit_code if over else None,
            exit_signal=self.exit_signal if over else None,
            requeue=True,
            submitted_at=BEGIN,
            started_at=moment(self.started_s) if self.started_s is not None else None,
            ended_at=moment(self.ended_s) if over and self.ended_s is not None else None,
            eligible_at=moment(self.eligible_s),
        )


@dataclass(slots=True)
class Node:
    drained: str = ""  # the reason; empty: in service
    down: bool = False

    @property
    def out(self) -> bool:
        return bool(self.drained) or self.down


class Cluster:
    """Holds what slurmctld knows."""

    def __init__(self, names: list[str], sizes: list[int], gpus: int, errors: str) -> None:
        self.nodes = {name: Node() for name in names}
        self.jobs = [Job(index, 1000 + index, size, comment=COMMENT.format(errors)) for index, size in enumerate(sizes)]
        self._gpus = gpus
        self._views: dict[str, NodeView] | None = None
        self._plain: dict[tuple[str, str], NodeView] = {}  # nodes in service are as many records as there are states

    def changed(self) -> None:
        """A node or an allocation changed: the next snapshot is made anew."""
        self._views = None

    def fleet(self, now_s: float) -> Fleet:
        if self._views is None:
            busy = {name for job in self.jobs if job.runs for name in job.on}
            self._views = {name: self._view(name, node, name in busy) for name, node in self.nodes.items()}
        return Fleet(moment(now_s), self._views, {job.id: job.view() for job in self.jobs})

    def _view(self, name: str, node: Node, busy: bool) -> NodeView:
        state = "down" if node.down else "allocated" if busy else "idle"
        if node.drained:
            return self._new(name, state, frozenset({"drain"}), node.drained)
        known = self._plain.get((name, state))
        if known is None:
            known = self._plain[name, state] = self._new(name, state, frozenset(), "")
        return known

    def _new(self, name: str, state: str, flags: frozenset[str], reason: str) -> NodeView:
        return NodeView(
            name, state, flags, reason, (PARTITION,), address=name, port=6818, gpus=self._gpus,
            topology=f"leaf{int(name[1:]) // LEAF_NODES}",
        )  # fmt: skip

    def free(self, job: Job) -> list[str]:
        """Nodes that the job may get, those that it had before first: Slurm's order is that of the names."""
        taken = {name for other in self.jobs if other is not job and other.runs for name in other.on}
        out = {*taken, *job.excluded}
        return [name for name, node in self.nodes.items() if not node.out and name not in out]

    def by_id(self, number: int | None) -> Job | None:
        return next((job for job in self.jobs if job.id == number), None)
