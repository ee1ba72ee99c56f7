"""What one decision changes in the store: plain records, written in one transaction before any effect of the decision.

The engine returns them, ``Store.commit`` writes them. Rows of the ledger and of the notices that have no outcome yet are
 the transactional outbox: what was wanted, and is not known to be done, is found there after a start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.model.audit import AuditEntry
from sentinel.model.corrections import Correction
from sentinel.model.records import Evidence, Incident, JobView, Notice, Outcome, Plan, Step, Trust, Verdict
from sentinel.model.vocabulary import ANY_USER, OPEN_ENGINE


@dataclass(frozen=True, slots=True)
class EvidenceAdded:
    """New observations; one that is there already (by id) stays as it is."""

    items: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class CountersRead:
    """Values of ageing counters: rows with node, unit, name, at, value; of each day the last is kept."""

    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class IncidentChanged:
    incident: Incident  # one without a job leaves the job that is there
    user: str | None = None  # owner of the job; None leaves what is there


@dataclass(frozen=True, slots=True)
class VerdictReached:
    incident: str
    verdict: Verdict
    at: datetime


@dataclass(frozen=True, slots=True)
class VerdictCorrected:
    """What an operator said of the incident's verdict; the verdict stays."""

    incident: str
    correction: Correction


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A new plan, or a longer one. One without steps to carry out counts as finished."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanFinished:
    plan: str


@dataclass(frozen=True, slots=True)
class StepIntended:
    """The ledger's row before the effect; a step that has one keeps it."""

    plan: Plan
    step: Step
    at: datetime


@dataclass(frozen=True, slots=True)
class StepEnded:
    """What became of an intended step: done, failed, or not known."""

    incident: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class NoticeChanged:
    """A message for one receiver, composed (not delivered) or delivered."""

    notice: Notice
    receiver: str
    delivered: bool


@dataclass(frozen=True, slots=True)
class NoticeDropped:
    """A receiver does not get this message any more: others have it in its stead."""

    notice: str
    receiver: str


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """What one attempt of a job had and reached."""

    job: JobView
    first_step: int | None = None
    last_step: int | None = None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """A value that must survive a restart: JSON, by name."""

    name: str
    value: Any = field(hash=False)


@dataclass(frozen=True, slots=True)
class Audited:
    """One more entry of the audit."""

    entry: AuditEntry


def of_users_words(verdict: Verdict) -> bool:
    """Whether nothing but what users' programs printed, or users may have caused or written, speaks for it. That a job
    failed is no word about a node.

    Without any ground it is not known, and so not said.
    """
    speaks = [ground.evidence for ground in verdict.grounds if ground.weight > 0]
    own = (item for item in speaks if item.trust is Trust.SYSTEM and item.where.node is not None)
    return bool(speaks) and all(map(may_be_of_any_user, own))


def may_be_of_any_user(item: Evidence) -> bool:
    """Whether what the machine itself said may have been caused, or written, by any user of its."""
    return any(item.data.get(mark) is True for mark in (ANY_USER, OPEN_ENGINE))


Change = (
    EvidenceAdded
    | CountersRead
    | IncidentChanged
    | VerdictReached
    | VerdictCorrected
    | PlanMade
    | PlanFinished
    | StepIntended
    | StepEnded
    | NoticeChanged
    | NoticeDropped
    | AttemptSeen
    | SettingChanged
    | Audited
)


class Batch(list[Change]):
    """Changes of one transaction that are given to the store again when it did not answer.

    Attributes:
        name: of this batch alone: the store keeps it with the changes, so that those it has already are not written twice.
        tried: whether the store was given them before.
    """

    def __init__(self, changes: Iterable[Change], name: str) -> None:
        super().__init__(changes)
        self.name = name
        self.tried = False
