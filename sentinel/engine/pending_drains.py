"""Counts drains and job stops that are decided but not visible in Slurm yet, so that incidents judged together do not
spend the same budget twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta

from sentinel.engine.ledger import Ledger, LedgerRow
from sentinel.model.records import (
    ANSWERS_AGAIN,
    INTERRUPTIONS,
    LEFT_IN_SERVICE,
    NODE_STEPS,
    OURS,
    Fleet,
    Outcome,
    Plan,
    Result,
    Step,
)
from sentinel.model.vocabulary import WAS_OUT
from sentinel.policy import SILENCE, Stop

_COUNTS = timedelta(hours=1)  # how long a plan's steps count that are not known to go on
_BEHIND_S = 1.0  # a snapshot's contents may be this much older than its time


def unfinished(plans: Iterable[Plan], ledger: Ledger) -> frozenset[str]:
    """Keys of the steps without an outcome: what waited for long and goes on now is in a plan as old as its wait."""
    return frozenset(
        key for plan in plans for step in plan.to_do if not ledger.has_outcome(key := step.key(plan.incident))
    )


def leaving(
    shown_at: datetime,
    plans: Iterable[Plan],
    drains: Iterable[LedgerRow],
    now: datetime,
    going_on: Collection[str] = (),
) -> set[str | None]:
    """Nodes that are about to be drained; a snapshot of ``shown_at`` may not show it yet. Arguments as below."""
    shown = shown_at - timedelta(seconds=_BEHIND_S)  # the snapshot shows everything done before this time
    settled = {  # one that slurmctld forgot and that is done again is another try
        row.step.key(row.incident)
        for row in drains
        if row.outcome is not None and (_took_nothing(row.outcome) or _shows(row.outcome, shown))
    }
    found = set()
    for plan in plans:
        recent = now - plan.at <= _COUNTS
        for step in () if plan.observe_only else plan.steps:
            key = step.key(plan.incident)
            if step.kind in NODE_STEPS and key not in settled and (recent or key in going_on):
                found.add(step.node)
    return found


def _took_nothing(outcome: Outcome) -> bool:
    return outcome.result is Result.FAILED or bool(outcome.data.get(LEFT_IN_SERVICE))


def _shows(outcome: Outcome, shown: datetime) -> bool:
    return outcome.result is Result.DONE and outcome.at <= shown


def with_pending_drains(
    fleet: Fleet,
    plans: Iterable[Plan],
    drains: Sequence[LedgerRow],
    now: datetime,
    going_on: Collection[str] = (),
) -> tuple[Fleet, list[datetime]]:
    """The fleet as it will be after the drains under way, and the times of the last hour's drains including these.

    Args:
        drains: ledger rows that ended in the last hour. A failed drain changed nothing, and one that found the node
            drained by somebody else (its reason says so) or for another incident was none: neither costs budget.
        going_on: keys of steps that are under way, however old their plans are; see ``unfinished``.
    """
    ours: dict[tuple[str, str | None], LedgerRow] = {}  # a drained node that is set down later is taken out once
    for row in drains:
        if _took_out(row):
            ours.setdefault((row.incident, row.step.node), row)
    under_way = leaving(fleet.at, plans, drains, now, going_on)
    changed = {
        name: dataclasses.replace(view, flags=view.flags | {"drain"}, reason=f"{OURS}under way")
        for name in under_way
        if name is not None and (view := fleet.nodes.get(name)) is not None and not view.drained
    }
    hour = [row.last_at for row in ours.values()]
    hour.extend([now] * len(under_way - {row.step.node for row in ours.values()}))
    return (dataclasses.replace(fleet, nodes={**fleet.nodes, **changed}) if changed else fleet), hour


def _took_out(row: LedgerRow) -> bool:
    """Whether this drain took a node out of service, if only until a person returned it a moment later."""
    outcome = row.outcome
    if outcome is None or outcome.result is not Result.DONE or row.step.tries:
        return False
    if outcome.data.get(WAS_OUT) or outcome.data.get(ANSWERS_AGAIN):
        return False
    return not outcome.reason or bool(outcome.data.get(LEFT_IN_SERVICE))


def stops_of(
    plans: Iterable[Plan],
    rows: Sequence[LedgerRow],
    now: datetime,
    going_on: Collection[str] = (),
    owner: Callable[[str], str | None] = lambda _incident: None,
) -> tuple[Stop, ...]:
    """Jobs stopped in the last hour or about to be stopped, each attempt once.

    Args:
        rows: ledger rows of steps that stop jobs and ended in the last hour; a failed one stopped nothing.
        going_on: as above.
        owner: the user of an incident's job; None: not known.
    """
    settled = {(row.incident, row.step.job) for row in rows}
    found = {
        (row.step.job, row.step.attempt): Stop(row.step.job, row.last_at, _silent(row.step), owner(row.incident))
        for row in rows
        if row.step.job is not None and row.outcome is not None and row.outcome.result is Result.DONE
    }
    for plan in plans:
        if plan.observe_only:
            continue
        recent = now - plan.at <= _COUNTS
        for step in plan.steps:
            if step.kind not in INTERRUPTIONS or step.job is None or (plan.incident, step.job) in settled:
                continue
            if recent or step.key(plan.incident) in going_on:
                at = plan.at if recent else now
                found.setdefault((step.job, step.attempt), Stop(step.job, at, _silent(step), owner(plan.incident)))
    return tuple(found.values())


def _silent(step: Step) -> bool:
    return step.data.get("ground") == SILENCE
