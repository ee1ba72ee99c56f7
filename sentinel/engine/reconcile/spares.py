"""Lends nodes that are kept for restarts: a job that lost a node may start on those of a reservation, too.

The site makes the reservation, with the flags FLEX (its jobs run on other nodes as well) and REPLACE (Slurm puts idle nodes
in the place of those that are busy or out of service): no node is counted, moved or lent twice here. What Sentinel wants is
who may ask for it: jobs that it restarted for a bad node, and their users, until they start. That is compared with every
snapshot. A job that runs keeps its nodes when the loan ends.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.engine.events import SparesLent
from sentinel.engine.ledger import LedgerRow
from sentinel.engine.reconcile.past_restarts import is_counted_twice
from sentinel.engine.state import State
from sentinel.engine.transition import LendSpares, Transition
from sentinel.model.records import STOPS, Fleet, Incident, JobView
from sentinel.model.spares import Spares
from sentinel.policy.situation import may_use_spares

_ANSWER_LOST = timedelta(seconds=120)  # requests without an answer for so long are sent again: their answer was lost
_MAY_CHANGE = frozenset({"pending", "configuring", "running", "suspended"})
_RETRY_AFTER = timedelta(seconds=60)  # after a refusal: it may be a right that somebody gives meanwhile


def may_use(state: State, incident: Incident, job: JobView) -> str:
    """The reservation whose nodes a requeued job may start on; empty: it lost no node, or asked for another one itself."""
    name, verdict = state.settings.recovery.spares, state.verdicts.get(incident.id)
    return name if verdict is not None and may_use_spares(job, verdict, name) else ""


def compare(state: State, out: Transition, fleet: Fleet, now: datetime) -> None:
    """Have what differs from the snapshot changed; nothing where the reservation is not known."""
    seen = fleet.spares
    if seen is None or state.paused or (state.spares_busy_until or now) > now:
        return
    give, over, admitted = [], [], set()
    rows = state.ledger.loans()
    for job, row in sorted({row.step.job or 0: row for row in rows}.items()):  # the newest of each job
        view, user = None if row.gone else fleet.jobs.get(job), _user(row)
        if view is None:
            admitted |= {user} if fleet.may_have_job(job) and not row.gone else set()
        elif _waits(state, view, row, seen) and _is_lent(row) is not False:
            admitted.add(user)
            there = view.reservation == seen.name and user in seen.users
            back = view.state == "pending" and view.restarts > (row.step.attempt or 0)
            if _is_lent(row) and back and not there and row.outcome is not None and fleet.at > row.outcome.at:
                give.append((job, user))
        elif view.reservation == seen.name and view.state in _MAY_CHANGE:
            over.append(job)
    leave = sorted(({_user(row) for row in rows} - admitted) & {*seen.users})
    if give or over or leave:
        state.spares_busy_until = now + _ANSWER_LOST
        out.do(LendSpares(f"spares:{now.isoformat()}", seen.name, tuple(give), tuple(over), tuple(leave)))


def _waits(state: State, view: JobView, row: LedgerRow, seen: Spares) -> bool:
    """Whether the job still is to start the attempt for which it was let in."""
    attempt = row.step.attempt or 0
    if view.state not in ("pending", "completing"):
        return False
    if view.restarts not in (attempt, attempt + 1):
        stop = state.ledger.done(state.plans[row.incident], STOPS) if row.incident in state.plans else None
        if stop is None or not is_counted_twice(state, stop, view):
            return False
    return not view.held and view.reservation in ("", seen.name)


def _is_lent(row: LedgerRow) -> bool | None:
    """Whether this step let the job in; None: not known yet. It may have been intended before its node was convicted."""
    return bool(row.outcome.data.get("spares")) if row.outcome is not None and row.settled else None


def _user(row: LedgerRow) -> str:
    return str(row.step.data.get("user") or "")


def lent(state: State, out: Transition, event: SparesLent) -> None:
    state.spares_busy_until = event.at + _RETRY_AFTER if event.reason else event.at
    if event.reason:
        out.say("spares-not-lent", warning=True, reason=event.reason)
