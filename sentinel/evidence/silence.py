"""When a job's silence is a hang: its own rhythm, and what its processes and GPUs were seen to do meanwhile. Pure.

Unusual silence alone may be a pause that nobody could foresee. A look at the job's processes tells more, either way:

- a task that was stopped is no pause, whatever the rhythm;
- a job of which every process and every GPU only waits is hung as soon as its steps alone do not explain the silence;
  longer than it ever was before it went on; in a pause that is due or announced it must be seen so for very much longer;
- a job that writes, or sleeps in the kernel, has longer than one of which nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sentinel.evidence.progress import Limits, Rhythm, allowed_s, usual_s
from sentinel.evidence.standstill import Motion

ASK_STEPS = 1.6  # a longer gap is worth a question to the nodes
ASK_LEAST_S = 5.0
WAITS_STEPS = 2.4  # with every process seen to wait, fewer steps than without
WAITS_IN_PAUSE_S = 40.0  # so long it must be seen to wait where a pause is due or announced
PAUSES_KNOWN = 3  # so many pauses of the job tell whether waiting is unusual in them
ALIVE = 2.0  # times as long where something is written, or sleeps in the kernel


class Patience(Limits, Protocol):
    """``sentinel.settings.Judgement`` has these."""

    @property
    def stall_confirm(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Watched:
    """What looks at one silence showed, and what earlier silences of the attempt taught. Starts empty."""

    step: int | None = None  # the silence after this step
    motion: Motion | None = None  # between the last two looks; None before them
    waits_since: datetime | None = None  # from this look on it was only seen to wait
    waits_s: float = 0.0  # for so long, to the newest look
    lull_s: float = 0.0  # the longest stretch of this silence, while its steps might have explained it
    pause_lull_s: float = 0.0  # and after that
    longest_lull_s: float = 0.0  # the longest ones after which it made steps: so much waiting proves nothing
    longest_pause_lull_s: float = 0.0


def looked(watched: Watched, motion: Motion, began: datetime, now: datetime, *, pause: bool) -> Watched:
    """After a comparison of two looks, made at ``began`` and ``now``. ``pause``: more silence than its steps explain."""
    if motion is not Motion.WAITS:
        return replace(watched, motion=motion, waits_since=None, waits_s=0.0)
    since = watched.waits_since or began
    waits_s = (now - since).total_seconds()
    return replace(
        watched,
        motion=motion,
        waits_since=since,
        waits_s=waits_s,
        lull_s=watched.lull_s if pause else max(watched.lull_s, waits_s),
        pause_lull_s=max(watched.pause_lull_s, waits_s) if pause else watched.pause_lull_s,
    )


def went_on(watched: Watched, step: int | None) -> Watched:
    """It made another step: what the silence looked like is remembered for the next."""
    if watched.step == step:
        return watched
    return Watched(
        step=step,
        longest_lull_s=max(watched.longest_lull_s, watched.lull_s),
        longest_pause_lull_s=max(watched.longest_pause_lull_s, watched.pause_lull_s),
    )


def ask_after_s(rhythm: Rhythm) -> float | None:
    """Silence after which the nodes are asked; None without a rhythm."""
    return None if rhythm.gap_s is None else max(ASK_LEAST_S, ASK_STEPS * rhythm.gap_s)


def hung_after_s(rhythm: Rhythm, watched: Watched, limits: Patience) -> float | None:
    """Silence that is a hang, by what is known of it now; None while the job is exempt."""
    allowed, usual = allowed_s(rhythm, limits), usual_s(rhythm, limits)
    asked = ask_after_s(rhythm)
    if allowed is None or usual is None or asked is None or rhythm.gap_s is None:
        return None
    if watched.motion is Motion.STOPPED:
        return asked
    if watched.motion in (Motion.WRITES, Motion.STORAGE):
        return ALIVE * limits.stall_confirm * allowed
    if watched.motion is not Motion.WAITS:
        return limits.stall_confirm * allowed
    if allowed > usual:  # a job that once waited long and went on may do so in every pause of that kind
        known = len(rhythm.pauses) >= PAUSES_KNOWN and watched.longest_pause_lull_s < WAITS_IN_PAUSE_S / 2
        if not known or watched.waits_s < WAITS_IN_PAUSE_S:
            return allowed
    elif watched.waits_s <= watched.longest_lull_s:
        return limits.stall_confirm * allowed
    return min(max(limits.stall_floor_s, WAITS_STEPS * rhythm.gap_s), allowed)


def next_look_s(looks: int) -> float:
    """Seconds to the next look after so many of one silence: the first few decide a hang, a long pause asks little."""
    return 2.5 if looks < 6 else 5.0 if looks < 10 else 10.0
