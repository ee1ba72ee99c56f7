"""Makes the evidence that a job is hung: since which step, for how long, and what its nodes were seen to do."""

from __future__ import annotations

from datetime import datetime

from sentinel.detect.activity import MOTION_TEXT, Motion
from sentinel.detect.seen import AttemptSeen
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id


def silent_since(seen: AttemptSeen) -> datetime | None:
    """When the silence of an attempt began: with its newest step, or with its run if that printed none."""
    return seen.rhythm.last_at or seen.run_since or seen.view.started_at


def stall_evidence(key: tuple[int, int], seen: AttemptSeen, now: datetime, hung_s: float) -> Evidence:
    """``hung_s``: the silence in seconds that is a hang for this job."""
    job, attempt = key
    watched, silent_s = seen.silence.watched, seen.observed.silent_s
    motion, still = watched.motion, watched.gpu_idleness
    halted = [item for item in seen.silence.tasks if item.data.get("state") == "T"]
    if motion is Motion.STOPPED and halted:
        why = halted[0].text
    elif motion is Motion.WORKS and still is not None:
        why = f"a few GPUs work, and all others have waited for them for {still.still_s:.0f} s"
    else:
        why = MOTION_TEXT[motion] if motion is not None else "its nodes were not asked"
    gap_s, since = seen.rhythm.gap_s, silent_since(seen) or now
    what = f"no step after {seen.last_step}" if seen.rhythm.last_at is not None else "no first step"
    if gap_s is not None:
        usual = f"; usual gap {gap_s:.2f} s, allowed {hung_s:.1f} s"
    elif seen.rhythm.last_at is None:
        usual = f"; allowed {hung_s:.0f} s"
    else:
        usual = " (too few before to know its usual gap)"
    return Evidence(
        id=stable_id("stall", job, attempt, seen.last_step, since.isoformat()),
        at=since,
        seen_at=now,
        source=Source.PROGRESS,
        kind=Kind.STALL,
        where=Where(job=job, attempt=attempt, path=seen.rhythm.where.path),
        text=f"{what} for {silent_s:.1f} s{usual}; {why}",
        data={
            "step": seen.last_step,
            "silent_s": round(silent_s, 3),
            "allowed_s": round(hung_s, 3),
            "gap_s": round(gap_s, 4) if gap_s is not None else None,
            "motion": motion.value if motion is not None else None,
        },
        trust=Trust.USER,
    )
