"""A job whose checkpoints nodes list, check and move: the scripted nodes, and the daemon's half that asks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from made_records import evidence, incident, plan, step, verdict

from in_memory.daemon import Daemon, FakeOrders
from in_memory.world import World
from sentinel.actions.means import Task
from sentinel.checkpoints.records import Part, Tier
from sentinel.config.settings import Recovery
from sentinel.daemon.effects.checkpoints import FleetCheckpoints
from sentinel.errors import Timeout, Unavailable
from sentinel.log import Log
from sentinel.model.records import Cause, JobView, Kind, Source, StepKind, Verdict

GLOBAL, LOCAL = "/shared/run", "/nvme/%N/run"
BOTH = json.dumps({"sentinel": {"restart": True, "global": [GLOBAL], "local": [LOCAL]}})
SHARED = json.dumps({"sentinel": {"restart": True, "global": [GLOBAL]}})
NEITHER = json.dumps({"sentinel": {"restart": True}})
LOST = verdict(Cause.NODE_FAILURE, drain=("n2",))
NOBODY = verdict(Cause.NCCL_HANG_UNKNOWN)


def shared(step_: int, *, valid: bool | None = True, level: str = "checksum", host: str = "n1") -> Part:
    return Part(
        host=host, root=GLOBAL, path=f"{GLOBAL}/step-{step_}", key=f"step-{step_}", step=step_, tier="global",
        format="dcp", bytes=1000, valid=valid, level=level, reason="" if valid else "torn", world_size=4,
    )  # fmt: skip


def local(host: str, step_: int, *owners: int, valid: bool | None = True) -> Part:
    root = LOCAL.replace("%N", host)
    tier: Tier = "local"
    return Part(
        host=host, root=root, path=f"{root}/step-{step_}", key=f"step-{step_}", step=step_, tier=tier, format="nvrx",
        bytes=1000, valid=valid, level="checksum", reason="" if valid else "torn", whole=False, world_size=4,
        owners=frozenset(owners), marked=True,
    )  # fmt: skip


class Nodes(FakeOrders):
    """Agents that list what lies on them; ``silent`` ones do not answer. The shared folder looks alike from all."""

    def __init__(self, *parts: Part, silent: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.parts, self.silent = parts, silent
        self.moved: list[tuple[str, list[str]]] = []
        self.stuck: set[str] = set()  # nodes that cannot move anything

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        self.asked.append((node, str(kind), arguments))
        if node in self.silent:
            raise Timeout(f"the agent of {node} did not answer")
        if str(kind) == "quarantine":
            if node in self.stuck:
                raise Unavailable(f"the agent of {node} could not do it")
            assert isinstance(arguments["paths"], list)
            self.moved.append((node, sorted(arguments["paths"])))
            return {"moved": []}
        roots = arguments["roots"]
        assert isinstance(roots, list)
        listings = []
        for root in roots:
            here = [p for p in self.parts if p.tier == root["tier"] and p.root == root["path"]]
            listings.append([replace(p, host=node).to_json() for p in here if p.tier == "global" or p.host == node])
        return {"listings": listings}

    def listed(self) -> list[tuple[str, str]]:
        return [(node, str(a["roots"][0]["tier"])) for node, kind, a in self.asked if kind == "inventory"]  # type: ignore[index]


class Case:
    """The job of the world ran on n1 and n2, two ranks each, and failed in its first attempt."""

    def __init__(
        self,
        world: World,
        orders: FakeOrders,
        *,
        comment: str = BOTH,
        seconds: Callable[[], float] | None = None,
        store: Any = None,
        **recovery: Any,
    ) -> None:
        self.world = world
        world.slurm.jobs[world.job].record["comment"] = comment
        self.daemon = Daemon(world)
        self.orders = orders
        self.checkpoints = FleetCheckpoints(
            orders=orders, live=self.daemon.live, fleets=self.daemon.fleets, store=store or world.store,
            recovery=Recovery(**recovery), log=Log(self.daemon.stream), seconds=seconds,
        )  # fmt: skip

    async def view(self) -> JobView:
        return (await self.daemon.fleets.take()).jobs[self.world.job]

    async def ended(self) -> None:
        """It failed, and the step before has put it back into the queue, held."""
        await self.daemon.fleets.take()
        self.world.slurm.end(self.world.job, exit_code=1)
        self.world.slurm.back_to_queue(self.world.slurm.jobs[self.world.job], held=True)

    def task(self, judged: Verdict = NOBODY, kind: StepKind = StepKind.CHOOSE_CHECKPOINT, attempt: int = 0) -> Task:
        this = step(kind, job=self.world.job, attempt=attempt)
        return Task(incident(job=self.world.job, attempt=attempt), judged, plan(this), this)

    async def choose(self, judged: Verdict = NOBODY, attempt: int = 0) -> dict[str, Any]:
        return dict(await self.checkpoints.choose(self.task(judged, attempt=attempt), await self.view()))

    async def quarantine(self, chosen: Mapping[str, Any], judged: Verdict = NOBODY) -> dict[str, Any]:
        task = self.task(judged, StepKind.QUARANTINE)
        return dict(await self.checkpoints.quarantine(task, await self.view(), chosen))

    def stepped(self, number: int) -> None:
        self.daemon.live.note(
            evidence(Kind.STEP, source=Source.PROGRESS, job=self.world.job, attempt=0, data={"step": number})
        )


async def failed(world: World, orders: FakeOrders, **how: Any) -> Case:
    made = Case(world, orders, **how)
    await made.ended()
    return made


WHOLE_LOCAL = (local("n1", 300, 0, 1), local("n2", 300, 2, 3))
