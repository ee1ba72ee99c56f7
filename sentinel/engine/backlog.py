"""Notices when this daemon itself was away, and waits with new judgements until what happened meanwhile has come in.

Away: killed and started again, stopped, without its store, or without Slurm and MUNGE. Agents keep their evidence and send
it when they reach the daemon again, each after its own pause. The first reports explain least: Slurm reports a job's end
before the kernel line of the GPU that caused it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sentinel.model.changes import SettingChanged
from sentinel.model.records import Evidence, Incident
from sentinel.model.stored import JUDGED_UNTIL, LATE_SINCE

if TYPE_CHECKING:
    from sentinel.engine.state import State
    from sentinel.engine.transition import Transition
    from sentinel.model.stored import Stored

_STOOD_STILL = timedelta(seconds=30)  # housekeeping comes every 10 s: without it for so long, the daemon stood still
# The next daemon loads all since then: a clock that is years off must not make it load years.
_LATEST_NEWS = timedelta(days=1)
RECHECK_S = 1.0  # interval at which it is looked whether the backlog is in: heartbeats come every 2 s


@dataclass(slots=True)
class Absence:
    """``waits_until``: by then the agents have sent what they kept."""

    since: datetime
    ended_at: datetime
    waits_until: datetime
    heard: set[str] = field(default_factory=set)  # nodes whose agents have nothing unsent since

    def counts(self, now: datetime, window: timedelta) -> bool:
        """Whether what happened before or during it may still come in as news."""
        return now - self.ended_at <= window


def last_alive(stored: Stored, window: timedelta) -> datetime | None:
    """When the previous daemon noted last that it was alive: at most 10 s before its end. None: there was none.

    Args:
        window: ``judgement.group_s``.
    """
    noted = stored.settings.get(JUDGED_UNTIL)
    return datetime.fromisoformat(noted) + window if noted else None


def started(state: State, stored: Stored, now: datetime) -> None:
    """Note the time in which no daemon was alive."""
    since = last_alive(stored, state.window)
    if since is not None:
        state.judged_until = since - state.window
        _ended(state, since, now)
    late = stored.settings.get(LATE_SINCE)
    state.late_since = datetime.fromisoformat(late) if late else None


def event(state: State, now: datetime) -> None:
    """Any event: notice that the daemon had been stopped."""
    if state.housekept_at is not None and now - state.housekept_at > _STOOD_STILL:
        _ended(state, state.housekept_at, now)
        state.housekept_at = now


def slurm_is_back(state: State, since: datetime, now: datetime) -> None:
    """Slurm could not be read since ``since``. Often MUNGE was gone with it, and then no agent was heard either."""
    _ended(state, since, now)


def store_is_back(state: State, since: datetime, now: datetime) -> None:
    """Evidence was refused since ``since``, for want of a place to save it."""
    _ended(state, since, now)


def housekeeping(state: State, out: Transition, now: datetime) -> None:
    """Note up to when evidence has been judged: the next daemon begins there."""
    state.housekept_at = now
    begun = [
        item.seen_at
        for name in sorted(state.judging)
        if name in state.incidents
        for item in state.incidents[name].evidence
    ]
    if state.absence is not None and now < state.absence.waits_until:
        begun.append(state.absence.since)
    if state.blind_since is not None:
        begun.append(state.blind_since)  # jobs that ended since then have not been seen
    state.judged_until = min([now, *begun]) - state.window
    out.save(SettingChanged(JUDGED_UNTIL, state.judged_until.isoformat()))
    if state.late_since is not None and state.late_since < state.judged_until:
        state.late_since = None  # it has been judged
        out.save(SettingChanged(LATE_SINCE, None))


def received(state: State, out: Transition, items: Sequence[Evidence], now: datetime) -> None:
    """What an agent kept while it could not reach us may be older than where the next daemon would begin: it is judged in a
    moment, and this daemon may die before."""
    oldest = max(min(item.seen_at for item in items), now - _LATEST_NEWS)
    if state.judged_until is not None and oldest < min(state.judged_until, state.late_since or state.judged_until):
        state.late_since = oldest
        out.save(SettingChanged(LATE_SINCE, oldest.isoformat()))


def agent_heard(state: State, node: str, spool: object) -> None:
    if state.absence is not None and isinstance(spool, dict) and spool.get("pending") == 0:
        state.absence.heard.add(node)


def is_in(state: State, incident: Incident, now: datetime) -> bool:
    """Whether nothing more is to be expected about the incident from the time of the absence."""
    absence = state.absence
    if absence is None or now >= absence.waits_until:
        return True
    nodes = {*incident.nodes, *state.cluster.nodes_of(incident.job, incident.attempt)}
    return bool(nodes) and nodes <= absence.heard


def not_taken_up(state: State) -> bool:
    """Whether what a daemon before this left is loaded, and not yet taken up: the first snapshot may come before
    ``started``, and it is not known how long no daemon was alive."""
    return state.watching_since is None and state.cluster.known_until is not None


def may_be_outdated(state: State, nodes: Iterable[str], now: datetime) -> bool:
    """Whether what was planned about these nodes before a long absence may rest on what is over: an agent of theirs has not
    told since whether its node was started anew and what it finds. The store may be an older copy of itself, too.

    After a short one, as when another daemon takes over, nothing waits for that.
    """
    absence = state.absence
    if absence is None or now >= absence.waits_until or absence.ended_at - absence.since <= _STOOD_STILL:
        return False
    return not absence.heard.issuperset(nodes)


def _ended(state: State, since: datetime, now: datetime) -> None:
    before = state.absence
    if before is not None and since <= before.waits_until:
        since = min(since, before.since)  # what happened in the one before has not come in: they are one
    wait = min(timedelta(seconds=state.settings.judgement.view_settle_s), now - since)
    if wait > timedelta(0):
        state.absence = Absence(since, now, now + wait)
