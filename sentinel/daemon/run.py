"""Starts the daemon: take the lease, load the state, resume what was under way, serve until stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import CollectorRegistry

from sentinel import __version__
from sentinel.adapters.slurm.connect import connect
from sentinel.adapters.store.store import Store, sqlite_url
from sentinel.adapters.syslog import Syslog
from sentinel.config.settings import Settings
from sentinel.config.signals_files import load_signals
from sentinel.config.signals_toml import Signals as KnownSignals
from sentinel.daemon.api.accounts import name_of
from sentinel.daemon.api.server import Server
from sentinel.daemon.api.status import settings_digest
from sentinel.daemon.audit.export import AuditExport
from sentinel.daemon.effects.diagnostics import check_deadlines
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.effects.slurmd_probe import EXHAUSTED
from sentinel.daemon.fleet_metrics import FleetMetrics
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.prometheus_signals import connect_signals
from sentinel.daemon.ingest.trends import read_trends
from sentinel.daemon.runner import Runner
from sentinel.daemon.wiring import (
    DaemonParts,
    api_server,
    engine_runner,
    event_files,
    operators_of,
    page_server,
    people_views,
    stored_state,
)
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import HistoryForgotten, Started, TrendsRead
from sentinel.engine.watch.events import ResourceExhausted, WatchStarted
from sentinel.errors import FileError, Unavailable, UserError
from sentinel.log import Log
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, SettingChanged
from sentinel.telemetry import Telemetry
from sentinel.wire import to_json

_LEASE = "active"
_IN_FORCE = "settings_in_force"  # stored setting: what the newest start had in force
_PRUNE_FIRST = timedelta(minutes=10)  # soon enough that a daemon restarted every day prunes as well
# Thresholds of the garbage collector. A cluster's nodes and jobs are hundreds of thousands of long-lived objects; scanning
# them for every few hundred new ones took a tenth of the daemon's time at 2,048 nodes. Reference cycles wait for this many
# allocations, a few MB.
_GARBAGE = (20_000, 20, 20)
_LEASE_S = 15.0  # a dead daemon is replaced after this; at once if it ran on this host


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


async def run(settings: Settings, log: Log) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    check_deadlines(settings)
    syslog = Syslog(settings.daemon.audit_syslog) if settings.daemon.audit_syslog else None
    store = _store(settings, log)
    holder = f"{socket.gethostname()}:{os.getpid()}"
    await _become_active(store, holder, log)
    live, telemetry = ClusterView(), Telemetry(CollectorRegistry())
    reader, writer, description = connect(settings.slurm, lambda result: telemetry.slurm.labels(result=result).inc())
    log.info("starting", slurm=description, store=store.engine.dialect.name, listen=settings.daemon.listen)
    fleets = FleetSnapshots(reader, live, telemetry, log)
    base = DaemonParts(settings, store, live, OrderBook(), reader, writer, fleets, SystemClock(), telemetry, log)
    known = load_signals(Path(settings.prometheus.rules) if settings.prometheus.rules else None)
    signals = connect_signals(settings, known.signals, clock=base.clock, log=log, telemetry=telemetry)
    stored = await asyncio.to_thread(stored_state, store, settings)
    runner = engine_runner(base, stored, signals, known.counters)
    operators = operators_of(base)
    views = people_views(base, signals, known, operators)
    server, page = api_server(base, runner, views), page_server(base, views, operators)
    asyncio.get_running_loop().set_exception_handler(partial(_report_exhaustion, runner))
    try:
        await fleets.take()  # which job runs on which nodes: needed to group evidence of one failure
    except Unavailable as error:
        log.warning("carrying-on-without-slurm", reason=error.message)
    await runner.handle(Started(base.clock.now(), stored))
    await _listen(server, settings)
    await asyncio.to_thread(_note_start, store, settings)
    if page is not None:
        await page.start()
    files = event_files(settings.daemon, runner.report, telemetry, log)
    tasks = [asyncio.create_task(folder.run()) for folder in files]
    measure = FleetMetrics(store, live, settings, telemetry, base.clock).run(log)
    tasks.append(asyncio.create_task(measure))
    if syslog is not None:
        tasks.append(asyncio.create_task(AuditExport(store, syslog, telemetry, log).run()))
    if signals is not None:
        tasks.append(asyncio.create_task(signals.run(runner.observe, settings.prometheus.every_s)))
    await _serve(base, holder, runner, known)
    for task in tasks:
        task.cancel()
    if signals is not None:
        await signals.close()
    await runner.stop()
    if page is not None:
        await page.stop()
    await server.stop()
    with suppress(Unavailable):
        store.commit([Audited(_of_daemon("stopped", {}, {}))])
    store.drop_lease(_LEASE)
    store.close()


def _of_daemon(action: str, before: dict[str, Any], after: dict[str, Any]) -> AuditEntry:
    now, host = datetime.now(UTC), socket.gethostname()
    return AuditEntry(now, name_of(os.getuid()), host, action, Stage.DONE, "daemon", before=before, after=after)


def _note_start(store: Store, settings: Settings) -> None:
    """A start may change what is acted on: the audit has the settings before it and from now on."""
    after = {"release": __version__, "settings": settings_digest(settings), "modes": to_json(settings.modes)}
    before = store.get(_IN_FORCE, {})
    store.commit([Audited(_of_daemon("started", before, after)), SettingChanged(_IN_FORCE, after)])


async def _listen(server: Server, settings: Settings) -> None:
    """
    Raises:
        UserError: the address cannot be had: taken, not of this host, or not ours to take.
    """
    address = settings.daemon.listen
    try:
        await server.start()
    except (OSError, ValueError) as error:
        await server.stop()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is taken by another program" if taken else f"cannot be listened at: {error}"
        port = address.rpartition(":")[2]
        fix = (
            f"ss -tlnp 'sport = :{port}' shows which; or set [daemon] listen to another"
            if taken
            else "correct [daemon] listen"
        )
        raise UserError(f"{address} {why}", fix=fix) from error


def _report_exhaustion(runner: Runner, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Event-loop exception handler: report when this host runs out of resources (e.g. file descriptors).

    Connections are then refused by us, so that missing heartbeats prove nothing.
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        why = f"no connection can be accepted: {os.strerror(error.errno or 0)}"
        runner.handle(ResourceExhausted(datetime.now(UTC), why))
    loop.default_exception_handler(context)


def until_stopped(job: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Wrap ``job`` for the scheduler so that its cancellation at shutdown is not logged as an error."""

    async def run() -> None:
        with suppress(asyncio.CancelledError):
            await job()

    return run


async def _serve(base: DaemonParts, holder: str, runner: Runner, known: KnownSignals) -> None:
    settings, store, log = base.settings, base.store, base.log
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def renew() -> None:
        holds = await asyncio.to_thread(store.take_lease, _LEASE, holder, datetime.now(UTC), _LEASE_S)
        if holds != holder:
            log.warning("lease-lost", holder=holds)
            stop.set()

    async def forget() -> None:
        with suppress(Unavailable):  # what it notes is saved when the store answers again
            await runner.timer_due(HOUSEKEEPING)

    async def look_back() -> None:
        now = base.clock.now()
        trends = await asyncio.to_thread(read_trends, store, known.counters, now)
        await runner.handle(TrendsRead(now, tuple(trend for trend in trends if trend.suspect)))

    async def prune() -> None:
        now = datetime.now(UTC)
        before = now - timedelta(days=settings.daemon.retention_days)
        kept = await asyncio.to_thread(store.forget_beyond, settings.daemon.store_bytes, now, before)
        await runner.handle(HistoryForgotten(now, kept))
        log.info("pruned", kept_since=kept)

    scheduler = AsyncIOScheduler(timezone=UTC)
    scheduler.add_job(until_stopped(renew), "interval", seconds=_LEASE_S / 3)
    scheduler.add_job(until_stopped(forget), "interval", seconds=10)
    scheduler.add_job(until_stopped(look_back), "interval", hours=1, next_run_time=datetime.now(UTC))
    scheduler.add_job(until_stopped(prune), "interval", hours=24, next_run_time=datetime.now(UTC) + _PRUNE_FIRST)
    scheduler.start()
    gc.collect()
    gc.freeze()  # modules, rules and what was remembered stay for good
    gc.set_threshold(*_GARBAGE)
    runner.handle(WatchStarted(base.clock.now()))
    log.info("started")
    await stop.wait()
    log.info("stopping")
    scheduler.shutdown(wait=False)


def _store(settings: Settings, log: Log) -> Store:
    if settings.daemon.database:
        return Store(settings.daemon.database, log=log)
    folder = Path(settings.daemon.state)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    except OSError as error:
        raise FileError(
            folder,
            f"the state folder cannot be made: {error.strerror}",
            key="daemon.state",
            fix="create it, or name another",
        ) from error
    return Store(sqlite_url(folder), log=log)


async def _become_active(store: Store, holder: str, log: Log) -> None:
    """Wait until this daemon holds the lease: one daemon acts, others stand by."""
    waits = False
    while True:
        holds = store.take_lease(_LEASE, holder, datetime.now(UTC), _LEASE_S)
        if holds == holder:
            return
        if _died_here(holds):
            store.drop_lease(_LEASE)
            continue
        if not waits:
            log.info("standing-by", active=holds)
            waits = True
        await asyncio.sleep(1.0)


def _died_here(holder: str) -> bool:
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


def main(settings: Settings) -> None:
    """Entry point of the daemon's process. Logs an error that a person can fix before it is raised."""
    log = Log()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most_files, most_files)
    )  # a connection takes a file; a shell allows 1024
    try:
        asyncio.run(run(settings, log))
    except (Unavailable, UserError) as error:
        log.warning("cannot-start", reason=error.message, fix=error.fix)
        raise
