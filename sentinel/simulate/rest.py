"""Detects when a history is finished: from then on only periodic events are left.

Most histories would spend most of their time like that. One in ``FULL`` goes on to its last second all the same, so that
whatever a daemon does after being idle for a while is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sentinel.engine import drain_reasons
from sentinel.engine.diagnostics.turns import DIAGNOSTICS
from sentinel.engine.node_return.state import Stage
from sentinel.engine.recovery import wait_timer
from sentinel.engine.watch.reconciliation import RECONCILE
from sentinel.engine.watch.routing import CHECK_JOBS, CHECK_NODES
from sentinel.model.records import IncidentState

if TYPE_CHECKING:
    from sentinel.simulate.world import World

FULL = 8
LOOKS_S = 20.0
LOOKS = 4  # in a row; between the first and the last of them everything that is repeated has come several times
WAITING_LOOKS = 12  # where something waits for what may still change by itself
_TIMERS = {RECONCILE, DIAGNOSTICS, drain_reasons.DRAIN_REASONS, CHECK_JOBS, CHECK_NODES}
_ENDED = {IncidentState.CLOSED, IncidentState.HELD}
_BREAKERS = {"breaker", "hang-breaker"}  # let go by themselves after a time
_RESTING = {Stage.REPAIR, Stage.RETURNED}


def looks_needed(world: World) -> int | None:
    """How many checks in a row must find no change; None: something is under way."""
    daemon = world.daemon
    if daemon is None or not daemon.ready or not world.is_idle or world.now_s < max(world.frozen_until_s, world.last_s):
        return None
    state, slurm = daemon.runner.state, world.slurm
    waits = [wait for plan in state.plans.values() for wait in plan.waits]
    ends = world.now(world.own_off_s + world.history.ends_s - world.now_s)
    beyond = {wait_timer(name) for name in state.plans if all(w.until is None or w.until > ends for w in waits)}
    if (
        world.crossings.slurm != "up"
        or world.store_full
        or slurm.next_due_s() is not None
        or any(job.completing or job.ghost for job in slurm.jobs.values())
        or any(program.runs and program.hung_at is not None for program in world.programs.newest.values())
        or not daemon.runner.is_idle(_TIMERS | beyond)
        or state.judging
        or any(wait.kind in _BREAKERS for wait in waits)
        or (world.history.setup.returns and any(r.stage not in _RESTING for r in state.returns.known.values()))
    ):
        return None
    over = not state.recoveries and not waits and all(i.state in _ENDED for i in state.incidents.values())
    return LOOKS if over else WAITING_LOOKS


class Rest:
    """Ends the history once it has been at rest for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._looks = 0
        self._writes = 0

    def begin(self) -> None:
        if self._world.history.number % FULL:
            self._world.later(LOOKS_S, self._look, idle=True)

    def _look(self) -> None:
        world = self._world
        needed, writes = looks_needed(world), world.store.written
        self._looks = self._looks + 1 if needed is not None and writes == self._writes else 0
        self._writes = writes
        if needed is not None and self._looks >= needed:
            world.ends_s = world.now_s
        else:
            world.later(LOOKS_S, self._look, idle=True)
