"""Silent hangs from progress alone: detection delay and false alarms on generated jobs.

Each job has its own step time, jitter, logging stride, evaluation and checkpoint pauses (by steps, three in ten without
a word before; or by the clock, announced), at most about a twentieth of its time each, slow start and rare hiccups.

Run: python tests/bench/judgement_hang.py [--jobs N] [--hours H]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sentinel.evidence.progress import PAUSE, DefaultLimits, Rhythm, observe, silent_until, stalled
from sentinel.model import Evidence, Kind, Source, Where

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = DefaultLimits()


@dataclass(frozen=True)
class Job:
    step_s: float
    jitter: float
    stride: int
    eval_every: int
    eval_s: float
    save_every: int
    save_s: float
    save_timed_s: float  # 0: by steps
    announced: bool
    compile_s: float
    hiccup: float  # chance per step of a delay of 1 to 8 s


def draw(rng: random.Random) -> Job:
    step_s = 10 ** rng.uniform(-0.7, 1.3)  # 0.2 to 20 s
    eval_every, save_every = rng.choice([0, 100, 200, 250, 500, 1000]), rng.choice([100, 250, 500, 1000, 2000])
    timed_s = rng.choice([0, 0, 0, 1800])
    return Job(
        step_s=step_s,
        jitter=rng.choice([0.02, 0.05, 0.15, 0.3]),
        stride=rng.choice([1, 1, 5, 10]) if step_s < 2 else 1,
        eval_every=eval_every,
        eval_s=min(rng.uniform(10, 240), 0.05 * eval_every * step_s),  # people do not spend half their time on it
        save_every=save_every,
        save_s=min(rng.uniform(5, 120), 0.05 * save_every * step_s),
        save_timed_s=timed_s,
        announced=bool(timed_s) or rng.random() < 0.7,
        compile_s=rng.uniform(20, 300),
        hiccup=rng.choice([0.0, 0.0003, 0.001]),
    )


def lines(job: Job, rng: random.Random, hours: float):
    """(seconds, step, kind) of every line the job prints."""
    now, step, saved = job.compile_s, 0, 0.0
    while now < hours * 3600:
        step += 1
        took = job.step_s * rng.lognormvariate(0, job.jitter)
        if rng.random() < job.hiccup:
            took += rng.uniform(1, 8)
        if step == 1:
            took += job.compile_s
        now += took
        if step % job.stride == 0:
            yield now, step, Kind.STEP
        if job.eval_every and step % job.eval_every == 0:
            if job.announced:
                yield now + 0.1, step, PAUSE
            now += job.eval_s * rng.uniform(0.85, 1.15)
        due = now - saved >= job.save_timed_s if job.save_timed_s else step % job.save_every == 0
        if due:
            saved = now
            if job.announced:
                yield now + 0.1, step, PAUSE
            now += job.save_s * rng.uniform(0.8, 1.3)


def evidence(seconds: float, step: int, kind: str) -> Evidence:
    at = START + timedelta(seconds=seconds)
    return Evidence(f"{seconds}", at, at, Source.JOB_LOG, kind, Where(job=1, attempt=0), data={"step": step})


def run(jobs: int, hours: float, seed: int = 7, confirm: float = 1.0) -> dict[str, object]:
    rng = random.Random(seed)
    delays, targets, within, in_pause, alarms, watched = [], [], 0, 0, 0, 0.0
    for _ in range(jobs):
        job = draw(rng)
        rhythm = Rhythm()
        hang_after = rng.uniform(0.3, 1.0) * hours * 3600
        last = 0.0
        for seconds, step, kind in lines(job, rng, hours):
            item = evidence(seconds, step, kind)
            if kind == Kind.STEP:
                silent_s = (item.at - rhythm.last_at).total_seconds() if rhythm.last_at else 0.0
                hung = seconds > hang_after and rhythm.gap_s is not None
                until = silent_until(rhythm, LIMITS) if hung or silent_s > LIMITS.stall_floor_s else None
                if until is not None and rhythm.last_at is not None:
                    until = rhythm.last_at + confirm * (until - rhythm.last_at)
                if until is not None and item.at > until and not hung:
                    alarms += 1
                if hung:
                    gone = stalled(rhythm, START + timedelta(days=30), LIMITS)
                    assert gone is not None and until is not None and rhythm.last_at is not None
                    delay = (until - rhythm.last_at).total_seconds()
                    target = max(15.0, 3.0 * rhythm.gap_s)
                    delays.append(delay)
                    targets.append(target)
                    within += delay <= target * 1.001
                    in_pause += rhythm.announced_at is not None
                    break
            rhythm = observe(rhythm, item)
            last = seconds
        watched += last / 3600
    return {
        "jobs": jobs,
        "job_hours": round(watched, 1),
        "hangs": len(delays),
        "detected_within_target": round(within / max(len(delays), 1), 4),
        "hangs_in_an_announced_pause": in_pause,
        "delay_median_s": round(statistics.median(delays), 2),
        "delay_p90_s": round(sorted(delays)[int(0.9 * len(delays))], 2),
        "over_60_s_beyond_steps": sum(d > max(60.0, t) for d, t in zip(delays, targets, strict=True)),
        "false_alarms": alarms,
        "false_alarms_per_1000_job_hours": round(1000 * alarms / watched, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--confirm", type=float, default=1.0, help="as [judgement] stall_confirm: what the daemon acts on without proof"
    )
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.jobs, arguments.hours, arguments.seed, arguments.confirm)))
