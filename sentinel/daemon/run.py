"""Runs the daemon: waits for the lease, loads the state, resumes interrupted effects, serves until stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from sentinel import __version__
from sentinel.adapters.slurm.connect import connect
from sentinel.adapters.store.database import sqlite_url
from sentinel.adapters.store.lease import DaemonRow
from sentinel.adapters.store.store import Store
from sentinel.adapters.syslog import Syslog
from sentinel.config.rules_files import without_rules
from sentinel.config.settings import Daemon, Settings
from sentinel.config.signals_files import load_signals
from sentinel.config.signals_toml import Signals as KnownSignals
from sentinel.daemon.api.accounts import name_of
from sentinel.daemon.api.server import Server
from sentinel.daemon.api.status import settings_digest
from sentinel.daemon.audit.export import COPIED, AuditExport
from sentinel.daemon.audit.export import EVERY_S as EXPORT_S
from sentinel.daemon.clock import HOST_CLOCK_S, ClockSet, HostClock, SteadyClock
from sentinel.daemon.effects.diagnostics import check_deadlines
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.effects.slurmd_probe import EXHAUSTED
from sentinel.daemon.event_loop import ResolvingLoop
from sentinel.daemon.fleet_metrics import EVERY_S as METRICS_S
from sentinel.daemon.fleet_metrics import FleetMetrics
from sentinel.daemon.former_resume_points import EVERY_S as RESUME_POINTS_S
from sentinel.daemon.former_resume_points import FormerResumePoints
from sentinel.daemon.ingest.event_files import EVERY_S as EVENT_FILES_S
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals, connect_signals
from sentinel.daemon.ingest.refusals import SAVE_S, STORED
from sentinel.daemon.ingest.trends import read_trends
from sentinel.daemon.lease import RENEWAL_FRACTION, Lease, this_place
from sentinel.daemon.outage import EVERY_S as OUTAGE_S
from sentinel.daemon.outage import StoreOutage
from sentinel.daemon.outage_standby import once_store_answers, waiting_daemon
from sentinel.daemon.outage_told import FILE as TOLD_FILE
from sentinel.daemon.outage_told import OutageTold
from sentinel.daemon.periodic import Periodic
from sentinel.daemon.pruning import prune
from sentinel.daemon.runner import Runner
from sentinel.daemon.standby import StandbyServer, another_acts, stand_by, start_listening
from sentinel.daemon.web.server import PageServer
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
from sentinel.engine.events import Started, TrendsRead
from sentinel.engine.watch.events import ResourceExhausted, WatchStarted
from sentinel.errors import ContentLost, FileError, Unavailable, UserError
from sentinel.log import Log, take_libraries
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, SettingChanged
from sentinel.ports import Clock
from sentinel.telemetry import Telemetry
from sentinel.wire import to_json

_SETTINGS_KEY = "settings_in_force"  # key in the store: the settings of the latest start
_HOUSEKEEPING_S = 10.0
_LOOK_BACK_S = 3600.0  # counters have one value per day
_FIRST_SNAPSHOT_S = 2.0  # that a start waits for Slurm, which answers in under a second where it is healthy
_PRUNE_S = 86_400.0
_PRUNE_FIRST_S = 600.0  # delay of the first pruning: short enough for a daemon that is restarted every day
# Thresholds of the garbage collector. A cluster's nodes and jobs are hundreds of thousands of long-lived objects; scanning
# them for every few hundred new ones took a tenth of the daemon's time at 2,048 nodes. Reference cycles wait for this many
# allocations, a few MB.
_GC_THRESHOLDS = (20_000, 20, 20)


async def run(settings: Settings, log: Log, start_again: Callable[[Unavailable], None]) -> None:
    """Stand by until this daemon is the active one, then run it until SIGTERM or SIGINT.

    Args:
        start_again: called, in any thread, when another daemon has become active, or this one must load its state anew; it
        must end everything that this one does.
    """
    check_deadlines(settings)
    syslog = Syslog(settings.daemon.audit_syslog) if settings.daemon.audit_syslog else None
    told = OutageTold(Path(settings.daemon.state) / TOLD_FILE, log)
    waiting = waiting_daemon(settings, told, SteadyClock(), log)
    telling = asyncio.create_task(waiting.tell(), name="outage before acting")
    try:
        store = await once_store_answers(partial(_store, settings, log), waiting.answers, log)
        own = DaemonRow(holder(), own_address(settings.daemon), __version__, 0, datetime.now(UTC))
        lease = waiting.lease = Lease(store, own, settings.daemon.lease_s, log, superseded=start_again)
        standby = StandbyServer(settings.daemon, lease, Telemetry(CollectorRegistry()), log, waiting.tells)
        await stand_by(lease, standby, log, waiting.answers)
    finally:
        telling.cancel()
    lease.keep(asyncio.get_running_loop())
    log.info("active", daemon=own.holder, token=store.token)
    try:
        await _act(settings, store, lease, standby, syslog, log, told, start_again)
    finally:
        lease.stop()
        with suppress(Unavailable):
            await asyncio.to_thread(store.leave_lease, own.holder)
        store.close()


async def _act(
    settings: Settings,
    store: Store,
    lease: Lease,
    standby: StandbyServer,
    syslog: Syslog | None,
    log: Log,
    told: OutageTold,
    start_again: Callable[[Unavailable], None],
) -> None:
    """Load the state, resume interrupted effects, serve until stopped."""
    live, telemetry, clock = ClusterView(), Telemetry(CollectorRegistry()), SteadyClock()
    reader, writer, description = connect(
        settings.slurm, lambda result: telemetry.slurm.labels(result=result).inc(), lease, clock.now
    )
    telemetry.active.set_function(lambda: lease.left_s() > 0)
    telemetry.standbys.set_function(lambda: sum(row["state"] == "standby" for row in lease.shown()))
    if empty := without_rules(settings.judgement.rules):
        log.warning("site-rules-empty", reason=empty)
    log.info("starting", slurm=description, store=store.engine.dialect.name, listen=settings.daemon.listen)
    fleets = FleetSnapshots(reader, live, telemetry, log, spares=settings.recovery.spares)
    base = DaemonParts(settings, store, live, OrderBook(), reader, writer, fleets, lease, clock, telemetry, log)
    known = load_signals(Path(settings.prometheus.rules) if settings.prometheus.rules else None)
    signals = connect_signals(settings, known.signals, clock=base.clock, log=log, telemetry=telemetry)
    stored = await asyncio.to_thread(stored_state, store, settings)
    if (newest := stored.newest(timedelta(seconds=settings.judgement.group_s))) is not None:
        clock.go_on_from(newest)
    runner = engine_runner(base, stored, signals, known.counters)
    operators = operators_of(base)
    elsewhere = partial(another_acts, lease, settings.daemon, settings.alerts.deadline_s)
    outage = StoreOutage(
        runner, clock, log, lease_problem=lambda: lease.problem, another_acts=elsewhere, told=told
    )  # fmt: skip
    views = people_views(base, signals, known, operators, outage)
    server, page = api_server(base, runner, views, outage), page_server(base, views, operators)
    asyncio.get_running_loop().set_exception_handler(partial(_report_exhaustion, runner, clock))
    taking = await _first_snapshot(fleets, log)
    base.prologs.refusals.restore(await asyncio.to_thread(store.get, STORED, {}), clock.now(), live)
    with suppress(Unavailable):  # it is saved before anything else; until then nothing is done, and people are told
        await runner.handle(Started(base.clock.now(), stored))
    await standby.stop()
    await start_listening(server, settings.daemon.listen)
    noting = await _start_noted(store, settings, clock.now(), log)
    if page is not None:
        await page.start()
    await _serve(base, runner, known, signals, syslog, outage, HostClock(clock, live, store, start_again))
    taking.cancel()
    noting.cancel()
    await _stop(runner, signals, page, server, store, clock)


async def _first_snapshot(fleets: FleetSnapshots, log: Log) -> asyncio.Task[None]:
    """Wait for a snapshot, which is needed to group the evidence of one failure, but not for a slurmctld that hangs: who
    asks gets an answer all the same. The request goes on, and what it brings is taken in when it comes."""

    async def take() -> None:
        try:
            await fleets.take()
        except Unavailable as error:
            log.warning("carrying-on-without-slurm", reason=error.message)

    taking = asyncio.create_task(take(), name="first snapshot")
    await asyncio.wait({taking}, timeout=_FIRST_SNAPSHOT_S)
    if taking.done():
        taking.result()
    else:
        log.warning("carrying-on-without-slurm", reason=f"it has not answered within {_FIRST_SNAPSHOT_S:g} s")
    return taking


async def _start_noted(store: Store, settings: Settings, now: datetime, log: Log) -> asyncio.Task[None]:
    """Record the start. While the store takes nothing that goes on, and the daemon runs: one that ended told nobody."""
    tried = asyncio.Event()
    note = partial(_note_start, store, settings, now)
    noting = asyncio.create_task(once_store_answers(note, lambda _: tried.set(), log), name="start noted")
    first = asyncio.create_task(tried.wait())
    await asyncio.wait({noting, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if noting.done():
        noting.result()
    return noting


async def _stop(
    runner: Runner,
    signals: PrometheusSignals | None,
    page: PageServer | None,
    server: Server,
    store: Store,
    clock: Clock,
) -> None:
    """Stop the parts: the effects first, then what they ask."""
    await runner.stop()
    if signals is not None:
        await signals.close()
    if page is not None:
        await page.stop()
    await server.stop()
    with suppress(Unavailable):
        await asyncio.to_thread(store.commit, [Audited(_of_daemon(clock.now(), "stopped", {}, {}))])


def _of_daemon(now: datetime, action: str, before: dict[str, Any], after: dict[str, Any]) -> AuditEntry:
    who, host = name_of(os.getuid()), socket.gethostname()
    return AuditEntry(now, who, host, action, Stage.DONE, "daemon", before=before, after=after)


def _note_start(store: Store, settings: Settings, now: datetime) -> None:
    """Record a start in the audit, with the settings before and after it, which may change what Sentinel does."""
    after = {"release": __version__, "settings": settings_digest(settings), "modes": to_json(settings.modes)}
    before = store.get(_SETTINGS_KEY, {})
    store.commit([Audited(_of_daemon(now, "started", before, after)), SettingChanged(_SETTINGS_KEY, after)])


def _report_exhaustion(runner: Runner, clock: Clock, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Event-loop exception handler: report when this host runs out of resources (e.g. file descriptors).

    This host then refuses connections, so that missing heartbeats prove nothing about nodes.
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        why = f"no connection can be accepted: {os.strerror(error.errno or 0)}"
        runner.handle(ResourceExhausted(clock.now(), why))
    loop.default_exception_handler(context)


async def _serve(
    base: DaemonParts,
    runner: Runner,
    known: KnownSignals,
    signals: PrometheusSignals | None,
    syslog: Syslog | None,
    outage: StoreOutage,
    host_clock: HostClock,
) -> None:
    """Start server, page and periodic work; return after SIGTERM or SIGINT."""
    log = base.log
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    periodic = _periodic(base, runner, known, signals, syslog)
    periodic.every(OUTAGE_S, outage.look, "outage of the store")
    periodic.every(HOST_CLOCK_S, host_clock.look, "clock of this host")
    periodic.start()
    gc.collect()
    gc.freeze()  # modules, rules and loaded state live as long as the process
    gc.set_threshold(*_GC_THRESHOLDS)
    runner.handle(WatchStarted(base.clock.now()))
    log.info("started")
    await stop.wait()
    log.info("stopping")
    periodic.stop()


def _periodic(
    base: DaemonParts, runner: Runner, known: KnownSignals, signals: PrometheusSignals | None, syslog: Syslog | None
) -> Periodic:
    settings, store, log = base.settings, base.store, base.log

    async def look_back() -> None:
        now = base.clock.now()
        trends = await asyncio.to_thread(read_trends, store, known.counters, now)
        await runner.handle(TrendsRead(now, tuple(trend for trend in trends if trend.suspect)))

    periodic = Periodic(base.telemetry, log)
    periodic.every(_HOUSEKEEPING_S, partial(runner.timer_due, HOUSEKEEPING), "housekeeping", first_s=_HOUSEKEEPING_S)
    periodic.every(SAVE_S, partial(base.prologs.refusals.save, store), "refusals of prologs", first_s=SAVE_S)
    periodic.every(_LOOK_BACK_S, look_back, "trends of counters")
    periodic.every(_PRUNE_S, partial(prune, base, runner), "pruning of the store", first_s=_PRUNE_FIRST_S)
    metrics = FleetMetrics(store, base.live, settings, base.telemetry, base.clock)
    periodic.every(METRICS_S, partial(asyncio.to_thread, metrics.read), "fleet metrics")
    former = FormerResumePoints(base.resume, base.live, base.clock, log)
    periodic.every(RESUME_POINTS_S, former.look, "resume points of former jobs")
    if (files := event_files(settings.daemon, runner, log)) is not None:
        periodic.every(EVENT_FILES_S, files.look, "event files")
    if syslog is not None:
        export = AuditExport(store, syslog, Path(settings.daemon.state) / COPIED)
        periodic.every(EXPORT_S, export.export_all, "audit export")
    if signals is not None:
        periodic.every(settings.prometheus.every_s, partial(signals.report, runner.observe), "signals")
    return periodic


def _store(settings: Settings, log: Log) -> Store:
    if settings.daemon.database:
        return Store(
            settings.daemon.database,
            busy_s=settings.daemon.database_s,
            frozen_s=settings.daemon.lease_s,
            renewal_s=RENEWAL_FRACTION * settings.daemon.lease_s,
            readers=settings.daemon.database_readers,
            log=log,
        )
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
    return Store(
        sqlite_url(folder), busy_s=settings.daemon.database_s, readers=settings.daemon.database_readers, log=log
    )


def holder() -> str:
    """A name for this process that is unique among all daemons."""
    return f"{this_place()}:{os.getpid()}"


def own_address(settings: Daemon) -> str:
    """The URL of this daemon; the setting ``url`` may name several daemons."""
    host, _, port = settings.listen.rpartition(":")
    everywhere = host.strip("[]") in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened at
    scheme = "https" if settings.wire == "tls" else "http"
    return f"{scheme}://{socket.gethostname() if everywhere else host}:{port}"


def main(settings: Settings) -> None:
    """Entry point of the daemon's process. Logs an error that a person can fix before it is raised."""
    take_libraries()
    log = Log()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most_files, most_files)
    )  # a connection takes a descriptor; a shell's default limit is 1024
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as loop:
            loop.run(run(settings, log, partial(_start_again, log)))
    except (Unavailable, UserError) as error:
        log.warning("cannot-start", reason=error.message, fix=error.fix)
        raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop, if installed: a heartbeat costs a fifth less."""
    try:
        import uvloop
    except ImportError:
        return ResolvingLoop
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


def _start_again(log: Log, error: Unavailable) -> None:
    """Another daemon is active, the store has lost what this one remembers, or its clock goes wrong: replace this process by
    a fresh one, which stands by, and loads what the store holds if it takes the lease again.

    Called in any thread. No task, thread or child of this process goes on; a Slurm command in progress is killed.
    """
    if isinstance(error, ContentLost):
        log.warning("store-lost-content", reason=error.message, fix=error.fix)
    else:
        log.warning("clock-set" if isinstance(error, ClockSet) else "superseded", reason=error.message)
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            with suppress(OSError):
                os.killpg(int(pid), signal.SIGKILL)
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the very command that we are
