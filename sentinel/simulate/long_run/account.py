"""Keeps the time of jobs: what was training, and which failure cost the rest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

FIRST_START = "first start"
SAVES = "saves"


@dataclass
class JobTime:
    """One job's time, in seconds. ``work_s`` is the training that counts: what was lost again is taken off.

    Between two calls the job either trains or is down for ``cause``.
    """

    interval_s: float
    save_s: float
    trains: bool = False
    since_s: float = 0.0
    cause: str = FIRST_START
    work_s: float = 0.0
    begun_s: float = 0.0  # work with which this attempt began
    lost_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    history: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])  # time, work kept

    @property
    def share(self) -> float:
        """Share of the training time that is no save."""
        return self.interval_s / (self.interval_s + self.save_s)

    def reached_s(self, now_s: float) -> float:
        """The work done by now, saved or not."""
        return self.work_s + (now_s - self.since_s) * self.share if self.trains else self.work_s

    def saved_s(self, now_s: float, *, torn: bool = False) -> float:
        """The work in the newest checkpoint that can be read."""
        saves = int((self.reached_s(now_s) - self.begun_s + 1e-6) / self.interval_s) - (1 if torn else 0)
        return max(0.0, self.begun_s + saves * self.interval_s)

    def stop(self, now_s: float, cause: str) -> None:
        """The job makes no more steps; or, where it made none already, another failure keeps it from them."""
        self._spend(now_s)
        self.trains, self.cause = False, cause

    def start(self, now_s: float, from_s: float) -> None:
        """The first step after a restart that resumed at ``from_s`` of work."""
        self._spend(now_s)
        again_s = max(0.0, self.work_s - from_s)
        self.lost_s[self.cause] += again_s  # trained twice
        self.work_s = self.begun_s = self.work_s - again_s
        self.trains = True

    def _spend(self, now_s: float) -> None:
        passed_s = now_s - self.since_s
        if self.trains:
            self.work_s += passed_s * self.share
            self.lost_s[SAVES] += passed_s * (1 - self.share)
        else:
            self.lost_s[self.cause] += passed_s
        self.since_s = now_s
        self.history.append((now_s, self.work_s))

    def close(self, now_s: float) -> None:
        self._spend(now_s)


@dataclass
class Counts:
    """What happened in one run."""

    incidents: int = 0  # failures that stopped a job
    automated: int = 0  # of these, trained again without a person
    by_person: int = 0
    unresolved: int = 0  # when the time was over
    wrong_drains: int = 0  # of nodes that were in order
    drains: int = 0
    wrong_restarts: int = 0  # of jobs that made steps
    unsafe: list[str] = field(default_factory=list)
    detection_s: list[float] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    restart_s: list[float] = field(default_factory=list)  # decision to RUNNING
    steps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # each step of a plan, by kind
    down_s: list[float] = field(default_factory=list)  # failure to the next step
    persons_causes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # plans that waited, by reason
