"""How long a restarted job may take to its first step: of a job that never printed steps, nothing is known.

What a run took is learned once it has a rhythm (one line that looks like a step is none), and kept as long as Slurm knows
the job, also for the next daemon.
"""

from __future__ import annotations

from typing import Any

from sentinel.detect.activity import Motion
from sentinel.detect.hang import ALIVE
from sentinel.detect.seen import AttemptSeen
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged
from sentinel.model.intent import intent_of

FIRST_STEPS = "first_steps"  # stored setting: by job, the longest time to a first step in seconds; 0: not known
ASK_SHARE = 0.5  # of that time, after which its nodes are asked
_TIMES = 3.0  # what an earlier run took may be shorter by caches that the next one finds cold on other nodes


def learn(state: State, out: Transition, key: tuple[int, int], seen: AttemptSeen) -> None:
    """Keep how long this run took to its first step, if it was watched from its beginning."""
    if seen.rhythm.gap_s is None or seen.start_learned:
        return
    seen.start_learned = True
    if state.settings.recovery.opt_in and not intent_of(seen.view.comment).restart:
        return  # it is not restarted
    job, known = key[0], state.watch.first_steps
    began = seen.run_since or seen.view.started_at
    watched = state.began_before is not None and key not in state.began_before
    took_s = 0.0
    if watched and began is not None and seen.rhythm.first_at is not None:
        took_s = max((seen.rhythm.first_at - began).total_seconds(), 0.0)
    if job in known and known[job] >= took_s:
        return
    known[job] = took_s
    for other in [other for other in known if other != job and not _is_known(state, other)]:
        del known[other]
    out.save(SettingChanged(FIRST_STEPS, {str(name): round(seconds, 1) for name, seconds in known.items()}))


def _is_known(state: State, job: int) -> bool:
    """Whether Slurm knows the job, or may."""
    fleet = state.cluster.fleet
    return fleet is None or job in fleet.jobs or fleet.may_have_job(job)


def stored(value: Any) -> dict[int, float]:
    """What ``learn`` stored; what cannot be read is left out."""
    kept = value if isinstance(value, dict) else {}
    return {int(job): float(s) for job, s in kept.items() if str(job).isdecimal() and isinstance(s, int | float)}


def allowed_s(state: State, key: tuple[int, int], seen: AttemptSeen) -> float | None:
    """Seconds until a silence from the beginning is a hang; None if no earlier attempt, or run, of the job printed steps."""
    job, attempt = key
    took_s = state.watch.first_steps.get(job)
    if took_s is None or (attempt == 0 and seen.run_since is None):
        return None
    least_s = max(state.settings.judgement.stall_first_step_s, _TIMES * took_s)
    worked = seen.silence.watched.did not in (None, Motion.STOPPED)  # or loops, which may be a compiler
    return ALIVE * least_s if worked else least_s
