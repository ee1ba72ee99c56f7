"""Notifies people when Slurm has been unreadable for too long, and again when it can be read.

Each message is sent once, even if the daemon restarts in between: the store remembers that it was sent.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.alerts import slurm_readable_again, slurm_unreadable
from sentinel.engine import backlog, notices
from sentinel.engine.events import FleetUnavailable
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged
from sentinel.wire import to_json

BLIND = "blind"  # stored setting: since when Slurm is unreadable, once people were notified; None otherwise


def snapshot_failed(state: State, out: Transition, event: FleetUnavailable) -> None:
    """Handle a failed snapshot: notify people at the first failure after ``slurm.blind_s``."""
    state.blind_since = since = state.blind_since or event.at
    patience = timedelta(seconds=state.settings.slurm.blind_s)
    if state.blind_told is not None or event.at - since < patience:
        return
    out.say("blind", since=since.isoformat(), reason=event.reason, warning=True)
    state.blind_told = since
    out.save(SettingChanged(BLIND, to_json(since)))
    notices.send(state, out, slurm_unreadable(since, event.reason, event.fix, event.at))


def snapshot_taken(state: State, out: Transition, now: datetime) -> None:
    """Handle a successful snapshot: tell people that Slurm is readable again, if they were notified."""
    if state.blind_since is not None:
        backlog.slurm_is_back(state, state.blind_since, now)
    state.blind_since = None
    told, fleet = state.blind_told, state.cluster.fleet
    if told is None or fleet is None:
        return
    out.say("sees-again", since=told.isoformat())
    state.blind_told = None
    out.save(SettingChanged(BLIND, None))
    notices.send(state, out, slurm_readable_again(told, fleet.at))
