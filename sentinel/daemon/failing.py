"""What fails together: nodes, for the breaker, and jobs, for a fault that they share. Of incidents that wait for their
judgement a first look counts.

Of nodes that fail in the same second the first would else be judged as if it stood alone, and drained: what waits for its
judgement counts by what its evidence says so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from sentinel.classify import PastFailure, classify
from sentinel.classify.recurrence import SHARED
from sentinel.model import Cause, Incident, Verdict
from sentinel.rules import Rules
from sentinel.settings import Limits

_LOOKS = 4096  # first looks that are remembered
_ALIKE = 4  # waiting incidents that are looked at for a judgement; a shared fault shows among the first


class FirstLooks:
    """What the evidence of an incident says by itself, judged once for as long as none is added."""

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
) -> tuple[PastFailure, ...]:
    """Other jobs' incidents as the failures that they are, or seem to be while they wait for their judgement like
    ``incident``. Those judged in this moment are not in any history that was read before."""
    others = [other for other in incidents.values() if other.job is not None and other.job != incident.job]
    causes = {other.id: verdicts[other.id].cause for other in others if other.id in verdicts}
    names = set(waiting) if first_look(incident).cause in SHARED else set()  # each look costs a judgement
    undecided = [other for other in others if other.id in names and other.id not in causes]
    causes.update({other.id: first_look(other).cause for other in undecided[:_ALIKE]})
    return tuple(
        PastFailure(at=other.opened_at, cause=causes[other.id], job=other.job, incident=other.id)
        for other in others
        if causes.get(other.id, Cause.UNKNOWN) is not Cause.UNKNOWN
    )


def failing_together(
    incidents: Mapping[str, Incident],
    verdicts: Mapping[str, Verdict],
    waiting: Iterable[str],
    first_look: Callable[[Incident], Verdict],
    limits: Limits,
    now: datetime,
) -> frozenset[str]:
    """Nodes convicted by incidents that had news within the breaker's window. Once there are enough to open it, no more are
    looked at: each look costs a judgement.

    Args:
        waiting: ids of incidents whose judgement is under way; those without a verdict get ``first_look``.
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
