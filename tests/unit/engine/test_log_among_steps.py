"""What a running job's log says is judged among its steps, as the same log is when it is read whole."""

from __future__ import annotations

from collections.abc import Callable

from in_memory.daemon import Daemon, incidents_of
from in_memory.world import World
from made_records import ended, later
from shipped import shipped_signatures

from sentinel.adapters.host.logfile import Block
from sentinel.agent.probes.joblog import Follower
from sentinel.model.records import Evidence, Kind, Where

Worlds = Callable[..., World]
QUOTED = 'sample 17: "NVRM: Xid (PCI:0000:61:00): 79, pid=1, name=python, GPU has fallen off the bus."\n'
RAISED = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 7, in <module>\nKeyError: 'labels'\n"


def steps(first: int, last: int) -> str:
    return "".join(f"step {step} | loss 2.990\n" for step in range(first, last + 1))


def followed(job: int, *printed: str) -> list[Evidence]:
    """What an agent passes on of a log that grew by one of ``printed`` in each second."""
    follower = Follower(
        shipped_signatures(), Where(node="n1", job=job, attempt=0, path="/x"), lines_per_s=50, burst=500
    )
    found: list[Evidence] = []
    line = 1
    for second, text in enumerate(printed):
        block = Block(text.encode(), first_line=line, fresh=second == 0)
        found += follower.read(block, later(second), float(second))
        found += follower.due(later(second), float(second))
        line += text.count("\n")
    return found + follower.finish(later(len(printed)), float(len(printed)))


async def test_what_a_job_trained_on_after_did_not_end_it(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    printed = (steps(1, 10) + QUOTED, steps(11, 20), steps(21, 40), RAISED)
    await daemon.observe([*followed(there.job, *printed), ended(there.job, at_s=4.0)])
    await daemon.quiet()
    ((name, (_, _, cause)),) = incidents_of(there.store).items()
    assert cause == "user_code"
    kept = there.store.incident(name)
    assert kept is not None
    told = [item for item in kept.evidence if item.kind == Kind.STEP]
    assert told, "a replay judges by the same lines"
    assert all(item.data["step"] for item in told)


async def test_what_no_step_follows_stays_the_cause(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    lost = QUOTED.partition('"')[2].replace('"', "")
    printed = (steps(1, 10), steps(11, 20), lost + "RuntimeError: CUDA error: unspecified launch failure\n")
    await daemon.observe([*followed(there.job, *printed), ended(there.job, at_s=3.0)])
    await daemon.quiet()
    ((_, _, cause),) = incidents_of(there.store).values()
    assert cause == "gpu_fallen_off_bus"


async def test_a_log_that_says_nothing_keeps_no_steps(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([*followed(there.job, steps(1, 10)), ended(there.job, at_s=1.0)])
    await daemon.quiet()
    (name,) = incidents_of(there.store)
    kept = there.store.incident(name)
    assert kept is not None
    assert [item.kind for item in kept.evidence] == [Kind.JOB_ENDED]
