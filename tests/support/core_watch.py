"""The daemon's watching half over a Slurm in memory: what it would report is kept, what it would probe is scripted."""

from __future__ import annotations

from collections.abc import Sequence

from core_daemon import SETTINGS, Daemon, FakeOrders
from core_world import World

from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.watch import Watch
from sentinel.log import Log
from sentinel.model import Evidence, NodeView
from sentinel.settings import Settings


class Seconds:
    """Stands in for the module ``time``: monotonic seconds that move by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Ports:
    """slurmd's port of each node: None where it answers, else the reason why it does not."""

    def __init__(self) -> None:
        self.answers: dict[str, str | None] = {}
        self.asked: list[str] = []

    async def __call__(self, view: NodeView, _deadline_s: float) -> str | None:
        self.asked.append(view.name)
        return self.answers.get(view.name)


class Scene:
    """A ``Watch`` as the daemon wires it; ``reported`` is what it observed, in order."""

    def __init__(self, world: World, *, orders: FakeOrders | None = None, settings: Settings = SETTINGS) -> None:
        self.world = world
        self.daemon = Daemon(world, orders=orders, settings=settings)
        self.live, self.fleets = self.daemon.live, self.daemon.fleets
        self.reported: list[Evidence] = []
        clock = world.slurm.clock
        self.watch = Watch(
            live=self.live, fleets=self.fleets, store=world.store, settings=settings, clock=clock,
            telemetry=self.daemon.telemetry, log=Log(self.daemon.stream), observe=self.observe,
            inquiry=Inquiry(self.daemon.orders, self.live, clock),
        )  # fmt: skip

    async def observe(self, items: Sequence[Evidence]) -> None:
        """As the judge does: what was seen is remembered."""
        for item in items:
            self.live.note(item)
        self.reported.extend(items)

    @property
    def kinds(self) -> list[str]:
        return [item.kind for item in self.reported]
