"""Generates histories from a seed: one story for each kind of trouble, and one in which anything happens."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from sentinel.simulate.faults import HARDWARE, PROGRAMS
from sentinel.simulate.histories import Happening, History, JobSpec, Setup, Value

FIRST_S = (30.0, 90.0)  # when the first failure happens
REST_S = 900.0  # after the last thing that happens, until everything must have come to rest
_CROSSINGS = 70  # a recovery crosses so often between its first evidence and its last notice

Story = Callable[[random.Random], tuple[Setup, list[Happening]]]


def _fault(rng: random.Random, at_s: float, *, nodes: int = 6, jobs: int = 1, of: Sequence[str] = ()) -> Happening:
    """Any failure, of any job or node."""
    what = rng.choice(list(of) or [*HARDWARE, *PROGRAMS])
    job = f"job{rng.randrange(jobs)}/{rng.randrange(2)}" if jobs else "n1"
    node = f"n{rng.randrange(nodes) + 1}"
    if what == "diagnostic-failed":
        return Happening(what, at_s, f"n{nodes}")
    return Happening(what, at_s, node if what in HARDWARE and (rng.random() < 0.2 or not jobs) else job)


def _cut(rng: random.Random, at_s: float, what: str) -> Happening:
    data: dict[str, Value] = {"nth": rng.randrange(_CROSSINGS), "after": rng.random() < 0.5}
    if what == "kill":
        data["down_s"] = rng.choice([0.5, 2.0, 10.0, 60.0, 150.0, 400.0])
    else:
        data["times"] = rng.choice([1, 1, 2, 5])
    return Happening(what, at_s, data=data)


def _soon(rng: random.Random, at_s: float) -> float:
    """A moment in the middle of the recovery, or a while after it."""
    return at_s + rng.choice([rng.uniform(0.0, 4.0), rng.uniform(0.0, 15.0), rng.uniform(15.0, 200.0)])


def _killed(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The daemon is killed in the middle of a recovery."""
    at_s = rng.uniform(*FIRST_S)
    return Setup(), [_fault(rng, at_s), _cut(rng, at_s, "kill")]


def _killed_often(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The daemon is killed several times in one recovery."""
    at_s = rng.uniform(*FIRST_S)
    return Setup(), [_fault(rng, at_s), *(_cut(rng, _soon(rng, at_s), "kill") for _ in range(rng.randrange(2, 5)))]


def _lost(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Answers of Slurm, nodes or the store are lost in the middle of a recovery."""
    at_s = rng.uniform(*FIRST_S)
    return Setup(), [_fault(rng, at_s), *(_cut(rng, at_s, "lose") for _ in range(rng.randrange(1, 4)))]


def _two_faults(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Two failures at once, or one in the middle of the recovery from another."""
    at_s = rng.uniform(*FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
    second = at_s + rng.choice([0.0, rng.uniform(0.0, 3.0), rng.uniform(3.0, 20.0), rng.uniform(20.0, 120.0)])
    return setup, [_fault(rng, at_s, nodes=8, jobs=2), _fault(rng, second, nodes=8, jobs=2)]


def _person(rng: random.Random, at_s: float, jobs: int) -> Happening:
    what = rng.choice(["cancel", "hold", "release", "requeue", "drain", "resume-node", "reboot"])
    who = f"job{rng.randrange(jobs)}"
    if what in ("drain", "resume-node", "reboot"):
        who += f"/{rng.randrange(2)}"
    return Happening(what, at_s, who)


def _people(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """People act while Sentinel recovers a job."""
    at_s = rng.uniform(*FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob", opted_in=rng.random() < 0.7)))
    acts = [_person(rng, _soon(rng, at_s - rng.choice([0.0, 5.0])), 2) for _ in range(rng.randrange(1, 4))]
    return setup, [_fault(rng, at_s, nodes=8, jobs=2), *acts]


def _slurmctld(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """slurmctld is gone, slow, refuses, or crashes and forgets what it had not saved."""
    at_s = rng.uniform(*FIRST_S)
    what = rng.choice(["slurmctld-gone", "slurmctld-slow", "slurmctld-refuses", "slurmctld-crash"])
    trouble = Happening(what, _soon(rng, at_s - 5.0), data={"for_s": rng.choice([2.0, 15.0, 90.0, 200.0])})
    return Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))), [_fault(rng, at_s, nodes=8, jobs=2), trouble]


def _network(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Messages late, lost, repeated, in another order; clocks apart; words of users; nothing to be read."""
    at_s = rng.uniform(*FIRST_S)
    node = f"n{rng.randrange(6) + 1}"
    troubles = [
        Happening("lossy", at_s - 5.0, data={"for_s": rng.choice([20.0, 120.0])}),
        Happening("cut-off", at_s - 2.0, node, data={"for_s": rng.choice([10.0, 150.0])}),
        Happening("clock-off", 0.0, node, data={"by_s": rng.choice([-300.0, -20.0, 20.0, 300.0])}),
        Happening("freeze", _soon(rng, at_s), data={"for_s": rng.choice([3.0, 20.0, 100.0, 250.0])}),
        Happening("unreadable", _soon(rng, at_s), node),
        Happening("prints-xid", _soon(rng, at_s), "job0"),
    ]
    return Setup(), [_fault(rng, at_s), *rng.sample(troubles, rng.randrange(1, 4))]


def _store(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The store is full for a while."""
    at_s = rng.uniform(*FIRST_S)
    full = Happening("store-full", _soon(rng, at_s - 3.0), data={"for_s": rng.choice([1.0, 10.0, 120.0])})
    return Setup(), [_fault(rng, at_s), full, *([_cut(rng, at_s, "kill")] if rng.random() < 0.5 else [])]


def _crowded(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """No spare node, node lists, arrays, heterogeneous jobs, dependencies, jobs that were not to be restarted."""
    at_s = rng.uniform(*FIRST_S)
    jobs = rng.choice(
        [
            (JobSpec(nodes=6),),
            (JobSpec(nodes=6, least=4),),
            (JobSpec(nodes=4, least=2), JobSpec(nodes=2, user="bob")),
            (JobSpec(nodes=2, required=("n1", "n2")),),
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
    faults = [_fault(rng, at_s + more, jobs=len(jobs)) for more in (0.0, rng.uniform(0.0, 60.0))]
    return setup, faults[: rng.randrange(1, 3)]


def _many(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Many nodes fail: together (the breaker) or one after the other (the budgets)."""
    at_s = rng.uniform(*FIRST_S)
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
        _fault(
            rng,
            at_s + index * gap_s,
            nodes=nodes,
            jobs=3,
            of=["gpu-off-bus", "gpu-memory", "node-lost", "gpu-firmware"],
        )
        for index in range(rng.randrange(3, 9))
    ] + repaired


def _observed(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Sentinel only looks on."""
    setup, happenings = rng.choice([_two_faults, _killed, _people])(rng)
    return Setup(setup.nodes, setup.partitions, setup.jobs, "observe", setup.limits), happenings


def _suggested(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """People are asked, and approve or refuse some of it, all of it, or nothing."""
    setup, happenings = rng.choice([_two_faults, _killed, _people, _lost, _crowded])(rng)
    modes = rng.choice([("suggest", "suggest"), ("suggest", "suggest"), ("act", "suggest"), ("suggest", "act")])
    approval_s = rng.choice([60.0, 300.0, 7200.0])
    for _ in range(rng.randrange(4)):
        at_s = _soon(rng, rng.uniform(*FIRST_S)) + rng.choice([5.0, 60.0, 300.0])
        what = rng.choice(["approve", "approve", "approve", "refuse"])
        happenings.append(
            Happening(what, at_s, data={"part": rng.random() < 0.3, "late_s": rng.choice([0.0, 0.0, 20.0])})
        )
    return (
        dataclasses.replace(setup, mode=modes[0], restart_mode=modes[1], approval_s=approval_s),
        happenings,
    )


def _paused(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """An operator pauses Sentinel, and ends the pause."""
    at_s = rng.uniform(*FIRST_S)
    pause = Happening("pause", at_s + rng.choice([-10.0, rng.uniform(0.0, 4.0), rng.uniform(0.0, 15.0)]))
    resume = Happening("resume", pause.at_s + rng.choice([1.0, 30.0, 200.0]))
    more = [_cut(rng, at_s, "kill")] if rng.random() < 0.4 else []
    return Setup(), [_fault(rng, at_s), pause, resume, *more]


def _again(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The same job fails again and again."""
    at_s = rng.uniform(*FIRST_S)
    what = rng.choice([*PROGRAMS, "gpu-memory-contained", "gpu-off-bus"])
    times = rng.randrange(3, 7)
    gap_s = rng.choice([5.0, 15.0, 30.0, 90.0])
    return Setup(nodes=10), [Happening(what, at_s + index * gap_s, f"job0/{index % 2}") for index in range(times)]


def _returned(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Drained nodes are tested, reset and returned, while people, faults, kills and gaps come in between."""
    at_s = rng.uniform(*FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=True)
    faults = [_fault(rng, at_s, jobs=2, of=list(HARDWARE))]
    later_s = at_s + rng.uniform(5.0, 300.0)
    for _ in range(rng.randrange(1, 4)):
        faults.append(
            rng.choice(
                [
                    _fault(rng, at_s + rng.uniform(0.0, 500.0), nodes=8, jobs=2),
                    _cut(rng, at_s + rng.uniform(5.0, 300.0), rng.choice(["kill", "lose"])),
                    Happening(
                        rng.choice(["drain", "resume-node", "node-lost", "reboot"]), later_s, f"n{rng.randrange(3) + 1}"
                    ),
                    Happening("repair", later_s),
                    Happening(
                        "cut-off", later_s, f"n{rng.randrange(3) + 1}", data={"for_s": rng.choice([30.0, 120.0])}
                    ),
                    Happening("slurmctld-gone", later_s, data={"for_s": rng.choice([5.0, 60.0])}),
                    Happening("slurmctld-crash", at_s + rng.uniform(10.0, 400.0), data={"for_s": 5.0}),
                    Happening("requeue", later_s + 100.0, "job0"),
                    Happening("freeze", later_s, data={"for_s": rng.choice([10.0, 60.0])}),
                ]
            )
        )
    return setup, faults


def _done(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A machine fails while the job is done: shortly before, in its epilogs, or right after them."""
    at_s = rng.uniform(*FIRST_S)
    jobs = (JobSpec(runs_s=at_s + rng.uniform(-1.5, 1.0)), JobSpec(user="bob"))
    happenings = [Happening(rng.choice(sorted(HARDWARE)), at_s, f"job0/{rng.randrange(2)}")]
    if rng.random() < 0.5:
        happenings.append(_cut(rng, at_s, "kill"))
    return Setup(jobs=jobs), happenings


def _reserved(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Nodes are in reservations, for maintenance or for a user, while they or others fail."""
    at_s = rng.uniform(*FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=rng.random() < 0.2)
    where = rng.choice(["job0/0", "job0/1", "job1/0", f"n{rng.randrange(8) + 1}"])
    begins_s = at_s + rng.choice([rng.uniform(-30.0, 0.0), rng.uniform(-10.0, 0.0), rng.uniform(0.0, 15.0)])
    happenings = [
        Happening("maintenance", begins_s, where, {"for_s": rng.choice([20.0, 90.0, 300.0])}),
        Happening(rng.choice(list(HARDWARE)), at_s, where)
        if rng.random() < 0.7
        else _fault(rng, at_s, nodes=8, jobs=2),
    ]
    if happenings[1].what == "diagnostic-failed":
        happenings[1] = Happening("diagnostic-failed", at_s, "n8")
    more = [
        Happening("reservation", begins_s, data={"first": 4, "nodes": rng.randrange(1, 5), "for_s": 200.0}),
        _fault(rng, _soon(rng, at_s), nodes=8, jobs=2),
        _cut(rng, at_s, rng.choice(["kill", "lose"])),
        _person(rng, _soon(rng, at_s), 2),
        Happening("slurmctld-gone", _soon(rng, at_s), data={"for_s": rng.choice([5.0, 60.0])}),
    ]
    return setup, [*happenings, *rng.sample(more, rng.randrange(3))]


def _anything(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A mixture of all."""
    parts = [_killed, _lost, _people, _slurmctld, _network, _store, _paused, _two_faults]
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
    happenings: list[Happening] = []
    for part in rng.sample(parts, 3):
        happenings.extend(part(rng)[1])
    return setup, happenings


def _watched(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Heartbeats and steps stay away: a lost node, a dead agent, a hang, a daemon that did not hear them."""
    at_s = rng.uniform(70.0, 120.0)  # by then a job has a rhythm
    job = f"job0/{rng.randrange(2)}"
    what = [Happening(rng.choice(["node-lost", "hang", "gpu-lost-silently", "agent-dead"]), at_s, job, {"for_s": 60.0})]
    more = [
        Happening(
            "agent-dead", _soon(rng, at_s - 5.0), f"n{rng.randrange(6) + 1}", {"for_s": rng.choice([10.0, 90.0])}
        ),
        Happening("cut-off", _soon(rng, at_s - 5.0), job, {"for_s": rng.choice([10.0, 60.0])}),
        Happening("freeze", _soon(rng, at_s), data={"for_s": rng.choice([3.0, 20.0])}),
        _cut(rng, at_s, "lose"),
        Happening("kill", _soon(rng, at_s), data={"nth": rng.randrange(9), "down_s": rng.choice([0.5, 10.0, 60.0])}),
    ]
    return Setup(watched=True), [*what, *rng.sample(more, rng.randrange(3))]


def _in_allocation(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Jobs with spare nodes of their own, whose launchers start anew in the allocation."""
    at_s = rng.uniform(*FIRST_S)
    spec = rng.choice([JobSpec(nodes=4, trains_on=3), JobSpec(nodes=4, trains_on=2), JobSpec(nodes=3, trains_on=3)])
    setup = Setup(nodes=8, jobs=(spec, *((JobSpec(user="bob"),) if rng.random() < 0.4 else ())))

    def fault(when_s: float) -> Happening:
        what = rng.choice([*HARDWARE, *HARDWARE, *PROGRAMS])
        node = f"n{rng.randrange(8) + 1}" if what == "diagnostic-failed" else f"job0/{rng.randrange(spec.nodes)}"
        return Happening(what, when_s, node)

    more = [
        fault(at_s + rng.choice([rng.uniform(0.0, 5.0), rng.uniform(5.0, 20.0), rng.uniform(20.0, 200.0)])),
        _cut(rng, at_s, rng.choice(["kill", "lose"])),
        _person(rng, _soon(rng, at_s), 1),
        Happening(
            rng.choice(["slurmctld-gone", "slurmctld-slow", "slurmctld-crash"]), _soon(rng, at_s - 5.0),
            data={"for_s": rng.choice([2.0, 15.0, 90.0])},
        ),
    ]  # fmt: skip
    return setup, [fault(at_s), *rng.sample(more, rng.randrange(3))]


STORIES: Mapping[str, Story] = {
    "killed": _killed,
    "killed-often": _killed_often,
    "lost-answers": _lost,
    "two-faults": _two_faults,
    "people": _people,
    "slurmctld": _slurmctld,
    "network": _network,
    "store": _store,
    "crowded": _crowded,
    "many-nodes": _many,
    "observe": _observed,
    "suggest": _suggested,
    "paused": _paused,
    "again": _again,
    "anything": _anything,
    "returned": _returned,
    "reserved": _reserved,
    "in-allocation": _in_allocation,
    "watched": _watched,
    "done": _done,
}
_REST_S = {"watched": 420.0}  # Slurm itself sets a silent node down after 300 s
_RARE = ("watched", "done")  # in turn: one takes ten times as long as others, the other has little to tell
_TURNS = [*(name for name in STORIES if name not in _RARE)] * 8


def history_of(seed: int, number: int, story: str | None = None) -> History:
    """The history of this number; the same for the same seed, story and release."""
    round_, turn = divmod(number, len(_TURNS) + 1)
    name = story or (_TURNS[turn] if turn < len(_TURNS) else _RARE[round_ % len(_RARE)])
    rng = random.Random(f"{seed}/{name}/{number}")  # noqa: S311 - repeatable, not secret
    setup, happenings = STORIES[name](rng)
    happenings.sort(key=lambda one: one.at_s)
    last_s = max((one.at_s for one in happenings), default=0.0)
    longest_s = max((float(one.data.get(key, 0.0)) for one in happenings for key in ("for_s", "down_s")), default=0.0)
    rest_s = _REST_S.get(name, REST_S)
    return History(seed, number, name, setup, tuple(happenings), last_s + longest_s + rest_s)
