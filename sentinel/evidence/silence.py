"""When a job's silence is a hang: its own rhythm, and what its processes and GPUs were seen to do meanwhile. Pure.

Unusual silence alone may be a pause that nobody could foresee. A look at the job's processes tells more, either way:

- a task that was stopped is no pause, whatever the rhythm;
- a job of which every GPU has stood for much longer than any of them ever did while it made steps is hung, whether or not a
  process takes a core, also in the middle of a long step, and also in a pause of a kind that was seen often enough;
- a job of which every process and every GPU only waits is hung as soon as its steps alone do not explain the silence;
  longer than it ever was before it went on; in a pause that is due or announced it must be seen so for very much longer;
- a job that writes, sleeps in the kernel, or works its GPUs as in its steps has longer than one of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from sentinel.evidence.progress import (
    PAUSES,
    Limits,
    Pause,
    Rhythm,
    allowed_s,
    announced,
    pause_due,
    pauses_alike,
    pauses_fitting,
    usual_s,
)
from sentinel.evidence.standstill import Motion, Stillness

ASK_STEPS = 1.6  # a longer gap is worth a question to the nodes
ASK_LEAST_S = 5.0
PEEK_S = 12.0  # in a longer step one node is asked before, whether its GPUs stand
PEEK_EVERY_S = 7.5
PEEK_STILL_S = 6.0  # for so long they must, or the others are not asked
WAITS_STEPS = 2.4  # with every process seen to wait, fewer steps than without
WAITS_LEAST_S = 5.0  # one comparison may by chance fall between two batches
PAUSES_KNOWN = 3  # so many pauses of the kind tell whether waiting is unusual in them
WAITS_IN_PAUSE_S = 10.0  # so long it must be seen to wait in a pause of a kind that is known ...
WAITS_IN_PAUSE_LOOKS = 4  # ... by so many comparisons in a row, since single ones mislead
LULL_TIMES = 1.5  # and so much longer than it ever waited in a pause
LULL_MORE_S = 5.0
LULL_MOST_S = 20.0  # a job that waits longer in its pauses and goes on may do so in every one
STOOD_GAPS = 16  # so many gaps tell for how long the GPUs stand in a step
STOOD_TIMES = 1.5  # as long as the longest time that they stood before
STOOD_MORE_S = 3.0
_EDGE_S = 3.0  # a stretch that begins so long before or after a pause still belongs to it
CLOSE_LOOKS, CLOSE_LOOKS_SMALL = 6, 24  # so many follow each other closely; a job of few nodes may be asked more often
SMALL_NODES = 64
ALIVE = 2.0  # times as long where something is written, sleeps in the kernel, or computes


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
    waits_looks: int = 0  # so many comparisons in a row
    lull_s: float = 0.0  # the longest stretch of this silence, while its steps might have explained it
    pause_lull_s: float = 0.0  # and after that
    longest_lull_s: float = 0.0  # the longest ones after which it made steps: so much waiting proves nothing
    longest_pause_lull_s: float = 0.0
    stillness: Stillness | None = None  # of all GPUs, at the last look; None where one works or is not known


def looked(
    watched: Watched,
    motion: Motion,
    began: datetime,
    now: datetime,
    *,
    pause: bool,
    beyond: bool,
    stillness: Stillness | None = None,
) -> Watched:
    """After a comparison of two looks, made at ``began`` and ``now``.

    ``pause``: in a pause that may be due; ``beyond``: after more silence than its steps explain.
    """
    watched = replace(watched, stillness=stillness)
    if motion is not Motion.WAITS:
        return replace(watched, motion=motion, waits_since=None, waits_s=0.0, waits_looks=0)
    since = watched.waits_since or began
    waits_s = (now - since).total_seconds()
    return replace(
        watched,
        motion=motion,
        waits_since=since,
        waits_s=waits_s,
        waits_looks=watched.waits_looks + 1,
        lull_s=watched.lull_s if beyond else max(watched.lull_s, waits_s),
        pause_lull_s=max(watched.pause_lull_s, waits_s) if pause or beyond else watched.pause_lull_s,
    )


def went_on(watched: Watched, step: int | None, mistaken_s: float = 0.0) -> Watched:
    """It made another step: what the silence looked like is remembered for the next.

    ``mistaken_s``: length of a silence that was called a hang. Looks ended there, and so long it may wait again.
    """
    if watched.step == step:
        return watched
    return Watched(
        step=step,
        longest_lull_s=max(watched.longest_lull_s, watched.lull_s, mistaken_s),
        longest_pause_lull_s=max(watched.longest_pause_lull_s, watched.pause_lull_s, mistaken_s),
    )


def in_pause(rhythm: Rhythm, limits: Limits) -> bool:
    """Whether a pause may be due after the last step, or was announced: steps alone need not explain the silence.

    Of a job with long steps also where the pause is no longer than they usually let it be silent.
    """
    allowed, usual = allowed_s(rhythm, limits), usual_s(rhythm, limits)
    return allowed is not None and usual is not None and (allowed > usual or pause_due(rhythm))


def ask_after_s(rhythm: Rhythm) -> float | None:
    """Silence after which the nodes are asked; None without a rhythm."""
    return None if rhythm.gap_s is None else max(ASK_LEAST_S, ASK_STEPS * rhythm.gap_s)


def peek_after_s(rhythm: Rhythm) -> float | None:
    """Silence after which one node is asked what its GPUs do; None where all are asked that early, or it would not count."""
    asked = ask_after_s(rhythm)
    return PEEK_S if asked is not None and asked > PEEK_S and len(rhythm.gaps) >= STOOD_GAPS else None


def hung_after_s(rhythm: Rhythm, watched: Watched, limits: Patience) -> float | None:
    """Silence that is a hang, by what is known of it now; None while the job is exempt."""
    allowed, usual = allowed_s(rhythm, limits), usual_s(rhythm, limits)
    asked = ask_after_s(rhythm)
    if allowed is None or usual is None or asked is None or rhythm.gap_s is None:
        return None
    if watched.motion is Motion.STOPPED:
        return asked
    if watched.motion in (Motion.WRITES, Motion.STORAGE, Motion.WORKS):
        return ALIVE * limits.stall_confirm * allowed
    if watched.motion not in (Motion.WAITS, Motion.LOOPS):
        return limits.stall_confirm * allowed
    pause = in_pause(rhythm, limits)
    known = not pause or pauses_alike(rhythm) >= PAUSES_KNOWN
    if known and _stands(rhythm, watched.stillness, limits, pause=pause):
        return min(limits.stall_floor_s, allowed)
    if watched.motion is Motion.LOOPS:
        return limits.stall_confirm * allowed
    if pause:
        if not known or not _waits_too_long(watched):
            return allowed
    elif watched.waits_s < WAITS_LEAST_S or watched.waits_s <= watched.longest_lull_s:
        return limits.stall_confirm * allowed
    return min(max(limits.stall_floor_s, WAITS_STEPS * rhythm.gap_s), allowed)


def _waits_too_long(watched: Watched) -> bool:
    """In a pause, against what was seen in earlier ones."""
    lull_s = watched.longest_pause_lull_s
    least_s = max(WAITS_IN_PAUSE_S, LULL_TIMES * lull_s + LULL_MORE_S)
    return lull_s < LULL_MOST_S and watched.waits_s >= least_s and watched.waits_looks >= WAITS_IN_PAUSE_LOOKS


def _stands(rhythm: Rhythm, stillness: Stillness | None, limits: Patience, *, pause: bool) -> bool:
    """Whether all GPUs stand for longer than is ever usual for this job, in its steps or in pauses of this kind."""
    if len(rhythm.gaps) < STOOD_GAPS or rhythm.first_at is None or stillness is None or not tells(rhythm, stillness):
        return False
    since = rhythm.pauses[0].at if len(rhythm.pauses) >= PAUSES else rhythm.first_at  # older pauses are forgotten
    stood = [item for item in stillness.stood if item[0] >= since]
    inside = [item for item in stood if _within(item[0], rhythm.pauses)]
    if pause:
        # A pause by the clock falls on steps that fit others: what was announced is compared with all.
        alike = rhythm.pauses if announced(rhythm) else pauses_fitting(rhythm) or rhythm.pauses
        stood = [item for item in stood if item not in inside or _within(item[0], alike)]
    else:
        stood = [item for item in stood if item not in inside]
    longest_s = max((length_s for _, length_s in stood), default=0.0)
    return stillness.still_s >= max(limits.stall_floor_s, STOOD_TIMES * longest_s + STOOD_MORE_S)


def tells(rhythm: Rhythm, stillness: Stillness) -> bool:
    """Whether the GPUs worked since the job's first step; where some never do, that they stand says nothing."""
    return rhythm.first_at is not None and stillness.since >= rhythm.first_at


def _within(at: datetime, pauses: Sequence[Pause]) -> bool:
    edge = timedelta(seconds=_EDGE_S)
    return any(item.at - edge <= at <= item.at + timedelta(seconds=item.length_s) + edge for item in pauses)


def next_look_s(looks: int, nodes: int) -> float:
    """Seconds to the next look after so many of one silence: the first ones decide a hang, a long pause asks little."""
    if looks < (CLOSE_LOOKS_SMALL if nodes <= SMALL_NODES else CLOSE_LOOKS):
        return 2.5
    return 5.0 if looks < CLOSE_LOOKS_SMALL else 10.0
