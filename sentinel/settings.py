"""Settings: one TOML file for the daemon, one for each agent, parsed strictly.

Every setting is a field here, with its unit, default and reason; ``sentinel config show`` prints this table. An unknown
key, a wrong type or an absurd value is an error that names file, line, key and the fix. Nothing is read at import.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sentinel.errors import FileError

T = TypeVar("T")


def setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a settings record: default, the reason for it, its unit and its bounds, or the words it may be."""
    metadata = {"reason": reason, "unit": unit, "least": least, "most": most, "words": words}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[T]) -> T:
    """A field that is a section of its own."""
    made: T = field(default_factory=kind)
    return made


@dataclass(frozen=True, slots=True)
class Slurm:
    bin: str = setting("", "folder of Slurm's commands; empty: from PATH")
    conf: str = setting("", "slurm.conf to use; empty: Slurm's own default")
    deadline_s: float = setting(
        10.0, "a healthy slurmctld answers in under a second; longer is *not known*", unit="s", least=0.1
    )
    reconcile_s: float = setting(
        20.0, "events bring news; this catches what they missed, with three requests a period", unit="s", least=1.0
    )


@dataclass(frozen=True, slots=True)
class Daemon:
    listen: str = setting("0.0.0.0:9478", "address and port for agents, hooks and the command line")
    url: str = setting("http://127.0.0.1:9478", "how agents, hooks and the command line reach the daemon")
    state: str = setting("/var/lib/sentinel", "folder of the store")
    database: str = setting("", "SQLAlchemy URL; empty: SQLite in the state folder")
    resume: str = setting("", "folder on the shared file system that TaskProlog reads resume points from", unit="path")
    munge_socket: str = setting("", "munged's socket; empty: munge's default")
    events: str = setting(
        "",
        "folder in which the controller's hook leaves its news (SENTINEL_EVENTS), of SlurmUser, closed to others; empty: "
        "only over HTTP, with a process for each job",
        unit="path",
    )
    trusted_uids: list[int] = setting([], "uids besides root and our own that may speak for nodes")
    operators: list[int] = setting([], "uids besides root and our own that may change state")
    request_bytes: int = setting(4 << 20, "largest request that is read", unit="bytes", least=4096)
    heartbeat_lost_s: float = setting(
        6.0,
        "three missed heartbeats of 2 s; then slurmd's port is asked, since silence is no proof",
        unit="s",
        least=0.5,
    )
    probe_s: float = setting(1.0, "deadline of one connection attempt to slurmd's port", unit="s", least=0.05)
    probe_attempts: int = setting(
        3, "refused or silent this often in a row before a node counts as unreachable", least=1
    )
    retention_days: float = setting(400.0, "a year of history and a month more", unit="days", least=1)
    store_bytes: int = setting(
        8 << 30,
        "what the store may take; beyond it the oldest goes first, whatever its age",
        unit="bytes",
        least=1 << 20,
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    rules: str = setting("", "folder of the site's own rules; the same id overrides a shipped one", unit="path")
    settle_s: float = setting(
        0.3, "evidence of one failure comes in a burst; a verdict waits this long for the rest of it", unit="s", least=0
    )
    log_settle_s: float = setting(
        2.0, "after a job ended, its log's last lines need this long to arrive", unit="s", least=0
    )
    act_confidence: float = setting(0.6, "below it the verdict is shown and nothing is drained", least=0.0, most=1.0)
    stall_floor_s: float = setting(
        12.0,
        "no job is called hung before this silence, however quick its steps, unless one of its tasks is stopped",
        unit="s",
        least=0.5,
    )
    stall_steps: float = setting(3.0, "silence longer than this many of the job's own steps", unit="steps", least=1)
    stall_confirm: float = setting(
        1.1,
        "a silence in which nobody sees that the job only waits must last this many times what is usual",
        unit="times",
        least=1,
    )
    stall_startup_s: float = setting(
        600.0, "after its first steps a job may still compile and warm up, but not longer than this", unit="s", least=1
    )
    bad_prints: int = setting(
        5, "a skipped step is one or two; so many printed losses in a row that are no numbers stay so", least=2
    )
    bad_numbers_s: float = setting(
        600.0, "of a job that prints seldom, fewer are enough when they are this long apart", unit="s", least=1
    )
    group_s: float = setting(
        120.0, "evidence about one job or node within this time belongs to one failure", unit="s", least=1
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Blast radius (promise 4)."""

    drain_count: int = setting(8, "nodes of ours drained at once", unit="nodes", least=0)
    drain_fraction: float = setting(0.1, "share of a partition drained by us at once", least=0.0, most=1.0)
    drain_per_hour: int = setting(6, "drains in an hour", unit="nodes", least=0)
    keep_healthy: int = setting(1, "usable nodes that must remain in each partition", unit="nodes", least=0)
    breaker_nodes: int = setting(
        5,
        "this many nodes failing within breaker_window_s is the cluster's fault, not theirs: freeze and call",
        least=2,
    )
    breaker_window_s: float = setting(60.0, "window of the breaker", unit="s", least=1)
    restarts_without_progress: int = setting(
        2, "the same cause this often without steps gained holds the job", unit="restarts", least=1
    )
    restarts_per_job: int = setting(50, "an upper bound whatever the progress", unit="restarts", least=0)


@dataclass(frozen=True, slots=True)
class Mode:
    """What may be carried out: "observe" judges and plans only, "act" does it (promise 7)."""

    drain: str = setting("observe", "drain and down", words=("observe", "act"))
    restart: str = setting("observe", "requeue, hold, resume point, release", words=("observe", "act"))


@dataclass(frozen=True, slots=True)
class Modes:
    default: Mode = section(Mode)
    partitions: dict[str, Mode] = setting({}, "by partition; what is not named follows the default")


@dataclass(frozen=True, slots=True)
class Recovery:
    opt_in: bool = setting(True, 'restart only jobs whose comment says so: {"sentinel": {"restart": true}}')
    checkpoint_level: str = setting(
        "checksum",
        "structural, checksum or content: proof a checkpoint needs before a restart",
        words=("structural", "checksum", "content"),
    )
    inventory_s: float = setting(20.0, "deadline for nodes to list and check a job's checkpoints", unit="s", least=1)
    storage_s: float = setting(
        600.0,
        "a frozen file system is waited for this long; then the job resumes as its script does",
        unit="s",
        least=1,
    )
    quarantine_s: float = setting(
        60.0, "moving checkpoints aside is tried this long; the restart goes on without it", unit="s", least=1
    )
    pending_s: float = setting(
        90.0, "Slurm's KillWait of 30 s, epilogs and reserve until the job is pending", unit="s", least=1
    )
    confirm_s: float = setting(600.0, "the restarted job must run and gain a step within this time", unit="s", least=1)
    local_survives: bool = setting(
        True, "node-local checkpoint folders outlive the job (no private tmpfs, no epilog that wipes them)"
    )
    bad_numbers: str = setting(
        "tell",
        "a running job whose numbers stay bad: tell its people, hold it, or restart it before the onset; a program's words "
        "are no proof, and ending a job that might go on costs more than a message: a job's comment may say otherwise",
        words=("tell", "hold", "restart"),
    )
    step_time_s: float = setting(10.0, "assumed when a job printed none", unit="s", least=0.001)
    restore_bytes_per_s: float = setting(
        2e9, "reading a global checkpoint, for the cost of choosing it", unit="bytes/s", least=1
    )


@dataclass(frozen=True, slots=True)
class Alerts:
    webhooks: list[str] = setting([], "URLs that get one JSON POST per incident")
    deadline_s: float = setting(5.0, "one delivery attempt", unit="s", least=0.1)
    attempts: int = setting(5, "delivery attempts with growing pauses", least=1)
    within_s: float = setting(
        5.0,
        "people are told when the job is released or held, at the latest this long after the decision",
        unit="s",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Diagnostics that the daemon orders on idle nodes; only in partitions whose drain mode is "act"."""

    suspect_level: int = setting(2, "for a node under suspicion, as soon as it is idle; 0: none", least=0, most=4)
    idle_level: int = setting(0, "for idle nodes in rotation; 0: none, since it takes their power", least=0, most=4)
    idle_period_s: float = setting(7 * 86400.0, "a node that passed is left alone for this long", unit="s", least=60)
    idle_fraction: float = setting(
        0.1, "share of the idle nodes under test at once: the others must be there for work", least=0.0, most=1.0
    )
    idle_per_hour: int = setting(60, "orders of the rotation in an hour, whatever the share", unit="nodes", least=0)
    settled_s: float = setting(120.0, "a node without work for this long is idle, not between jobs", unit="s", least=0)
    retry_s: float = setting(1800.0, "pause after one that gave no answer or no pass", unit="s", least=1)
    look_s: float = setting(15.0, "how often turns are given out; a snapshot is no fresher", unit="s", least=1)
    deadline_s: list[float] = setting(
        [120.0, 900.0, 3000.0, 9000.0], "deadline of level 1, 2, 3, 4: the agent's own, and room to stop it", unit="s"
    )


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Signals of what many nodes share, as PromQL (rules/signals/prometheus.toml)."""

    url: str = setting("", "where Prometheus answers; empty: it is not asked")
    rules: str = setting("", "the site's own signals and counters; the same id overrides a shipped one", unit="path")
    deadline_s: float = setting(
        2.0, "one query; a verdict waits for it, and what is slower is *not known*", unit="s", least=0.1
    )
    every_s: float = setting(60.0, "asked this often while nothing fails", unit="s", least=5)
    answer_bytes: int = setting(4 << 20, "longest answer that is read", unit="bytes", least=4096)
    authorization_file: str = setting("", "a token, or the whole Authorization header, in one line", unit="path")
    ca_file: str = setting("", "authority that signed its certificate; empty: the system's", unit="path")
    certificate_file: str = setting("", "our certificate, where it asks for one", unit="path")
    key_file: str = setting("", "its key, where that is a file of its own", unit="path")


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's file (``sentinel.toml``)."""

    cluster: str = setting("", "name of the cluster; empty: Slurm's ClusterName")
    slurm: Slurm = section(Slurm)
    daemon: Daemon = section(Daemon)
    judgement: Judgement = section(Judgement)
    limits: Limits = section(Limits)
    modes: Modes = section(Modes)
    recovery: Recovery = section(Recovery)
    alerts: Alerts = section(Alerts)
    prometheus: Prometheus = section(Prometheus)
    diagnostics: Diagnostics = section(Diagnostics)


def load(path: Path, kind: type[T]) -> T:
    """Settings of ``kind`` from a TOML file.

    Raises:
        FileError: unreadable, not TOML, an unknown key, a wrong type, or a value out of bounds.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix="name an existing file with --config") from error
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 at byte {error.start}", fix="save it as UTF-8") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise FileError(
            path, f"is not TOML: {error}", line=int(line[1]) if line else None, fix="see https://toml.io"
        ) from error
    return Reader(path, text).record(kind, values, "")


class Reader:
    """Builds settings records from parsed TOML and knows where in the file a key stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def line_of(self, key: str) -> int | None:
        """Line of a dotted key, however it is written: under its section's header, dotted, or inside an inline table."""
        parts = key.split(".")
        for size in range(len(parts) - 1, -1, -1):
            start = self._header(parts[:size]) if size else 0
            if start is None:
                continue
            for end in range(len(parts), size, -1):
                wanted = re.compile(r"^\s*" + _spelled(parts[size:end]) + r"\s*=")
                for number, line in enumerate(self.lines[start:], start + 1):
                    if number > start + 1 and line.lstrip().startswith("["):
                        break  # the next section
                    if wanted.match(line):
                        return number
        header = self._header(parts)
        return header + 1 if header is not None else None

    def _header(self, parts: list[str]) -> int | None:
        header = re.compile(r"^\s*\[+\s*" + _spelled(parts) + r"\s*\]+")
        return next((n for n, line in enumerate(self.lines) if header.match(line)), None)

    def fail(self, key: str, message: str, fix: str) -> FileError:
        return FileError(self.path, message, line=self.line_of(key), key=key, fix=fix)

    def record(self, kind: type[T], values: dict[str, Any], prefix: str) -> T:
        known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)
        made: dict[str, Any] = {}
        for name, value in values.items():
            key = f"{prefix}{name}"
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
                raise self.fail(key, "unknown key", hint)
            made[name] = self.value(hints[name], value, key, known[name].metadata)
        try:
            return kind(**made)
        except TypeError as error:
            missing = [n for n, f in known.items() if n not in made and _required(f)]
            raise self.fail(prefix.rstrip("."), f"missing: {', '.join(missing)}", "add the key") from error

    def value(self, hint: Any, value: Any, key: str, metadata: typing.Mapping[str, Any]) -> Any:
        origin = typing.get_origin(hint)
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise self.fail(key, f"is a section, not {value!r}", f"write [{key}] on a line of its own")
            return self.record(typing.cast(type[Any], hint), value, f"{key}.")
        if origin is dict:
            if not isinstance(value, dict):
                raise self.fail(key, f"is a table, not {value!r}", f"write [{key}.NAME]")
            inner = typing.get_args(hint)[1]
            return {name: self.value(inner, item, f"{key}.{name}", {}) for name, item in value.items()}
        if origin is list:
            if not isinstance(value, list):
                raise self.fail(key, f"is a list, not {value!r}", f"write {key.rpartition('.')[2]} = [...]")
            inner = typing.get_args(hint)[0]
            return [self.value(inner, item, key, {}) for item in value]
        if isinstance(hint, types.UnionType) or origin is typing.Union:
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        return self._scalar(hint, value, key, metadata)

    def _scalar(self, hint: Any, value: Any, key: str, metadata: typing.Mapping[str, Any]) -> Any:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise self.fail(key, f"must be {hint.__name__}, not {value!r}", "correct the value")
        least, most = metadata.get("least"), metadata.get("most")
        unit = metadata.get("unit") or ""
        if least is not None and not value >= least:
            raise self.fail(key, f"{value!r} is below {least} {unit}".rstrip(), f"at least {least}")
        if most is not None and not value <= most:
            raise self.fail(key, f"{value!r} is above {most} {unit}".rstrip(), f"at most {most}")
        words = metadata.get("words") or ()
        if words and value not in words:
            raise self.fail(key, f"{value!r} is not known here", "write " + " or ".join(f'"{word}"' for word in words))
        return value


def _spelled(parts: list[str]) -> str:
    """A dotted key as a pattern; each part may be quoted."""
    return r"\s*\.\s*".join(rf"[\"']?{re.escape(part)}[\"']?" for part in parts)


def _required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def described(kind: type[Any], prefix: str = "") -> list[tuple[str, object, str, str]]:
    """Every setting as (key, default, unit, reason), for documentation and ``sentinel config show``."""
    rows: list[tuple[str, object, str, str]] = []
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        key = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hints[item.name]):
            rows.extend(described(hints[item.name], f"{key}."))
            continue
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        rows.append((key, default, item.metadata.get("unit", ""), item.metadata.get("reason", "")))
    return rows
