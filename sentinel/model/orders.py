"""What the daemon may order of an agent, and ask it to watch: one strict record for each, decoded by nobody else.

The agent is root on its node and the daemon an ordinary account, so an order says *what* is done and nothing of *how*: no
program, no address, no folder of the agent's own, and no user. As whom a job's files are read the agent knows from its own
record of the job, or from Slurm (``agent/process/job_owners.py``). All keys must be there, unknown ones are refused, and so
is every value beyond its bounds. The daemon makes orders from these records, held to the same bounds on their way out.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from sentinel.errors import ProtocolError
from sentinel.protocol import OrderKind

R = TypeVar("R", bound="Record")

# Bounds. Far above what the daemon sends; they keep what a broken one sends from costing the node anything.
MOST_JOB = 2**32 - 1  # Slurm's job ids are 32 bits wide
MOST_ATTEMPT = 2**16 - 1  # Slurm counts restarts in 16 bits; the attempts of a job are gone through one by one
MOST_STEP = 2**63 - 1
PATH_BYTES = 4096  # PATH_MAX of Linux
MOST_ROOTS = 256  # a job names 32 at most
MOST_PATHS = 1000  # checkpoints of one root that are moved at once; a listing has 60
MOST_GPUS = 64  # of one node
LEAST_DEADLINE_S = 0.01  # nothing starts sooner
MOST_DEADLINE_S = 86_400.0  # of one order; the longest diagnostic takes 2.5 hours
MOST_GAP_S = 60.0  # between two questions to NCCL; the daemon takes at most 10 s
MOST_REASON = 200  # characters
MOST_LOG_TEXT = 400  # characters, one line
MOST_MESSAGES_FILE = 8192  # bytes of a user's file that says where own messages go
MOST_SINCE_S = 1e11  # Unix time, far in the future
_SHOWN = 80  # characters of a refused value that are repeated
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9/_-]{0,79}\Z")


class OrderRefused(ProtocolError):
    """Names the order, the key, and what is accepted there."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a key accepts, in words and as a function; the function raises ValueError for anything else."""

    words: str
    read: Callable[[Any], Any]


def key(accepts: Accepts) -> Any:
    return field(metadata={"accepts": accepts})


# --- what keys accept ---------------------------------------------------------------------------------------------------


def whole(least: int, most: int) -> Accepts:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return Accepts(f"a whole number from {least} to {most}", read)


def number(least: float, most: float) -> Accepts:
    def read(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN is in no range
            raise ValueError
        return float(value)

    return Accepts(f"a number from {least:g} to {most:g}", read)


def flag() -> Accepts:
    def read(value: Any) -> bool:
        if type(value) is not bool:
            raise ValueError
        return value

    return Accepts("true or false", read)


def word(*words: str) -> Accepts:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    return Accepts("one of " + ", ".join(words), read)


def text(most: int) -> Accepts:
    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            raise ValueError
        return value

    return Accepts(f"at most {most} printable characters", read)


def uuid() -> Accepts:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not _UUID.match(value):
            raise ValueError
        return value

    return Accepts("the UUID of a GPU", read)


def path() -> Accepts:
    """As Linux has it: any bytes but NUL (what is no UTF-8 comes as surrogates), from the root, never upwards."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value or ".." in value.split("/"):
            raise ValueError
        if len(value.encode("utf-8", "surrogateescape")) > PATH_BYTES:
            raise ValueError
        return value

    return Accepts(f"an absolute path without '..', of at most {PATH_BYTES} bytes", read)


def or_null(accepts: Accepts) -> Accepts:
    return Accepts(f"{accepts.words}, or null", lambda value: None if value is None else accepts.read(value))


def many(accepts: Accepts, most: int) -> Accepts:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise ValueError
        return tuple(accepts.read(item) for item in value)

    return Accepts(f"a list of 1 to {most}, each {accepts.words}", read)


def record(kind: type[Record]) -> Accepts:
    names = ", ".join(item.name for item in dataclasses.fields(kind))
    return Accepts(f"an object with {names}", lambda value: decoded(kind, value))


# --- the records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Base of all. Its fields are its keys."""

    def arguments(self) -> dict[str, Any]:
        """JSON of it, held to the bounds that hold where it arrives.

        Raises:
            OrderRefused: beyond them.
        """
        made: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        decoded(type(self), made)
        return made

    def flaw(self) -> tuple[str, str] | None:
        """Key and what it accepts, where keys do not fit each other."""
        return None


@dataclass(frozen=True, slots=True)
class Root(Record):
    """A folder of checkpoints."""

    tier: str = key(word("local", "peer", "global"))
    path: str = key(path())


@dataclass(frozen=True, slots=True)
class ListCheckpoints(Record):
    """→ ``{listings: [listing, ...]}``, one per root (``sentinel.checkpoints.inventory``), as the job's user."""

    kind: ClassVar[OrderKind] = OrderKind.INVENTORY
    job: int = key(whole(1, MOST_JOB))
    roots: tuple[Root, ...] = key(many(record(Root), MOST_ROOTS))
    level: str = key(word("structural", "checksum", "content"))
    before_step: int | None = key(or_null(whole(-MOST_STEP, MOST_STEP)))  # a step as a log printed it


@dataclass(frozen=True, slots=True)
class MoveAside(Record):
    """→ ``{moved: [[from, to], ...], links: [[link, now names], ...]}``: checkpoints below ``root`` go into its quarantine,
    as the job's user; links to them name the chosen one, or are moved as well."""

    kind: ClassVar[OrderKind] = OrderKind.QUARANTINE
    job: int = key(whole(1, MOST_JOB))
    root: str = key(path())
    paths: tuple[str, ...] = key(many(path(), MOST_PATHS))
    steps: tuple[int | None, ...] = key(many(or_null(whole(0, MOST_STEP)), MOST_PATHS))  # several may share a folder
    reason: str = key(text(MOST_REASON))
    chosen: str | None = key(or_null(path()))

    def flaw(self) -> tuple[str, str] | None:
        return None if len(self.steps) == len(self.paths) else ("steps", "as many as there are paths")


@dataclass(frozen=True, slots=True)
class TaskStates(Record):
    """→ ``{tasks: [{rank, pid, state, cpu_s, command, read_bytes, written_bytes}], at_s, network_bytes,
    has_gpus, gpus: [{index, utilisation, power_w, usual_w, traffic, still_s, stood}]|null}``: the job's processes here, and
    what its GPUs and the node's network adapters do."""

    kind: ClassVar[OrderKind] = OrderKind.TASK_STATES
    job: int = key(whole(1, MOST_JOB))


@dataclass(frozen=True, slots=True)
class AskJob(Record):
    """→ ``{ras: [{after_s, text}], dumps: [summary, ...], stacks: [{rank, form, text}], ranks: [{pid, rank}], host,
    notes}``: what a running job tells of itself without being stopped, asked as its user."""

    kind: ClassVar[OrderKind] = OrderKind.ASK_JOB
    job: int = key(whole(1, MOST_JOB))
    ras: bool = key(flag())
    gap_s: float = key(number(0.0, MOST_GAP_S))


@dataclass(frozen=True, slots=True)
class Collected(Record):
    """→ ``{done, dumps: [summary, ...], folder}``: what the node kept of an attempt that ended badly
    (``sentinel.evidence.nccl.flight_recorder_wire``); ``done`` is false while it is not over there."""

    kind: ClassVar[OrderKind] = OrderKind.COLLECTED
    job: int = key(whole(1, MOST_JOB))
    attempt: int = key(whole(0, MOST_ATTEMPT))


@dataclass(frozen=True, slots=True)
class WriteToLog(Record):
    """→ ``{written: true}``: one line at the end of the log of a job whose script ran here, as the job's user.

    Which file that is the agent knows from slurmd's prolog."""

    kind: ClassVar[OrderKind] = OrderKind.JOB_LOG
    job: int = key(whole(1, MOST_JOB))
    attempt: int = key(whole(0, MOST_ATTEMPT))
    text: str = key(text(MOST_LOG_TEXT))


@dataclass(frozen=True, slots=True)
class ReadMessagesFile(Record):
    """→ ``{text, user}``, or ``{problem}``: the file in which the job's user says where own messages go, read as that user.

    Its name is the agent's own setting. ``text`` is null where there is none; ``user``: whose it is."""

    kind: ClassVar[OrderKind] = OrderKind.MESSAGES_FILE
    job: int = key(whole(1, MOST_JOB))


@dataclass(frozen=True, slots=True)
class Diagnose(Record):
    """→ ``{result: "pass"|"fail"|"inconclusive", findings: [...]}``. ``gpus``: null means all, which alone proves a node.
    ``yields``: a job goes before it."""

    kind: ClassVar[OrderKind] = OrderKind.DIAGNOSE
    level: int = key(whole(1, 4))
    gpus: tuple[str, ...] | None = key(or_null(many(uuid(), MOST_GPUS)))
    yields: bool = key(flag())


@dataclass(frozen=True, slots=True)
class Watch(Record):
    """In the answer to a heartbeat: look at the saves of this attempt now and then. ``first``: this node speaks for it.
    ``since_s``: Unix time; older checkpoints are an earlier attempt's."""

    job: int = key(whole(1, MOST_JOB))
    attempt: int = key(whole(0, MOST_ATTEMPT))
    first: bool = key(flag())
    since_s: float | None = key(or_null(number(0.0, MOST_SINCE_S)))
    roots: tuple[Root, ...] = key(many(record(Root), MOST_ROOTS))


Request = ListCheckpoints | MoveAside | TaskStates | AskJob | Collected | WriteToLog | ReadMessagesFile | Diagnose
SCHEMAS: Mapping[OrderKind, type[Request]] = {
    schema.kind: schema
    for schema in (
        ListCheckpoints,
        MoveAside,
        TaskStates,
        AskJob,
        Collected,
        WriteToLog,
        ReadMessagesFile,
        Diagnose,
    )
}
# In a child that becomes the job's user: these read or move his files.
AS_USER = (ListCheckpoints, MoveAside, AskJob, WriteToLog, ReadMessagesFile)


@dataclass(frozen=True, slots=True)
class Order:
    """One order as it came."""

    id: str
    request: Request
    deadline_s: float


# --- decoding -----------------------------------------------------------------------------------------------------------


def decoded(kind: type[R], value: Any, order: str = "") -> R:
    """The record of a JSON value.

    Args:
        order: what refusals call it; the record's own kind where it is empty.

    Raises:
        OrderRefused: names the key and what it accepts.
    """
    name = order or str(getattr(kind, "kind", kind.__name__.lower()))
    known = {item.name: item.metadata["accepts"] for item in dataclasses.fields(kind)}
    other = _OTHER_RELEASE if order else ""
    if not isinstance(value, dict):
        raise OrderRefused(f"{name}: must be an object with {', '.join(known)}, not {_shown(value)}")
    unknown = [given for given in value if given not in known]
    if unknown:
        raise OrderRefused(f"{name}: unknown key {_shown(unknown[0])}; known here: {', '.join(known)}{other}")
    made: dict[str, Any] = {}
    for given, accepts in known.items():
        if given not in value:
            raise OrderRefused(f"{name}: {given} is missing: {accepts.words}{other}")
        made[given] = _read(accepts, value[given], f"{name}: {given}")
    found = kind(**made)
    flaw = found.flaw()
    if flaw is not None:
        raise OrderRefused(f"{name}: {flaw[0]} must be {flaw[1]}")
    return found


def _read(accepts: Accepts, value: Any, name: str) -> Any:
    try:
        return accepts.read(value)
    except OrderRefused as error:  # of an object inside
        raise OrderRefused(f"{name}: {error.message}") from error
    except ValueError as error:
        raise OrderRefused(f"{name} must be {accepts.words}, not {_shown(value)}") from error


_OTHER_RELEASE = (
    ". The daemon is of another release than this agent: upgrade the older one (sentinel doctor says which)"
)
_ENVELOPE = {
    "kind": word(*OrderKind),
    "deadline_s": number(LEAST_DEADLINE_S, MOST_DEADLINE_S),
    "arguments": Accepts("an object", lambda value: value),  # read by its kind
}


def read_order(value: Mapping[str, Any], identity: str) -> Order:
    """An order that came as ``{id, kind, arguments, deadline_s}``.

    Raises:
        OrderRefused: names the order, the key, and what is accepted there.
    """
    unknown = [given for given in value if given not in ("id", *_ENVELOPE)]
    if unknown:
        raise OrderRefused(
            f"order: unknown key {_shown(unknown[0])}; known here: id, {', '.join(_ENVELOPE)}{_OTHER_RELEASE}"
        )
    found = {}
    for given, accepts in _ENVELOPE.items():
        if given not in value:
            raise OrderRefused(f"order: {given} is missing: {accepts.words}{_OTHER_RELEASE}")
        if given == "kind" and value[given] not in list(OrderKind):
            raise OrderRefused(f"order: kind must be {accepts.words}, not {_shown(value[given])}{_OTHER_RELEASE}")
        found[given] = _read(accepts, value[given], f"order: {given}")
    kind = OrderKind(found["kind"])
    return Order(identity, decoded(SCHEMAS[kind], found["arguments"], f"order {kind}"), found["deadline_s"])


def _shown(value: Any) -> str:
    """A value for a refusal: short, on one line, whatever it is."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, int) and abs(value) > MOST_STEP:
        return "a number that is far too large"
    return ascii(value[:_SHOWN] if isinstance(value, str) else value)[:_SHOWN]
