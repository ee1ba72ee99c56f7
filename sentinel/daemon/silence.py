"""Jobs that print no steps: their nodes are asked what the processes do, until it is a pause, a hang, or over.

How long is waited, and what a look proves, is in ``sentinel.evidence.silence``; here is who is asked, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.live import AttemptSeen, SilenceSeen
from sentinel.evidence.progress import Rhythm, allowed_s, usual_s
from sentinel.evidence.silence import (
    PEEK_EVERY_S,
    PEEK_STILL_S,
    ask_after_s,
    hung_after_s,
    in_pause,
    looked,
    next_look_s,
    peek_after_s,
    tells,
    went_on,
)
from sentinel.evidence.standstill import WORDS, Motion, motion_of_job, stillness, stopped
from sentinel.log import Log
from sentinel.model import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.settings import Judgement

_PART_S = 0.5  # nodes that do not answer must not keep other jobs from being looked at
_WHO_SHARE = 0.75  # of the silence that is a hang, after which the job is asked who holds it up
_WHO_S = 2.0  # a verdict waits so long for what the job says of itself; what comes later is attached


Observe = Callable[[Sequence[Evidence]], Awaitable[None]]


class Silences:
    def __init__(self, *, inquiry: Inquiry, limits: Judgement, log: Log, observe: Observe) -> None:
        self._inquiry = inquiry
        self._observe = observe
        self._late: set[asyncio.Task[None]] = set()
        self._limits = limits
        self._log = log

    async def look(self, job: int, attempt: int, seen: AttemptSeen, now: datetime) -> list[Evidence]:
        """Evidence of a hang and of what showed it; empty while there is none. Called several times a second."""
        rhythm, silence = seen.rhythm, seen.silence
        if rhythm.last_at is None:
            return []
        if silence.watched.step != rhythm.last_step:
            called = silence.called_after
            mistaken_s = (rhythm.last_at - called).total_seconds() if called is not None else 0.0
            watched = went_on(silence.watched, rhythm.last_step, max(mistaken_s, 0.0))
            seen.silence = silence = SilenceSeen(watched=watched)
        silent_s = (now - rhythm.last_at).total_seconds()
        ask_s = ask_after_s(rhythm) or self._limits.stall_floor_s
        if silent_s <= ask_s and not await self._peek(job, attempt, seen, now, silent_s):
            return []
        self._tell(job, attempt, seen, now, silent_s)
        await self._ask_nodes(job, attempt, seen, now)
        hung_s = hung_after_s(rhythm, silence.watched, self._limits)
        if hung_s is None:  # it has no rhythm yet
            hung_s = ask_s if silence.watched.motion is Motion.STOPPED else self._limits.stall_startup_s
        halted = silence.watched.motion is Motion.STOPPED
        if not halted and silence.asking is None and silent_s > min(hung_s, max(ask_s + 2.0, _WHO_SHARE * hung_s)):
            silence.asking = asyncio.create_task(self._inquiry.who(job, attempt, seen))
        if silent_s <= hung_s:
            return []
        silence.called_after = rhythm.last_at
        if silence.asking is not None:
            await asyncio.wait({silence.asking}, timeout=_WHO_S)
        return [_stall(job, attempt, seen, now, silent_s, hung_s), *self._known(silence)]

    async def _peek(self, job: int, attempt: int, seen: AttemptSeen, now: datetime, silent_s: float) -> bool:
        """Whether all nodes are worth a question in the middle of a step: one of them is asked whether its GPUs stand."""
        silence, peek_s = seen.silence, peek_after_s(seen.rhythm)
        if silence.early or peek_s is None or silent_s <= peek_s:
            return silence.early
        if silence.looking is not None and not silence.looking.done():
            return False
        if silence.peeked_at is None or (now - silence.peeked_at).total_seconds() >= PEEK_EVERY_S:
            silence.peeked_at = now
            silence.looking = asyncio.create_task(self._one_peek(job, attempt, seen.rhythm, silence, now))
            await asyncio.wait({silence.looking}, timeout=_PART_S)
        if silence.looking is not None and silence.looking.done():
            silence.looking.result()
        return silence.early

    async def _one_peek(self, job: int, attempt: int, rhythm: Rhythm, silence: SilenceSeen, now: datetime) -> None:
        nodes = self._inquiry.nodes(job, attempt)[:1]  # in a collective all stand, whoever holds them up
        looks, _ = await self._inquiry.looks(job, attempt, nodes)
        still = stillness(nodes, looks, now)
        silence.early = still is not None and still.still_s >= PEEK_STILL_S and tells(rhythm, still)

    def _known(self, silence: SilenceSeen) -> list[Evidence]:
        """What is known of a hang when it is told; what the job has yet to say is observed when it comes."""
        known = [item for item in silence.tasks if item.kind == Kind.TASK_STATE]
        if silence.asking is None:
            return known
        if silence.asking.done():
            return [*known, *silence.asking.result()]
        late = asyncio.create_task(self._later(silence.asking))
        self._late.add(late)
        late.add_done_callback(self._late.discard)
        return known

    async def _later(self, asking: asyncio.Task[list[Evidence]]) -> None:
        found = await asking
        if found:
            await self._observe(found)

    def _tell(self, job: int, attempt: int, seen: AttemptSeen, now: datetime, silent_s: float) -> None:
        allowed = allowed_s(seen.rhythm, self._limits)
        if not seen.silence.told and allowed is not None and silent_s > allowed:
            seen.silence.told = True
            self._log.info("job-silent", job=job, attempt=attempt, step=seen.last_step)

    async def _ask_nodes(self, job: int, attempt: int, seen: AttemptSeen, now: datetime) -> None:
        """A look, when one is due. One that takes long goes on by itself, and its answer is found at a later call."""
        silence = seen.silence
        if silence.looking is not None and not silence.looking.done():
            return
        rest_s = next_look_s(silence.count, len(self._inquiry.nodes(job, attempt)))
        if silence.looked_at is not None and (now - silence.looked_at).total_seconds() < rest_s:
            return
        silence.looking = asyncio.create_task(self._one_look(job, attempt, seen.rhythm, silence, now))
        await asyncio.wait({silence.looking}, timeout=_PART_S)
        if silence.looking.done():
            silence.looking.result()  # a bug of ours is for the loop to count

    async def _one_look(self, job: int, attempt: int, rhythm: Rhythm, silence: SilenceSeen, now: datetime) -> None:
        before, began = silence.looks, silence.looked_at
        silence.looked_at, silence.count = now, silence.count + 1
        nodes = self._inquiry.nodes(job, attempt)
        looks, silence.tasks = await self._inquiry.looks(job, attempt, nodes)
        halted = any(stopped(look) is not None for look in looks.values())
        if began is not None or halted:
            motion = Motion.STOPPED if halted else motion_of_job(nodes, before, looks)
            silent_s = (now - (rhythm.last_at or now)).total_seconds()
            still = stillness(nodes, looks, now)
            silence.watched = looked(
                silence.watched,
                motion,
                began or now,
                now,
                pause=in_pause(rhythm, self._limits),
                beyond=silent_s > (usual_s(rhythm, self._limits) or 0.0),
                stillness=still,
            )
            silence.early = silence.early and still is not None
        silence.looks = looks


def _stall(job: int, attempt: int, seen: AttemptSeen, now: datetime, silent_s: float, hung_s: float) -> Evidence:
    motion = seen.silence.watched.motion
    halted = [item for item in seen.silence.tasks if item.data.get("state") == "T"]
    if motion is Motion.STOPPED and halted:
        why = halted[0].text
    else:
        why = WORDS[motion] if motion is not None else "its nodes were not asked"
    gap_s = seen.rhythm.gap_s
    usual = ", since the first ones" if gap_s is None else f"; usual gap {gap_s:.2f} s, allowed {hung_s:.1f} s"
    return Evidence(
        id=stable_id("stall", job, attempt, seen.last_step, (seen.rhythm.last_at or now).isoformat()),
        at=seen.rhythm.last_at or now,
        seen_at=now,
        source=Source.PROGRESS,
        kind=Kind.STALL,
        where=Where(job=job, attempt=attempt, path=seen.rhythm.where.path),
        text=f"no step after {seen.last_step} for {silent_s:.1f} s{usual}; {why}",
        data={
            "step": seen.last_step,
            "silent_s": round(silent_s, 3),
            "allowed_s": round(hung_s, 3),
            "gap_s": round(gap_s, 4) if gap_s is not None else None,
            "motion": motion.value if motion is not None else None,
        },
        trust=Trust.USER,
    )
