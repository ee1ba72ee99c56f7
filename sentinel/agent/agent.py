"""Runs the agent of one node: collects evidence, spools and sends it, and carries out the daemon's orders.

One small process with a few threads; whatever may hang runs in a killable child (``children.py``). How the parts connect:

    kernel log ─┐
    GPU probe  ─┼─> keep() ─> spool ─> Sender ─> daemon ─> Orders ─> children ─> results
    job logs   ─┘      └─> verdict, which the hooks read
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel import __version__
from sentinel.adapters.client import DaemonClient
from sentinel.adapters.daemon_addresses import Addresses
from sentinel.adapters.host.kmsg import boot_id
from sentinel.adapters.spool import Spool
from sentinel.adapters.spool_files import Value
from sentinel.adapters.steady_schedule import keep_steady
from sentinel.agent.collectors.gpus import GpuWatch
from sentinel.agent.collectors.jobs import JobOnNode, Jobs
from sentinel.agent.collectors.kernel_log import KernelWatch, rules_reader
from sentinel.agent.collectors.own_disk import DiskWatch
from sentinel.agent.collectors.periodic_checks import PeriodicChecks
from sentinel.agent.collectors.refusals import Refusals
from sentinel.agent.collectors.saves import SavesWatch
from sentinel.agent.health.diagnostics import NodeDiagnostics
from sentinel.agent.health.verdict import DRAIN_MODES, VerdictKeeper
from sentinel.agent.postmortem.collecting import FailureCollection, failures_of
from sentinel.agent.postmortem.held_checkpoints import HeldCheckpoints
from sentinel.agent.process.children import Children, Program
from sentinel.agent.process.job_owners import Owners
from sentinel.agent.process.probe_programs import INVENTORY, probe_command, probe_environment
from sentinel.agent.process.state_files import node_name, require_own, write_atomically
from sentinel.agent.settings import AgentSettings
from sentinel.agent.uplink.heartbeats import Heartbeats
from sentinel.agent.uplink.orders import Orders
from sentinel.agent.uplink.sender import Sender
from sentinel.config.rules_files import load_rules
from sentinel.errors import Refused, UserError
from sentinel.evidence.gpu_samples import Sample
from sentinel.evidence.logs.reader import Signatures
from sentinel.evidence.logs.timers import TIMERS
from sentinel.log import Log, take_libraries
from sentinel.model.orders import Diagnose, Request
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.ports import Credentials
from sentinel.protocol import OrderKind
from sentinel.wire import evidence_from, to_json

log = Log()
SAMPLES = 30  # of GPU telemetry, for those who ask what was before a job's end


class Agent:
    """The agent of one node: its collectors, the spool, the connection to the daemon, and the children that it runs.

    Args:
        credentials: how to sign requests and check answers.
    """

    def __init__(self, settings: AgentSettings, credentials: Credentials) -> None:
        self.settings = settings
        self.node = node_name(settings.node)
        self.boot = boot_id()
        self._credentials = credentials
        self._addresses = Addresses(settings.url)
        self._stopped = threading.Event()
        run_dir, state = Path(settings.run_dir), Path(settings.state)
        for folder in (run_dir, state):
            folder.mkdir(parents=True, exist_ok=True)
        self.spool = Spool(
            state / "spool",
            limit_bytes=settings.spool.bytes,
            segment_bytes=settings.spool.segment_bytes,
            sync_s=settings.spool.sync_s,
        )
        self.disks = DiskWatch(self.node, self.spool, self.keep, hung_s=settings.spool.hung_s)
        self.children = Children()
        self.children.on_unkillable = self._unkillable
        rules = load_rules(site=Path(settings.rules) if settings.rules else None)
        self.gpus = GpuWatch(self.node, settings, self.children, self.program, self.keep, rules.convictions, self.boot)
        self.jobs = Jobs(self.node, settings, self.children, self.program, self.kept)
        reader = rules_reader(self.node, self.boot, Signatures(rules))
        self.kernel = KernelWatch(self.node, settings, reader, lambda item: self.keep(self.gpus.placed(item)))
        self.checks = PeriodicChecks(
            self.node, settings, self.children, self.program, self.keep, lambda: list(self.jobs.jobs), self.boot
        )
        self.verdict = VerdictKeeper(run_dir, state, self.boot, self.gpus.facts, self.gpus.unproven, rules)
        self.gpus.on_change = self.verdict.write
        self.diagnosing = NodeDiagnostics(
            settings,
            self.children,
            self.program,
            lambda: self._order_settings(OrderKind.DIAGNOSE),
            lambda: self.gpus.last,
            self._diagnosed,
        )
        self.owners = Owners(settings)
        self.refusals = Refusals(Path(settings.run_dir))
        self.jobs.on_came = self._job_came
        self.jobs.on_left = self.owners.left
        self.sender = Sender(
            self.node,
            self.spool,
            self.client(),
            flush_s=settings.heartbeat_s,
            backoff_s=settings.backoff_s,
            batch=settings.spool.batch,
        )
        self.heartbeats = Heartbeats(
            self.node,
            self.client(leads=True),
            self.heartbeat,
            heartbeat_s=settings.heartbeat_s,
            backoff_s=settings.backoff_s,
        )
        self.heartbeats.on_answer = self._answered
        self._wire_endings(failures_of(rules))
        self._wire_orders(settings)

    def _wire_orders(self, settings: AgentSettings) -> None:
        """Connect the orders that the daemon may send."""
        self.orders = Orders(
            self.node,
            Path(settings.state) / "orders",
            self.children,
            self.program,
            self.client,
            self._order_settings,
            self.owners,
            settings.slurm,
            self._order_done,
            backoff_s=settings.backoff_s,
        )
        self.orders.busy = lambda: bool(self.jobs.jobs)
        self.diagnosing.give_way = self.orders.give_way

    def _wire_endings(self, failures: frozenset[str]) -> None:
        """Connect the watch of checkpoint saves and what is collected when a job ends on this node."""
        self.saves = SavesWatch(
            self.node, self.settings, self.children, self.program, self.keep, lambda: dict(self.jobs.jobs)
        )
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.holding = HeldCheckpoints(
            self.node, self.settings, self.children, self.program, self.keep, self.saves.asked
        )
        self.collecting = FailureCollection(
            self.node,
            self.settings,
            self.children,
            self.program,
            self.keep,
            failures,
            lambda: dict(self.jobs.jobs),
            lambda: to_json(list(self._samples)),
        )
        self.collecting.on_ended = self._job_ended

    def _job_came(self, job: JobOnNode) -> None:
        self.owners.came(job)
        self.diagnosing.job_came()

    def _job_ended(self, job: JobOnNode, began_s: float) -> None:
        self.jobs.ended(job, began_s)
        self.owners.left(job)
        self.holding.ended(job)

    # ------------------------------------------------------------------------------------------------ life

    def _answered(self, answer: dict[str, Any]) -> None:
        """Apply the daemon's answer to a heartbeat."""
        self.saves.heard(answer)
        self.jobs.unreported.heard(answer)
        self.verdict.heard(answer, self.heartbeats.took_s)
        if answer.get("drain_mode") in DRAIN_MODES:
            self.verdict.set_drain_mode(answer["drain_mode"])
        self.verdict.send_again(answer.get("send_again"), lambda item: self.spool.append(item, Value.HIGH))

    def run(self) -> None:
        """Run all threads until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopped.set())
        scheduler = self._scheduler()
        if self.settings.metrics.listen:
            from sentinel.agent.metrics import serve

            serve(self, self.settings.metrics.listen)
        for name, folder in (("resume_dir", self.settings.resume), ("rules_dir", self.settings.rules)):
            path = Path(self.settings.run_dir) / name  # hooks read it there
            if folder:
                write_atomically(path, folder + "\n")
            else:
                path.unlink(missing_ok=True)
        self.verdict.write()
        self.gpus.start()
        self.jobs.resume()
        self.owners.here(set(self.jobs.jobs))
        threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("children", self.children.run),
                ("kernel", self.kernel.run),
                ("sender", self.sender.run),
                ("heartbeats", self.heartbeats.run),
                ("orders", self.orders.run),
                ("results", self.orders.deliver),
            )
        ]
        for thread in threads:
            thread.start()
        scheduler.start()
        log.info("agent-started", node=self.node, pid=os.getpid(), url=self.settings.url)
        while not self._stopped.wait(1.0):  # a signal given to another thread is handled as this one wakes
            continue
        log.info("agent-stops", node=self.node)
        scheduler.shutdown(wait=False)
        for part in (self.kernel, self.orders, self.sender, self.heartbeats):
            part.stop()
        self.children.shut_down()
        self.verdict.write()

    def _scheduler(self) -> Any:
        """Schedule the periodic work. One thread is enough: nothing that it calls may block."""
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 30},
            timezone=UTC,
        )
        keep_steady(scheduler)

        def every(period_s: float, work: Callable[..., None], *given: str) -> None:
            scheduler.add_job(work, "interval", args=given, seconds=period_s, jitter=period_s / 10)

        scheduler.add_job(self.verdict.write, "interval", seconds=self.settings.verdict_s)
        scheduler.add_job(self._look, "interval", seconds=1.0)
        scheduler.add_job(self.kernel.panics, next_run_time=datetime.now(UTC))
        host = self.settings.host
        every(host.period_s, self.checks.host)
        scheduler.add_job(lambda: self.checks.clock(self.heartbeats.clock_offset_s), "interval", seconds=host.period_s)
        if self.settings.diagnostics.level1_s:
            every(self.settings.diagnostics.level1_s, self.diagnosing.level1)
        if self.settings.jobs.saves_s:
            every(self.settings.jobs.saves_s, self.saves.look)
        if host.smart_s:
            every(host.smart_s, self.checks.smart)
        if host.mounts:
            every(host.period_s, self.checks.mounts)
        for name, check in self.settings.checks.items():
            every(check.period_s, self.checks.check, name)
        return scheduler

    def _look(self) -> None:
        """Read the files that prolog and epilog wrote for the agent."""
        self.disks.look()
        self.collecting.look()
        self.jobs.scan()
        self.holding.look(self.jobs.jobs)
        if (sample := self.gpus.last) is not None and (not self._samples or self._samples[-1] is not sample):
            self._samples.append(sample)
        self.diagnosing.requests()

    # ------------------------------------------------------------------------------------------------ wiring

    def keep(self, evidence: Evidence) -> None:
        """Spool evidence for the daemon. Safe from any thread."""
        self.kept(evidence)

    def kept(self, evidence: Evidence) -> int:
        """As ``keep``; returns the evidence's number in the spool."""
        self.verdict.consider(evidence)
        self.collecting.consider(evidence)
        value = (
            Value.LOW
            if evidence.kind in (Kind.STEP, TIMERS)
            else Value.NORMAL
            if evidence.trust is Trust.USER
            else Value.HIGH
        )
        return self.spool.append(to_json(evidence), value)

    def client(self, *, leads: bool = False) -> DaemonClient:
        return DaemonClient(
            self._addresses,
            self._credentials,
            leads=leads,
            trusted_uids=self.settings.trusted_uids,
            deadline_s=self.settings.request_s,
            wire=self.settings.wire,
            ca_file=self.settings.ca_file,
            daemon_uid=self.settings.daemon_uid,
            sessions=True,
        )

    def program(self, name: str, module: str, arguments: Mapping[str, object], **rest: Any) -> Program:
        """A child program: ``module`` of this package under this interpreter, with a clean environment."""
        if module == INVENTORY:  # one process lists saves, lists at a job's end, serves orders
            rest["shared_by"] = f"{arguments['uid']}:{arguments['gid']}"
            rest["stays_s"] = self.settings.jobs.lister_stays_s
        rest["environment"] = probe_environment(self.settings.jobs.memory_bytes)
        return Program(name, probe_command(module), arguments, **rest)

    def heartbeat(self) -> dict[str, Any]:
        verdict = self.verdict.now()
        return {
            "boot_id": self.boot,
            "version": __version__,
            "spool": {
                "pending": self.spool.pending,
                "dropped": self.spool.dropped,
                "given_up": self.sender.given_up + self.orders.given_up,
            },
            "jobs": self.jobs.running(),
            "refused": self.refusals.told(),
            "verdict": verdict.told,
            "logs": self.jobs.logs(self.spool.acknowledged),
            "clock_offset_s": self.heartbeats.clock_offset_s,
            "kernel_readable": self.kernel.readable,
        }

    def _order_settings(self, kind: OrderKind) -> dict[str, object]:
        if kind is OrderKind.TASK_STATES:
            return {"node": self.node, **self.gpus.activity_report()}
        if kind is OrderKind.COLLECTED:
            return {"node": self.node, "state": self.settings.state}
        if kind is OrderKind.MESSAGES_FILE:
            return {"node": self.node, "file": self.settings.jobs.messages_file}
        if kind is not OrderKind.DIAGNOSE:
            return {"node": self.node}
        dcgm, diagnostics = self.settings.dcgm, self.settings.diagnostics
        return {
            **{name: getattr(dcgm, name) for name in ("dcgmi", "host", "socket", "account")},
            "node": self.node,
            "promised": self.settings.gpus,
            "rules": self.settings.rules,
            "deadlines_s": diagnostics.deadline_s,
            "stop_s": diagnostics.stop_s,
        }

    def _order_done(self, request: Request, result: Any) -> None:
        if isinstance(request, Diagnose) and isinstance(result, dict):
            self._diagnosed(result)

    def _diagnosed(self, result: dict[str, Any]) -> None:
        self.verdict.diagnosed(result)
        for item in result.get("evidence", []):
            self.keep(evidence_from(item))

    def _unkillable(self, program: Program, pid: int, where: str) -> None:
        now, name = datetime.now(UTC), program.name
        log.warning("probe-unkillable", name=name, pid=pid, where=where)
        self.keep(
            Evidence(
                id=stable_id("unkillable", self.node, self.boot, name, pid),
                at=now,
                seen_at=now,
                source=Source.AGENT,
                kind=Kind.PROBE_HUNG,
                where=Where(node=self.node),
                text=f"{name} (pid {pid}) does not die when it is killed: {where or 'state not known'}",
                data={"probe": name, "pid": pid, "unkillable": True},
                trust=Trust.USER if program.of_user else Trust.SYSTEM,
            )
        )


def run(settings: AgentSettings, make_credentials: Callable[[str], Credentials]) -> None:
    """Run the agent as a service until it is told to stop.

    Raises:
        Refused: another agent has this state folder. UserError: the folder cannot be written.
    """
    take_libraries()
    state, run_dir = Path(settings.state), Path(settings.run_dir)
    try:
        for key, folder in (("state", state), ("run_dir", run_dir)):
            folder.mkdir(parents=True, exist_ok=True)
            require_own(key, folder)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"state: {state}: {error.strerror}", fix="name a folder that this user may write") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Refused(
            f"another agent is running with {state}", fix="stop it, or give this one a state folder"
        ) from error
    Agent(settings, make_credentials(settings.munge_socket)).run()
