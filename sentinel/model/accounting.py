"""One attempt of a job as Slurm's accounting keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sentinel.model.records import require_aware


@dataclass(frozen=True, slots=True)
class AccountedAttempt:
    """``attempt``: 0 for the first record of the job in the span that was asked for, and so on. ``state``: lower case.

    ``gpus``: 0 where it held none; None where accounting does not say (AccountingStorageTRES without gres/gpu).
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

    def __post_init__(self) -> None:
        require_aware(self.started_at, self.ended_at)

    @property
    def held_s(self) -> float:
        return max(0.0, (self.ended_at - self.started_at).total_seconds())
