"""Makes the evidence that a job is hung: since which step, for how long, and what its nodes were seen to do."""

from __future__ import annotations

from datetime import datetime

from sentinel.detect.activity import MOTION_TEXT, Motion
from sentinel.detect.cluster_view import AttemptSeen
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id


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
    gap_s = seen.rhythm.gap_s
    usual = (
        " (too few before to know its usual gap)"
        if gap_s is None
        else f"; usual gap {gap_s:.2f} s, allowed {hung_s:.1f} s"
    )
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
