"""Prunes the store once a day: what is over and old is forgotten for good, so that no clock alone is believed for that.

A host may start with a clock that is months ahead, until NTP has set it; the daemon's own goes on from there for as long as
it runs (``sentinel.daemon.clock``). All history would be old by it.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from sentinel.daemon.api.explanation import drained_incidents
from sentinel.daemon.runner import Runner
from sentinel.daemon.wiring import DaemonParts
from sentinel.engine.events import HistoryForgotten
from sentinel.engine.node_return import state as returns
from sentinel.model.records import Fleet

_CONTRADICTS = timedelta(days=1)  # beyond what a clock is off that somebody looks after


async def prune(base: DaemonParts, runner: Runner) -> None:
    """Forget what is over and old, or more than the store may take, once it is known which nodes are out of service.

    Raises:
        Unavailable: the database does not answer.
    """
    fleet = base.live.fleet
    if fleet is None:
        base.log.warning("not-pruned", reason="Slurm has not said yet for which incidents nodes are drained")
        return
    now, store, limits = await _certain(base, fleet), base.store, base.settings.daemon
    before = now - timedelta(days=limits.retention_days)
    returning = await asyncio.to_thread(store.get, returns.KEPT, {})
    spared = drained_incidents(fleet, returning) | runner.state.unfinished()
    kept = await asyncio.to_thread(store.forget_beyond, limits.store_bytes, now, before, spared)
    await runner.handle(HistoryForgotten(base.clock.now(), kept, frozenset(spared)))
    base.log.info("pruned", kept_since=kept)


async def _certain(base: DaemonParts, fleet: Fleet) -> datetime:
    """A time that has come, whichever of these is ahead: the clocks of the daemon, its host, the database's server, and
    the last that Slurm told or the daemon before this one wrote. It is earlier than now where all was quiet."""
    own, server = base.clock.now(), await asyncio.to_thread(base.store.server_time)
    clocks = {"host": base.clock.host(), **({"database": server} if server is not None else {})}
    for whose, at in clocks.items():
        if abs(own - at) > _CONTRADICTS:
            base.log.warning(
                "clock-contradicted", daemon=own.isoformat(), by=whose, says=at.isoformat(),
                fix="set the clock that is wrong, then restart the daemon, whose own follows no such jump",
            )  # fmt: skip
    told = [at for job in fleet.jobs.values() for at in (job.started_at, job.ended_at) if at is not None]
    written = base.clock.since_written()
    reached = max([*told, *([written] if written is not None else [])], default=own)
    return min(own, reached, *clocks.values())
