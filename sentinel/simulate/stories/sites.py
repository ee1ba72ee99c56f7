"""Stories of what a site has set: modes, returns of nodes, reservations, spare nodes."""

from __future__ import annotations

import dataclasses
import random

from sentinel.simulate.faults import HARDWARE, PROGRAMS
from sentinel.simulate.histories import Happening, JobSpec, Setup
from sentinel.simulate.stories import draws, recoveries


def observed(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Sentinel only looks on, at everything or at either drains or restarts."""
    setup, happenings = rng.choice([recoveries.two_faults, recoveries.killed, recoveries.people])(rng)
    drain, restart = rng.choice([("observe", "observe"), ("observe", "act"), ("act", "observe")])
    return dataclasses.replace(setup, mode=drain, restart_mode=restart), happenings


def suggested(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """People are asked, and approve or refuse some of it, all of it, or nothing."""
    setup, happenings = rng.choice(
        [
            recoveries.two_faults,
            recoveries.killed,
            recoveries.people,
            recoveries.lost,
            recoveries.crowded,
            in_allocation,
        ]
    )(rng)
    modes = rng.choice([("suggest", "suggest"), ("suggest", "suggest"), ("act", "suggest"), ("suggest", "act")])
    approval_s = rng.choice([60.0, 300.0, 7200.0])
    for _ in range(rng.randrange(4)):
        at_s = draws.soon(rng, rng.uniform(*draws.FIRST_S)) + rng.choice([5.0, 60.0, 300.0])
        what = rng.choice(["approve", "approve", "approve", "refuse"])
        happenings.append(
            Happening(what, at_s, data={"part": rng.random() < 0.3, "late_s": rng.choice([0.0, 0.0, 20.0])})
        )
    return (
        dataclasses.replace(setup, mode=modes[0], restart_mode=modes[1], approval_s=approval_s),
        happenings,
    )


def again(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """The same job fails again and again."""
    at_s = rng.uniform(*draws.FIRST_S)
    what = rng.choice([*PROGRAMS, "gpu-memory-contained", "gpu-off-bus"])
    times = rng.randrange(3, 7)
    gap_s = rng.choice([5.0, 15.0, 30.0, 90.0])
    return Setup(nodes=10), [Happening(what, at_s + index * gap_s, f"job0/{index % 2}") for index in range(times)]


def put_back(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Nodes fail, and people put them back, repaired or not, while others wait for the budget; some fail anew."""
    at_s = rng.uniform(*draws.FIRST_S)
    jobs = tuple(JobSpec(nodes=rng.choice([1, 2, 3]), user=user) for user in ("ada", "bob", "eve"))
    limits: dict[str, float] = {"drain_fraction": rng.choice([0.1, 0.25, 0.5]), "drain_per_hour": rng.choice([2, 4, 9])}
    setup = Setup(
        nodes=rng.choice([8, 16]),
        jobs=jobs,
        limits=limits,
        returns=rng.random() < 0.4,
        spares=rng.choice([0, 0, 1]),
    )
    of = ["gpu-off-bus", "gpu-memory", "node-lost", "gpu-firmware"]
    happenings = []
    for _ in range(rng.randrange(2, 6)):
        at_s += rng.choice([0.5, 2.0, 30.0, 90.0])
        happenings.append(draws.fault(rng, at_s, nodes=7, jobs=3, of=of))
    for _ in range(rng.randrange(1, 4)):
        at_s += rng.choice([20.0, 45.0, 120.0, 300.0])
        what = rng.choice(["repair", "repair", "resume-node", "drain", "hold", "release", "requeue-hold"])
        job, node = f"job{rng.randrange(3)}", f"n{rng.randrange(7) + 1}"
        who = {"repair": "", "resume-node": node, "drain": node}.get(what, job)
        happenings.append(Happening(what, at_s, who))
        if rng.random() < 0.4:
            cut = rng.choice(["kill", "slurmctld-crash"])
            happenings.append(Happening(cut, at_s + rng.choice([-3.0, 1.0, 5.0, 20.0])))
        if rng.random() < 0.4:
            at_s += rng.choice([15.0, 50.0])
            happenings.append(draws.fault(rng, at_s, nodes=7, jobs=3, of=of))
    return setup, happenings


def returned(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Drained nodes are tested, reset and returned, while people, faults, kills and gaps come in between."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=True)
    faults = [draws.fault(rng, at_s, jobs=2, of=list(HARDWARE))]
    later_s = at_s + rng.uniform(5.0, 300.0)
    for _ in range(rng.randrange(1, 4)):
        faults.append(
            rng.choice(
                [
                    draws.fault(rng, at_s + rng.uniform(0.0, 500.0), nodes=8, jobs=2),
                    draws.cut(rng, at_s + rng.uniform(5.0, 300.0), rng.choice(["kill", "lose"])),
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


def done(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """A machine fails while the job is done: shortly before, in its epilogs, or right after them."""
    at_s = rng.uniform(*draws.FIRST_S)
    jobs = (JobSpec(runs_s=at_s + rng.uniform(-1.5, 1.0)), JobSpec(user="bob"))
    happenings = [Happening(rng.choice(sorted(HARDWARE)), at_s, f"job0/{rng.randrange(2)}")]
    if rng.random() < 0.5:
        happenings.append(draws.cut(rng, at_s, "kill"))
    return Setup(jobs=jobs), happenings


def reserved(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Nodes are in reservations, for maintenance or for a user, while they or others fail."""
    at_s = rng.uniform(*draws.FIRST_S)
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=rng.random() < 0.2)
    where = rng.choice(["job0/0", "job0/1", "job1/0", f"n{rng.randrange(8) + 1}"])
    begins_s = at_s + rng.choice([rng.uniform(-30.0, 0.0), rng.uniform(-10.0, 0.0), rng.uniform(0.0, 15.0)])
    happenings = [
        Happening("maintenance", begins_s, where, {"for_s": rng.choice([20.0, 90.0, 300.0])}),
        Happening(rng.choice(list(HARDWARE)), at_s, where)
        if rng.random() < 0.7
        else draws.fault(rng, at_s, nodes=8, jobs=2),
    ]
    if happenings[1].what == "diagnostic-failed":
        happenings[1] = Happening("diagnostic-failed", at_s, "n8")
    more = [
        Happening("reservation", begins_s, data={"first": 4, "nodes": rng.randrange(1, 5), "for_s": 200.0}),
        draws.fault(rng, draws.soon(rng, at_s), nodes=8, jobs=2),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        draws.person(rng, draws.soon(rng, at_s), 2),
        Happening("slurmctld-gone", draws.soon(rng, at_s), data={"for_s": rng.choice([5.0, 60.0])}),
    ]
    return setup, [*happenings, *rng.sample(more, rng.randrange(3))]


def in_allocation(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Jobs with spare nodes of their own, whose launchers start anew in the allocation."""
    at_s = rng.uniform(*draws.FIRST_S)
    spec = rng.choice([JobSpec(nodes=4, trains_on=3), JobSpec(nodes=4, trains_on=2), JobSpec(nodes=3, trains_on=3)])
    setup = Setup(nodes=8, jobs=(spec, *((JobSpec(user="bob"),) if rng.random() < 0.4 else ())))

    def fault(when_s: float) -> Happening:
        what = rng.choice([*HARDWARE, *HARDWARE, *PROGRAMS])
        node = f"n{rng.randrange(8) + 1}" if what == "diagnostic-failed" else f"job0/{rng.randrange(spec.nodes)}"
        return Happening(what, when_s, node)

    more = [
        fault(at_s + rng.choice([rng.uniform(0.0, 5.0), rng.uniform(5.0, 20.0), rng.uniform(20.0, 200.0)])),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        draws.person(rng, draws.soon(rng, at_s), 1),
        Happening(
            rng.choice(["slurmctld-gone", "slurmctld-slow", "slurmctld-crash"]), draws.soon(rng, at_s - 5.0),
            data={"for_s": rng.choice([2.0, 15.0, 90.0])},
        ),
    ]  # fmt: skip
    return setup, [fault(at_s), *rng.sample(more, rng.randrange(3))]


def spares(rng: random.Random) -> tuple[Setup, list[Happening]]:
    """Nodes are kept for restarts, and all others are busy: jobs lose nodes, one after the other or at once."""
    at_s = rng.uniform(*draws.FIRST_S)
    spares = rng.randrange(1, 3)
    jobs = (JobSpec(nodes=3), JobSpec(nodes=3, user=rng.choice(["ada", "bob"])))
    setup = Setup(nodes=6 + spares, jobs=jobs, spares=spares)
    more = [
        draws.fault(rng, draws.soon(rng, at_s), nodes=6 + spares, jobs=2),
        Happening(rng.choice(sorted(HARDWARE)), draws.soon(rng, at_s), f"n{6 + rng.randrange(spares) + 1}"),
        draws.cut(rng, at_s, rng.choice(["kill", "lose"])),
        draws.person(rng, draws.soon(rng, at_s), 2),
        Happening(
            rng.choice(["slurmctld-gone", "slurmctld-slow", "slurmctld-crash"]), draws.soon(rng, at_s - 5.0),
            data={"for_s": rng.choice([2.0, 15.0, 90.0])},
        ),
        Happening("repair", at_s + 200.0),
    ]  # fmt: skip
    return setup, [draws.fault(rng, at_s, jobs=2), *rng.sample(more, rng.randrange(4))]
