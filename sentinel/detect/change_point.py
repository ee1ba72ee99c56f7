"""Detects slower steps: a change point in the step times, relative to the job's own spread. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from statistics import median

from sentinel.detect.step_rhythm import Rhythm
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id

# Kinds of node telemetry evidence that explain a slow node.
SLOW_FACTS = frozenset(
    {
        "clocks_slowdown", "gpu_thermal", "pcie_width", "pcie_replay", "nvlink_errors", "link_flap", "link_down",
        "host_memory_ecc", "host_memory_low", "row_remap_uncorrectable",
    }
)  # fmt: skip
WINDOW = 16  # newest steps, compared with those before
SLOWER = 1.12  # smallest ratio that is reported


@dataclass(slots=True)
class SlowSeen:
    """The present slowdown of an attempt, and the number of step lines at the last check."""

    lines: int = 0
    since: datetime | None = None


def slowed(rhythm: Rhythm, now: datetime) -> Evidence | None:
    """Evidence of slower steps: "transient" while short, "persistent" once three windows in a row are slow.

    The change must stand out from the job's own spread, so that variable sequence lengths do not alarm.
    """
    times = rhythm.times
    if len(times) < 5 * WINDOW or rhythm.last_at is None:
        return None
    recent = median(times[-WINDOW:])
    before = times[: -3 * WINDOW]
    base = median(before)
    spread = median(abs(value - base) for value in before)
    threshold = max(SLOWER * base, base + 4.0 * 1.4826 * spread / (WINDOW**0.5) * 1.25)
    if recent <= threshold:
        return None
    windows = [median(times[-WINDOW * (i + 1) : len(times) - WINDOW * i]) for i in range(3)]
    persistent = all(value > threshold for value in windows)
    onset = _onset(rhythm, threshold)
    where = Where(job=rhythm.where.job, attempt=rhythm.where.attempt, path=rhythm.where.path)
    kind = "persistent" if persistent else "transient"
    return Evidence(
        id=stable_id("slow", where.job, where.attempt, kind, rhythm.last_step // (4 * WINDOW)),
        at=now,
        seen_at=now,
        source=Source.PROGRESS,
        kind=Kind.SLOW,
        where=where,
        text=f"steps take {recent:.3f} s instead of {base:.3f} s since about step {onset} ({kind})",
        data={
            "step": rhythm.last_step,
            "onset_step": onset,
            "step_time_s": round(recent, 4),
            "usual_s": round(base, 4),
            "ratio": round(recent / base, 3) if base > 0 else None,
            "persistent": persistent,
        },
        trust=Trust.USER,
    )


def _onset(rhythm: Rhythm, threshold: float) -> int:
    """Step at which the slow run began; at most two quick steps in a row inside it are tolerated."""
    quick, back = 0, 0
    for i, value in enumerate(reversed(rhythm.times)):
        quick = 0 if value > threshold else quick + 1
        if quick > 2:
            break
        back = i
    return max(rhythm.last_step - back * rhythm.stride, 0)
