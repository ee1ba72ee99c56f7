"""Start the daemon: wire adapters to rooms, carry on what was under way, then live by events."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import CollectorRegistry

from sentinel.actions import Means
from sentinel.adapters.munge import Munge
from sentinel.adapters.resume_file import ResumeFiles
from sentinel.adapters.rules_files import load_rules
from sentinel.adapters.signals_files import load_signals
from sentinel.adapters.slurm import connect
from sentinel.adapters.store import Store, sqlite_url
from sentinel.adapters.webhook import Webhook
from sentinel.daemon.changes import Changes
from sentinel.daemon.checkpoints import FleetCheckpoints
from sentinel.daemon.diagnoses import Diagnoses, wired
from sentinel.daemon.dropbox import Dropbox
from sentinel.daemon.events import Events
from sentinel.daemon.fleets import Fleets
from sentinel.daemon.hard import Hard
from sentinel.daemon.inquiry import Inquiry
from sentinel.daemon.joined_saves import JoinedSaves
from sentinel.daemon.judge import Judge
from sentinel.daemon.live import Live
from sentinel.daemon.orders import OrderBook
from sentinel.daemon.reasons import Reasons
from sentinel.daemon.recover import Recover
from sentinel.daemon.server import Server
from sentinel.daemon.signals import Signals, listening
from sentinel.daemon.tell import Tell
from sentinel.daemon.views import Views
from sentinel.daemon.watch import Watch
from sentinel.errors import FileError, Unavailable
from sentinel.log import Log
from sentinel.ports import Clock, SlurmReader, SlurmWriter
from sentinel.rules import Rules
from sentinel.settings import Daemon, Settings
from sentinel.signals_toml import Signals as Known
from sentinel.telemetry import Telemetry

_LEASE = "active"
_PRUNE_FIRST = timedelta(minutes=10)  # a daemon that is started anew each day must forget, too
# A cluster's nodes and jobs are hundreds of thousands of objects that stay; looking through them for every few hundred new
# ones took a tenth of the daemon's time at 2,048 nodes. What is garbage in a ring waits for this many, a few MB.
_GARBAGE = (20_000, 20, 20)
_LEASE_S = 15.0  # a daemon that died is replaced after this, at once when it ran on this host


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Base:
    """What everything else is wired from."""

    settings: Settings
    store: Store
    live: Live
    orders: OrderBook
    reader: SlurmReader
    writer: SlurmWriter
    fleets: Fleets
    clock: Clock
    telemetry: Telemetry
    log: Log


async def run(settings: Settings, log: Log) -> None:
    """Until SIGTERM or SIGINT."""
    store = _store(settings)
    holder = f"{socket.gethostname()}:{os.getpid()}"
    await _become_active(store, holder, log)
    live, telemetry = Live(), Telemetry(CollectorRegistry())
    reader, writer, description = connect(settings.slurm, lambda result: telemetry.slurm.labels(result=result).inc())
    log.info("starting", slurm=description, store=store.engine.dialect.name, listen=settings.daemon.listen)
    fleets = Fleets(reader, live, telemetry, log)
    base = Base(settings, store, live, OrderBook(), reader, writer, fleets, SystemClock(), telemetry, log)
    known = load_signals(Path(settings.prometheus.rules) if settings.prometheus.rules else None)
    signals = listening(settings, known.signals, clock=base.clock, log=log, telemetry=telemetry)
    tell, recover, judge = _judging(base, signals, known)
    watch = Watch(
        live=live,
        fleets=fleets,
        store=store,
        settings=settings,
        clock=base.clock,
        telemetry=telemetry,
        log=log,
        observe=judge.observe,
        inquiry=Inquiry(base.orders, live, base.clock),
    )
    events = Events(live=live, fleets=fleets, judge=judge, watch=watch, clock=base.clock, log=log)
    server = _server(base, judge, watch, recover, events, signals, known)
    diagnoses = wired(
        orders=base.orders,
        judge=judge,
        live=live,
        store=store,
        counters=known.counters,
        settings=settings,
        clock=base.clock,
        log=log,
    )
    watch.remember()
    tell.send_undelivered()  # before plans are carried on: what those tell is on its way already
    recover.carry_on()
    await judge.carry_on()
    await server.start()
    explaining = asyncio.create_task(_reasons(base, judge).forever())
    if signals is not None:
        listens = asyncio.create_task(signals.forever(judge.observe, settings.prometheus.every_s))
    boxes = [asyncio.create_task(box.forever()) for box in _dropbox(settings.daemon, events, telemetry, log)]
    await _serve(settings, store, holder, watch, judge, diagnoses, log)
    for task in boxes:
        task.cancel()
    explaining.cancel()
    if signals is not None:
        listens.cancel()
        await signals.close()
    await diagnoses.stop()
    await recover.stop()
    await server.stop()
    store.drop_lease(_LEASE)
    store.close()


def _judging(base: Base, signals: Signals | None, known: Known) -> tuple[Tell, Recover, Judge]:
    """The way from evidence to a plan carried out and people told."""
    settings = base.settings
    tell = Tell(
        store=base.store,
        live=base.live,
        sinks=[Webhook(url, deadline_s=settings.alerts.deadline_s) for url in settings.alerts.webhooks],
        attempts=settings.alerts.attempts,
        clock=base.clock,
        telemetry=base.telemetry,
        log=base.log,
        breaker_window_s=settings.limits.breaker_window_s,
    )
    means = Means(
        clock=base.clock,
        reader=base.reader,
        writer=base.writer,
        ledger=base.store,
        checkpoints=FleetCheckpoints(
            orders=base.orders,
            live=base.live,
            fleets=base.fleets,
            store=base.store,
            recovery=settings.recovery,
            log=base.log,
        ),
        resume=ResumeFiles(Path(settings.daemon.resume) if settings.daemon.resume else None),
        progress=base.live,
        pending_s=settings.recovery.pending_s,
        confirm_s=settings.recovery.confirm_s,
    )
    recover = Recover(
        store=base.store,
        means=means,
        tell=tell,
        telemetry=base.telemetry,
        log=base.log,
        tell_within_s=settings.alerts.within_s,
    )
    judge = Judge(
        store=base.store,
        live=base.live,
        fleets=base.fleets,
        inquiry=Inquiry(base.orders, base.live, base.clock),
        rules=_rules(settings),
        settings=settings,
        telemetry=base.telemetry,
        clock=base.clock,
        log=base.log,
        decided=recover.decided,
        signals=signals,
        counters=known.counters,
    )
    recover.judge = judge
    return tell, recover, judge


def _reasons(base: Base, judge: Judge) -> Reasons:
    def incident(node: str) -> tuple[str, str] | None:
        found = (
            (name, verdict.cause.value) for name, verdict in reversed(judge.verdicts.items()) if node in verdict.drain
        )
        return next(found, None)

    return Reasons(
        writer=base.writer,
        live=base.live,
        modes=base.settings.modes,
        incident=incident,
        telemetry=base.telemetry,
        log=base.log,
    )


def _dropbox(settings: Daemon, events: Events, telemetry: Telemetry, log: Log) -> list[Dropbox]:
    if not settings.events:
        return []
    return [Dropbox(Path(settings.events), {0, os.getuid(), *settings.trusted_uids}, events, telemetry, log)]


def _server(
    base: Base, judge: Judge, watch: Watch, recover: Recover, events: Events, signals: Signals | None, known: Known
) -> Server:
    """What answers nodes, hooks and people."""
    views = Views(
        store=base.store,
        live=base.live,
        fleets=base.fleets,
        judge=judge,
        orders=base.orders,
        settings=base.settings,
        operators={0, os.getuid(), *base.settings.daemon.operators},
        clock=base.clock,
        counters=known.counters,
        signals=signals,
    )
    changes = Changes(
        store=base.store,
        live=base.live,
        clock=base.clock,
        reader=base.reader,
        writer=base.writer,
        recover=recover,
        log=base.log,
    )
    return Server(
        settings=base.settings.daemon,
        credentials=Munge(base.settings.daemon.munge_socket),
        live=base.live,
        watch=watch,
        judge=judge,
        orders=base.orders,
        events=events,
        views=views,
        changes=changes,
        telemetry=base.telemetry,
        clock=base.clock,
        log=base.log,
        joined=JoinedSaves(base.live, log=base.log, kept=base.store),
        hard=Hard(_rules(base.settings)),
    )


def until_stopped(job: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """``job`` for the scheduler, which would log one that our end cuts off as an error, with a traceback."""

    async def run() -> None:
        with suppress(asyncio.CancelledError):
            await job()

    return run


async def _serve(
    settings: Settings, store: Store, holder: str, watch: Watch, judge: Judge, diagnoses: Diagnoses, log: Log
) -> None:
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
        judge.forget()

    async def prune() -> None:
        now = datetime.now(UTC)
        before = now - timedelta(days=settings.daemon.retention_days)
        kept = await asyncio.to_thread(store.forget_beyond, settings.daemon.store_bytes, now, before)
        log.info("pruned", kept_since=kept)

    scheduler = AsyncIOScheduler(timezone=UTC)
    scheduler.add_job(
        until_stopped(watch.reconcile),
        "interval",
        seconds=settings.slurm.reconcile_s,
        max_instances=1,
        coalesce=True,
        next_run_time=datetime.now(UTC),
    )
    scheduler.add_job(until_stopped(renew), "interval", seconds=_LEASE_S / 3)
    scheduler.add_job(forget, "interval", seconds=10)
    scheduler.add_job(until_stopped(judge.look_back), "interval", hours=1, next_run_time=datetime.now(UTC))
    if not diagnoses.off:
        look_s = settings.diagnostics.look_s
        scheduler.add_job(until_stopped(diagnoses.turn), "interval", seconds=look_s, max_instances=1, coalesce=True)
    scheduler.add_job(until_stopped(prune), "interval", hours=24, next_run_time=datetime.now(UTC) + _PRUNE_FIRST)
    scheduler.start()
    gc.collect()
    gc.freeze()  # modules, rules and what was remembered stay for good
    gc.set_threshold(*_GARBAGE)
    loops = [asyncio.create_task(watch.nodes_forever()), asyncio.create_task(watch.jobs_forever())]
    log.info("started")
    await stop.wait()
    log.info("stopping")
    scheduler.shutdown(wait=False)
    for task in loops:
        task.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


def _rules(settings: Settings) -> Rules:
    return load_rules(site=Path(settings.judgement.rules) if settings.judgement.rules else None)


def _store(settings: Settings) -> Store:
    if settings.daemon.database:
        return Store(settings.daemon.database)
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
    return Store(sqlite_url(folder))


async def _become_active(store: Store, holder: str, log: Log) -> None:
    """Wait for the lease: one daemon acts, others stand by."""
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
    """The daemon's process: errors that a person can fix end it with a clear sentence."""
    log = Log()
    try:
        asyncio.run(run(settings, log))
    except Unavailable as error:
        log.warning("cannot-start", reason=error.message, fix=error.fix)
        raise
