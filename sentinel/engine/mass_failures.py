"""Counts nodes that fail together (for the circuit breaker) and jobs that fail together (for a shared fault).

Incidents that still wait for their judgement count by a preliminary verdict from their evidence so far. Otherwise the first
of many nodes that fail in the same second would be judged as a single failure, and drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from sentinel.classify import PastFailure, classify
from sentinel.classify.recurrence import SHARED
from sentinel.config.rules import Rules
from sentinel.config.settings import Limits
from sentinel.model.changes import of_users_words
from sentinel.model.records import Cause, Incident, Kind, Verdict

_LOOKS = 4096  # preliminary verdicts kept
_MOST_COMPARED = 4  # waiting incidents examined per judgement; a shared fault shows among the first


class PreliminaryVerdicts:
    """Preliminary verdicts from an incident's evidence alone, cached until evidence is added."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._seen: dict[str, tuple[int, Verdict]] = {}

    def __call__(self, incident: Incident, now: datetime) -> Verdict:
        known = self._seen.get(incident.id)
        if known is not None and known[0] == len(incident.evidence):
            return known[1]
        verdict = classify(incident, rules=self._rules, now=now)
        if len(self._seen) >= _LOOKS:
            self._seen.clear()
        self._seen[incident.id] = (len(incident.evidence), verdict)
        return verdict


def failing_alike(
    incident: Incident,
    incidents: Mapping[str, Incident],
    verdicts: Mapping[str, Verdict],
    waiting: Iterable[str],
    first_look: Callable[[Incident], Verdict],
    owner: Callable[[Incident], str],
) -> tuple[PastFailure, ...]:
    """Failures of other jobs' incidents, by their verdict or, while they wait for one, by their preliminary verdict.

    Needed besides the history, which does not contain incidents that are being judged now.

    Args:
        owner: whose job an incident is of; empty: not known.
    """
    others = [other for other in incidents.values() if other.job is not None and other.job != incident.job]
    judged = {other.id: verdicts[other.id] for other in others if other.id in verdicts}
    names = set(waiting)
    undecided = [other for other in others if other.id in names and other.id not in judged]
    if undecided and first_look(incident).cause in SHARED:  # each look costs a judgement
        first = _by_turns(undecided, owner, owner(incident))[:_MOST_COMPARED]
        judged.update({other.id: first_look(other) for other in first})
    return tuple(
        PastFailure(
            at=other.opened_at,
            cause=verdict.cause,
            job=other.job,
            user=owner(other) or None,
            incident=other.id,
            users_words=of_users_words(verdict),
        )
        for other in others
        if (verdict := judged.get(other.id)) is not None and verdict.cause is not Cause.UNKNOWN
    )


def _by_turns(incidents: Iterable[Incident], owner: Callable[[Incident], str], user: str) -> list[Incident]:
    """One of each voice, then a second one of each: where programs speak, another user's many jobs are one (``voices``)."""
    heard: Counter[str | int | None] = Counter()

    def turn(incident: Incident) -> int:
        name = owner(incident)
        voice = name if name and name != user else incident.job
        heard[voice] += 1
        return heard[voice]

    return sorted(incidents, key=turn)


def hung_together(incidents: Iterable[Incident], limits: Limits, now: datetime) -> dict[int, Incident]:
    """Jobs called hung within ``hung_window_s``, including those still waiting for their judgement: the incident of each in
    which it was last."""
    since, found = now - timedelta(seconds=limits.hung_window_s), dict[int, Incident]()
    for incident in incidents:
        if incident.job is None or incident.updated_at < since or (at := called_hung(incident)) is None or at < since:
            continue
        known = called_hung(found[incident.job]) if incident.job in found else None
        if known is None or known < at:
            found[incident.job] = incident
    return found


def counted_since(limits: Limits, now: datetime) -> datetime:
    """Since when an incident must have changed to count for a breaker still."""
    return now - timedelta(seconds=max(limits.breaker_window_s, limits.hung_window_s))


def called_hung(incident: Incident) -> datetime | None:
    """When the incident's job was last called hung; None: it was not."""
    return max((item.seen_at for item in incident.evidence if item.kind == Kind.STALL), default=None)


def failing_together(
    incidents: Mapping[str, Incident],
    verdicts: Mapping[str, Verdict],
    waiting: Iterable[str],
    first_look: Callable[[Incident], Verdict],
    limits: Limits,
    now: datetime,
) -> frozenset[str]:
    """Nodes convicted by incidents updated within the breaker's window.

    Stops counting once there are enough to open the breaker: each preliminary verdict costs a classification.

    Args:
        waiting: ids of incidents being judged; those without a verdict get a preliminary one from ``first_look``.
    """
    since = now - timedelta(seconds=limits.breaker_window_s)
    failing = {
        name
        for other, verdict in verdicts.items()
        if (seen := incidents.get(other)) is not None and seen.updated_at >= since
        for name in verdict.drain
    }
    for other in waiting:
        if len(failing) >= limits.breaker_nodes:
            break
        seen = incidents.get(other)
        if other not in verdicts and seen is not None and seen.updated_at >= since:
            failing.update(first_look(seen).drain)
    return frozenset(failing)
