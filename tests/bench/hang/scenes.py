"""Jobs for the bench of silent hangs, and what looks at their processes and GPUs show. Knows nothing of the rules.

No field data of this is public. What is assumed, and why:

- Steps of 0.2 to 20 s, evenly in the logarithm (published runs report 0.3 to 30 s), lognormal with jitter 0.02 to 0.3.
- Evaluations of 10 to 240 s and saves of 5 to 120 s, each at most a twentieth of the time; three jobs in ten do not print a
  line before them; every fourth saves by the clock, announced. Times vary by 15 to 30 %.
- In each step the GPUs stand for up to 15 % of it (input, optimizer on the host, stragglers); hiccups of 1 to 8 s at up to
  one step in 1,000, in which all wait for one. The step after a pause is like any other: until 26 November 2026 it looked
  like the pause before it, so that a job that waits in its pauses was seen to wait through the whole step, too.
- Telemetry: six jobs in ten run on nodes with DCGM's profiling fields (dcgm-exporter's defaults have them), three with power
  and utilisation alone, one with none.
- An evaluation works all GPUs in six jobs of ten and that of rank 0 alone, for which the others wait, in 1.5; in others the
  host computes (scores, generation in a server) or reads storage. Power in it is 0.5 to 1.0 of the usual: generation is
  bound by memory. Where only power is known, an evaluation at low power looks like spinning.
- A save writes in seven jobs of ten, sleeps in storage or computes on the host (serialises) in the rest; the GPUs stand.
- LULLS of the jobs only wait in evaluations, and as many in saves: another service does the work (an object store's
  client, a judge, a barrier of another kind).
- One comparison of two looks in BLINK of the cases shows no life although there is: it fell between two batches. That long
  comparisons show it as often as short ones is to our disadvantage.
- Of hangs PROVABLE only wait (a twentieth of them: a task is stopped). Of the rest a third loops on the host with all GPUs
  standing, a sixth sleeps in storage, a sixth keeps one GPU at full power while the others wait for it, and a third is on
  nodes that do not answer.
- In JOINED of the hangs that only wait every rank came to the collective (a link or GPU fails inside it, or ranks call
  different ones); in the others one rank did not, and its GPU is idle. The share is not known; 0 unless asked for.
- In ANSWERS of the jobs every rank's flight recorder can be read when the job is asked (PyTorch has one by default since
  2.8; it answers where its pipe or its debug server is set). Only a collective that all joined and none completes proves a
  hang. In all other hangs a rank is missing, as in a healthy pause in which the others wait for rank 0, and that proves
  nothing; nor do NCCL's counts that are equal and do not move. 0 unless asked for.
- Each job trains over the network. In COUNTERS of the jobs the adapters' counters can be read on each node (sysfs has them;
  in a virtual machine they may be missing). A step moves nothing in its first part: up to 0.4 of it in seven jobs of ten
  (gradients are reduced while they are computed), up to 0.9 in the others (they accumulate first). In a hiccup nothing is
  moved. An evaluation on GPUs moves data in half of the jobs (shards, scores of each batch), all other pauses none unless
  they write or read storage, which processes show.
- A job may hang in any second of its time, so that as many hangs begin in pauses as these take of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sentinel.detect.activity import GpuIdleness, Motion
from sentinel.detect.step_rhythm import PAUSE
from sentinel.model.records import Kind

TRAFFIC, POWER, NONE = "profiling", "power", "none"
LOW_POWER, FULL_POWER = 0.75, 0.9  # of the usual; see sentinel.detect.activity
FOR_EVER_S = 1e9
STRETCHES, NEWEST, STRETCH_S = 24, 6, 4.0  # as the agent remembers them


@dataclass(frozen=True)
class Scene:
    """What a stretch of time looks like: what the processes do, and whether the GPUs stand; perhaps another one later."""

    name: str
    processes: str  # waits, host, writes, storage, stopped, silent
    stands: bool
    power: float = 1.0
    blink: float = 0.0
    joined: bool = False  # every rank waits inside the collective, so that a kernel runs on each GPU
    quiet_s: float = FOR_EVER_S  # for so long after the last step line no network adapter moves data
    alone: bool = False  # where ``stands`` is false: one GPU works, and all others wait for it
    later: tuple[float, Scene] | None = None

    def then(self, after_s: float, scene: Scene) -> Scene:
        if self.later is not None and after_s > self.later[0]:
            scene, after_s = self.later[1].then(after_s, scene), self.later[0]
        return replace(self, later=(after_s, scene))

    def at(self, seconds: float) -> Scene:
        return self.later[1].at(seconds) if self.later is not None and seconds >= self.later[0] else self

    def parts(self, length_s: float) -> Iterator[tuple[Scene, float, float]]:
        """(scene, from, to) of a silence of so many seconds."""
        part, from_s = self, 0.0
        while part.later is not None:
            yield part, from_s, part.later[0]
            from_s, part = part.later
        yield part, from_s, length_s

    def motion(self, now_s: float, began_s: float | None, gpus: Gpus, rng: random.Random) -> Motion:
        """What the comparison of two looks shows; the former in a comparison that spans both scenes."""
        scene = self.at(now_s)
        if scene.processes != "stopped":
            scene = self.at(began_s or 0.0)
        if scene.processes == "stopped":
            return Motion.STOPPED
        if scene.processes == "silent":
            return Motion.UNKNOWN
        unseen = gpus.job.telemetry == NONE
        if rng.random() < scene.blink and (not unseen or gpus.counted):
            return Motion.QUIET if unseen else Motion.WAITS
        found = {"writes": Motion.WRITES, "storage": Motion.STORAGE}.get(scene.processes)
        if found is not None:
            return found
        word = gpus.word(scene)
        if word == "works":
            return Motion.WORKS
        if word == "unclear":
            return Motion.QUIET if gpus.counted and now_s <= scene.quiet_s else Motion.UNCLEAR
        return Motion.LOOPS if scene.processes == "host" else Motion.WAITS

    def blocked(self, now_s: float, gpus: Gpus) -> bool:
        """Whether looks show every GPU inside a collective; only profiling fields tell that from work at low power."""
        return self.at(now_s).joined and gpus.job.telemetry == TRAFFIC

    def proves(self, asked_s: float, gpus: Gpus) -> bool:
        """Whether the job, asked then, answers that all ranks joined a collective that does not complete."""
        return self.at(asked_s).joined and gpus.job.answers

    def gpu_idleness(self, now_s: float, gpus: Gpus, last: datetime) -> GpuIdleness | None:
        scene = self.at(now_s)
        if scene.processes == "silent" or not gpus.most_stand(scene):
            return None
        since_s, part = 0.0, self
        while part is not scene:
            if not gpus.most_stand(part):
                since_s = part.later[0]  # type: ignore[index]
            part = part.later[1]  # type: ignore[index]
        still_s = max(0.0, now_s - since_s - 1.0)  # telemetry is a second old
        return GpuIdleness(still_s, last + timedelta(seconds=now_s - still_s), tuple(gpus.idle_periods))


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
    telemetry: str
    idle: float  # share of each step in which the GPUs stand
    evaluation: Scene
    save: Scene
    answers: bool = False
    counters: bool = False  # whether what its network adapters moved can be read
    quiet: float = 0.0  # share of each step before they move anything


@dataclass
class Gpus:
    """What the agents remember of a job's GPUs: since when and for how long they idle_periods."""

    job: Job
    idle_periods: list[tuple[datetime, float]] = field(default_factory=list)
    seen_before: bool = False  # whether its nodes were asked in an earlier silence, so that it shows what they move

    @property
    def counted(self) -> bool:
        """Whether it is known that the job trains over the network."""
        return self.job.counters and self.seen_before

    def word(self, scene: Scene) -> str:
        """ "stands", "works" or "unclear", as far as the telemetry of the job's nodes can tell."""
        if self.job.telemetry == NONE:
            return "unclear"
        if scene.stands:
            return "stands"
        if self.job.telemetry == TRAFFIC or scene.power >= FULL_POWER:
            return "works"
        return "stands" if scene.power <= LOW_POWER else "unclear"

    def most_stand(self, scene: Scene) -> bool:
        """Whether it is known that all GPUs stand, or all but one that works."""
        return self.word(scene) == "stands" or (scene.alone and self.word(scene) == "works")

    def passed(self, scene: Scene, since: datetime, length_s: float) -> None:
        """The time between two step lines is over."""
        stood_from_s: float | None = None
        for part, from_s, to_s in scene.parts(length_s):
            if part.name not in ("step", "hiccup") and (self.word(part) == "stands" or part.alone):
                stood_from_s = from_s if stood_from_s is None else stood_from_s
                continue
            if stood_from_s is not None:
                self._add(since + timedelta(seconds=stood_from_s), from_s - stood_from_s)
                stood_from_s = None
            if part.name == "hiccup":
                self._add(since + timedelta(seconds=from_s), min(to_s - from_s, 8.0))
            elif part.name == "step" and self.job.idle * self.job.step_s >= STRETCH_S:
                self._add(since + timedelta(seconds=from_s), self.job.idle * self.job.step_s)
        if stood_from_s is not None:
            self._add(since + timedelta(seconds=stood_from_s), length_s - stood_from_s)

    def _add(self, since: datetime, length_s: float) -> None:
        if length_s < STRETCH_S or self.job.telemetry == NONE:
            return
        self.idle_periods.append((since + timedelta(seconds=0.5), length_s))
        if len(self.idle_periods) > STRETCHES:
            self.idle_periods.remove(min(self.idle_periods[:-NEWEST], key=lambda item: item[1]))


def draw(rng: random.Random, lulls: float, answers: float, counters: float, *, slow: bool = False) -> Job:
    step_s = rng.uniform(20, 120) if slow else 10 ** rng.uniform(-0.7, 1.3)  # 0.2 to 20 s
    eval_every, save_every = rng.choice([0, 100, 200, 250, 500, 1000]), rng.choice([100, 250, 500, 1000, 2000])
    if slow:
        eval_every, save_every = rng.choice([0, 10, 20, 25, 50]), rng.choice([10, 25, 50, 100])
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
        telemetry=rng.choices((TRAFFIC, POWER, NONE), (6, 3, 1))[0],
        idle=rng.uniform(0.0, 0.15),
        evaluation=_evaluation(rng, lulls),
        save=_save(rng, lulls),
        answers=rng.random() < answers,
        counters=rng.random() < counters,
        quiet=rng.uniform(0.0, 0.4) if rng.random() < 0.7 else rng.uniform(0.4, 0.9),
    )


def _evaluation(rng: random.Random, lulls: float) -> Scene:
    if rng.random() < lulls:
        return Scene("evaluation that waits", "waits", stands=True)
    kind = rng.choices(("works", "alone", "host", "storage"), (6, 1.5, 1.5, 1))[0]
    if kind in ("works", "alone"):
        power, alone = rng.uniform(0.5, 1.0), kind == "alone"
        quiet_s = FOR_EVER_S if alone or rng.random() < 0.5 else 0.0
        name = "evaluation by rank 0" if alone else "evaluation"
        return Scene(name, "waits", stands=False, power=power, alone=alone, quiet_s=quiet_s)
    return Scene(f"evaluation on {kind}", kind, stands=True)


def _save(rng: random.Random, lulls: float) -> Scene:
    if rng.random() < lulls:
        return Scene("save that waits", "waits", stands=True)
    kind = rng.choices(("writes", "storage", "host"), (7, 1.5, 1.5))[0]
    return Scene(f"save: {kind}", kind, stands=True)


def hang_scene(rng: random.Random, provable: float, joined: float = 0.0) -> tuple[str, Scene]:
    if rng.random() < provable:
        kind = "stopped" if rng.random() < 0.05 else "waits"
    else:
        kind = rng.choices(("host", "storage", "works", "silent"), (2, 1, 1, 2))[0]
    if kind == "works":
        return "a GPU at full power", Scene("hang", "waits", stands=False, alone=True)
    if kind == "waits" and joined and rng.random() < joined:
        return "waits, all ranks in the collective", Scene("hang", kind, stands=True, joined=True)
    return kind, Scene("hang", kind, stands=True)


def lines(job: Job, rng: random.Random, hours: float, blink: float) -> Iterator[tuple[float, int, str, str, Scene]]:
    """(seconds, step, kind, text, what the time since the last step line looked like) of every line the job prints."""
    step_scene = Scene("step", "host", stands=False, blink=blink, quiet_s=job.quiet * job.step_s)
    hiccup = Scene("hiccup", "host", stands=False, blink=blink, alone=True)
    evaluation, save = replace(job.evaluation, blink=blink), replace(job.save, blink=blink)
    scene = step_scene
    now, step, saved, paused_s = job.compile_s, 0, 0.0, 0.0  # ``paused_s``: since the last step line
    while now < hours * 3600:
        step += 1
        took = job.step_s * rng.lognormvariate(0, job.jitter)
        if rng.random() < job.hiccup:
            took += rng.uniform(1, 8)
            scene = hiccup if scene is step_scene else scene
        if step == 1:
            took += job.compile_s
        now += took
        if step % job.stride == 0:
            if scene is step_scene and took > job.step_s:
                scene = replace(step_scene, quiet_s=job.quiet * took)
            elif paused_s:  # the step after a pause looks like any other
                scene = scene.then(paused_s, replace(step_scene, quiet_s=paused_s + job.quiet * took))
            yield now, step, Kind.STEP, "", scene
            scene, paused_s = step_scene, 0.0
        if job.eval_every and step % job.eval_every == 0:
            if job.announced:
                yield now + 0.1, step, PAUSE, "running evaluation", scene
            scene = evaluation
            paused_s = job.eval_s * rng.uniform(0.85, 1.15)
            now += paused_s
        due = now - saved >= job.save_timed_s if job.save_timed_s else step % job.save_every == 0
        if due:
            saved = now
            if job.announced:
                yield now + 0.1, step, PAUSE, "saving checkpoint", scene
            scene = evaluation.then(paused_s, save) if scene is evaluation else save
            save_s = job.save_s * rng.uniform(0.8, 1.3)
            now, paused_s = now + save_s, paused_s + save_s


def name_of(scene: Scene) -> str:
    """Where in the job's life a silence lies, as the generator knows it."""
    if scene.name in ("step", "hiccup"):
        return "in a step"
    return "in a save" if scene.name.startswith("save") else "in an evaluation"
