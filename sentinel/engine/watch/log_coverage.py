"""Tracks how far agents have read the jobs' logs, and whether enough of the cluster is in contact to judge silence.

The rules are in ``sentinel.detect.observed_silence`` and ``sentinel.detect.visibility``; this module applies them to events.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import datetime

from sentinel.detect.hang import ask_after_s
from sentinel.detect.hang_evidence import silent_since
from sentinel.detect.observed_silence import after_line, after_report, transit_of
from sentinel.detect.visibility import (
    Visibility,
    after_check,
    after_count,
    after_own_fault,
    initial,
    is_sufficient,
)
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.engine.watch.events import HeartbeatReceived

EARLY_BEAT_S = 0.5  # interval of heartbeats of an agent whose job is about to be suspected of a hang
_BEFORE_S = 2.5  # such heartbeats are requested this long before the job's nodes are asked: the usual interval is 2 s


def visibility(state: State, now: datetime, now_s: float) -> Visibility:
    watch = state.watch
    if watch.visibility is None:
        watch.visibility, watch.began_s = initial(now_s, now), now_s
    return watch.visibility


def check(state: State, now: datetime, now_s: float) -> None:
    """A periodic check, to notice when the daemon itself stood still."""
    state.watch.visibility = after_check(visibility(state, now, now_s), now_s, now, state.settings.judgement)


def own_fault(state: State, why: str, now: datetime, now_s: float) -> None:
    """The daemon's host ran out of a resource: what could not be asked or accepted meanwhile is not known."""
    state.watch.visibility = after_own_fault(visibility(state, now, now_s), now_s, why)


def count(
    state: State, in_contact: frozenset[str], lost: AbstractSet[str], expected: int, now: datetime, now_s: float
) -> None:
    seen = visibility(state, now, now_s)
    state.watch.visibility = after_count(seen, in_contact, lost, expected, now_s, state.settings.judgement)


def silence_counts(state: State, out: Transition, now: datetime, now_s: float) -> bool:
    """Whether enough of the cluster is in contact to judge silence now. Logged when it changes."""
    seen = visibility(state, now, now_s)
    counts = is_sufficient(seen, now_s, state.settings.judgement)
    why = "" if counts else seen.why
    if why != state.watch.not_judged:
        state.watch.not_judged = why
        if why:
            out.say("silence-not-judged", warning=True, reason=why)
        else:
            out.say("silence-judged")
    return counts


def logs_read(state: State, event: HeartbeatReceived, now_s: float) -> None:
    """Take a heartbeat's report on logs, and decide whether the next heartbeat should come early."""
    if event.sent_s is None:
        return
    transits, apart_s = state.watch.transits, state.settings.daemon.heartbeat_lost_s
    transit, late_s = transit_of(transits.get(event.node), event.boot, event.sent_s, now_s)
    transits[event.node] = transit
    early = False
    for read in event.logs:
        seen = state.cluster.attempts.get((read.job, read.attempt))
        if seen is None or event.node not in seen.nodes:
            continue
        observed = after_line(seen.observed, silent_since(seen), now_s)
        seen.observed = after_report(observed, now_s - late_s - read.looked_ago_s, apart_s)
        ask_s = ask_after_s(seen.rhythm)
        early = early or (ask_s is not None and now_s - seen.observed.since_s > ask_s - _BEFORE_S)
    state.cluster.node(event.node).beat_s = EARLY_BEAT_S if early else None
