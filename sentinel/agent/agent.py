"""The agent of one node: gathers, keeps, sends, and does what the daemon orders. It decides nothing.

One small process with a few threads; whatever may hang runs in a killable child (``children.py``). What is wired here:

    kernel log ─┐
    GPU probe  ─┼─> keep() ─> spool ─> Sender ─> daemon ─> Orders ─> children ─> results
    job logs   ─┘      └─> verdict, which the hooks read
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel import __version__
from sentinel.adapters.client import DaemonClient
from sentinel.adapters.kmsg import boot_id
from sentinel.adapters.rules_files import load_rules
from sentinel.adapters.spool import Spool, Value
from sentinel.agent.children import Children, Program
from sentinel.agent.collecting import Collecting, failures_of
from sentinel.agent.diagnosing import Diagnosing
from sentinel.agent.disk_watch import DiskWatch
from sentinel.agent.gpus import GpuWatch
from sentinel.agent.holding import Holding
from sentinel.agent.jobs import Jobs
from sentinel.agent.keeping import node_name, write_atomically
from sentinel.agent.kernel import KernelWatch, rules_reader
from sentinel.agent.orders import Orders
from sentinel.agent.rounds import Rounds
from sentinel.agent.saves import SavesWatch
from sentinel.agent.sending import Sender
from sentinel.agent.settings import AgentSettings
from sentinel.agent.verdict import VerdictKeeper
from sentinel.errors import Refused, UserError
from sentinel.evidence.gpu_samples import Sample
from sentinel.evidence.logs import Signatures
from sentinel.evidence.timers import TIMERS
from sentinel.log import Log
from sentinel.model import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.ports import Credentials
from sentinel.protocol import OrderKind
from sentinel.wire import evidence_from, time_from, to_json

log = Log()

SAMPLES = 30  # of GPU telemetry, for those who ask what was before a job's end
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "TZ")


class Agent:
    """Everything of one node.

    Args:
        credentials: how to sign requests and check answers.
    """

    def __init__(self, settings: AgentSettings, credentials: Credentials) -> None:
        self.settings = settings
        self.node = node_name(settings.node)
        self.boot = boot_id()
        self._credentials = credentials
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
        self.gpus = GpuWatch(self.node, settings, self.children, self.program, self.keep)
        self.jobs = Jobs(self.node, settings, self.children, self.program, self.keep)
        signatures = Signatures(load_rules(site=Path(settings.rules) if settings.rules else None))
        self.kernel = KernelWatch(
            self.node,
            settings,
            rules_reader(self.node, self.boot, signatures),
            lambda item: self.keep(self.gpus.placed(item)),
        )
        self.rounds = Rounds(self.node, settings, self.children, self.program, self.keep, lambda: list(self.jobs.jobs))
        self.verdict = VerdictKeeper(run_dir, state, self.boot, self.gpus.facts, self.gpus.trouble)
        self.gpus.on_change = self.verdict.write
        self.diagnosing = Diagnosing(
            self.node,
            settings,
            self.children,
            self.program,
            lambda: self._order_settings(OrderKind.DIAGNOSE),
            lambda: self.gpus.last,
            self._diagnosed,
        )
        self.jobs.on_came = self.diagnosing.job_came
        self.sender = Sender(
            self.node,
            self.spool,
            self.client(),
            self.heartbeat,
            heartbeat_s=settings.heartbeat_s,
            backoff_s=settings.backoff_s,
            batch=settings.spool.batch,
        )
        self.sender.on_answer = self._answered
        self._wire_endings(failures_of(signatures.rules))
        self._wire_orders(settings)

    def _wire_orders(self, settings: AgentSettings) -> None:
        """What the daemon may ask for."""
        self.orders = Orders(
            self.node,
            Path(settings.state) / "orders",
            self.children,
            self.program,
            self.client,
            self._order_settings,
            self._order_done,
            backoff_s=settings.backoff_s,
        )
        self.orders.busy = lambda: bool(self.jobs.jobs)
        self.diagnosing.give_way = self.orders.give_way

    def _wire_endings(self, failures: frozenset[str]) -> None:
        """What a job saves, and what happens when it ends here."""
        self.saves = SavesWatch(
            self.node, self.settings, self.children, self.program, self.keep, lambda: dict(self.jobs.jobs)
        )
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.holding = Holding(self.node, self.settings, self.children, self.program, self.keep, self.saves.asked)
        self.collecting = Collecting(
            self.node,
            self.settings,
            self.children,
            self.program,
            self.keep,
            failures,
            lambda: dict(self.jobs.jobs),
            lambda: to_json(list(self._samples)),
        )
        self.collecting.on_ended = self.holding.ended

    # ------------------------------------------------------------------------------------------------ life

    def _answered(self, answer: dict[str, Any]) -> None:
        """What the daemon's answer to a heartbeat asks of us."""
        self.saves.heard(answer)
        if isinstance(answer.get("released_at"), str):
            self.verdict.released(time_from(answer["released_at"]).timestamp())

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopped.set())
        scheduler = self._scheduler()
        if self.settings.metrics.listen:
            from sentinel.agent.metrics import serve

            serve(self, self.settings.metrics.listen)
        if self.settings.resume:
            write_atomically(Path(self.settings.run_dir) / "resume_dir", self.settings.resume + "\n")
        self.verdict.write()
        self.gpus.start()
        self.jobs.resume()
        threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("children", self.children.run),
                ("kernel", self.kernel.run),
                ("sender", self.sender.run),
                ("orders", self.orders.run),
                ("results", self.orders.deliver),
            )
        ]
        for thread in threads:
            thread.start()
        scheduler.start()
        log.info("agent-started", node=self.node, pid=os.getpid(), url=self.settings.url)
        while not self._stopped.wait(3600.0):
            continue
        log.info("agent-stops", node=self.node)
        scheduler.shutdown(wait=False)
        for part in (self.kernel, self.orders, self.sender):
            part.stop()
        self.children.shut_down()
        self.verdict.write()

    def _scheduler(self) -> Any:
        """What is periodic. One thread is enough: nothing in here may block."""
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 30},
            timezone=UTC,
        )
        scheduler.add_job(self.verdict.write, "interval", seconds=self.settings.verdict_s)
        scheduler.add_job(self._look, "interval", seconds=1.0)
        scheduler.add_job(self.kernel.panics, next_run_time=datetime.now(UTC))
        host = self.settings.host
        scheduler.add_job(self.rounds.host, "interval", seconds=host.period_s, jitter=host.period_s / 10)
        scheduler.add_job(lambda: self.rounds.clock(self.sender.clock_offset_s), "interval", seconds=host.period_s)
        diagnostics = self.settings.diagnostics
        if diagnostics.level1_s:
            scheduler.add_job(
                self.diagnosing.level1, "interval", seconds=diagnostics.level1_s, jitter=diagnostics.level1_s / 10
            )
        if self.settings.jobs.saves_s:
            saves_s = self.settings.jobs.saves_s
            scheduler.add_job(self.saves.look, "interval", seconds=saves_s, jitter=saves_s / 10)
        if host.smart_s:
            scheduler.add_job(self.rounds.smart, "interval", seconds=host.smart_s, jitter=host.smart_s / 10)
        if host.mounts:
            scheduler.add_job(self.rounds.mounts, "interval", seconds=host.period_s, jitter=host.period_s / 10)
        for name, check in self.settings.checks.items():
            scheduler.add_job(
                self.rounds.check, "interval", args=[name], seconds=check.period_s, jitter=check.period_s / 10
            )
        return scheduler

    def _look(self) -> None:
        """What hooks left for us."""
        self.disks.look()
        self.collecting.look()
        self.jobs.scan()
        self.holding.look(self.jobs.jobs)
        sample = self.gpus.last
        if sample is not None and (not self._samples or self._samples[-1] is not sample):
            self._samples.append(sample)
        self.diagnosing.requests()

    # ------------------------------------------------------------------------------------------------ wiring

    def keep(self, evidence: Evidence) -> None:
        """Put evidence on its way. Safe from any thread."""
        self.verdict.consider(evidence)
        self.collecting.consider(evidence)
        value = (
            Value.LOW
            if evidence.kind in (Kind.STEP, TIMERS)
            else Value.NORMAL
            if evidence.trust is Trust.USER
            else Value.HIGH
        )
        self.spool.append(to_json(evidence), value)

    def client(self) -> DaemonClient:
        return DaemonClient(
            self.settings.url,
            self._credentials,
            trusted_uids=self.settings.trusted_uids,
            deadline_s=self.settings.request_s,
        )

    def program(self, name: str, module: str, arguments: Mapping[str, object], **rest: Any) -> Program:
        """A child of ours: this interpreter, this package, a clean environment."""
        return Program(name, probe_command(module), arguments, environment=probe_environment(), **rest)

    def heartbeat(self) -> dict[str, Any]:
        verdict = self.verdict.now()
        return {
            "boot_id": self.boot,
            "version": __version__,
            "spool": {"pending": self.spool.pending, "dropped": self.spool.dropped},
            "jobs": [
                {"job": job.job, "attempt": job.attempt, "gpus": job.gpus} for job in list(self.jobs.jobs.values())
            ],
            "verdict": {"word": verdict.word, "at_s": verdict.at_s, "code": verdict.code, "sentence": verdict.sentence},
            "clock_offset_s": self.sender.clock_offset_s,
            "kernel_readable": self.kernel.readable,
        }

    def _order_settings(self, kind: OrderKind) -> dict[str, object]:
        if kind is OrderKind.TASK_STATES:
            return {"node": self.node, **self.gpus.doing()}
        if kind is not OrderKind.DIAGNOSE:
            return {"node": self.node, "state": self.settings.state}
        dcgm, diagnostics = self.settings.dcgm, self.settings.diagnostics
        return {
            "node": self.node,
            "dcgmi": dcgm.dcgmi,
            "host": dcgm.host,
            "socket": dcgm.socket,
            "promised": self.settings.gpus,
            "deadlines_s": diagnostics.deadline_s,
            "stop_s": diagnostics.stop_s,
        }

    def _order_done(self, kind: OrderKind, _arguments: Mapping[str, Any], result: Any) -> None:
        if kind is OrderKind.DIAGNOSE and isinstance(result, dict):
            self._diagnosed(result)

    def _diagnosed(self, result: dict[str, Any]) -> None:
        self.verdict.diagnosed(result)
        for item in result.get("evidence", []):
            self.keep(evidence_from(item))

    def _unkillable(self, name: str, pid: int, where: str) -> None:
        now = datetime.now(UTC)
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
            )
        )


def probe_command(module: str) -> list[str]:
    # -P: the working folder is not searched for modules. -S: no site-packages, which saves a third of the start; the
    # GPU probe needs them for NVML.
    site = [] if module.endswith((".dcgm", ".inventory")) else ["-S"]
    return [sys.executable, "-P", *site, "-m", module]


def probe_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("SENTINEL_")}
    package = Path(__file__).resolve().parents[2]
    return {**kept, "PYTHONPATH": str(package), "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}


def run(settings: AgentSettings, make_credentials: Callable[[str], Credentials]) -> None:
    """The service, until it is told to stop.

    Raises:
        Refused: another agent has this state folder. UserError: the folder cannot be written.
    """
    state = Path(settings.state)
    try:
        state.mkdir(parents=True, exist_ok=True)
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
