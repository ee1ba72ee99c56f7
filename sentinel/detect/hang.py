"""Decides when a job's silence is a hang, from its own rhythm and the observed activity of its processes and GPUs. Pure.

Unusual silence alone may be an unforeseen pause. The activity of the job's processes and GPUs decides:

- A task stopped by a signal is never a pause.
- If all GPUs have been idle for much longer than ever before while the job made steps, it is hung. This holds even if a
  process uses a core, in the middle of a long step, and in a pause of a kind that was seen often enough.
- If every process and GPU only waits, the job is hung as soon as its step times do not explain the silence and it has waited
  longer than it ever did before it made another step. In a pause that is due or announced it must wait for much longer.
- If it is not known what the GPUs do, a network over which the job trains and that is quiet counts as waiting, once the
  job's pauses are known: in a step for as long as a usual step, and for much longer than ever before.
- If every GPU waits inside a collective, nobody is left who could release the others: the job is hung, also where a pause
  may be due or its pauses are not known.
- A job that writes, sleeps in the kernel, or uses its GPUs as in its steps is given more time than one without activity.
  That a few GPUs work is no sign of life where all others have waited for them for longer than ever before.
- Of a job that did more in this silence, that it only waits counts once that lasts: single comparisons mislead. Where its
  pauses are not known, another first one may follow the work that ended.
- If its nodes could not be observed, nothing is known: they are asked again, however long the job is silent.
- A job whose pauses are not known yet may be in its first one: unless it only waits or is stopped, it gets the time that a
  first pause may take. If it only waits, its own answer that a collective is stuck makes it a hang at once; without such an
  answer a job younger than an hour gets ``judgement.stall_first_pause_s``. A job that made steps for longer gets the time of
  a first pause only at round steps, where pauses are made. One that announced each of its pauses gets it nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from sentinel.detect.activity import GpuIdleness, Look, Motion
from sentinel.detect.step_rhythm import (
    FIRST_PAUSE_S,
    LEAST_PAUSE_S,
    PAUSES,
    Limits,
    Pause,
    Rhythm,
    allowed_s,
    announced,
    announces,
    at_round_step,
    pause_due,
    pauses_alike,
    pauses_fitting,
    spread_s,
    usual_s,
)
from sentinel.model.records import Evidence

ASK_STEPS = 1.6  # usual gaps of silence after which the nodes are asked
ASK_LEAST_S = 5.0  # and at least so long
PEEK_S = 12.0  # if the nodes are asked later than this, one node is asked at this time whether its GPUs are idle
PEEK_EVERY_S = 7.5  # interval of these early questions
PEEK_STILL_S = 6.0  # idle time of its GPUs from which all nodes are asked
WAITS_STEPS = 2.4  # usual gaps of silence that are a hang if every process only waits
WAITS_LEAST_S = 5.0  # least observed waiting: a single comparison may fall between two batches
ESTABLISHED_GAPS = 64  # gaps from which the first pause of a job is not expected at just any step
PAUSES_KNOWN = 3  # pauses of a kind from which it is known whether waiting is unusual in them
KNOWN_S = 3600.0  # a job that made steps for so long has shown its pauses: people evaluate and save at least hourly
QUIET_GAPS = 1.0  # usual gaps of a quiet network, where the GPUs are not known: each step moves its gradients once
WAITS_IN_PAUSE_S = 10.0  # least observed waiting in a pause of a known kind ...
WAITS_IN_PAUSE_LOOKS = 4  # ... in so many comparisons in a row, since single ones mislead
BLOCKED_LOOKS = 2  # comparisons in a row in which all GPUs wait inside a collective: nobody is left to release them
LULL_TIMES = 1.5  # and this many times the longest waiting in an earlier pause ...
LULL_MORE_S = 2.5  # ... plus this, the time between two observations
LULL_MOST_S = 20.0  # a job that waited longer than this in a pause may do so in every one: waiting is no evidence
IDLE_LEAST_GAPS = 16  # gaps from which it is known how long the GPUs are idle within a step
IDLE_TIMES = 1.5  # idle time that is a hang: this many times the longest earlier one ...
IDLE_MORE_S = 3.0  # ... plus this
_EDGE_S = 3.0  # an idle stretch that begins this long before or after a pause belongs to it
CLOSE_LOOKS, CLOSE_LOOKS_SMALL = 6, 120  # observations at the shortest interval; a small job's whole evaluation or save
WAITING_LOOKS = 6  # ... and so many in a row in which the job only waits, however long it is silent: they decide
NEAR_LOOKS = 24  # observations up to which the interval is the middle one
SMALL_NODES = 64  # nodes up to which a job counts as small there
ASK_SHARE = 0.75  # share of the silence that would be a hang after which the job itself is asked who blocks it
ASK_LATER_S = 2.0  # but not sooner than this after its nodes were asked
HELD_UP = 1.1  # factor on the usual silence where a few GPUs work and all others wait: it may be one slow step
SIGNS_OF_LIFE = frozenset({Motion.WORKS, Motion.WRITES, Motion.STORAGE})  # a host that loops shows none of these
ALIVE = 2.0  # factor on the allowed silence while data is written, a process sleeps in the kernel, or a GPU works


class Patience(Limits, Protocol):
    """Limits of silence; implemented by ``sentinel.config.settings.Judgement``."""

    @property
    def stall_confirm(self) -> float: ...
    @property
    def stall_first_pause_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SilenceObservations:
    """Observations of the present silence, and of earlier silences of the attempt. Starts empty."""

    step: int | None = None  # last step before the silence
    motion: Motion | None = None  # between the last two observations; None before the second
    waits_since: datetime | None = None  # first of the observations since which the job only waits
    waits_s: float = 0.0  # time from there to the newest observation
    waits_looks: int = 0  # number of comparisons in that time
    did: Motion | None = None  # newest motion of this silence that was more than waiting
    alive_at: datetime | None = None  # newest observation of this silence by which it worked, wrote or used storage
    lull_s: float = 0.0  # longest waiting in this silence while only its step times might explain the silence
    pause_lull_s: float = 0.0  # longest waiting in a pause, or after that time
    longest_lull_s: float = 0.0  # the same in earlier silences that ended: so much waiting proves nothing
    longest_pause_lull_s: float = 0.0
    proven: bool = False  # the job itself answered that a collective is stuck
    blocked_looks: int = 0  # number of comparisons in a row in which all its GPUs waited inside a collective
    gpu_idleness: GpuIdleness | None = None  # of all GPUs at the last observation; None if one works or is not known


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a job's nodes that is not answered yet: an observation of all nodes, or of one (``early``)."""

    effect: str
    at: datetime
    nodes: tuple[str, ...]
    elapsed_s: float  # time since the last step line, when it was asked
    before: datetime | None = None  # time of the observation before it; None: this is the first
    early: bool = False  # one node, in the middle of a long step


@dataclass(frozen=True, slots=True)
class SuspectedHang:
    """A silence that is a hang if Slurm still says that the job runs. ``checked_at``: when Slurm was asked."""

    stall: Evidence
    at: datetime
    checked_at: datetime | None = None


@dataclass(slots=True)
class SilenceSeen:
    """The present silence of an attempt, and the observations of it."""

    watched: SilenceObservations = field(default_factory=SilenceObservations)
    looks: dict[str, Look] = field(default_factory=dict)  # the newest observation, by node
    earlier: dict[str, Look] = field(default_factory=dict)  # the first ones of the attempt
    count: int = 0  # of observations of all nodes
    looked_at: datetime | None = None  # time of the newest one
    tasks: list[Evidence] = field(default_factory=list)  # of the newest observation
    question: Question | None = None  # under way
    asked_job: str = ""  # effect that asks the job itself which rank blocks the others
    answer: tuple[Evidence, ...] | None = None  # to that; None: not answered yet
    before_first: bool = False  # before the first step of the run: says nothing of how long a step or a pause may be
    logged: bool = False  # whether it was logged that the job is silent for longer than usual
    called_after: datetime | None = None  # the last step line before a silence that was called a hang
    peeked_at: datetime | None = None  # when one node was last asked, in the middle of a long step
    early: bool = False  # that node's GPUs were idle, so that all nodes are asked
    suspected: SuspectedHang | None = None


def after_look(
    watched: SilenceObservations,
    motion: Motion,
    began: datetime,
    now: datetime,
    *,
    pause: bool,
    beyond: bool,
    gpu_idleness: GpuIdleness | None = None,
    blocked: bool = False,
) -> SilenceObservations:
    """The state after a comparison of two observations, made at ``began`` and ``now``.

    ``pause``: a pause may be due; ``beyond``: the silence is longer than the step times explain; ``blocked``: all GPUs wait
    inside a collective.
    """
    watched = replace(watched, gpu_idleness=gpu_idleness)
    if motion not in (Motion.WAITS, Motion.QUIET):
        did = watched.did if motion in (Motion.UNKNOWN, Motion.UNSEEN) else motion
        alive_at = now if motion in SIGNS_OF_LIFE else watched.alive_at
        return replace(
            watched,
            motion=motion,
            did=did,
            alive_at=alive_at,
            waits_since=None,
            waits_s=0.0,
            waits_looks=0,
            blocked_looks=0,
        )
    since = watched.waits_since or began
    waits_s = (now - since).total_seconds()
    return replace(
        watched,
        motion=motion,
        waits_since=since,
        waits_s=waits_s,
        waits_looks=watched.waits_looks + 1,
        blocked_looks=watched.blocked_looks + 1 if blocked else 0,
        lull_s=watched.lull_s if pause or beyond else max(watched.lull_s, waits_s),
        pause_lull_s=max(watched.pause_lull_s, waits_s) if pause or beyond else watched.pause_lull_s,
    )


def after_step(watched: SilenceObservations, step: int | None, mistaken_s: float = 0.0) -> SilenceObservations:
    """The state after another step: the longest waiting of this silence is remembered for the next ones.

    ``mistaken_s``: length of a silence that was wrongly called a hang; observation ended then, and the job may wait as long
    again.
    """
    if watched.step == step:
        return watched
    return SilenceObservations(
        step=step,
        longest_lull_s=max(watched.longest_lull_s, watched.lull_s, mistaken_s),
        longest_pause_lull_s=max(watched.longest_pause_lull_s, watched.pause_lull_s, mistaken_s),
    )


def in_pause(rhythm: Rhythm, limits: Limits) -> bool:
    """Whether a pause may be due or was announced after the last step, so that step times need not explain the silence.

    For a job with long steps this includes pauses shorter than its usual silence.
    """
    return _may_pause(rhythm, allowed_s(rhythm, limits), usual_s(rhythm, limits))


def _may_pause(rhythm: Rhythm, allowed: float | None, usual: float | None) -> bool:
    return allowed is not None and usual is not None and (allowed > usual or pause_due(rhythm))


def ask_after_s(rhythm: Rhythm) -> float | None:
    """Silence in seconds after which the nodes are asked; None without a rhythm."""
    return None if rhythm.gap_s is None else max(ASK_LEAST_S, ASK_STEPS * rhythm.gap_s)


def peek_after_s(rhythm: Rhythm) -> float | None:
    """Silence in seconds after which one node is asked early about its GPUs; None if all nodes are asked by then anyway, or
    too few gaps are known to judge the answer."""
    asked = ask_after_s(rhythm)
    return PEEK_S if asked is not None and asked > PEEK_S and len(rhythm.gaps) >= IDLE_LEAST_GAPS else None


def ask_job_after_s(asked_nodes_s: float, hung_s: float) -> float:
    """Silence in seconds after which the job itself is asked; ``hung_s``: a hang if its answer proved one."""
    return min(hung_s, max(asked_nodes_s + ASK_LATER_S, ASK_SHARE * hung_s))


def was_observed(watched: SilenceObservations) -> bool:
    """Whether the activity of the job's processes in this silence was observed."""
    return watched.motion is not None and watched.motion is not Motion.UNSEEN


def hung_after_s(rhythm: Rhythm, watched: SilenceObservations, limits: Patience) -> float | None:
    """Silence in seconds that is a hang, given the observations so far; None while the job is exempt or unobserved."""
    allowed, usual = allowed_s(rhythm, limits), usual_s(rhythm, limits)
    asked = ask_after_s(rhythm)
    if allowed is None or usual is None or asked is None or rhythm.gap_s is None or not was_observed(watched):
        return None
    if watched.motion is Motion.STOPPED:
        return asked
    if (lasting := _lasting(watched)) is not watched.motion:
        watched = replace(watched, motion=lasting)
    young = _is_young(rhythm)
    pause = _may_pause(rhythm, allowed, usual)
    unexplained = limits.stall_confirm * (max(allowed, FIRST_PAUSE_S + rhythm.gap_s) if young else allowed)
    shown = len(rhythm.gaps) >= ESTABLISHED_GAPS and (watched.proven or _age_s(rhythm) >= KNOWN_S)
    no_pause = shown and not pause and (announces(rhythm) or not at_round_step(rhythm))
    held_up = no_pause and not young and _idle_for_longer_than_ever(rhythm, watched.gpu_idleness, limits, pause=False)
    alive = watched.motion in (Motion.WRITES, Motion.STORAGE) or (watched.motion is Motion.WORKS and not held_up)
    if no_pause and not alive:
        # No pause is made at such a step, or it would be announced, and so many steps tell how far they spread: nothing else
        # explains the silence.
        unexplained = max(limits.stall_confirm * WAITS_STEPS * rhythm.gap_s, spread_s(rhythm, limits) or allowed)
    if alive:
        return ALIVE * unexplained
    known = no_pause or (not young and (not pause or pauses_alike(rhythm) >= PAUSES_KNOWN))
    if not known and (worked_s := _worked_s(rhythm, watched)) is not None:
        # Work that ended was one pause; another kind of pause may follow it, as a save follows an evaluation.
        unexplained = max(unexplained, min(ALIVE * unexplained, worked_s + FIRST_PAUSE_S + rhythm.gap_s))
    if watched.motion is Motion.WORKS:
        return HELD_UP * unexplained
    if watched.motion not in (Motion.WAITS, Motion.LOOPS, Motion.QUIET) or (watched.motion is Motion.QUIET and young):
        return unexplained
    unsaid = not young and announces(rhythm) and not announced(rhythm)  # who says so before each pause makes none now
    soon = _if_it_waits(rhythm, watched, limits, allowed, unexplained, pause=pause and not unsaid)
    if watched.blocked_looks >= BLOCKED_LOOKS:  # in no pause either: who makes one is not inside a collective
        return min(soon, max(limits.stall_floor_s, WAITS_STEPS * rhythm.gap_s))
    unknown = young and not announces(rhythm) and _age_s(rhythm) < KNOWN_S
    if watched.motion is Motion.WAITS and not watched.proven and unknown:
        return max(soon, min(limits.stall_first_pause_s, unexplained))
    return soon


def _lasting(watched: SilenceObservations) -> Motion | None:
    """The motion; where the job did more in this silence, that it only waits counts once it lasts, since single comparisons
    fall between two batches or writes."""
    lasts = watched.waits_s >= WAITS_IN_PAUSE_S and watched.waits_looks >= WAITS_IN_PAUSE_LOOKS
    waits = watched.motion in (Motion.WAITS, Motion.QUIET)
    if watched.did is None or not waits or lasts or watched.blocked_looks >= BLOCKED_LOOKS:
        return watched.motion
    return watched.did


def _worked_s(rhythm: Rhythm, watched: SilenceObservations) -> float | None:
    """Silence in seconds in which the job last was seen to work; None if it was not."""
    last, alive_at = rhythm.last_at, watched.alive_at
    return (alive_at - last).total_seconds() if last is not None and alive_at is not None else None


def _is_young(rhythm: Rhythm) -> bool:
    """Whether the job's pauses are not known yet. Of a job with long steps those that it announced may all be short.

    Saves in the background are announced, too, and stop nothing: they say nothing of its first evaluation.
    """
    least_s = (rhythm.gap_s or 0.0) + LEAST_PAUSE_S  # a step follows in the same time
    return len(rhythm.pauses) + sum(pause.length_s > least_s for pause in rhythm.short) < PAUSES_KNOWN


def _age_s(rhythm: Rhythm) -> float:
    """For how long the job has made steps."""
    begun, last = rhythm.first_at, rhythm.last_at
    return (last - begun).total_seconds() if begun is not None and last is not None else 0.0


def _if_it_waits(
    rhythm: Rhythm, watched: SilenceObservations, limits: Patience, allowed: float, unexplained: float, *, pause: bool
) -> float:
    """Silence in seconds that is a hang of a job that only waits, or whose GPUs only wait, and whose pauses are known."""
    young, gap_s = _is_young(rhythm), rhythm.gap_s or 0.0
    known = not pause or pauses_alike(rhythm) >= PAUSES_KNOWN
    quiet = watched.motion is Motion.QUIET
    waits = watched.motion is Motion.WAITS or quiet
    if known and (waits or not young) and _idle_for_longer_than_ever(rhythm, watched.gpu_idleness, limits, pause=pause):
        return min(limits.stall_floor_s, allowed)
    if not waits:
        return unexplained
    if pause:
        if not known and (worked_s := _worked_s(rhythm, watched)) is not None:
            return max(allowed, min(unexplained, worked_s + limits.stall_first_pause_s))
        if not known or not _waits_too_long(rhythm, watched):
            return allowed
    else:
        lull_s = max(watched.longest_lull_s, watched.longest_pause_lull_s if young else 0.0)
        least_s = max(WAITS_LEAST_S, QUIET_GAPS * gap_s) if quiet else WAITS_LEAST_S
        times = LULL_TIMES if quiet or lull_s > LULL_MOST_S else 1.0  # that was a pause, and the next one may be longer
        if watched.waits_s < least_s or watched.waits_s <= times * lull_s:
            return unexplained
    return min(max(limits.stall_floor_s, WAITS_STEPS * gap_s), allowed)


def _waits_too_long(rhythm: Rhythm, watched: SilenceObservations) -> bool:
    """Whether the job waits for longer than in earlier pauses."""
    lull_s = watched.longest_pause_lull_s
    least_s = max(WAITS_IN_PAUSE_S, LULL_TIMES * lull_s + LULL_MORE_S) + _announced_after_s(rhythm, watched.waits_since)
    return lull_s < LULL_MOST_S and watched.waits_s >= least_s and watched.waits_looks >= WAITS_IN_PAUSE_LOOKS


def _announced_after_s(rhythm: Rhythm, since: datetime | None) -> float:
    """For how long after ``since`` the newest pause was announced: what was before it belongs to another one."""
    said = rhythm.announced_at if announced(rhythm) else None
    return max((said - since).total_seconds(), 0.0) if said is not None and since is not None else 0.0


def _idle_for_longer_than_ever(
    rhythm: Rhythm, gpu_idleness: GpuIdleness | None, limits: Patience, *, pause: bool
) -> bool:
    """Whether all GPUs are idle for longer than ever before in this job's steps or in pauses of this kind."""
    if (
        len(rhythm.gaps) < IDLE_LEAST_GAPS
        or rhythm.first_at is None
        or gpu_idleness is None
        or not gpus_worked(rhythm, gpu_idleness)
    ):
        return False
    kept = [pauses[0].at for pauses in (rhythm.pauses, rhythm.short) if len(pauses) >= PAUSES]  # older ones are not
    inside = [item for item in gpu_idleness.idle_periods if _within(item[0], (*rhythm.pauses, *rhythm.short))]
    since = max((rhythm.first_at, *kept))
    idle_periods = [item for item in gpu_idleness.idle_periods if item[0] >= since and item not in inside]
    if pause:
        # A pause made by time falls on arbitrary steps: an announced pause is compared with all earlier ones, also of other
        # kinds, since agents remember the longest times and forget those of a shorter kind.
        fitting = () if announced(rhythm) else pauses_fitting(rhythm)
        idle_periods += [item for item in inside if not fitting or _within(item[0], fitting)]
    longest_s = max((length_s for _, length_s in idle_periods), default=0.0)
    other_s = _announced_after_s(rhythm, rhythm.last_at)
    return gpu_idleness.still_s >= other_s + max(limits.stall_floor_s, IDLE_TIMES * longest_s + IDLE_MORE_S)


def gpus_worked(rhythm: Rhythm, gpu_idleness: GpuIdleness) -> bool:
    """Whether all GPUs have worked since the job's first step; if the job does not use some, idleness proves nothing."""
    return rhythm.first_at is not None and gpu_idleness.since >= rhythm.first_at


def _within(at: datetime, pauses: Sequence[Pause]) -> bool:
    edge = timedelta(seconds=_EDGE_S)
    return any(item.at - edge <= at <= item.at + timedelta(seconds=item.length_s) + edge for item in pauses)


def next_look_s(looks: int, nodes: int, waiting: int = 0) -> float:
    """Seconds to the next observation after ``looks`` of one silence, of which the last ``waiting`` show a job that only
    waits: dense at first and where waiting begins, to decide a hang; else sparser."""
    close = looks < (CLOSE_LOOKS_SMALL if nodes <= SMALL_NODES else CLOSE_LOOKS)
    if close or 0 < waiting < WAITING_LOOKS:
        return 2.5
    return 5.0 if looks < NEAR_LOOKS else 10.0
