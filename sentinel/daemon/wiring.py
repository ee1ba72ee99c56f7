"""Builds the daemon's parts: engine and runner, effects, API server, web page, event files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from sentinel.actions import Means
from sentinel.adapters.munge import Munge
from sentinel.adapters.notify.channels import receivers
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.http_post import name_of
from sentinel.adapters.resume_file import ResumeFiles
from sentinel.adapters.store.store import Store
from sentinel.classify.ageing import Counter
from sentinel.classify.history import WINDOW
from sentinel.config.rules import Rules
from sentinel.config.rules_files import load_rules
from sentinel.config.settings import Daemon, Settings
from sentinel.config.signals_toml import Signals as KnownSignals
from sentinel.daemon.api.accounts import uids_of
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.api.node_addresses import NodeAddresses
from sentinel.daemon.api.node_requests import NodeRequests
from sentinel.daemon.api.server import Server
from sentinel.daemon.api.views import Views
from sentinel.daemon.clock import SteadyClock
from sentinel.daemon.effects.ask_nodes import NodeQuestions
from sentinel.daemon.effects.checkpoints import FleetCheckpoints
from sentinel.daemon.effects.diagnostics import Diagnostics
from sentinel.daemon.effects.job_logs import JobLogs
from sentinel.daemon.effects.node_returns import NodeReturnEffects
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.effects.perform import Effects
from sentinel.daemon.effects.slurmd_probe import answers
from sentinel.daemon.effects.user_files import UserFiles
from sentinel.daemon.ingest.event_files import EventFiles
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.lost_convictions import LostConvictions
from sentinel.daemon.ingest.priority import ConvictingEvidence
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals
from sentinel.daemon.ingest.stated import Allocations
from sentinel.daemon.lease import Lease
from sentinel.daemon.outage import StoreOutage
from sentinel.daemon.runner import Runner
from sentinel.daemon.web.access import PageAuthentication
from sentinel.daemon.web.pages import Pages
from sentinel.daemon.web.server import PageServer
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine
from sentinel.engine.loading import state_of
from sentinel.engine.mass_failures import counted_since
from sentinel.engine.state import KNOWN_EVIDENCE
from sentinel.log import Log
from sentinel.model.stored import Stored
from sentinel.ports import Sink, SlurmReader, SlurmWriter
from sentinel.telemetry import Telemetry

_OF_USERS = 4  # messages sent at once to addresses that users named


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """The parts from which the other parts of the daemon are built."""

    settings: Settings
    store: Store
    live: ClusterView
    orders: OrderBook
    reader: SlurmReader
    writer: SlurmWriter
    fleets: FleetSnapshots
    lease: Lease
    clock: SteadyClock
    telemetry: Telemetry
    log: Log
    prologs: Prologs = field(default_factory=Prologs)
    resume: ResumeFiles = field(init=False)  # one for all: it knows which of its calls hang

    def __post_init__(self) -> None:
        object.__setattr__(self, "resume", ResumeFiles(self.settings.daemon.resume))


def stored_state(store: Store, settings: Settings) -> Stored:
    now = datetime.now(UTC)
    lately = now - timedelta(seconds=settings.judgement.group_s)
    counted = counted_since(settings.limits, now)
    return store.load(month=now - WINDOW, lately=lately, evidence_ids=KNOWN_EVIDENCE, counted=counted)


def all_receivers(base: DaemonParts) -> list[Sink]:
    """All receivers of messages: webhooks and channels, and, through agents, job logs and users' own addresses."""
    alerts, of_users = base.settings.alerts, DeliveryThreads(_OF_USERS)
    sinks = receivers(alerts, DeliveryThreads())
    sinks += [
        UserFiles(name, alerts, base.orders, base.live, of_users, base.log)
        for name, one in alerts.channels.items()
        if one.kind == "users"
    ]
    if alerts.job_log:
        sinks.append(JobLogs(base.orders, base.live, base.log, deadline_s=alerts.deadline_s))
    return sinks


def engine_runner(
    base: DaemonParts, stored: Stored, signals: PrometheusSignals | None, counters: Mapping[str, Counter]
) -> Runner:
    """Build the engine with its stored state, and the runner that performs its effects."""
    settings, sinks = base.settings, all_receivers(base)
    names = {url: name_of(url) for url in settings.alerts.webhooks}
    told = tuple((notice, names.get(receiver, receiver)) for notice, receiver in stored.undelivered)
    for url, name in names.items():
        base.store.rename_receiver(url, name)
    stored = replace(stored, undelivered=told)
    state = state_of(
        stored,
        base.live,
        rules=rules(settings),
        settings=settings,
        receivers=[sink.name for sink in sinks],
        metrics=signals is not None,
    )
    runner = Runner(
        Engine(state), base.store, clock=base.clock, telemetry=base.telemetry, log=base.log,
        host=socket.gethostname(), may_act=base.lease.renewed,
    )  # fmt: skip
    base.fleets.observed, base.fleets.unanswered = runner.observed, runner.unobserved
    means = Means(
        clock=base.clock,
        reader=base.reader,
        writer=base.writer,
        ledger=runner,
        checkpoints=FleetCheckpoints(
            orders=base.orders, live=base.live, fleets=base.fleets, store=base.store, recovery=settings.recovery,
            log=base.log,
        ),
        resume=base.resume,
        progress=runner,
        pending_s=settings.recovery.pending_s,
        refused_s=settings.recovery.refused_s,
        launch_s=settings.recovery.launch_s,
        booted_at=base.reader.booted_at,
        answers=partial(answers, deadline_s=settings.daemon.probe_s),
    )  # fmt: skip
    runner.perform = Effects(
        means=means,
        fleets=base.fleets,
        inquiry=NodeQuestions(base.orders, base.live, base.clock),
        diagnostics=Diagnostics(
            orders=base.orders, store=base.store, live=base.live, counters=counters, clock=base.clock, log=base.log
        ),
        returns=NodeReturnEffects(
            settings=settings.returns, reader=base.reader, writer=base.writer, clock=base.clock, fence=base.lease
        ),
        writer=base.writer,
        signals=signals,
        sinks={sink.name: sink for sink in sinks},
        clock=base.clock,
    ).table
    return runner


def event_files(settings: Daemon, runner: Runner, log: Log) -> EventFiles | None:
    """Build the reader of event files; None if the settings name no folder for them."""
    if not settings.events:
        return None
    return EventFiles(
        Path(settings.events), {0, os.getuid(), *settings.trusted_uids}, runner.report, log,
        asked_about=lambda: runner.state.watch.job_ends.tries, saved=runner.saved,
    )  # fmt: skip


def operators_of(base: DaemonParts) -> set[int]:
    """Uids that may give commands and see everybody's jobs."""
    operators, unknown = uids_of(base.settings.daemon.operators)
    if unknown:
        base.log.warning("operators-unknown", names=", ".join(unknown), fix="correct [daemon] operators")
    return {0, os.getuid(), *operators}


def people_views(
    base: DaemonParts,
    signals: PrometheusSignals | None,
    known: KnownSignals,
    operators: set[int],
    outage: StoreOutage,
) -> Views:
    return Views(
        store=base.store,
        live=base.live,
        fleets=base.fleets,
        orders=base.orders,
        settings=base.settings,
        operators=operators,
        clock=base.clock,
        counters=known.counters,
        signals=signals,
        daemons=base.lease.shown,
        outage=outage.shown,
        prologs=base.prologs,
    )


def page_server(base: DaemonParts, views: Views, operators: set[int]) -> PageServer | None:
    """Build the page for browsers; None where the settings do not ask for it.

    Raises:
        UserError: its settings are contradictory.
    """
    page = base.settings.page
    if not page.listen:
        return None
    pages = Pages(views, base.clock, cluster=base.settings.cluster, racks=page.racks, see_all=page.see == "all")
    return PageServer(page, PageAuthentication(page, operators), pages, telemetry=base.telemetry, log=base.log)


def api_server(base: DaemonParts, runner: Runner, views: Views, outage: StoreOutage) -> Server:
    """Build the HTTP server that answers nodes, hooks and people."""
    changes = OperatorCommands(
        store=base.store,
        live=base.live,
        fleets=base.fleets,
        clock=base.clock,
        reader=base.reader,
        writer=base.writer,
        runner=runner,
        log=base.log,
    )
    nodes = NodeRequests(
        live=base.live,
        runner=runner,
        orders=base.orders,
        telemetry=base.telemetry,
        clock=base.clock,
        log=base.log,
        addresses=NodeAddresses(lambda: base.live.fleet, time.monotonic),
        allocations=Allocations(base.live, base.fleets, lambda job: base.store.attempts(job=job)),
        prologs=base.prologs,
        refuse_others=base.settings.daemon.node_addresses == "refuse",
        hard=ConvictingEvidence(runner.state.rules),
        convictions=LostConvictions(base.store.known_evidence, base.log),
    )
    return Server(
        settings=base.settings.daemon,
        credentials=Munge(base.settings.daemon.munge_socket),
        nodes=nodes,
        views=views,
        changes=changes,
        telemetry=base.telemetry,
        log=base.log,
        # A database on this host has no other daemon that nodes could be referred to.
        acts=lambda: not base.store.shared or base.lease.left_s() > 0,
        works=lambda: outage.shown() is None,
    )


def rules(settings: Settings) -> Rules:
    return load_rules(site=Path(settings.judgement.rules) if settings.judgement.rules else None)
