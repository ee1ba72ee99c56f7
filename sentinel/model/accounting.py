"""One attempt of a job as Slurm's accounting keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sentinel.model.records import require_aware


@dataclass(frozen=True, slots=True)
class AccountedAttempt:
    """``attempt``: 0 for the first record of the job in the span that was asked for, and so on. ``state``: lower case.

    ``gpus``: 0 where it held none; None where accounting does not say (AccountingStorageTRES without gres/gpu).
    ``task``: id of the job array and number of the task in it; None where it is none.
    """

    job: int
    attempt: int
    user: str
    partition: str
    state: str
    exit_code: int | None
    exit_signal: int | None
    started_at: datetime
    ended_at: datetime
    gpus: int | None
    nodes: tuple[str, ...] = ()
    task: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require_aware(self.started_at, self.ended_at)

    def held_s(self, since: datetime, until: datetime) -> float:
        """Seconds for which the attempt held its nodes between these times."""
        return max(0.0, (min(self.ended_at, until) - max(self.started_at, since)).total_seconds())
