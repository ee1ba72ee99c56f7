"""What people do to the simulated Slurm with ``scontrol``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sentinel.simulate.slurm.records import SimulatedJob, SimulatedNode


class PeopleUseScontrol(ABC):
    nodes: dict[str, SimulatedNode]
    jobs: dict[int, SimulatedJob]

    @abstractmethod
    def notice(self, node: str) -> None: ...

    @abstractmethod
    def _stop(self, job: SimulatedJob, state: str, *, requeues: bool = False) -> None: ...

    @abstractmethod
    def schedule(self) -> None: ...

    @abstractmethod
    def time_s(self) -> float: ...

    @abstractmethod
    def to_queue(self, job: SimulatedJob, *, held: bool) -> None: ...

    def person_drains(self, node: str, reason: str) -> None:
        self.nodes[node].drained, self.nodes[node].reason = True, reason

    def person_resumes(self, node: str) -> None:
        """scontrol update State=RESUME."""
        this = self.nodes[node]
        this.drained = this.down = False
        this.reason = ""
        if not this.alive:
            self.notice(node)
        self.schedule()

    def person_reserves(self, nodes: Sequence[str], user: str = "") -> None:
        """scontrol create reservation; what runs there goes on (IGNORE_JOBS). Without a user: for maintenance (MAINT)."""
        for name in nodes:
            self.nodes[name].maintenance, self.nodes[name].reserved_for = not user, user

    def reservation_ends(self, nodes: Sequence[str]) -> None:
        for name in nodes:
            self.nodes[name].maintenance, self.nodes[name].reserved_for = False, ""
        self.schedule()

    def person_holds(self, job: int) -> None:
        """scontrol uhold; of a running job it is kept over a requeue. Slurm leaves a held job as it is."""
        this = self.jobs[job]
        if not this.held and not this.over:
            this.hold(self.time_s())

    def person_releases(self, job: int) -> None:
        this = self.jobs[job]
        if this.held and this.state == "PENDING":
            this.eligible = max(min(this.eligible, self.time_s()), 0.0)
        this.held, this.held_by, this.requeue_held = False, "", False
        self.schedule()

    def person_requeues(self, job: int) -> None:
        """scontrol requeue, by the user or an operator."""
        this = self.jobs[job]
        if this.state != "PENDING" and this.batch and this.requeue:
            self.to_queue(this, held=False)
            self.schedule()

    def person_requeues_and_holds(self, job: int) -> None:
        """scontrol requeuehold."""
        this = self.jobs[job]
        if this.state != "PENDING" and this.batch and this.requeue:
            self.to_queue(this, held=True)

    def cancel(self, job: int) -> None:
        """scancel: also a job that is on its way back to the queue stays cancelled."""
        this = self.jobs[job]
        if this.over and not this.completing:
            return
        this.requeues = this.counted = False
        self._stop(this, "CANCELLED")
        self.schedule()
