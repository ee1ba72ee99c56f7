"""Silent hangs: detection delay and false alarms on generated jobs, by three rules.

Each job has its own step time, jitter, logging stride, evaluation and checkpoint pauses (by steps, three in ten without
a word before; or by the clock, announced), at most about a twentieth of its time each, slow start and rare hiccups.

- "rhythm": the first silence that the job's own rhythm does not explain;
- "longer": that silence times [judgement] stall_confirm, which is what the daemon waits for where it knows nothing else;
- "looks": the daemon's rule (sentinel.detect.hang): besides, its nodes are asked what the job's processes and GPUs do.

Simulated, also what looks show: no field data of that is public; scenes.py beside this file has each assumption with its
reason. The hang begins at a random moment, in a step or in a pause, and the delay counts from there ("from_line": from the
last step line before it, which is longer). The target is max(15 s, 3 gaps between step lines), as a log tells of steps.

The same seed gives the same jobs and hangs whatever is concluded of them: two programs are compared by hang (--each).

Run: python tests/bench/judgement_hang.py [--jobs N] [--hours H] [--seed S] [--hangs N] [--provable P] [--joined P]
[--answers P] [--counters P] [--lulls P] [--blink P] [--slow] [--kinds] [--each FILE];
on SIGTERM it ends after the job it is at, and tells what it has.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "hang"))

from scenes import Gpus, Job, Scene, draw, hang_scene, lines, name_of

from sentinel.config.settings import Judgement
from sentinel.detect.activity import Motion
from sentinel.detect.hang import (
    ASK_LEAST_S,
    LULL_MOST_S,
    PAUSES_KNOWN,
    PEEK_EVERY_S,
    PEEK_STILL_S,
    SilenceObservations,
    after_look,
    after_step,
    ask_after_s,
    ask_job_after_s,
    hung_after_s,
    in_pause,
    next_look_s,
    peek_after_s,
)
from sentinel.detect.step_rhythm import Rhythm, allowed_s, announced, announces, observe, pauses_alike, usual_s
from sentinel.model.records import Evidence, Kind, Source, Where

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Judgement()
NODES = 64
ANSWER_S = 0.5  # from the question to the answer of all nodes
RULES = ("rhythm", "longer", "looks")
FOR_EVER_S = 1e5
# As the daemon asks the job (sentinel.daemon.effects.ask_hung_job): between its two questions, in steps and in seconds
ANSWER_STEPS, LEAST_ANSWER_S, MOST_ANSWER_S = 1.5, 2.5, 10.0


def evidence(seconds: float, step: int, kind: str, text: str) -> Evidence:
    at = START + timedelta(seconds=seconds)
    return Evidence(f"{seconds}", at, at, Source.JOB_LOG, kind, Where(job=1, attempt=0), text, data={"step": step})


def waits_until(
    told: Sequence[tuple[float, Rhythm]],
    watched: SilenceObservations,
    end_s: float,
    scene: Scene,
    gpus: Gpus,
    rng: random.Random,
) -> tuple[float | None, SilenceObservations]:
    """The silence at which the daemon would call it a hang, if that is before ``end_s``; and what it saw.

    ``told``: the rhythm after each line since the last step line, with the seconds between them.
    """
    rhythm = told[0][1]
    last, ask, peek = rhythm.last_at, ask_after_s(rhythm), peek_after_s(rhythm)
    assert last is not None and ask is not None
    watched = SilenceObservations(
        step=rhythm.last_step,
        longest_lull_s=watched.longest_lull_s,
        longest_pause_lull_s=watched.longest_pause_lull_s,
    )
    now_s, began_s, looks, asked_s = ask, None, 0, FOR_EVER_S
    answer_s = min(MOST_ANSWER_S, max(LEAST_ANSWER_S, ANSWER_STEPS * (rhythm.gap_s or 0.0))) + ANSWER_S
    if peek is not None:  # in a long step one node is asked first, whether its GPUs stand
        while peek < ask:
            stands = scene.gpu_idleness(peek, gpus, last)
            if stands is not None and stands.still_s >= PEEK_STILL_S:
                now_s = peek + ANSWER_S
                break
            peek += PEEK_EVERY_S
    while now_s < end_s:
        rhythm = next(known for at_s, known in reversed(told) if at_s <= now_s)
        motion = scene.motion(now_s, began_s, gpus, rng)
        stands = scene.gpu_idleness(now_s, gpus, last)
        if scene.at(now_s).alone and motion is not Motion.WORKS:
            stands = None  # the one that works rested for that moment, or is not clear: all have not stood for long
        if motion is Motion.STOPPED or began_s is not None:
            began = last + timedelta(seconds=began_s if began_s is not None else now_s)
            watched = after_look(
                watched,
                motion,
                began,
                last + timedelta(seconds=now_s),
                pause=in_pause(rhythm, LIMITS),
                beyond=now_s > (usual_s(rhythm, LIMITS) or 0.0),
                gpu_idleness=stands,
                blocked=scene.blocked(now_s, gpus),
            )
        began_s, looks = now_s, looks + 1
        step_s = next_look_s(looks, NODES, watched.waits_looks)
        if gpus.job.answers and asked_s == FOR_EVER_S:
            at_once = hung_after_s(rhythm, replace(watched, proven=True), LIMITS)
            if at_once is not None and now_s > ask_job_after_s(ask, at_once):
                asked_s = now_s
        if now_s >= asked_s + answer_s and scene.proves(asked_s, gpus):
            watched = replace(watched, proven=True)
        hung = hung_after_s(rhythm, watched, LIMITS)
        if hung is not None and hung <= now_s + ANSWER_S + step_s:
            at_s = max(hung, now_s + ANSWER_S)
            return (at_s if at_s < end_s else None), watched
        now_s += step_s
        if now_s < ask and watched.gpu_idleness is None and watched.motion is not None:
            now_s = ask  # a GPU works again: no more questions before the usual time
    return None, watched


def thresholds(rhythm: Rhythm) -> dict[str, float]:
    allowed = allowed_s(rhythm, LIMITS)
    return {} if allowed is None else {"rhythm": allowed, "longer": LIMITS.stall_confirm * allowed}


@dataclass
class Count:
    delays: list[float] = field(default_factory=list)  # from the moment it hung
    from_line: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    kinds: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    alarms: list[str] = field(default_factory=list)
    each: dict[str, dict[str, Any]] = field(default_factory=dict)  # name of the hang -> what was known of it

    def add(self, delay: float, onset: float, target: float, kinds: list[str]) -> None:
        self.delays.append(delay - onset)
        self.from_line.append(delay)
        self.targets.append(target)
        for kind in kinds:
            self.kinds[kind].append((delay - onset, target))

    def told(self, hours: float, kinds: bool) -> dict[str, object]:
        made: dict[str, object] = {
            **_shares(list(zip(self.delays, self.targets, strict=True))),
            "within_target_from_line": _shares(list(zip(self.from_line, self.targets, strict=True)))["within_target"],
            "median_s": round(statistics.median(self.delays), 1),
            "p90_s": round(sorted(self.delays)[int(0.9 * len(self.delays))], 1),
            "curve": {
                str(s): round(sum(d <= s for d in self.delays) / len(self.delays), 3)
                for s in (10, 15, 20, 30, 45, 60, 120, 300)
            },
            "false_alarms": len(self.alarms),
            "false_alarms_per_1000_job_hours": round(1000 * len(self.alarms) / hours, 2),
        }
        if kinds:
            made["kinds"] = {
                name: {"hangs": len(found), **_shares(found)} for name, found in sorted(self.kinds.items())
            }
            made["alarms"] = self.alarms
        return made


def _shares(found: list[tuple[float, float]]) -> dict[str, float]:
    count = max(len(found), 1)
    return {
        "within_target": round(sum(delay <= 1.001 * target for delay, target in found) / count, 4),
        "within_60_s": round(sum(delay <= 60.0 for delay, _ in found) / count, 4),
        "within_60_s_or_target": round(sum(delay <= max(60.0, target) for delay, target in found) / count, 4),
    }


def run(options: argparse.Namespace) -> dict[str, object]:
    counts = {rule: Count() for rule in RULES}
    hours, done, stop = 0.0, 0, Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while done < options.jobs and not stop.is_set():
        world = random.Random(f"{options.seed} job {done}")
        job = draw(world, options.lulls, options.answers, options.counters, slow=options.slow)
        hours += follow(job, world, f"{options.seed} job {done}", options, counts)
        done += 1
    each = counts["looks"].each
    if options.each:
        options.each.write_text(json.dumps({"hangs": each, "alarms": counts["looks"].alarms}, indent=0))
    return {
        "jobs": done,
        "seed": options.seed,
        "job_hours": round(hours, 1),
        "hangs": len(counts["rhythm"].delays),
        **{rule: count.told(hours, options.kinds) for rule, count in counts.items()},
        "late": Counter(why_late(hang) for hang in each.values() if hang["late"]),
    }


def follow(job: Job, world: random.Random, name: str, options: argparse.Namespace, counts: dict[str, Count]) -> float:
    """One job to the last of its hangs, each of which is tried by itself; returns the hours watched.

    What happens to the job, when and how it hangs, and what each silence's looks show are drawn from streams of their own:
    another way of looking meets the same jobs and hangs.
    """
    rhythm, watched, gpus, before = Rhythm(), SilenceObservations(), Gpus(job), 0.0
    told = [(0.0, rhythm)]
    fate = random.Random(f"{name} hangs")
    hangs = sorted(
        (fate.uniform(0.3, 1.0) * options.hours * 3600, hang_scene(fate, options.provable, options.joined))
        for _ in range(options.hangs)
    )
    for seconds, step, line, text, scene in lines(job, world, options.hours, options.blink):
        ask = None
        if (
            line == Kind.STEP
            and rhythm.last_at is not None
            and (seconds - before > ASK_LEAST_S or seconds > hangs[0][0])
        ):
            ask = ask_after_s(rhythm)
        while ask is not None and hangs and seconds > hangs[0][0]:
            at_s, (kind, hang) = hangs.pop(0)
            onset = max(at_s - before, 0.0)
            looks = random.Random(f"{name} hang at {at_s:.3f}")
            said = [item for item in told if item[0] <= onset]
            found, seen = waits_until(said, watched, FOR_EVER_S, scene.then(onset, hang), gpus, looks)
            assert found is not None
            _count(f"{name} {at_s:.3f}", job, said[-1][1], seen, scene.at(onset), kind, onset, found, counts)
        if not hangs:
            break
        mistaken_s = 0.0
        if ask is not None:
            silent_s = seconds - before
            peek = peek_after_s(rhythm)
            if silent_s > (peek if peek is not None else ask):
                what = f"{name_of(scene)}, {scene.name}, {job.telemetry}, {silent_s:.0f} s at gap {rhythm.gap_s:.1f} s"
                for rule, least_s in thresholds(rhythm).items():
                    if silent_s > least_s:
                        counts[rule].alarms.append(what)
                looks = random.Random(f"{name} silence at {before:.3f}")
                found, watched = waits_until(told, watched, silent_s, scene, gpus, looks)
                gpus.seen_before = True
                if found is not None:
                    counts["looks"].alarms.append(what)
                    mistaken_s = silent_s
        if line == Kind.STEP:
            gpus.passed(scene, START + timedelta(seconds=before), seconds - before)
            before = seconds
        rhythm = observe(rhythm, evidence(seconds, step, line, text))
        if line == Kind.STEP:
            watched = after_step(watched, rhythm.last_step, mistaken_s)
            told = []
        told.append((seconds - before, rhythm))
    return before / 3600


def _count(
    name: str,
    job: Job,
    rhythm: Rhythm,
    seen: SilenceObservations,
    scene: Scene,
    kind: str,
    onset: float,
    found: float,
    counts: dict[str, Count],
) -> None:
    """The job hung ``onset`` after its last step line, in ``scene``, and ``found`` after it that was seen."""
    target = max(15.0, 3.0 * (rhythm.gap_s or 0.0))
    names = [
        f"hang: {kind}",
        f"begins: {name_of(scene)}",
        f"telemetry: {job.telemetry}",
        f"jitter: {job.jitter}",
        _rhythm_name(rhythm),
        f"{kind}, begun {name_of(scene)}, {job.telemetry}",
    ]
    for rule, delay in {**thresholds(rhythm), "looks": found}.items():
        counts[rule].add(max(delay, onset), onset, target, names)
    counts["looks"].each[name] = {
        "late": max(found, onset) - onset > 1.001 * target,
        "hang": kind,
        "scene": scene.name,
        "telemetry": job.telemetry,
        "jitter": job.jitter,
        "gap_s": round(rhythm.gap_s or 0.0, 2),
        "onset_s": round(onset, 1),
        "target_s": round(target, 1),
        "found_s": round(found, 1),
        "usual_s": round(usual_s(rhythm, LIMITS) or 0.0, 1),
        "allowed_s": round(allowed_s(rhythm, LIMITS) or 0.0, 1),
        "in_pause": in_pause(rhythm, LIMITS),
        "alike": pauses_alike(rhythm),
        "pauses": len(rhythm.pauses),
        "announced": announced(rhythm),
        "announces": announces(rhythm),
        "motion": seen.motion,
        "lulls_s": [round(seen.longest_lull_s, 1), round(seen.longest_pause_lull_s, 1)],
        "still_s": round(seen.gpu_idleness.still_s, 1) if seen.gpu_idleness is not None else None,
    }


def why_late(hang: Mapping[str, Any]) -> str:
    """What kept a hang (as ``--each`` has it) from being concluded in time."""
    if hang["motion"] == Motion.STORAGE:
        return "asleep in storage"
    if hang["motion"] == Motion.UNKNOWN:
        return "a node does not answer"
    if (hang["in_pause"] and hang["alike"] < PAUSES_KNOWN) or (not hang["announces"] and hang["pauses"] < PAUSES_KNOWN):
        return "may be the first pause of its kind"
    if hang["in_pause"] and (hang["lulls_s"][1] >= LULL_MOST_S or hang["motion"] in (Motion.LOOPS, Motion.WORKS)):
        return "as the job was in its pauses"
    if hang["usual_s"] > hang["target_s"]:
        return "its steps differ by as much"
    return "a GPU works" if hang["motion"] == Motion.WORKS else "margins"


def _rhythm_name(rhythm: Rhythm) -> str:
    gap_s = rhythm.gap_s or 0.0
    return "gap: " + ("< 1 s" if gap_s < 1 else "< 5 s" if gap_s < 5 else "< 20 s" if gap_s < 20 else ">= 20 s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--hangs", type=int, default=1, help="hangs tried in each job, each by itself")
    parser.add_argument("--provable", type=float, default=0.9, help="share of hangs in which the whole job only waits")
    parser.add_argument(
        "--joined", type=float, default=0.0, help="share of those in which every rank is in the collective"
    )
    parser.add_argument(
        "--answers", type=float, default=0.0, help="share of jobs whose flight recorder answers when it is asked"
    )
    parser.add_argument("--counters", type=float, default=0.9, help="share of jobs whose network counters can be read")
    parser.add_argument("--lulls", type=float, default=0.03, help="share of jobs whose pauses look like waiting")
    parser.add_argument("--blink", type=float, default=0.02, help="chance that one comparison in a pause looks so")
    parser.add_argument("--confirm", type=float, default=LIMITS.stall_confirm, help="as [judgement] stall_confirm")
    parser.add_argument("--slow", action="store_true", help="only jobs with steps of 20 to 120 s")
    parser.add_argument(
        "--kinds", action="store_true", help="also by kind of hang, of pause, of telemetry; each false alarm"
    )
    parser.add_argument(
        "--each", type=Path, help="file for what was known of each hang, to compare two programs by hang"
    )
    given = parser.parse_args()
    LIMITS = replace(LIMITS, stall_confirm=given.confirm)
    print(json.dumps(run(given)))
