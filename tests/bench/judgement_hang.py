"""Silent hangs: detection delay and false alarms on generated jobs, by three rules.

Each job has its own step time, jitter, logging stride, evaluation and checkpoint pauses (by steps, three in ten without
a word before; or by the clock, announced), at most about a twentieth of its time each, slow start and rare hiccups.

- "rhythm": the first silence that the job's own rhythm does not explain;
- "longer": that silence times [judgement] stall_confirm, which is what the daemon waits for where it knows nothing else;
- "looks": the daemon's rule (sentinel.evidence.silence): besides, its nodes are asked what the job's processes and GPUs do.

Simulated, also what looks show: no field data of that is public. Of hangs, --provable shows that all wait or that one is
stopped (a spinning kernel at low power counts, where the agent has telemetry), the rest looks busy or cannot be asked. Of
pauses, each job has its own mix; --lulls of the jobs look as if they only waited throughout an evaluation or a save, and
each comparison of two looks does so by chance at --blink. The delay counts from the last step line.

Run: python tests/bench/judgement_hang.py [--jobs N] [--hours H] [--seed S] [--provable P] [--lulls P] [--blink P]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from sentinel.evidence.progress import PAUSE, Rhythm, allowed_s, observe, usual_s
from sentinel.evidence.silence import Watched, ask_after_s, hung_after_s, looked, next_look_s, went_on
from sentinel.evidence.standstill import Motion
from sentinel.model import Evidence, Kind, Source, Where
from sentinel.settings import Judgement

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Judgement()
ANSWER_S = 0.5  # from the question to the answer of all nodes
RULES = ("rhythm", "longer", "looks")


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
    looks: tuple[Motion, Motion]  # what an evaluation looks like, and a save


def draw(rng: random.Random, lulls: float) -> Job:
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
        looks=(
            Motion.WAITS if rng.random() < lulls else rng.choices((Motion.UNCLEAR, Motion.STORAGE), (9, 1))[0],
            Motion.WAITS
            if rng.random() < lulls
            else rng.choices((Motion.WRITES, Motion.STORAGE, Motion.UNCLEAR), (7, 1.5, 1.5))[0],
        ),
    )


def lines(job: Job, rng: random.Random, hours: float) -> Iterator[tuple[float, int, str, Motion]]:
    """(seconds, step, kind, what the time since the last step line looked like) of every line the job prints."""
    looks = Motion.UNCLEAR
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
            yield now, step, Kind.STEP, looks
            looks = Motion.UNCLEAR
        if job.eval_every and step % job.eval_every == 0:
            if job.announced:
                yield now + 0.1, step, PAUSE, looks
            looks = job.looks[0]
            now += job.eval_s * rng.uniform(0.85, 1.15)
        due = now - saved >= job.save_timed_s if job.save_timed_s else step % job.save_every == 0
        if due:
            saved = now
            if job.announced:
                yield now + 0.1, step, PAUSE, looks
            looks = job.looks[1]
            now += job.save_s * rng.uniform(0.8, 1.3)


def evidence(seconds: float, step: int, kind: str) -> Evidence:
    at = START + timedelta(seconds=seconds)
    return Evidence(f"{seconds}", at, at, Source.JOB_LOG, kind, Where(job=1, attempt=0), data={"step": step})


def waits_until(
    rhythm: Rhythm, watched: Watched, end_s: float, sees: Callable[[], Motion]
) -> tuple[float | None, Watched]:
    """The silence at which the daemon would call it a hang, if that is before ``end_s``; and what it saw."""
    last, ask = rhythm.last_at, ask_after_s(rhythm)
    assert last is not None and ask is not None
    now_s, began_s, looks = ask, None, 0
    watched = replace(watched, step=rhythm.last_step, motion=None, waits_since=None, waits_s=0.0)
    while now_s < end_s:
        seen = sees()
        if seen is Motion.STOPPED or began_s is not None:
            began = last + timedelta(seconds=began_s or now_s)
            pause = now_s > (usual_s(rhythm, LIMITS) or 0.0)
            watched = looked(watched, seen, began, last + timedelta(seconds=now_s), pause=pause)
        began_s, looks = now_s, looks + 1
        step_s = next_look_s(looks)
        hung = hung_after_s(rhythm, watched, LIMITS)
        if hung is not None and hung <= now_s + ANSWER_S + step_s:
            at_s = max(hung, now_s + ANSWER_S)
            return (at_s if at_s < end_s else None), watched
        now_s += step_s
    return None, watched


def seen(rng: random.Random, looks: Motion, blink: float) -> Motion:
    """What one comparison shows of a silence that looks like ``looks``."""
    return Motion.WAITS if rng.random() < blink else looks


def thresholds(rhythm: Rhythm) -> dict[str, float]:
    allowed = allowed_s(rhythm, LIMITS)
    return {} if allowed is None else {"rhythm": allowed, "longer": LIMITS.stall_confirm * allowed}


@dataclass
class Count:
    delays: list[float]
    targets: list[float]
    alarms: int = 0
    in_steps: int = 0  # hangs that began where no pause was due
    in_steps_within: int = 0

    def told(self, hours: float) -> dict[str, object]:
        within = sum(delay <= 1.001 * target for delay, target in zip(self.delays, self.targets, strict=True))
        return {
            "within_target": round(within / len(self.delays), 4),
            "within_60_s_or_target": round(
                sum(d <= max(60.0, t) for d, t in zip(self.delays, self.targets, strict=True)) / len(self.delays), 4
            ),
            "outside_pauses": self.in_steps,
            "outside_pauses_within_target": round(self.in_steps_within / max(self.in_steps, 1), 4),
            "median_s": round(statistics.median(self.delays), 1),
            "p90_s": round(sorted(self.delays)[int(0.9 * len(self.delays))], 1),
            "false_alarms": self.alarms,
            "false_alarms_per_1000_job_hours": round(1000 * self.alarms / hours, 2),
        }


def run(jobs: int, hours: float, seed: int, provable: float, lulls: float, blink: float) -> dict[str, object]:
    rng = random.Random(seed)
    counts = {rule: Count([], []) for rule in RULES}
    watched_h = 0.0
    for _ in range(jobs):
        watched_h += follow(draw(rng, lulls), rng, hours, counts, provable, blink)
    return {
        "jobs": jobs,
        "job_hours": round(watched_h, 1),
        "hangs": len(counts["rhythm"].delays),
        **{rule: count.told(watched_h) for rule, count in counts.items()},
    }


def follow(
    job: Job, rng: random.Random, hours: float, counts: dict[str, Count], provable: float, blink: float
) -> float:
    """One job to its hang; returns the hours watched."""
    rhythm, watched = Rhythm(), Watched()
    hang_after, last = rng.uniform(0.3, 1.0) * hours * 3600, 0.0
    hang = Motion.WAITS if rng.random() < provable else rng.choice((Motion.UNCLEAR, Motion.UNCLEAR, Motion.UNKNOWN))
    if hang is Motion.WAITS and rng.random() < 0.05:
        hang = Motion.STOPPED
    for seconds, step, kind, looks in lines(job, rng, hours):
        item = evidence(seconds, step, kind)
        ask, silent_s = ask_after_s(rhythm), 0.0
        if kind == Kind.STEP and rhythm.last_at is not None and ask is not None:
            silent_s = (item.at - rhythm.last_at).total_seconds()
            if seconds > hang_after:
                target = max(15.0, 3.0 * (rhythm.gap_s or 0.0))
                found, _ = waits_until(rhythm, watched, 1e5, lambda: hang)
                in_steps = usual_s(rhythm, LIMITS) == allowed_s(rhythm, LIMITS)
                for rule, delay in {**thresholds(rhythm), "looks": found}.items():
                    assert delay is not None
                    counts[rule].in_steps += in_steps
                    counts[rule].in_steps_within += in_steps and delay <= 1.001 * target
                    counts[rule].delays.append(delay)
                    counts[rule].targets.append(target)
                break
            if silent_s > ask:
                for rule, least_s in thresholds(rhythm).items():
                    counts[rule].alarms += silent_s > least_s
                found, watched = waits_until(rhythm, watched, silent_s, partial(seen, rng, looks, blink))
                counts["looks"].alarms += found is not None
        rhythm = observe(rhythm, item)
        if kind == Kind.STEP:
            watched = went_on(watched, rhythm.last_step)
        last = seconds
    return last / 3600


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--provable", type=float, default=0.9, help="share of hangs that looks can prove")
    parser.add_argument("--lulls", type=float, default=0.03, help="share of jobs whose pauses look like waiting")
    parser.add_argument("--blink", type=float, default=0.02, help="chance that one comparison in a pause looks so")
    parser.add_argument("--confirm", type=float, default=LIMITS.stall_confirm, help="as [judgement] stall_confirm")
    options = vars(parser.parse_args())
    LIMITS = replace(LIMITS, stall_confirm=options.pop("confirm"))
    print(json.dumps(run(**options)))
