"""What a store or a bundle holds of the past: evidence, and what was judged and done about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sentinel.model.corrections import Correction
from sentinel.model.records import Evidence, Incident, Plan, Verdict
from sentinel.model.stored import StoredStep


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt of a job, as the store keeps it."""

    job: int
    attempt: int
    started_at: datetime
    nodes: tuple[str, ...] = ()
    user: str | None = None
    partition: str | None = None
    name: str | None = None
    ended_at: datetime | None = None
    state: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedIncident:
    """One incident with its newest verdict and plan; None where none was made, it could not be read, or is not in the
    recording: of an incident beside those that were asked for only the evidence may be there."""

    incident: Incident  # without its evidence
    evidence: tuple[str, ...] = ()  # ids, in order of time
    user: str | None = None
    verdict: Verdict | None = None
    plan: Plan | None = None
    steps: tuple[StoredStep, ...] = ()
    corrections: tuple[Correction, ...] = ()  # the newest last
    approved: tuple[str, ...] = ()  # what people allowed of it, as in ``Wait.what``

    @property
    def decided(self) -> bool:
        """Whether what was decided of it is known here."""
        return self.verdict is not None and self.plan is not None


@dataclass(frozen=True, slots=True)
class Recording:
    """In order of time each. Evidence that no incident refers to is there too: it may be judged otherwise today."""

    evidence: tuple[Evidence, ...] = ()
    incidents: tuple[RecordedIncident, ...] = ()
    attempts: tuple[RecordedAttempt, ...] = ()
    unreadable: int = 0  # records that could not be read and were left out
