"""Answers "why": finds the incident that a person means by its id, by a node, by a job or as the last one. Read-only."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.alerts import IncidentFacts, to_do_for_owner
from sentinel.daemon.api.histories import MOST_JOB, nodes_of
from sentinel.errors import UserError
from sentinel.model.approvals import asked, open_names, request_of
from sentinel.model.records import (
    OURS,
    Fleet,
    NodeView,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.text import whole_number
from sentinel.wire import to_json

LAST = "last"
_OTHERS = 20  # further incidents of a node or job that are listed
_KEPT = re.compile(r" \[incident (\S+)\]\Z")  # as ``kept_reason`` adds it
_STEP_KEYS = ("kind", "node", "job", "attempt", "intended_at", "result", "finished_at", "reason", "data")

Row = Mapping[str, Any]


def job_named(text: str) -> int | None:
    """The job that ``text`` names as Slurm writes it; None for other text, such as an incident's id of digits alone."""
    number = whole_number(text)
    return number if number is not None and number <= MOST_JOB and str(number) == text else None


class Meant:
    """What a person asked about: a kind (incident, node, job, last), its name, and the incidents that concern it."""

    def __init__(self, kind: str, name: str, found: Sequence[Row]) -> None:
        self.kind, self.name = kind, name
        self.found = list(found)  # newest first, preceded by the one that explains most


def meant(
    what: str,
    rows: Sequence[Row],
    *,
    node: NodeView | None,
    has_job: bool,
    parts: Collection[int] = (),
    user: str | None = None,
) -> Meant:
    """The incidents that ``what`` means, among those that the person may see.

    Args:
        rows: newest first.
        node: the node of that name, if Slurm has one.
        has_job: whether attempts of a job with that id are known.
        parts: the components of a heterogeneous job; after the job's own incidents come theirs.
        user: sees incidents of this user's jobs only; None: all.

    Raises:
        UserError: nothing is known by that name, or the beginning of an id fits several.
    """
    if what == LAST:
        if not rows:
            whose = "" if user is None else " of your jobs"
            raise UserError(f"there is no incident{whose} yet", fix="sentinel status shows what is seen")
        return Meant(LAST, rows[0]["id"], rows[:1])
    if (number := job_named(what)) is not None:
        of_job = [row for row in rows if row["job"] in {number, *parts}]
        of_job.sort(key=lambda row: row["job"] != number)
        if of_job or has_job:
            return Meant("job", what, of_job)
    of_node = [row for row in rows if what and what in (*nodes_of(row), *(row["nodes"] or ()))]
    if node is not None or of_node:
        return Meant("node", what, _blamed_first(what, of_node, node))
    if not any(what and row["id"].startswith(what) for row in rows):
        fix = "sentinel incidents, nodes and jobs list them"
        fix += "" if user is None else "; incidents and jobs of others are shown to operators only"
        raise UserError(f"{what!r:.80} is not known as an incident, a node or a job", fix=fix)
    return Meant("incident", what, [by_id(what, rows)])


def by_id(name: str, rows: Sequence[Row]) -> Row:
    """The incident whose id begins with ``name``."""
    found = [row for row in rows if name and row["id"].startswith(name)]
    if len(found) != 1:
        what = "is ambiguous" if found else "is not known"
        raise UserError(f"incident {name!r:.80} {what}", fix="sentinel incidents lists them")
    return found[0]


def _blamed_first(name: str, rows: Sequence[Row], node: NodeView | None) -> list[Row]:
    """Sort: the incident for which the node is drained, then those that blame it, then those that only mention it."""
    incident = drained_for(node.reason) if node is not None else ""
    return sorted(rows, key=lambda row: (not incident or row["id"] != incident, name not in nodes_of(row)))


def drained_for(reason: str) -> str:
    """The id of the incident for which a node with this reason was drained; empty, or no incident's, where there is none."""
    if not reason.startswith(OURS):
        return ""
    kept = _KEPT.search(reason)
    return kept[1] if kept is not None else reason.removeprefix(OURS).partition(" ")[0]


def drained_incidents(fleet: Fleet | None, returning: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The incidents for which nodes are out of service: people who mend them ask for these, however old they are.

    Args:
        returning: what the store keeps of the return of nodes, by node.
    """
    drained = (node for node in fleet.nodes.values() if node.drained) if fleet is not None else ()
    told = (entry.get("incident") for entry in returning.values())
    return {name for name in (*(drained_for(node.reason) for node in drained), *told) if isinstance(name, str) and name}


def kept_reason(words: str, incident: str) -> str:
    """A person's reason for a drain that was made for ``incident``: the node stays the one to repair for it."""
    return f"{words} [incident {incident}]"


def explained(store: Store, row: Row, fleet: Fleet | None, user: str | None = None) -> dict[str, Any]:
    """All that is stored of one incident, and how scontrol must be told its job. Blocking.

    Args:
        user: who asks; None: an operator. Others read in ``to_do`` what is left to them of advice for operators.
    """
    job = fleet.jobs.get(row["job"]) if fleet is not None else None
    incident, verdict, plan = store.incident(row["id"]), store.last_verdict(row["id"]), store.plan_of(row["id"])
    steps, to_do = store.steps_of(row["id"]), None if user is None else ""
    if user is not None and incident is not None and verdict is not None:
        to_do = to_do_for_owner(IncidentFacts(incident, verdict, plan, _outcomes(steps), job))
        verdict = replace(verdict, advice="") if to_do else verdict
    return {
        "incident": shown_row(row, {row["id"]: plan.waits} if plan is not None else {})
        | {"job_spec": job.spec if job is not None else row["job"] and f"{row['job']}"},
        "verdict": to_json(verdict) if verdict else None,
        "plan": to_json(plan) if plan else None,
        "request": _request(plan, verdict),
        "to_do": to_do,
        "steps": [{name: to_json(step[name]) for name in _STEP_KEYS} for step in steps],
        "evidence": to_json(incident.evidence) if incident else [],
    }


def _outcomes(steps: Sequence[Row]) -> list[Outcome]:
    kinds, results = frozenset(StepKind), frozenset(Result)  # those of a later release are left out
    return [
        Outcome(
            Step(StepKind(row["kind"]), node=row["node"], job=row["job"], attempt=row["attempt"]),
            Result(row["result"]), row["finished_at"], row["reason"] or "", row["data"] or {},
        )
        for row in steps
        if row["kind"] in kinds and row["result"] in results
    ]  # fmt: skip


def _request(plan: Plan | None, verdict: Verdict | None) -> dict[str, Any] | None:
    """The approval that an operator is asked for, with its name; None if none is."""
    waits = asked(plan) if plan is not None else ()
    if plan is None or verdict is None or not waits:
        return None
    return {"id": request_of(plan, verdict.cause), "what": list(open_names(waits)), "waits": to_json(waits)}


NOTHING: Mapping[str, Any] = {
    "incident": None,
    "verdict": None,
    "plan": None,
    "request": None,
    "to_do": None,
    "steps": [],
    "evidence": [],
}


def others(asked: Meant) -> dict[str, Any]:
    """Further incidents, the newest of them, and whether there are more."""
    return {
        "others": [shown_row(row) for row in asked.found[1 : _OTHERS + 1]],
        "others_cut": len(asked.found) > _OTHERS + 1,
    }


def shown_row(row: Row, waits: Mapping[str, Sequence[Wait]] | None = None) -> dict[str, Any]:
    """An incident as listings show it; ``waits``: by incident, what it waits for."""
    return {key: value for key, value in row.items() if key != "nodes"} | {"waits": (waits or {}).get(row["id"], ())}
