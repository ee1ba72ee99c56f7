"""Stories in which a recovery is disturbed: by kills, people, lost answers and other failures."""

from __future__ import annotations

import random

from sentinel.simulate.faults import PROGRAMS
from sentinel.simulate.histories import Happening, JobSpec, Setup, Value
from sentinel.simulate.stories import draws


def killed(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The daemon is killed in the middle of a recovery."""
    at_s = rng.uniform(*draws.FIRST_S)
    return Setup(), [draws.fault(rng, at_s), draws.cut(rng, at_s, "kill")]


def killed_often(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The daemon is killed several times in one recovery."""
    at_s = rng.uniform(*draws.FIRST_S)
    return Setup(), [
        draws.fault(rng, at_s),
        *(draws.cut(rng, draws.soon(rng, at_s), "kill") for _ in range(rng.randrange(2, 5))),
    ]


def lost(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Answers of Slurm, nodes or the store are lost in the middle of a recovery."""
    at_s = rng.uniform(*draws.FIRST_S)
    return Setup(), [draws.fault(rng, at_s), *(draws.cut(rng, at_s, "lose") for _ in range(rng.randrange(1, 4)))]


def two_faults(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Two failures at once, or one in the middle of the recovery from another."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
    second = at_s + rng.choice([0.0, rng.uniform(0.0, 3.0), rng.uniform(3.0, 20.0), rng.uniform(20.0, 120.0)])
    return setup, [draws.fault(rng, at_s, nodes=8, jobs=2), draws.fault(rng, second, nodes=8, jobs=2)]


def people(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """People act while Sentinel recovers a job."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob", opted_in=rng.random() < 0.7)))
    acts = [draws.person(rng, draws.soon(rng, at_s - rng.choice([0.0, 5.0])), 2) for _ in range(rng.randrange(1, 4))]
    return setup, [draws.fault(rng, at_s, nodes=8, jobs=2), *acts]


def slurmctld(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """slurmctld is gone, slow, refuses all or some requests, or crashes and forgets what it had not saved."""
    at_s = rng.uniform(*draws.FIRST_S)
    refused = ["slurmctld-refuses", "nodes-refused", "jobs-refused"]
    what = rng.choice(["slurmctld-gone", "slurmctld-slow", "slurmctld-crash", *refused])
    trouble = Happening(what, draws.soon(rng, at_s - 5.0), data={"for_s": rng.choice([2.0, 15.0, 90.0, 200.0])})
    return Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))), [draws.fault(rng, at_s, nodes=8, jobs=2), trouble]


def records(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Slurm's records of some nodes cannot be read for a while, those of the broken one often among them."""
    at_s = rng.uniform(*draws.FIRST_S)
    broken = draws.fault(rng, at_s)
    names = [broken.who, *(f"n{rng.randrange(6) + 1}" for _ in range(2))]
    spoiled = [
        Happening("record-spoiled", draws.soon(rng, at_s - 5.0), who, data={"for_s": rng.choice([5.0, 30.0, 120.0])})
        for who in rng.sample(names, rng.randrange(1, 4))
    ]
    return Setup(), [broken, *spoiled, *([draws.cut(rng, at_s, "kill")] if rng.random() < 0.3 else [])]


def network(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Messages late, lost, repeated, in another order; clocks apart; words of users; nothing to be read."""
    at_s = rng.uniform(*draws.FIRST_S)
    node = f"n{rng.randrange(6) + 1}"
    troubles = [
        Happening("lossy", at_s - 5.0, data={"for_s": rng.choice([20.0, 120.0])}),
        Happening("cut-off", at_s - 2.0, node, data={"for_s": rng.choice([10.0, 150.0])}),
        Happening("clock-off", 0.0, node, data={"by_s": rng.choice([-300.0, -20.0, 20.0, 300.0])}),
        Happening("freeze", draws.soon(rng, at_s), data={"for_s": rng.choice([3.0, 20.0, 100.0, 250.0])}),
        Happening("unreadable", draws.soon(rng, at_s), node),
        Happening("prints-xid", draws.soon(rng, at_s), "job0"),
    ]
    return Setup(), [draws.fault(rng, at_s), *rng.sample(troubles, rng.randrange(1, 4))]


def own_clock(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The clock of the daemon's host is wrong, and set while a job is recovered; the daemon may be killed beside it.

    MUNGE refuses messages of hosts whose clocks are 300 s apart, and so does Slurm.
    """
    at_s = rng.uniform(*draws.FIRST_S)
    off_s = [-290.0, -20.0, -2.0, 2.0, 20.0, 290.0]
    wrong = [Happening("own-clock", 0.0, data={"by_s": rng.choice(off_s)})] if rng.random() < 0.5 else []
    to_s = 0.0 if wrong and rng.random() < 0.7 else rng.choice(off_s)
    setting = Happening("own-clock", draws.soon(rng, at_s), data={"by_s": to_s})
    more = [draws.cut(rng, at_s, "kill")] if rng.random() < 0.4 else []
    return Setup(), [draws.fault(rng, at_s), *wrong, setting, *more]


def store(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The store is full for a while."""
    at_s = rng.uniform(*draws.FIRST_S)
    full = Happening("store-full", draws.soon(rng, at_s - 3.0), data={"for_s": rng.choice([1.0, 10.0, 120.0])})
    return Setup(), [draws.fault(rng, at_s), full, *([draws.cut(rng, at_s, "kill")] if rng.random() < 0.5 else [])]


def crowded(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """No spare node, node lists, arrays, heterogeneous jobs, dependencies, jobs that were not to be restarted."""
    at_s = rng.uniform(*draws.FIRST_S)
    jobs = rng.choice(
        [
            (JobSpec(nodes=6),),
            (JobSpec(nodes=6, least=4),),
            (JobSpec(nodes=4, least=2), JobSpec(nodes=2, user="bob")),
            (JobSpec(nodes=2, required=("n1", "n2")),),
            (JobSpec(nodes=2, feature=("n1", "n2")), JobSpec(nodes=2, user="bob")),
            (JobSpec(nodes=2, feature=("n1", "n2", "n3")),),
            (JobSpec(nodes=2, excluded=("n3", "n4")), JobSpec(nodes=2, user="bob")),
            (JobSpec(nodes=2, kind="array"), JobSpec(nodes=2, user="bob")),
            (JobSpec(nodes=2, kind="het"),),
            (JobSpec(nodes=4), JobSpec(nodes=4, kind="after")),
            (JobSpec(nodes=4, requeue=False), JobSpec(nodes=2, opted_in=False)),
            (JobSpec(nodes=3), JobSpec(nodes=3, user="bob"), JobSpec(nodes=2, user="eve")),
            (JobSpec(nodes=3, partition="train"), JobSpec(nodes=3, partition="short", user="bob")),
        ]
    )
    partitions = ("train", "short") if any(job.partition == "short" for job in jobs) else ("train",)
    setup = Setup(nodes=6, jobs=jobs, partitions=partitions)
    faults = [draws.fault(rng, at_s + more, jobs=len(jobs)) for more in (0.0, rng.uniform(0.0, 60.0))]
    return setup, faults[: rng.randrange(1, 3)]


def many(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Many nodes fail: together (the breaker) or one after the other (the budgets)."""
    at_s = rng.uniform(*draws.FIRST_S)
    nodes = 16
    jobs = tuple(JobSpec(nodes=2, user=user) for user in ("ada", "bob", "eve"))
    limits: dict[str, Value] = {"drain_fraction": rng.choice([0.1, 0.25, 0.5]), "drain_per_hour": rng.choice([2, 4, 6])}
    setup = Setup(
        nodes=nodes,
        switch_nodes=rng.choice([0, 4, 8]),
        jobs=jobs,
        limits={k: float(v) if k == "drain_fraction" else int(v) for k, v in limits.items()},
    )
    if rng.random() < 0.25:
        return setup, [Happening("storm", at_s, data={"nodes": rng.randrange(3, 12)})]
    gap_s = rng.choice([0.5, 5.0, 30.0])
    repaired = [Happening("repair", at_s + 400.0 + index) for index in range(rng.randrange(3))]
    return setup, [
        draws.fault(
            rng,
            at_s + index * gap_s,
            nodes=nodes,
            jobs=3,
            of=["gpu-off-bus", "gpu-memory", "node-lost", "gpu-firmware"],
        )
        for index in range(rng.randrange(3, 9))
    ] + repaired


def paused(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """An operator pauses Sentinel, and ends the pause."""
    at_s = rng.uniform(*draws.FIRST_S)
    pause = Happening("pause", at_s + rng.choice([-10.0, rng.uniform(0.0, 4.0), rng.uniform(0.0, 15.0)]))
    resume = Happening("resume", pause.at_s + rng.choice([1.0, 30.0, 200.0]))
    more = [draws.cut(rng, at_s, "kill")] if rng.random() < 0.4 else []
    return Setup(), [draws.fault(rng, at_s), pause, resume, *more]


def anything(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A mixture of all."""
    parts = [killed, lost, people, slurmctld, network, store, paused, two_faults]
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
    happenings: list[Happening] = []
    for part in rng.sample(parts, 3):
        happenings.extend(part(rng)[1])
    return setup, happenings


def watched(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Heartbeats and steps stay away: a lost node, a dead agent, a hang, a daemon that did not hear them."""
    at_s = rng.uniform(70.0, 120.0)  # by then a job has a rhythm
    job = f"job0/{rng.randrange(2)}"
    what = [Happening(rng.choice(["node-lost", "hang", "gpu-lost-silently", "agent-dead"]), at_s, job, {"for_s": 60.0})]
    if rng.random() < 0.2:
        what = end_that_slurm_forgets(rng, at_s)
    more = [
        Happening(
            "agent-dead", draws.soon(rng, at_s - 5.0), f"n{rng.randrange(6) + 1}", {"for_s": rng.choice([10.0, 90.0])}
        ),
        Happening("cut-off", draws.soon(rng, at_s - 5.0), job, {"for_s": rng.choice([10.0, 60.0])}),
        Happening("freeze", draws.soon(rng, at_s), data={"for_s": rng.choice([3.0, 20.0])}),
        draws.cut(rng, at_s, "lose"),
        Happening(
            "kill", draws.soon(rng, at_s), data={"nth": rng.randrange(9), "down_s": rng.choice([0.5, 10.0, 60.0])}
        ),
    ]
    return Setup(watched=True), [*what, *rng.sample(more, rng.randrange(3))]


def end_that_slurm_forgets(rng: random.Random, at_s: float) -> list[Happening]:
    """slurmctld is killed before it has saved that a job failed: it lists the job as running, and no process is there."""
    after_s = at_s + rng.uniform(0.1, 5.0)
    return [
        Happening(rng.choice([*PROGRAMS]), at_s, "job0"),
        Happening("slurmctld-crash", after_s, data={"for_s": rng.choice([2.0, 15.0])}),
    ]


def slow_end(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The last words, and seconds later the end; another failure, or a person, may come in between."""
    at_s = rng.uniform(*draws.FIRST_S)
    ends_s = rng.choice([1.0, 3.0, 8.0, 20.0, 60.0])
    said = ["program-error", "checkpoint-torn", "storage", "disk-full", "killed-process", "out-of-memory", "prints-xid"]
    said += ["application-xid", "gpu-memory-contained", "gpu-memory"]
    between_s = at_s + rng.uniform(0.0, ends_s + 5.0)
    more = [
        draws.fault(rng, between_s, nodes=8, jobs=2),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        Happening(rng.choice(["cancel", "hold", "requeue", "requeue-hold"]), between_s, "job0"),
        Happening("slurmctld-gone", between_s, data={"for_s": rng.choice([5.0, 60.0])}),
    ]
    limits = {"stop_confidence": rng.choice([0.8, 0.95])}
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), limits=limits)
    return setup, [
        Happening(rng.choice(said), at_s, "job0", {"ends_s": ends_s}),
        *rng.sample(more, rng.randrange(3)),
    ]


def requeue_held(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A person requeues and holds a job in the middle of its recovery, and releases it later or never."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
    held_s = rng.choice([at_s - rng.uniform(0.0, 20.0), draws.soon(rng, at_s)])
    more = [
        Happening("release", held_s + rng.uniform(1.0, 200.0), "job0"),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        draws.person(rng, draws.soon(rng, at_s), 2),
        draws.fault(rng, draws.soon(rng, at_s), nodes=8, jobs=2),
    ]
    held = Happening("requeue-hold", held_s, "job0")
    return setup, [draws.fault(rng, at_s, nodes=8), held, *rng.sample(more, rng.randrange(3))]


def in_turn(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Two nodes fail a job in turn, and too few others are left to go without both of them."""
    spare = rng.choice([1, 1, 2])
    setup = Setup(nodes=3 + spare, jobs=(JobSpec(nodes=2),))
    out = [Happening("drain", 1.0, f"n{4 + more}") for more in range(spare)]
    at_s = rng.uniform(*draws.FIRST_S)
    bad = [Happening("fails-each", at_s - 1.0, name) for name in rng.sample(["n1", "n2", "n3"], 2)]
    more = [
        Happening("resume-node", at_s + rng.uniform(100.0, 700.0), "n4"),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        Happening("requeue", at_s + rng.uniform(100.0, 700.0), "job0"),
    ]
    first = Happening("gpu-memory-contained", at_s, rng.choice(bad).who)
    return setup, [*out, *bad, first, *rng.sample(more, rng.randrange(3))]


def doubled(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A second daemon stands by; the active one is stopped for a while, or killed, in the middle of a recovery."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), daemons=2)

    def stopped(when_s: float) -> Happening:
        return Happening("freeze", when_s, data={"for_s": rng.choice([2.0, 4.0, 5.0, 6.0, 7.0, 12.0, 60.0])})

    more = [
        stopped(draws.soon(rng, at_s)),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        draws.person(rng, draws.soon(rng, at_s), 2),
        draws.fault(rng, draws.soon(rng, at_s), nodes=8, jobs=2),
        Happening("store-full", draws.soon(rng, at_s - 3.0), data={"for_s": rng.choice([1.0, 10.0, 30.0])}),
    ]
    return setup, [
        draws.fault(rng, at_s, nodes=8, jobs=2),
        stopped(at_s + rng.uniform(0.0, 15.0)),
        *rng.sample(more, rng.randrange(3)),
    ]
