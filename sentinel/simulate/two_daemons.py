"""Two daemons on one store: the live lease says which acts, also when one is stopped (SIGSTOP) and goes on later.

Each daemon is a process with an event loop of its own; while two of them run, each goes on for a moment in turn. The one
that stands by is not simulated but for its looks at the lease: it does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sentinel.adapters.slurm.fenced import FencedVerbs
from sentinel.adapters.slurm.writer import Verbs
from sentinel.adapters.store.lease import DaemonRow, LeaseView
from sentinel.daemon.lease import Lease
from sentinel.errors import Superseded, Unavailable
from sentinel.simulate.daemon import SimulatedDaemon, StoryLog
from sentinel.simulate.happened import DaemonWrote

if TYPE_CHECKING:
    from sentinel.simulate.world import World

_TURN_S = (0.01, 0.3)  # how long one of two daemons goes on before the other does


class LeaseTables:
    """As ``sentinel.adapters.store.lease`` keeps them."""

    def __init__(self) -> None:
        self.holder, self.token = "", 0
        self.daemons: dict[str, DaemonRow] = {}


class DaemonsLease:
    """``LeaseStore`` of one daemon."""

    def __init__(self, world: World, tables: LeaseTables) -> None:
        self._world, self._tables = world, tables
        self.token: int | None = None

    def look_at_lease(self, own: DaemonRow | None = None) -> LeaseView:
        self.require_lease()
        if own is not None:
            self._tables.daemons[own.holder] = own
        return LeaseView(self._tables.holder, self._tables.token, tuple(self._tables.daemons.values()))

    def take_lease(self, holder: str, seen: LeaseView) -> bool:
        tables = self._tables
        if (tables.holder, tables.token) != (seen.holder, seen.token):
            return False
        tables.holder, tables.token = holder, tables.token + 1
        self.token = tables.token
        return True

    def require_lease(self) -> None:
        if self._world.store_full:
            raise Unavailable("the store does not answer: database or disk is full")
        if self.token is not None and not self.is_active:
            raise Superseded(f"{self._tables.holder} is the active daemon")

    def forget_daemons(self, holders: Sequence[str]) -> None:
        for holder in holders:
            self._tables.daemons.pop(holder, None)

    @property
    def is_active(self) -> bool:
        return self.token == self._tables.token


class Membership:
    """One daemon's part in the lease, and its name."""

    def __init__(self, world: World, tables: LeaseTables, name: str, superseded: TwoDaemons) -> None:
        self.name = name
        self.store = DaemonsLease(world, tables)
        row = DaemonRow(name, f"http://{name}", "simulated", 0, world.now())
        self.lease = Lease(
            self.store, row, world.settings.daemon.lease_s, StoryLog(world), seconds=lambda: world.now_s,
            superseded=lambda _error: superseded.replaced(self),
        )  # fmt: skip
        self._world = world

    def fenced(self, verbs: Verbs) -> Verbs:
        return FencedVerbs(verbs, self.lease)

    def writes(self, what: str) -> None:
        """It changes something outside, now."""
        self._world.happened(DaemonWrote(self.name, self.store.is_active, what))


class TwoDaemons:
    def __init__(self, world: World) -> None:
        self._world = world
        self._tables = LeaseTables()
        self._begun = 0
        self._awake: list[SimulatedDaemon] = []  # but for the one that goes on now
        self._stopped: list[SimulatedDaemon] = []

    def begin(self) -> None:
        self.stand_by()
        self.stand_by()

    def stand_by(self) -> None:
        """A process of the daemon begins: it waits for the lease."""
        self._begun += 1
        part = Membership(self._world, self._tables, f"daemon-{self._begun}", self)
        self._look(part)

    def _look(self, part: Membership) -> None:
        try:
            taken = part.lease.try_to_take()
        except Unavailable:
            taken = False
        if taken:
            self._acts(part)
        else:
            self._world.later(part.lease.every_s / 2, lambda: self._look(part), idle=True)

    def _acts(self, part: Membership) -> None:
        world = self._world
        world.lives += 1
        world.say_what(f"-- {part.name} is the active daemon (life {world.lives})")
        self._goes_on(SimulatedDaemon(world, part))

    # -- processes -------------------------------------------------------------------------------------------------

    def _goes_on(self, daemon: SimulatedDaemon) -> None:
        if self._world.daemon is None:
            self._world.daemon = daemon
            return
        self._awake.append(daemon)
        self._world.later(self._world.rng.uniform(*_TURN_S), self._turn, idle=True)

    def _turn(self) -> None:
        world = self._world
        if self._awake and world.daemon is not None:
            world.daemon.loop.stop()
            self._awake.append(world.daemon)
            world.daemon = self._awake.pop(0)
            world.later(world.rng.uniform(*_TURN_S), self._turn, idle=True)

    def stop(self, for_s: float) -> None:
        """SIGSTOP of the daemon that goes on now, and SIGCONT after a while."""
        world, daemon = self._world, self._world.daemon
        if daemon is None:
            return
        daemon.loop.stop()
        self._stopped.append(daemon)
        world.daemon = self._awake.pop(0) if self._awake else None
        world.away.append((world.now_s, world.now_s + min(for_s, 2 * world.settings.daemon.lease_s)))
        world.later(for_s, partial(self._wakes, daemon))

    def _wakes(self, daemon: SimulatedDaemon) -> None:
        self._world.say_what(f"-- {daemon.name} goes on")
        self._stopped.remove(daemon)
        self._goes_on(daemon)

    def replaced(self, part: Membership) -> None:
        """The process has lost the lease: it begins anew, see ``sentinel.daemon.run``."""
        daemon = self._world.daemon
        if daemon is not None and daemon.name == part.name and not self._world.crossings.dead:
            self._world.say_what(f"-- {part.name} has lost the lease")
            self.ended(0.0)

    def ended(self, down_s: float) -> None:
        """The process that goes on now is gone; another one is started after ``down_s``."""
        world = self._world
        world.stop_daemon()
        world.daemon = self._awake.pop(0) if self._awake else None
        world.later(down_s, self.stand_by)

    def over(self) -> None:
        for daemon in (*self._awake, *self._stopped):
            daemon.loop.drop()
