"""Jobs that make steps and then stand still, for tests of how they are watched."""

from __future__ import annotations

from datetime import timedelta

from made_records import evidence

from in_memory.daemon import FakeOrders
from in_memory.watch import Scene
from sentinel.model.records import Kind, Source


def tasks(*states: str) -> dict[str, object]:
    return {"tasks": [{"rank": rank, "state": state, "pid": 40 + rank} for rank, state in enumerate(states)]}


async def steps(scene: Scene, count: int, *, last: int, gap_s: float = 1.0) -> None:
    """The job has printed ``count`` steps, the last one just now."""
    await scene.fleets.take()
    for back in range(count - 1, -1, -1):
        scene.live.note(
            evidence(
                Kind.STEP,
                at_s=-gap_s * back,
                source=Source.PROGRESS,
                job=scene.world.job,
                attempt=0,
                data={"step": last - back},
            )
        )
    scene.settled()
    scene.read(scene.world.job)
    await scene.check_jobs()


async def look(scene: Scene, after_s: float, *, read: bool = True, tick_s: float = 0.25) -> list[str]:
    """Time passes in looks; all the while the batch host's agent says that it has read the log (``read``)."""
    until = scene.world.slurm.clock.at + timedelta(seconds=after_s)
    while (left_s := (until - scene.world.slurm.clock.at).total_seconds()) > 0.0:
        await scene.advance(min(tick_s, left_s))
        if read:
            scene.read(scene.world.job)
        await scene.check_jobs()
    return scene.kinds


def still(*states: str, cpu_s: float = 5.0, **rest: object) -> dict[str, object]:
    """Tasks that move no byte; the GPUs of the node as given."""
    each = [
        {"rank": rank, "state": state, "pid": 40 + rank, "cpu_s": cpu_s, "read_bytes": 10, "written_bytes": 10}
        for rank, state in enumerate(states)
    ]
    return {"tasks": each, "has_gpus": False, "gpus": None, **rest}


def waiting() -> FakeOrders:
    """Both nodes of the job say that its processes only wait."""
    return FakeOrders({(node, "task_states"): still("S", "S") for node in ("n1", "n2")})
