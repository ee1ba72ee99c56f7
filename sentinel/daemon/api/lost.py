"""Computes what failures cost in GPU-hours: steps repeated and time without steps. Pure; unknown is never zero.

The cost of a failed attempt has two parts. *Made twice*: the steps that the next attempt that made steps repeats, i.e. from
its first step to the failed attempt's last, at the failed attempt's usual step time; of an attempt of which no step was seen
its time until the failure, if the next steps follow on those before it, or repeat them. *Down*: the time from the failure to
the first new step, or to the start of the next attempt if it has printed no step yet. Both are multiplied by all GPUs of the
attempt's nodes, even if the job held only a part of a node. Several incidents of one attempt count once: for the one that
ended it, or for the first of them where that is not known.

A cost that is not known (no step printed, no GPU count in Slurm, no next attempt) adds nothing and is counted as
``not_known``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sentinel.daemon.api.histories import at_fault
from sentinel.model.identity import JobsOfOneId
from sentinel.model.records import Cause
from sentinel.model.vocabulary import END_NOT_SEEN, ENDED_ON_PURPOSE

HOUR_S = 3600.0
BY = ("job", "user", "node", "cause")
NO_NODE = "no machine at fault"
ON_PURPOSE = Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT  # no failure: Slurm or a person ended the job

Row = Mapping[str, Any]
JobKey = tuple[int, int]  # of a job among those that had its id: ``JobsOfOneId.of``
Alive = Collection[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class Loss:
    """The cost of one failed attempt. None: not known."""

    incident: Row
    name: str  # of the job
    gpus: int | None
    redone_steps: int | None
    redone_s: float | None
    down_s: float | None
    of: JobKey = (0, 0)
    began: datetime | None = None  # the attempt; None: not known
    partition: str | None = None  # of the attempt; None: not known
    ran_down_s: float = 0.0  # of ``down_s``, what the job's attempts ran: a hang, or a start until its first new step

    @property
    def gpu_h(self) -> float:
        """GPU-hours lost, as far as they are known."""
        return self.over(self.redone_s) + self.over(self.down_s)

    @property
    def known(self) -> bool:
        return None not in (self.gpus, self.redone_s, self.down_s)

    @property
    def in_part(self) -> bool:
        """Whether at least a part of the cost is known."""
        return self.gpus is not None and (self.redone_s is not None or self.down_s is not None)

    def over(self, seconds: float | None) -> float:
        return (self.gpus or 0) * (seconds or 0.0) / HOUR_S


def losses(
    incidents: Iterable[Row],
    attempts: Iterable[Row],
    *,
    gpus: Callable[[Sequence[str]], int | None],
    recovered: Mapping[str, datetime],
    ended_by: Mapping[tuple[JobKey, int], str] | None = None,
) -> list[Loss]:
    """One loss for each failed attempt, in the order of their incidents.

    Args:
        incidents: as the store lists them; those without a job or a verdict cost no job anything.
        attempts: as the store lists them, all of each job.
        gpus: GPUs of these nodes together; None: not known.
        recovered: when the job of an incident gained steps again, by incident.
        ended_by: the incident that ended an attempt, by ``JobsOfOneId.of`` and attempt, where it is known: the others cost
            it nothing.
    """
    rows = sorted(attempts, key=lambda row: (row["attempt"], row["started_at"]))
    jobs = JobsOfOneId(rows)
    by_job: dict[JobKey, list[Row]] = {}
    for row in rows:
        if row["nodes"]:  # else the job ended while it waited, before this attempt began
            by_job.setdefault(jobs.of(row["job"], row["started_at"]), []).append(row)
    found: list[Loss] = []
    counted: set[tuple[JobKey, int]] = set()
    ended_by = ended_by or {}
    for incident in sorted(incidents, key=lambda row: row["opened_at"]):
        job, attempt = incident["job"], incident["attempt"]
        if job is None or attempt is None or incident["cause"] is None:
            continue
        of = jobs.of(job, incident["opened_at"])
        if (of, attempt) in counted or ended_by.get((of, attempt), incident["id"]) != incident["id"]:
            continue  # the job went on
        counted.add((of, attempt))
        of_job = by_job.get(of, [])
        failed = next((row for row in reversed(of_job) if row["attempt"] == attempt), None)
        before = [row for row in of_job if row["attempt"] < attempt]
        after = [row for row in of_job if row["attempt"] > attempt]
        found.append(_loss(incident, of, failed, before, after, gpus, recovered.get(incident["id"])))
    return found


def _loss(
    incident: Row,
    of: JobKey,
    failed: Row | None,
    before: Sequence[Row],
    after: Sequence[Row],
    gpus: Callable[[Sequence[str]], int | None],
    recovered_at: datetime | None,
) -> Loss:
    if failed is None:
        return Loss(incident, "", None, None, None, None, of)
    steps, redone_s = _redone(failed, before, after, incident["opened_at"])
    until = recovered_at or (after[0]["started_at"] if after else None)
    down_s, ran_down_s = None, 0.0
    if until is not None:
        down_s = max(0.0, (until - incident["opened_at"]).total_seconds())
        ran_down_s = _ran_s((failed, *after), incident["opened_at"], until)
    began, partition, count = failed["started_at"], failed.get("partition") or "", gpus(failed["nodes"])
    return Loss(incident, failed["name"] or "", count, steps, redone_s, down_s, of, began, partition, ran_down_s)


def _ran_s(attempts: Iterable[Row], since: datetime, until: datetime) -> float:
    """Seconds that these attempts ran in a time that is over; see ``worked_s``."""
    return math.fsum(worked_s(row, since, until, now=until, alive=None) for row in attempts)


def _redone(
    failed: Row, before: Sequence[Row], after: Sequence[Row], failed_at: datetime
) -> tuple[int | None, float | None]:
    """Number of repeated steps, and the seconds that they took the first time.

    Args:
        before, after: the job's other attempts, in their order.
        failed_at: from when on the failed attempt's time is time without steps.
    """
    following = next((row for row in after if row["first_step"] is not None), None)
    if following is None:
        return None, None
    if failed["last_step"] is None:
        made = max((row["last_step"] for row in before if row["last_step"] is not None), default=None)
        ended_at = failed["ended_at"] if failed.get("state") != END_NOT_SEEN else None
        # Steps that nobody saw were made again, too, unless the next ones begin with what it saved.
        if made is None or following["first_step"] > made + 1 or ended_at is None:
            return None, None
        return None, max(0.0, (min(ended_at, failed_at) - failed["started_at"]).total_seconds())
    steps = max(0, failed["last_step"] - following["first_step"] + 1)
    if steps == 0:
        return 0, 0.0
    step_s = failed["step_time_s"] or following["step_time_s"]
    return steps, steps * step_s if step_s else None


def grouped(found: Sequence[Loss], by: str) -> list[dict[str, Any]]:
    """Losses by ``by`` (one of ``BY``), the greatest first."""
    keys: dict[str, Callable[[Loss], list[Any]]] = {
        "job": lambda loss: [loss.of],
        "user": lambda loss: [loss.incident["user"] or ""],
        "node": lambda loss: at_fault(loss.incident) or [NO_NODE],
        "cause": lambda loss: [str(loss.incident["cause"] or Cause.UNKNOWN)],
    }
    members: dict[Any, list[tuple[Loss, float]]] = {}
    for loss in found:
        names = keys[by](loss)
        for name in names:
            members.setdefault(name, []).append((loss, 1 / len(names)))
    rows = [_sums(by, name, parts) for name, parts in members.items()]
    rows.sort(key=lambda row: (-(row["lost_gpu_h"] or 0.0), -row["failures"], row[by]))
    return rows


def _sums(by: str, name: Any, parts: Sequence[tuple[Loss, float]]) -> dict[str, Any]:
    causes = Counter(str(loss.incident["cause"]) for loss, _ in parts)
    steps = [loss.redone_steps for loss, _ in parts if loss.redone_steps is not None]
    row: dict[str, Any] = {by: name}
    if by == "job":
        row |= {"job": name[0], "name": parts[-1][0].name, "user": parts[-1][0].incident["user"]}
    return row | {
        "failures": len(parts),
        **rounded(sums(parts)),
        "redone_steps": sum(steps) if steps else None,
        "causes": dict(causes.most_common()),
        "last_at": max(loss.incident["opened_at"] for loss, _ in parts),
    }


def sums(parts: Iterable[tuple[Loss, float]]) -> dict[str, Any]:
    """GPU-hours of losses, of each the given share, as far as they are known; None: of none anything is known.

    ``not_known``: losses of which not all is known.
    """
    found = list(parts)
    redone = [loss.over(loss.redone_s) * share for loss, share in found if None not in (loss.gpus, loss.redone_s)]
    down = [loss.over(loss.down_s) * share for loss, share in found if None not in (loss.gpus, loss.down_s)]
    known = [*redone, *down] if found else [0.0]
    return {
        "lost_gpu_h": math.fsum(known) if known else None,
        "redone_gpu_h": math.fsum(redone) if redone or not found else None,
        "down_gpu_h": math.fsum(down) if down or not found else None,
        "not_known": sum(not loss.known for loss, _ in found),
    }


def rounded(made: Mapping[str, Any]) -> dict[str, Any]:
    """Sums with four digits, as views show them."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in made.items()}


def worked_s(row: Row, since: datetime, until: datetime, *, now: datetime, alive: Alive) -> float:
    """Seconds that an attempt ran between ``since`` and ``until``; 0 if its end was not observed and is therefore not known.

    Args:
        now: until when one that runs has run.
        alive: (job, attempt) that run now; None: not known.
    """
    if row.get("state") == END_NOT_SEEN:
        return 0.0
    if row["ended_at"] is None and alive is not None and (row["job"], row["attempt"]) not in alive:
        return 0.0
    span: timedelta = min(row["ended_at"] or now, until) - max(row["started_at"], since)
    return max(0.0, span.total_seconds())


def untold_ends(attempts: Iterable[Row], incidents: Iterable[Row], since: datetime, until: datetime) -> int:
    """Number of attempts that Slurm or a person ended on purpose in this time, and of which no incident tells.

    The components of a heterogeneous job, which end together, are one.

    Args:
        incidents: also those that were opened before.
    """
    rows = list(attempts)
    of = JobsOfOneId(rows).of
    leaders = {
        of(row["job"], row["started_at"]): of(row["het"], row["started_at"])
        for row in rows
        if row.get("het") is not None
    }

    def whole(row: Row, at: str) -> tuple[JobKey, int]:
        key = of(row["job"], row[at])
        return leaders.get(key, key), row["attempt"]

    told = {whole(row, "opened_at") for row in incidents if row["job"] is not None}
    ended: dict[tuple[JobKey, int], datetime] = {}
    for row in rows:
        if row["state"] in ENDED_ON_PURPOSE and row["ended_at"] is not None:
            key = whole(row, "started_at")
            ended[key] = max(row["ended_at"], ended.get(key, row["ended_at"]))
    return sum(since <= at < until and key not in told for key, at in ended.items())


def training_share(
    attempts: Iterable[tuple[Row, float]],
    found: Iterable[Loss],
    gpus: Callable[[Sequence[str]], int | None],
    *,
    together: bool = False,
) -> dict[str, float]:
    """By partition: productive GPU time (new steps) as a share of that time and the time lost to failures, of what is known.
    One in which jobs failed, or may have, and nothing of these failures' cost is known is left out.

    Args:
        attempts: those that ran in a period, each with the seconds that it ran in it (``worked_s``).
        found: the losses in that period.
        together: all partitions as one, without a name.
    """
    ran: dict[str, float] = {}
    partition_of = {}
    for row, seconds in attempts:
        count, name = gpus(row["nodes"]), "" if together else row["partition"] or ""
        partition_of[row["job"]] = name
        if count:
            ran[name] = ran.get(name, 0.0) + count * seconds
    wasted: dict[str, float] = {}  # of what ran: steps made twice, and time without steps
    down: dict[str, float] = {}  # while nothing ran
    known: dict[str, bool] = {}  # whether anything of the cost of its failures is
    else_known = True  # of a partition of which no failure is known: one of an unknown partition may be its
    for loss in found:
        named = loss.partition if loss.partition is not None else partition_of.get(loss.incident["job"])
        name = "" if together else named or ""
        else_known = else_known and named is not None
        known[name] = known.get(name, False) or loss.in_part
        wasted[name] = wasted.get(name, 0.0) + HOUR_S * (loss.over(loss.redone_s) + loss.over(loss.ran_down_s))
        down[name] = down.get(name, 0.0) + HOUR_S * loss.over((loss.down_s or 0.0) - loss.ran_down_s)
    return {
        name: max(0.0, gpu_s - wasted.get(name, 0.0)) / (gpu_s + down.get(name, 0.0))
        for name, gpu_s in ran.items()
        if gpu_s > 0 and known.get(name, else_known)
    }
