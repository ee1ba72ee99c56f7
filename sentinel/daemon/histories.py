"""Past failures by cause, node, job, user and time: what comes again stands first. Reading only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.classify.history import BURST
from sentinel.errors import UserError
from sentinel.model import Cause

_MOST_JOB = 2**31 - 1  # what the store's column holds; Slurm's own ids are smaller
_CAUSES = 3  # of one row that are named

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which failures are asked for; None: all."""

    node: str | None = None
    job: int | None = None
    user: str | None = None
    cause: str | None = None

    def has(self, row: Row) -> bool:
        return (
            (self.node is None or self.node in nodes_of(row))
            and (self.job is None or row["job"] == self.job)
            and (self.user is None or row["user"] == self.user)
            and (self.cause is None or (row["cause"] or Cause.UNKNOWN) == self.cause)
        )


def wanted(arguments: Mapping[str, Any]) -> Wanted:
    """
    Raises:
        UserError: a filter that can fit nothing.
    """
    words: dict[str, str | None] = {}
    for name in ("node", "user", "cause"):
        value = arguments.get(name)
        if value is not None and (not isinstance(value, str) or not value or len(value) > 255):
            raise UserError(f"{value!r:.40} is no {name}", fix=f"name one {name}")
        words[name] = value
    if words["cause"] is not None and words["cause"] not in list(Cause):
        raise UserError(f"no cause {words['cause']!r:.60}", fix=f"known are {', '.join(Cause)}")
    return Wanted(node=words["node"], job=job_of(arguments), user=words["user"], cause=words["cause"])


def job_of(arguments: Mapping[str, Any]) -> int | None:
    job = arguments.get("job")
    if job is not None and (not isinstance(job, int) or isinstance(job, bool) or not 0 <= job <= _MOST_JOB):
        raise UserError(f"{job!r:.40} is no id of a job", fix="squeue and sacct list them")
    return job


def nodes_of(row: Row) -> list[str]:
    """Who was guilty; of a program's fault, where it was seen if that was one node."""
    seen = row["seen_on"] or []
    return list(row["culprit_nodes"] or (seen if len(seen) == 1 else []))


def groups(rows: Iterable[Row]) -> dict[str, list[dict[str, Any]]]:
    """By cause, node, job and user, the most frequent first; by day in order of time."""
    rows = list(rows)
    keys: dict[str, Callable[[Row], list[str]]] = {
        "cause": lambda row: [row["cause"] or Cause.UNKNOWN],
        "node": nodes_of,
        "job": lambda row: [str(row["job"])] if row["job"] is not None else [],
        "user": lambda row: [row["user"]] if row["user"] else [],
        "time": lambda row: [f"{row['opened_at']:%Y-%m-%d}"],
    }
    made = {name: _group(rows, key) for name, key in keys.items()}
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
        "causes": dict(causes.most_common(_CAUSES)),
        "jobs": len({row["job"] for row in rows if row["job"] is not None}),
        "nodes": len({name for row in rows for name in nodes_of(row)}),
    }
