"""How long a restarted job may take to its first step: of a job that never printed one, nothing is known."""

from __future__ import annotations

from sentinel.detect.activity import Motion
from sentinel.detect.cluster_view import AttemptSeen
from sentinel.detect.hang import ALIVE
from sentinel.engine.state import State

ASK_SHARE = 0.5  # of that time, after which its nodes are asked
_MOST_S = 4 * 3600.0  # where steps are counted anew in each epoch, the first of the last epoch looks like the first
_TIMES = 3.0  # what an earlier attempt took may be shorter by caches that the next one finds cold on other nodes


def allowed_s(state: State, key: tuple[int, int], seen: AttemptSeen) -> float | None:
    """Seconds until a silence from the beginning is a hang; None if no earlier attempt, or run, of the job printed steps."""
    job, attempt = key
    if attempt == 0 and seen.run_since is None:
        return None
    attempts = (state.cluster.attempts.get((job, number)) for number in range(attempt))
    earlier = [other for other in attempts if other is not None]
    printed = any(other.last_step is not None for other in earlier)
    if not printed and not any(past.step_before is not None for past in state.past.restarts(job)):
        return None
    took = [
        (other.rhythm.first_at - other.view.started_at).total_seconds()
        for other in earlier
        if other.rhythm.first_at is not None and other.view.started_at is not None
    ]
    by_earlier_s = min(_TIMES * max(took, default=0.0), _MOST_S)
    least_s = max(state.settings.judgement.stall_first_step_s, by_earlier_s)
    worked = seen.silence.watched.did not in (None, Motion.STOPPED)  # or loops, which may be a compiler
    return ALIVE * least_s if worked else least_s
