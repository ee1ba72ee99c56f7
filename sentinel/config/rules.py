"""Signatures and tables as records: what a line means, and how openly it speaks for or against each cause.

The records only; ``rules_toml`` reads them strictly from text, ``rules_files`` finds the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.config.convictions import Convictions
from sentinel.config.convictions import Drain as Drain
from sentinel.config.returns import Returns
from sentinel.model.records import Cause, Evidence, Kind, Scope, Source

_OF_USERS = frozenset(
    {Cause.USER_CONFIG, Cause.USER_CODE, Cause.NETWORK_BOOTSTRAP, Cause.CHECKPOINT_CORRUPT, Cause.DATALOADER}
    | {Cause.NUMERICAL_NAN, Cause.COLLECTIVE_MISMATCH}
)


class Role(StrEnum):
    """What part a line can play in a verdict."""

    CAUSE = "cause"  # may lead
    CONSEQUENCE = "consequence"  # never leads while a cause is known: cascade, watchdog, clean-up
    SYMPTOM = "symptom"  # a consequence where a cause came before it, a cause of its own otherwise
    CONTEXT = "context"  # shifts the odds, never leads
    FALLBACK = "fallback"  # counts only where no other rule knew the line
    PROGRESS = "progress"  # step lines; no weight


LEADING = frozenset({Role.CAUSE, Role.SYMPTOM, Role.FALLBACK})  # whose line may lead a verdict


class Form(StrEnum):
    """Whose output a line of this form is. Form is not provenance: a program can print anything."""

    KERNEL = "kernel"
    DCGM = "dcgm"
    SLURM = "slurm"
    FABRIC = "fabric"
    STORAGE = "storage"
    TOOL = "tool"  # nvidia-smi, lspci, a health check: nothing that writes into a log of the machine's own
    PROGRAM = "program"


# The machine's own log in which a form's lines are the word of what broke. Such a log carries names that users choose
# (of programs, files, mounts, control groups), so a line convicts there only by how its subsystem begins it.
OWN_LOG = {
    Form.KERNEL: Source.KERNEL,
    Form.FABRIC: Source.KERNEL,
    Form.STORAGE: Source.KERNEL,
    Form.DCGM: Source.DCGM,
    Form.SLURM: Source.SLURM,
}
OWN_LOGS = frozenset(OWN_LOG.values())  # sources that are a machine's own log; a job's log may quote any of them


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    pattern: str
    kind: str
    form: Form = Form.PROGRAM
    role: Role = Role.CAUSE
    weights: Mapping[Cause, float] = field(default_factory=dict, hash=False)  # natural-log odds
    scope: Scope | None = None
    drain: Drain = Drain.NO
    advice: str = ""
    capture: str = ""
    late: bool = False  # written after the consequences of what it reports
    frame: bool = False  # the innermost frame of the traceback that ends in it says whose code it was
    content: bool = False  # what was read is damaged: the frames above tell whether a checkpoint, samples or settings
    anchors: Mapping[Source, str] = field(default_factory=dict, hash=False)  # how its message begins, by log
    source: str = ""  # whose message it is, or why it convicts
    match: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    file: str = ""
    line: int | None = None

    def compiled(self) -> re.Pattern[bytes]:
        return re.compile(self.pattern.encode("ascii"))

    @property
    def points_to(self) -> Cause | None:
        """The cause that it speaks most for; None: it speaks for none."""
        return max(self.weights, key=self.weights.__getitem__, default=None)

    @property
    def of_users(self) -> bool:
        """Whether it speaks most for what a user gave or wrote (settings, paths, code, data), or for what ranks do."""
        return self.points_to in _OF_USERS

    @property
    def says_well(self) -> bool:
        """Whether it knows a line of a service's or tool's that means nothing, whatever words of other rules are in it."""
        return self.role is Role.CONSEQUENCE and not self.weights and self.form is Form.TOOL

    @property
    def convicts(self) -> bool:
        """Whether a line of it can drain a node: by itself, with another that agrees, or by its row of the Xid table."""
        return self.drain is not Drain.NO or self.kind == Kind.XID


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of NVIDIA's Xid table, with our reading of it."""

    number: int
    name: str
    cause: Cause | None  # None: says nothing about a failure
    scope: Scope
    immediate: str  # NVIDIA's bucket: what to do at once
    investigate: str
    role: Role = Role.CAUSE
    weight: float = 3.0
    repeat: bool = False  # means hardware when the same unit shows it under different jobs
    follows: tuple[int, ...] = ()  # Xids whose consequence it can be
    advice: str = ""


@dataclass(frozen=True, slots=True)
class NvLink5:
    """One row of NVIDIA's decoding of Xid 144 to 150."""

    immediate: str  # NVIDIA's bucket
    investigate: str


@dataclass(frozen=True, slots=True)
class CauseEntry:
    """What is known of a cause before any evidence, and what to tell people."""

    cause: Cause
    prior: float  # natural-log odds against the other causes
    scope: Scope  # usual
    restart: str
    advice: str
    confirm: str  # what would raise or overturn the verdict
    rivals: tuple[Cause, ...] = ()  # what is most often mistaken for it, likeliest first


Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Constants of the verdict; fitted by tests/bench/judgement, kept as data."""

    temperature: float = 1.6
    unknown_below: float = 0.35
    least_weight: float = 1.0
    drain_above: float = (
        0.7  # share of all causes that are a machine's, below which nothing is drained, nor recommended
    )
    calibration: float = 1.0  # the most that is stated of a drain: where the odds leave no doubt
    # Share of the odds, and how often such verdicts proved right: where only a program spoke, and where a machine did.
    program_curve: Curve = ((0.0, 0.0), (1.0, 1.0))
    machine_curve: Curve = ((0.0, 0.0), (1.0, 1.0))
    single_line: float = 1.0  # most confidence that one line of a program's log can give


@dataclass(frozen=True, slots=True)
class Replaced:
    """A row that a site's file put in the place of one read before: of a shipped file, or of an earlier one of the site."""

    table: str
    row: str  # what it is about: an id, an Xid, a cause
    file: str
    line: int | None
    before: str  # the file whose row no longer holds
    before_line: int | None


@dataclass(frozen=True, slots=True)
class Rules:
    rules: tuple[Rule, ...] = ()
    xids: Mapping[int, Xid] = field(default_factory=dict, hash=False)
    causes: Mapping[Cause, CauseEntry] = field(default_factory=dict, hash=False)
    # by Xid, unit, sub-code and error status
    nvlink5: Mapping[tuple[int, str, int, int], NvLink5] = field(default_factory=dict, hash=False)
    judgement: Judgement = Judgement()
    convictions: Convictions = field(default_factory=Convictions)
    returns: Returns = field(default_factory=Returns)
    replaced: tuple[Replaced, ...] = field(default=(), compare=False)
    _by_id: dict[str, Rule] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {rule.id: rule for rule in self.rules})

    def by_id(self) -> Mapping[str, Rule]:
        return self._by_id

    def xid_of(self, evidence: Evidence) -> Xid | None:
        """The row of the evidence's Xid; None where it tells of none, or of one that is not in the table."""
        number = evidence.data.get("xid") if evidence.kind == Kind.XID else None
        return self.xids.get(number) if isinstance(number, int) else None
