"""What happens in a random story: jobs and acts, drawn from a seed before anything is started.

Acts name a job by its place in the story and a node by its place in the job (or among the idle nodes), so that the same seed
gives the same story although Slurm places jobs otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

GPUS = 2


@dataclass(frozen=True)
class Size:
    """Of a story and its lab; ranges are from the least to the most."""

    nodes: int
    bad_nodes: int  # at most so many are taken out: every job can still run
    jobs: tuple[int, int]
    acts: tuple[int, int]
    groups: tuple[tuple[str, int], ...]  # of acts: weight


_GROUPS = (("node", 3), ("job", 4), ("people", 3), ("ours", 5), ("storage", 1))
SMALL = Size(nodes=8, bad_nodes=2, jobs=(1, 3), acts=(4, 10), groups=_GROUPS)
LARGE = Size(
    nodes=16,
    bad_nodes=5,
    jobs=(6, 9),
    acts=(24, 40),
    groups=(("node", 4), ("job", 8), ("people", 3), ("ours", 4), ("storage", 1)),
)
KINDS = {"plain": 6, "shared": 2, "array": 1, "het": 1, "elastic": 1, "not ours": 1}  # kind of job: weight
NODES_OF = {"plain": (1, 2), "shared": (1, 1), "array": (1, 1), "het": (2, 2), "elastic": (2, 2), "not ours": (1, 1)}

# Xids that convict their GPU, and one that only makes its node suspect.
CONVICTING = (48, 64, 74, 79, 95, 119)
CONTAINED = 94
NODE_FAULTS = {"xid": 5, "ecc": 1, "node-crash": 2}
JOB_FAULTS = {
    "hang": 2,
    "contained": 2,
    "crash": 1,
    "oom-gpu": 1,
    "oom-host": 1,
    "nan": 1,
    "corrupt": 3,
    "disk-full": 1,
}
SHARED_FAULTS = {"storage": 1}
PEOPLE = {
    "scancel": 2, "hold": 2, "requeue": 1, "requeuehold": 1, "drain": 2, "resume": 1, "suspend": 1, "reconfigure": 1,
    "pause": 3, "repair": 3, "boot": 2,
}  # fmt: skip
OURS = {
    "kill": 6, "kill twice": 2, "restart": 1, "freeze": 2, "agent": 2, "agent frozen": 1, "slurmd": 2, "munged": 1,
    "controller restart": 2, "controller kill": 1, "controller frozen": 1,
}  # fmt: skip
AT_NODES = ("agent", "agent frozen", "slurmd")  # of ours, at a node of a job
STEPS = ("verdict ", "kind=drain ", "kind=requeue_hold ", "kind=choose_checkpoint ", "kind=exclude ", "kind=release ")


@dataclass(frozen=True)
class JobAsked:
    kind: str
    nodes: int
    steps: int = 100_000


@dataclass(frozen=True)
class Act:
    what: str
    job: int | None = None  # place in the story's jobs; None: an idle node, or nobody's
    place: int = 0  # of the node in the job, or of the rank
    number: int = 0  # Xid, or which kind
    pause_s: float = 0.0  # waited before it
    after: str = ""  # ... and for this line of the daemon's log, for some seconds at most
    lasts_s: float = 0.0

    def __str__(self) -> str:
        where = "" if self.job is None else f" job {self.job} place {self.place}"
        when = f"after {self.pause_s} s" + (f" and {self.after!r}" if self.after else "")
        more = (f" number {self.number}" if self.number else "") + (f" for {self.lasts_s} s" if self.lasts_s else "")
        return f"{self.what}{where}{more}, {when}"


@dataclass(frozen=True)
class Drawn:
    seed: int
    number: int
    jobs: tuple[JobAsked, ...]
    acts: tuple[Act, ...]
    size: Size = SMALL

    def __str__(self) -> str:
        jobs = [f"  job {place}: {job}" for place, job in enumerate(self.jobs)]
        return "\n".join([f"--seed {self.seed} --replay {self.number}", *jobs, *(f"  {act}" for act in self.acts)])


def chosen(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def draw(seed: int, number: int, size: Size = SMALL) -> Drawn:
    """Story ``number`` of ``seed``."""
    random = Random(f"{seed}:{number}")
    jobs = _jobs(random, size)
    # One node that goes bad under a job is in every story: without it nothing of ours is put to the test.
    first = Act(chosen(random, NODE_FAULTS), random.randrange(len(jobs)), random.randrange(2))
    acts = [_numbered(random, first)]
    bad = 1
    for _ in range(random.randint(size.acts[0] - 1, size.acts[1] - 1)):
        groups = {name: weight for name, weight in size.groups if name != "node" or bad < size.bad_nodes}
        group = chosen(random, groups)
        bad += group == "node"
        acts.append(_numbered(random, _when(random, _act(random, group, len(jobs)))))
    if random.random() < 0.4:  # something is going on already
        acts[0], acts[1] = _at_once(acts[1]), acts[0]
    return Drawn(seed, number, tuple(jobs), tuple(acts), size)


def _jobs(random: Random, size: Size) -> list[JobAsked]:
    left = size.nodes - size.bad_nodes - 1  # a person may drain one more
    jobs = []
    for _ in range(random.randint(*size.jobs)):
        kind = chosen(random, KINDS)
        nodes = random.randint(*NODES_OF[kind])
        if nodes <= left:
            left -= nodes
            jobs.append(JobAsked(kind, nodes, 300 if random.random() < 0.1 else 100_000))
    return jobs or [JobAsked("plain", 1)]


def _act(random: Random, group: str, jobs: int) -> Act:
    job, place = random.randrange(jobs), random.randrange(2)
    if group == "node":
        idle = random.random() < 0.2
        return Act(chosen(random, NODE_FAULTS), None if idle else job, place)
    if group == "job":
        return Act(chosen(random, JOB_FAULTS), job, place)
    if group == "people":
        what = chosen(random, PEOPLE)
        return Act(
            what, None if what == "drain" and random.random() < 0.5 else job, place, lasts_s=random.choice((3, 8))
        )
    if group == "ours":
        what = chosen(random, OURS)
        lasts = {"freeze": (3, 12, 35), "munged": (3, 15), "agent": (0, 6), "agent frozen": (6, 20)}.get(
            what, (0, 1, 4)
        )
        return Act(what, job if what in AT_NODES else None, place, lasts_s=random.choice(lasts))
    return Act(chosen(random, SHARED_FAULTS), lasts_s=random.choice((3, 8)))


def _when(random: Random, act: Act) -> Act:
    """Some at once, some seconds later, some at the heels of a step of a recovery."""
    moment = random.random()
    pause = 0.0 if moment < 0.3 else round(random.uniform(0, 3), 2)
    after = random.choice(STEPS) if moment > 0.65 else ""
    return replace(act, pause_s=pause, after=after)


def _at_once(act: Act) -> Act:
    return replace(act, after="")


def _numbered(random: Random, act: Act) -> Act:
    number = {"xid": random.choice(CONVICTING), "contained": CONTAINED, "corrupt": random.randrange(8)}.get(act.what, 0)
    return replace(act, number=number)
