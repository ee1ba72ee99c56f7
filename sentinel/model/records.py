"""The records that pass between the stages; their ids are in ``vocabulary`` and can be imported from here.

Frozen, hashable where their parts are, without I/O, clock or randomness. Times are aware UTC datetimes; a naive one is
refused when the record is made. ``None`` means *not known* everywhere in this file; it never means zero, empty or healthy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from sentinel.model.delivery import Delivery as Delivery
from sentinel.model.delivery import Notice as Notice
from sentinel.model.spares import Spares
from sentinel.model.spares import Unread as Unread
from sentinel.model.vocabulary import USER_SOURCES as USER_SOURCES
from sentinel.model.vocabulary import Cause as Cause
from sentinel.model.vocabulary import Kind as Kind
from sentinel.model.vocabulary import Recommendation as Recommendation
from sentinel.model.vocabulary import Scope as Scope
from sentinel.model.vocabulary import Source as Source
from sentinel.model.vocabulary import StepKind as StepKind
from sentinel.model.vocabulary import Trust as Trust
from sentinel.model.vocabulary import UnknownKind as UnknownKind

Scalar = str | int | float | bool | None
OURS = "sentinel:"  # begins the reason of our drains and the admin comment of our jobs (promise 5: only what is ours)
MAX_TEXT = 2048  # characters of raw text that one evidence carries; the source keeps the rest
_EMPTY: Mapping[str, Scalar] = MappingProxyType({})


def require_aware(*times: datetime | None) -> None:
    for time in times:
        if time is not None and time.utcoffset() is None:
            raise ValueError(f"naive datetime {time!r}: records hold aware UTC times")


@dataclass(frozen=True, slots=True)
class Where:
    """The unit that a record speaks of; every part may be unknown."""

    node: str | None = None
    gpu: int | None = None  # index on the node as Slurm's gres counts it
    gpu_uuid: str | None = None
    nic: str | None = None
    rank: int | None = None
    job: int | None = None
    attempt: int | None = None  # Slurm's restart count of the job when it happened
    path: str | None = None


NOWHERE = Where()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen. ``id`` is stable: the same observation, delivered twice, is one evidence."""

    id: str
    at: datetime  # when it happened
    seen_at: datetime  # when it was read
    source: Source
    kind: str
    where: Where = NOWHERE
    text: str = ""  # raw, at most MAX_TEXT characters; hostile
    rule: str | None = None  # id of the rule that recognised it
    line: int | None = None  # line in the file it came from, from 1
    data: Mapping[str, Scalar] = field(default_factory=lambda: _EMPTY, hash=False)
    trust: Trust = Trust.SYSTEM

    def __post_init__(self) -> None:
        require_aware(self.at, self.seen_at)
        if self.source in USER_SOURCES and self.trust is Trust.SYSTEM:
            object.__setattr__(self, "trust", Trust.USER)  # a source users can fake is never more than USER
        if len(self.text) > MAX_TEXT:
            object.__setattr__(self, "text", self.text[: MAX_TEXT - 1] + "…")


def stable_id(*parts: object) -> str:
    """Id from what identifies an observation (source, cursor, text): equal input, equal id."""
    text = "".join([f"{part}\x1f" for part in parts])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


_known_id = lru_cache(maxsize=16_384)(stable_id)  # of steps: asked for again and again


class IncidentState(StrEnum):
    OPEN = "open"  # evidence is coming in, or a plan is being carried out
    WAITING = "waiting"  # what is wanted is not allowed now (budget, breaker, pause, mode): judged anew
    HELD = "held"  # waits for a person: application fault, failed step
    WATCHING = "watching"  # acted; waiting for proof that the job gains steps again
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Incident:
    """Evidence that belongs to one failure. Consequences are tied to their cause, not counted again."""

    id: str
    opened_at: datetime
    updated_at: datetime
    state: IncidentState = IncidentState.OPEN
    job: int | None = None
    attempt: int | None = None
    nodes: tuple[str, ...] = ()  # nodes that evidence names, in order of time
    evidence: tuple[Evidence, ...] = ()  # in order of time
    closed_at: datetime | None = None
    outcome: str = ""  # how it ended, in words

    def __post_init__(self) -> None:
        require_aware(self.opened_at, self.updated_at, self.closed_at)


class Restart(StrEnum):
    RESUME = "resume"  # same nodes will do
    RESUME_EXCLUDING = "resume_excluding"  # without the drained and suspect nodes
    HOLD = "hold"  # a person must change something first
    NONE = "none"  # nothing to restart


@dataclass(frozen=True, slots=True)
class Culprits:
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()  # "node:index", or a bare index or PCI address where the node is not known
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ground:
    """One evidence and how much it spoke for (> 0) or against (< 0) the verdict, in natural-log odds."""

    evidence: Evidence
    weight: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    cause: Cause
    confidence: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What broke and where, with grounds. ``drain`` names only nodes that SYSTEM evidence convicts."""

    cause: Cause
    scope: Scope
    confidence: float  # 0..1, calibrated
    culprits: Culprits = Culprits()
    drain: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # those of ``drain`` that more than their absence convicts: also if they answer again
    suspect: tuple[str, ...] = ()  # excluded for this job's retry and tested, never drained
    drain_recommended: bool = False  # also where no node name is in the text
    restart: Restart = Restart.NONE
    onset_step: int | None = None  # numbers went bad at this step: resume before it
    alternatives: tuple[Alternative, ...] = ()
    grounds: tuple[Ground, ...] = ()
    against: tuple[Ground, ...] = ()
    would_change: tuple[str, ...] = ()
    advice: str = ""
    recommendation: Recommendation = Recommendation.NONE  # as drain_recommended, in three steps
    unknown_kind: UnknownKind | None = None  # where the cause is unknown
    drain_confidence: float = 0.0  # of all causes together that convict ``drain``; the higher one counts
    may_pass: tuple[str, ...] = ()  # those of ``drain`` that no sign convicts alone: they stop no running job


_NO_WORK = frozenset({"drain", "fail", "not_responding", "maintenance", "power_down", "powered_down", "planned_down"})


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as Slurm tells it."""

    name: str
    state: str  # base state, lower case: idle, allocated, mixed, down, unknown, ...
    flags: frozenset[str] = frozenset()  # lower case: drain, not_responding, maintenance, reserved, ...
    reason: str = ""
    partitions: tuple[str, ...] = ()
    address: str = ""
    port: int | None = None
    gpus: int | None = None  # promised by gres
    topology: str = ""  # where Slurm has it: ``topology:switch``, or the switches from the top one down

    @property
    def drained(self) -> bool:
        return "drain" in self.flags

    @property
    def usable(self) -> bool:
        """Slurm would give it work, now or when its job ends."""
        return self.state in {"idle", "allocated", "mixed", "completing"} and self.flags.isdisjoint(_NO_WORK)


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as Slurm tells it. Text in it is user-written, hence hostile."""

    id: int
    state: str  # base state, lower case: pending, running, completing, failed, completed, ...
    user: str = ""
    uid: int | None = None
    name: str = ""
    partition: str = ""  # of one that has begun the one in which it runs; see ``asked_partitions``
    nodes: tuple[str, ...] = ()  # in Slurm's order; empty when it holds none
    batch_host: str = ""
    restarts: int = 0
    reason: str = ""
    configuring: bool = False  # holds its nodes, which boot or run their prologs: its script has not begun
    held: bool = False  # waits, and does not start before somebody releases it
    exit_held: bool = False  # failed: RequeueExitHold or an expedited requeue held it; ``exit_code`` is of then
    requeue_held: bool = False  # held by the request that requeued it (requeuehold), and released by nobody since
    hold_kept: bool = False  # runs, ends or has ended, and a hold will keep it from starting again
    comment: str = ""
    admin_comment: str = ""
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    unread_lists: tuple[str, ...] = ()  # "excluded", "required": it has such a list, empty here, which cannot be read
    node_count: int | None = None
    tasks_per_node: int | None = None  # None: its submitter gave none
    exit_code: int | None = None
    exit_signal: int | None = None
    requeue: bool | None = None
    depends: tuple[tuple[str, int], ...] = ()  # ("afternotok", id) of what it still waits for
    singleton: bool = False  # it still waits for the other jobs of its name and user
    batch: bool | None = None  # False: salloc or srun, which Slurm cannot requeue
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    eligible_at: datetime | None = None
    array: tuple[int, int] | None = None  # of an array's task: the array's id and the task's number
    het: int | None = None  # of a heterogeneous job's component: the id of its leader, which may be itself
    suspended_at: datetime | None = None  # when it was last suspended, or went on after that
    preempted_at: datetime | None = None  # when Slurm last preempted it: its grace time begins
    warned_at: datetime | None = None  # from then on Slurm may tell it that its time ends; if it was not suspended
    partitions: tuple[str, ...] = ()  # those it asks for, where more are known than ``partition`` says
    start_by: datetime | None = None  # later its time does not fit before its --deadline, and Slurm ends it unstarted
    reservation: str = ""  # the one that it asks for

    def __post_init__(self) -> None:
        require_aware(self.submitted_at, self.started_at, self.ended_at, self.eligible_at, self.suspended_at)
        require_aware(self.preempted_at, self.warned_at, self.start_by)

    @property
    def asked_partitions(self) -> tuple[str, ...]:
        """The partitions in which Slurm may start it, as far as is known."""
        return self.partitions or tuple(self.partition.split(","))

    @property
    def spec(self) -> str:
        """How scontrol must be told this one job: the id of an array's last task is also the id of the whole array."""
        return f"{self.array[0]}_{self.array[1]}" if self.array is not None else f"{self.id}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """One snapshot of the cluster: a stage never asks Slurm again while it decides. What is in ``unread`` is missing from
    ``nodes`` and ``jobs``, and *not known*: ask ``may_have_job``, ``may_have_node``."""

    at: datetime
    nodes: Mapping[str, NodeView]
    jobs: Mapping[int, JobView]
    unread: tuple[Unread, ...] = ()
    spares: Spares | None = None  # None: none are kept, or not known

    def __post_init__(self) -> None:
        require_aware(self.at)

    def may_have_job(self, job: int) -> bool:
        """Whether slurmctld knows the job, or may know it: False only where its absence is certain."""
        return job in self.jobs or any(item.what == "job" and item.name in ("", f"{job}") for item in self.unread)

    def may_have_node(self, node: str) -> bool:
        """The same of a node."""
        return node in self.nodes or any(item.what == "node" and item.name in ("", node) for item in self.unread)


NODE_STEPS = frozenset({StepKind.DRAIN, StepKind.DOWN})
ANSWERS_AGAIN = "answers_again"  # data of a drain that found a node that was gone there again: true
LEFT_IN_SERVICE = "left_in_service"  # data of a drain that found its node put back, or there again: true
REQUEUED_AT = "requeued_at"  # data of what a requeue_hold did: when Slurm requeued the job, ISO 8601
LOST_WITHIN = timedelta(hours=1)  # a write to Slurm that is older was saved long ago, whenever slurmctld was restarted
STOPS = frozenset({StepKind.REQUEUE_HOLD, StepKind.HOLD})  # a job that still runs is stopped by these
RESTARTS = frozenset({StepKind.RELEASE, StepKind.START_RUN})  # with these the job's next work begins
INTERRUPTIONS = STOPS | {StepKind.STOP_RUN}  # what ends work that may still go on
OPTIONAL_STEPS = frozenset({StepKind.DRAIN, StepKind.DOWN, StepKind.QUARANTINE})  # without them a plan goes on


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    node: str | None = None
    job: int | None = None
    attempt: int | None = None  # the attempt that ended; a step is done once per attempt
    data: Mapping[str, Scalar] = field(default_factory=lambda: _EMPTY, hash=False)
    tries: int = 0  # how often it was done before and slurmctld lost it

    def key(self, incident: str) -> str:
        """Identity in the ledger: the same step for the same incident is done once."""
        return _known_id(incident, self.kind, self.node, self.job, self.attempt, *((self.tries,) if self.tries else ()))


@dataclass(frozen=True, slots=True)
class Wait:
    """Why something that a plan wants is not done now. Judged anew when what it waits for may have changed."""

    kind: str  # a reason code: "breaker", "drain-budget", "paused", "observe", "no-node", ...
    since: datetime
    explanation: str
    what: tuple[str, ...] = ()  # what waits, e.g. "drain n1"
    until: datetime | None = None  # when it ends by itself; None: not known

    def __post_init__(self) -> None:
        require_aware(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, or a refusal with its reason; never both. What is wanted and not allowed yet is in ``waits``."""

    id: str
    incident: str
    at: datetime
    steps: tuple[Step, ...] = ()
    refusal: str = ""  # a reason code, e.g. "drain-budget", "breaker", "hang-breaker", "restart-budget"
    explanation: str = ""
    observe_only: bool = False  # judged and planned, not carried out (promise 7)
    waits: tuple[Wait, ...] = ()

    def __post_init__(self) -> None:
        require_aware(self.at)

    @property
    def to_do(self) -> tuple[Step, ...]:
        """The steps that may be carried out."""
        return () if self.refusal or self.observe_only else self.steps


class Result(StrEnum):
    DONE = "done"
    FAILED = "failed"
    NOT_KNOWN = "not_known"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step. ``NOT_KNOWN`` sends the ledger back to Slurm instead of guessing."""

    step: Step
    result: Result
    at: datetime
    reason: str = ""
    data: Mapping[str, Scalar] = field(default_factory=lambda: _EMPTY, hash=False)

    def __post_init__(self) -> None:
        require_aware(self.at)


@dataclass(frozen=True, slots=True)
class Task:
    """One step to be carried out, with what it belongs to."""

    incident: Incident
    verdict: Verdict
    plan: Plan
    step: Step
    seen: JobView | None = None  # the job's attempt, as last seen: by this another job with its id is known

    @property
    def job(self) -> int:
        assert self.step.job is not None, "a step about a job names it"
        return self.step.job

    @property
    def attempt(self) -> int:
        """The attempt that failed; the next one has a higher restart count."""
        return self.step.attempt or 0

    @property
    def reason(self) -> str:
        """What Slurm shows: who, which incident, why. One line of our own words, no text of users."""
        return f"{OURS}{self.incident.id} {self.verdict.cause} {', '.join(self.verdict.culprits.gpus[:4])}".rstrip()


def utc(seconds: float) -> datetime:
    """Aware UTC time of a Unix time in seconds."""
    return datetime.fromtimestamp(seconds, tz=UTC)
