"""Groups past failures by cause, node, job, user and day, the most frequent first. Read-only."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.classify.history import BURST
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.history import as_corrected
from sentinel.errors import ProtocolError, UserError
from sentinel.model.hostlist import expand, fold
from sentinel.model.identity import task_named
from sentinel.model.records import Cause, IncidentState, NodeView, Scope

MOST_JOB = 2**32 - 1  # the high bits are the cluster's number in a federation
_LONGEST_ID = 20  # digits
_LONGEST_NAME = 255  # characters of a node's or a user's name that the store keeps
_MOST_DAYS = 36500.0
_LONGEST_LIST = 65536  # characters of a folded node list; Slurm's own lists of large clusters have thousands
_NAMED = 100  # unknown nodes that an error names

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailureFilter:
    """A filter on failures; a field that is None matches all."""

    nodes: frozenset[str] | None = None
    job: int | None = None
    parts: frozenset[int] = frozenset()  # with ``job``: the components of a heterogeneous job, itself included
    user: str | None = None
    cause: str | None = None
    corrected: bool = False  # only those that an operator corrected
    still_open: bool = False  # only those that are not closed

    @property
    def jobs(self) -> frozenset[int] | None:
        return self.parts | {self.job} if self.job is not None else None

    @property
    def of_whole_jobs(self) -> bool:
        """Whether it asks for nothing but a job and a user: for all that happened to them."""
        return self.nodes is None and self.cause is None and not self.corrected and not self.still_open

    def has(self, row: Row) -> bool:
        return (
            (self.nodes is None or not self.nodes.isdisjoint(nodes_of(row)))
            and (self.jobs is None or row["job"] in self.jobs)
            and (self.user is None or row["user"] == self.user)
            and (self.cause is None or (row["cause"] or Cause.UNKNOWN) == self.cause)
            and (not self.corrected or bool(row.get("corrections")))
            and (not self.still_open or row["state"] != IncidentState.CLOSED)
        )

    def counted(self, rows: Iterable[Row]) -> list[Row]:
        """The failures that match, with causes as corrected by operators."""
        return [row for row in map(as_corrected, rows) if self.has(row)]


def components(live: ClusterView, job: int | None, store: Store) -> frozenset[int]:
    """The job and the other components of its heterogeneous job, as far as Slurm or attempts tell. Blocking.

    Its people know it by one of these ids, and they fail and restart together.
    """
    if job is None:
        return frozenset()
    fleet = live.fleet
    seen = [attempt.view for attempt in list(live.attempts.values())]  # copied: views read it in threads
    views = [*seen, *(fleet.jobs.values() if fleet is not None else ())]
    leaders = {view.het for view in views if view.id == job and view.het is not None}
    return frozenset({job, *(view.id for view in views if view.het in leaders), *store.components(job)})


def with_task_ids(arguments: dict[str, Any], live: ClusterView) -> dict[str, Any]:
    """The arguments of a view with a task of an array, named as squeue shows it (``440_2``), by the id that the task has.

    Only tasks that Slurm lists, or that this daemon saw, are known so: of earlier ones only the id is kept.
    """
    for name in ("job", "what"):
        given = task_named(text) if isinstance(text := arguments.get(name), str) else None
        if given is None:
            continue
        fleet = live.fleet
        seen = [attempt.view for attempt in list(live.attempts.values())]  # copied: views read it in threads
        views = [*seen, *(fleet.jobs.values() if fleet is not None else ())]
        found = {view.id for view in views if view.array == given}
        if found:
            arguments = {**arguments, name: max(found) if name == "job" else f"{max(found)}"}
    return arguments


def failure_filter(
    arguments: Mapping[str, Any], live: ClusterView | None = None, store: Store | None = None
) -> FailureFilter:
    """Read the filter from a request's arguments. ``live``, ``store``: to know the components of a heterogeneous job.

    Raises:
        UserError: the filter cannot match anything.
    """
    texts: dict[str, str | None] = {}
    for name in ("user", "cause"):
        value = arguments.get(name)
        if value is not None and (not isinstance(value, str) or not value or len(value) > _LONGEST_NAME):
            raise UserError(f"{value!r:.40} is no {name}", fix=f"name one {name}")
        texts[name] = value
    if texts["cause"] is not None:
        named("cause", arguments, Cause)
    chosen = node_list(arguments)
    nodes = frozenset(chosen) if chosen is not None else None
    job = job_of(arguments)
    parts = components(live, job, store) if live is not None and store is not None else frozenset()
    return FailureFilter(
        nodes=nodes, job=job, parts=parts, user=texts["user"], cause=texts["cause"],
        corrected=arguments.get("corrected") is True, still_open=arguments.get("open") is True,
    )  # fmt: skip


def named(what: str, arguments: Mapping[str, Any], known: type[StrEnum]) -> str:
    """The id of a cause or a scope that a request names.

    Raises:
        UserError: there is none of that name; suggests a similar one.
    """
    value = arguments.get(what)
    if not isinstance(value, str) or value not in list(known):
        near = difflib.get_close_matches(str(value), list(known), 1)
        fix = f"did you mean {str(near[0])!r}?" if near else f"known are {', '.join(known)}"
        raise UserError(f"no {what} {value!r:.60}", fix=fix)
    return value


def node_list(arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The nodes that a request names, in Slurm's short form (``n[1-3],m7``); None: it names none.

    Raises:
        UserError: not a list of nodes.
    """
    value = arguments.get("node")
    if value is None:
        return None
    if not isinstance(value, str) or not value or len(value) > _LONGEST_LIST:
        raise UserError(f"{value!r:.40} is no node", fix="write a node or a list of them, as n7 or n[1-3,7]")
    try:
        names = tuple(dict.fromkeys(expand(value)))
        if any(len(name) > _LONGEST_NAME for name in names):
            raise ProtocolError(f"{value!r:.40} holds a name of more than {_LONGEST_NAME} characters")
        return names
    except ProtocolError as error:
        raise UserError(error.message, fix="write a node or a list of them, as n7 or n[1-3,7]") from error


def picked(chosen: Sequence[str] | None, nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes that a request names; None: all.

    Raises:
        UserError: one that it names is not there, or it names none; tells the first of them.
    """
    if chosen is None:
        return list(nodes)
    wanted = frozenset(chosen)
    found = {node.name: node for node in nodes if node.name in wanted}
    missing = [name for name in chosen if name not in found]
    if missing or not chosen:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise UserError(f"Slurm knows no node {fold(missing[:_NAMED])!r:.80}{more}", fix="sinfo -N lists them")
    return list(found.values())


def since_of(arguments: Mapping[str, Any]) -> datetime | None:
    """The time from which a request wants incidents; None: it does not say.

    Raises:
        UserError: not a time with its zone.
    """
    value = arguments.get("since")
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        at = None
    if at is None or at.utcoffset() is None:
        raise UserError(f"{value!r:.40} is no time with a zone", fix="write it as 2026-03-01T03:00:00Z")
    return at


def job_given(text: str) -> int | str:
    """A job as a browser's request names it, for a view: its id, or a task of an array as it was given.

    Raises:
        UserError: neither.
    """
    if text.isdecimal() and len(text) <= _LONGEST_ID:
        return int(text)
    if task_named(text) is None:
        raise UserError(f"{text!r:.40} is no id of a job", fix="squeue and sacct list them")
    return text


def job_of(arguments: Mapping[str, Any]) -> int | None:
    job = arguments.get("job")
    if job is not None and (not isinstance(job, int) or isinstance(job, bool) or not 0 <= job <= MOST_JOB):
        raise UserError(f"{job!r:.40} is no id of a job", fix="squeue and sacct list them")
    return job


def nodes_of(row: Row) -> list[str]:
    """Where to look: the nodes at fault, or, where no machine is, the node that showed it if it was only one."""
    seen = row["seen_on"] or []
    return list(row["culprit_nodes"] or (seen if len(seen) == 1 else []))


def at_fault(row: Row) -> list[str]:
    """The nodes to which the failure is charged: none for a program's fault, one that many share, or an unknown one."""
    return [] if row["scope"] in (Scope.APPLICATION, Scope.CLUSTER) else list(row["culprit_nodes"] or ())


def groups(rows: Iterable[Row], *wanted: str) -> dict[str, list[dict[str, Any]]]:
    """Failures by cause, node, job and user, the most frequent first; and by day, in order of time.

    ``wanted``: only by these.
    """
    rows = list(rows)
    keys: dict[str, Callable[[Row], list[str]]] = {
        "cause": lambda row: [row["cause"] or Cause.UNKNOWN],
        "node": at_fault,
        "job": lambda row: [str(row["job"])] if row["job"] is not None else [],
        "user": lambda row: [row["user"]] if row["user"] else [],
        "time": lambda row: [f"{row['opened_at']:%Y-%m-%d}"],
    }
    made = {name: _group(rows, key) for name, key in keys.items() if not wanted or name in wanted}
    if "time" in made:
        made["time"].sort(key=lambda group: group["key"])
    return made


def _group(rows: Iterable[Row], keys: Callable[[Row], list[str]]) -> list[dict[str, Any]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        for key in keys(row):
            found.setdefault(key, []).append(row)
    made = [_of(key, members) for key, members in found.items()]
    made.sort(key=lambda group: group["key"])
    made.sort(key=lambda group: (group["failures"], group["last_at"]), reverse=True)
    return made


def _of(key: str, rows: list[Row]) -> dict[str, Any]:
    times: list[datetime] = sorted(row["opened_at"] for row in rows)
    causes = Counter(str(row["cause"] or Cause.UNKNOWN) for row in rows)
    return {
        "key": key,
        "failures": len(rows),
        "first_at": times[0],
        "last_at": times[-1],
        "burst_s": (times[-1] - times[-BURST]).total_seconds() if len(times) >= BURST else None,
        "causes": dict(causes.most_common()),
        "jobs": len({row["job"] for row in rows if row["job"] is not None}),
        "nodes": len({name for row in rows for name in at_fault(row)}),
    }


def days_of(arguments: Mapping[str, Any], usual: float) -> float:
    """The number of days that a request names; ``usual`` if it names none.

    Raises:
        UserError: not a number of days, or too many.
    """
    days = arguments.get("days", usual)
    if not isinstance(days, (int, float)) or isinstance(days, bool) or not 0.0 < days <= _MOST_DAYS:
        raise UserError(f"{days!r:.40} is no number of days", fix=f"more than 0 and at most {_MOST_DAYS:g}")
    return float(days)
