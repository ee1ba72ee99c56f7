"""Draws what happens in a story, and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sentinel.simulate.faults import HARDWARE, PROGRAMS
from sentinel.simulate.histories import Happening, Setup, Value

FIRST_S = (30.0, 90.0)  # when the first failure happens
_CROSSINGS = 70  # a recovery crosses so often between its first evidence and its last notice

Story = Callable[[random.Random], tuple[Setup, list[Happening]]]


def fault(rng: random.Random, at_s: float, *, nodes: int = 6, jobs: int = 1, of: Sequence[str] = ()) -> Happening:
    """Any failure, of any job or node."""
    what = rng.choice(list(of) or [*HARDWARE, *PROGRAMS])
    job = f"job{rng.randrange(jobs)}/{rng.randrange(2)}" if jobs else "n1"
    node = f"n{rng.randrange(nodes) + 1}"
    if what == "diagnostic-failed":
        return Happening(what, at_s, f"n{nodes}")
    return Happening(what, at_s, node if what in HARDWARE and (rng.random() < 0.2 or not jobs) else job)


def cut(rng: random.Random, at_s: float, what: str) -> Happening:
    data: dict[str, Value] = {"nth": rng.randrange(_CROSSINGS), "after": rng.random() < 0.5}
    if what == "kill":
        data["down_s"] = rng.choice([0.5, 2.0, 10.0, 60.0, 150.0, 400.0])
    else:
        data["times"] = rng.choice([1, 1, 2, 5])
    return Happening(what, at_s, data=data)


def soon(rng: random.Random, at_s: float) -> float:
    """A moment in the middle of the recovery, or a while after it."""
    return at_s + rng.choice([rng.uniform(0.0, 4.0), rng.uniform(0.0, 15.0), rng.uniform(15.0, 200.0)])


def person(rng: random.Random, at_s: float, jobs: int) -> Happening:
    what = rng.choice(["cancel", "hold", "release", "requeue", "drain", "resume-node", "reboot"])
    who = f"job{rng.randrange(jobs)}"
    if what in ("drain", "resume-node", "reboot"):
        who += f"/{rng.randrange(2)}"
    return Happening(what, at_s, who)
