"""Which nodes fail together, for the breaker: those convicted lately, and those about to be.

Of nodes that fail in the same second the first would else be judged as if it stood alone, and drained: what waits for its
judgement counts by what its evidence says so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from sentinel.model import Incident, Verdict
from sentinel.settings import Limits


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
