"""Telemetry of a large cluster into one daemon on one core: heartbeats, long polls, evidence, faults, a burst.

The daemon is the real one, pinned to core 0, in observe mode, with SQLite on this machine's disk. Simulated: the agents (one
asyncio process on core 1 that keeps two connections for each node, as an agent does: heartbeats on one, the long poll for
orders on the other, and a third for those that have evidence), and Slurm (its answers for this many nodes and jobs, made
from what a real slurmctld said at the start of the run, printed by scripts in place of the commands, so that parsing costs
what it costs).
``--credentials session`` (the default) is what agents do: MUNGE, with a real munged that shares core 1, opens a session for
each connection. ``--credentials munge`` signs each request by MUNGE, as agents of the release before do. The nodes' checks
of the daemon's answers are left out, since they happen elsewhere.

Phases: beating only; then progress of the jobs, harmless evidence, and a fatal Xid every --fault-every seconds; then a burst
(--burst nodes send 20 items each within a second) while faults go on. A decision counts from before the evidence is sent to
the verdict in the store. Baseline: the same with --baseline nodes, in the same run.

Run: PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/ingest.py [--nodes 2048] [--phase-s 40] [--credentials munge]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from lab import slurm
from lab.layout import Lab
from lab.submit import Request, submit
from measure import lab_up, line, load, quantile, seconds, until

from sentinel.adapters.munge import Munge
from sentinel.adapters.session import ClientSession
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.ports import Credentials
from sentinel.protocol import EVIDENCE, HEADER, HEARTBEAT, ORDER_RESULT, ORDERS, SESSION, OrderKind, digest_of
from sentinel.wire import to_json

PHASES = ("beating", "working", "burst")
FATAL = (79, 95, 119)  # each convicts its node at once


# --- the daemon's process ---------------------------------------------------------------------------------------------


def serve(folder: Path, profile: Path | None) -> None:
    os.sched_setaffinity(0, {0})
    from sentinel.config.settings import Settings, load
    from sentinel.daemon import run

    settings = load(folder / "sentinel.toml", Settings)
    if profile is None:
        run.main(settings)
        return
    import cProfile

    profiler = cProfile.Profile(time.thread_time)  # other processes' time on this core does not count
    try:
        profiler.runcall(run.main, settings)
    finally:
        profiler.dump_stats(profile)


# --- what stands in for Slurm -----------------------------------------------------------------------------------------


def running(lab: Lab) -> bool:
    states: str = slurm.client(lab, ["squeue", "-h", "-o", "%T"])
    return states.split() == ["RUNNING"]


def recorded(folder: Path, lab: Lab, nodes: int, job_nodes: int) -> list[tuple[int, list[str]]]:
    """Scripts that print what this Slurm says, for more nodes and jobs. Gives the jobs with their nodes."""
    new = slurm.release() >= (23, 2)
    show_nodes = (
        ["scontrol", "--json", "--all", "--local", "show", "nodes"] if new else ["sinfo", "--json", "--all", "--local"]
    )
    show_jobs = (
        ["scontrol", "--json", "--all", "--local", "show", "jobs"]
        if new
        else ["squeue", "--json", "--all", "--local", "--states=all"]
    )

    def asked(command: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(slurm.client(lab, command))
        return found

    said_nodes, said_jobs = asked(show_nodes), asked(show_jobs)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    record = json.dumps(said_nodes["nodes"][0]).replace(f'"{said_nodes["nodes"][0]["name"]}"', '"@"')
    said_nodes["nodes"] = [json.loads(record.replace('"@"', json.dumps(name))) for name in names]
    jobs = [(100 + at // job_nodes, names[at : at + job_nodes]) for at in range(0, nodes - job_nodes // 2, job_nodes)]
    sample = json.dumps(said_jobs["jobs"][0])
    made = []
    for job, on in jobs:
        one = json.loads(sample)
        one["job_id"] = job
        one["nodes"] = f"n[{on[0][1:]}-{on[-1][1:]}]"
        made.append(one)
    said_jobs["jobs"] = made
    (folder / "nodes.json").write_text(json.dumps(said_nodes))
    (folder / "jobs.json").write_text(json.dumps(said_jobs))
    version = slurm.client(lab, ["scontrol", "--version"]).strip()
    script = f"""#!/bin/sh
case "$*" in
    *--version*) echo '{version}' ;;
    *nodes*) exec cat {folder}/nodes.json ;;
    *jobs*|*states*) exec cat {folder}/jobs.json ;;
    *) exec cat {folder}/nodes.json ;;
esac
"""
    (folder / "bin").mkdir()
    for name in ("sinfo", "squeue", "scontrol"):
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    return jobs


def settings_text(folder: Path, port: int, munge_socket: Path) -> str:
    return f"""\
[slurm]
bin = "{folder}/bin:/usr/bin:/bin"
[daemon]
listen = "127.0.0.1:{port}"
state = "{folder}/state"
munge_socket = "{munge_socket}"
waiting_connections = 40960  # all agents come from one address here
waiting_per_address = 40960
[limits]
breaker_nodes = 100000
drain_per_hour = 100000
drain_count = 100000
drain_fraction = 1.0
"""


# --- the nodes --------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    beats: list[float] = field(default_factory=list)  # seconds until the answer
    late: int = 0  # heartbeats answered after a whole period
    failed: int = 0
    items: int = 0
    orders: int = 0
    said: str = ""


class Line(asyncio.Protocol):
    """One kept connection: plain HTTP/1.1, as cheap as Python allows, so that the daemon is what is measured."""

    def __init__(self, port: int, credentials: Credentials, in_session: bool) -> None:
        self._port = port
        self._credentials = credentials
        self._in_session = in_session
        self._session: ClientSession | None = None
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._read = b""
        self._lock = asyncio.Lock()
        self.heard = False  # whether the daemon answered

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, content = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head[head.index(b"Content-Length:") + 15 :].split(b"\r\n", 1)[0])
        if len(content) >= length and self._answer is not None:
            self.heard = True
            answer, self._answer, self._read = self._answer, None, b""
            if not answer.done():
                answer.set_result((head, content))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._read = None, b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the daemon closed the connection"))

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        raw = json.dumps(body, separators=(",", ":")).encode()
        async with self._lock:
            if self._in_session and self._session is None:
                await self._open_session()
            mark = (
                self._credentials.encode(digest_of(path, raw))
                if self._session is None
                else self._session.mark(path, raw)
            )
            head, content = await self._exchange(path, raw, mark)
        if not head.startswith(b"HTTP/1.1 200"):
            self._session = None
            raise ConnectionError(f"{head[:40]!r} {content[:200]!r}")
        found: dict[str, Any] = json.loads(content)
        return found

    async def _open_session(self) -> None:
        head, content = await self._exchange(SESSION, b"{}", self._credentials.encode(digest_of(SESSION, b"{}")))
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"{head[:40]!r} {content[:200]!r}")
        mark = next(x for x in head.decode().split("\r\n") if x.startswith(HEADER)).partition(": ")[2]
        signed = self._credentials.decode(mark)
        self._session = ClientSession(
            json.loads(content)["session"], bytes.fromhex(signed.payload.split()[1].decode()), signed.uid
        )

    async def _exchange(self, path: str, raw: bytes, mark: str) -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        self._answer = loop.create_future()
        head = f"POST {path} HTTP/1.1\r\nHost: daemon\r\n{HEADER}: {mark}\r\nContent-Length: {len(raw)}\r\n\r\n"
        self._transport.write(head.encode() + raw)
        return await self._answer


class Nodes:
    """All simulated agents."""

    def __init__(
        self,
        port: int,
        credentials: Credentials,
        jobs: list[tuple[int, list[str]]],
        nodes: int,
        beat_s: float,
        *,
        in_session: bool,
    ) -> None:
        self.beat_s = beat_s
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.jobs = jobs
        self.counts = Counts()
        self.faults: dict[str, float] = {}  # node -> when its fatal Xid was sent
        self._ramp_s = max(5.0, nodes / 400)  # agents come back within 15 s of a daemon's start
        self._senders: dict[str, Line] = {}  # those that have evidence have a third connection for it
        self._new_line = partial(Line, port, credentials, in_session)
        self._lines = {name: Line(port, credentials, in_session) for name in self.names}
        self._polls = {name: Line(port, credentials, in_session) for name in self.names}
        self._job_of = {name: job for job, on in jobs for name in on}
        self._number = dict.fromkeys(self.names, 1)
        self._rng = random.Random(7)

    async def beat(self, name: str) -> None:
        await asyncio.sleep(self._rng.random() * self._ramp_s)
        while True:
            began = time.monotonic()
            body = {
                "node": name, "boot_id": "b", "at": datetime.now(UTC).isoformat(), "version": "bench",
                "spool": {"pending": 0, "dropped": 0}, "jobs": self._runs(name),
                "verdict": {"word": "ok", "at_s": time.time(), "code": "", "sentence": "no trouble known"},
                "clock_offset_s": 0.0, "kernel_readable": True,
            }  # fmt: skip
            try:
                await self._lines[name].post(HEARTBEAT, body)
            except OSError as error:
                self.counts.failed += 1
                self.counts.said = str(error)
            took = time.monotonic() - began
            self.counts.beats.append(took)
            self.counts.late += took > self.beat_s
            await asyncio.sleep(max(0.0, self.beat_s - took))

    def all_heard(self) -> bool:
        """Whether each agent was answered on both of its connections, or has a session there."""
        return all(line.heard for lines in (self._lines, self._polls) for line in lines.values())

    def _runs(self, name: str) -> list[dict[str, int]]:
        return [{"job": self._job_of[name], "attempt": 0}] if name in self._job_of else []

    async def poll(self, name: str) -> None:
        await asyncio.sleep(self._rng.random() * self._ramp_s)
        while True:
            try:
                answer = await self._polls[name].post(ORDERS, {"node": name})
                for order in answer["orders"]:
                    await self._polls[name].post(ORDER_RESULT, {"node": name, **self._carried_out(order)})
            except OSError as error:
                self.counts.failed += 1
                self.counts.said = str(error)
                await asyncio.sleep(1.0)

    def _carried_out(self, order: dict[str, Any]) -> dict[str, Any]:
        """What a healthy node answers at once; a daemon that gets no answer asks, and would be busy with asking."""
        self.counts.orders += 1
        if order["kind"] != OrderKind.TASK_STATES:
            return {"id": order["id"], "ok": False, "result": None, "error": "not known to this bench"}
        now_s = time.time()
        tasks = [
            {"rank": rank, "pid": 100 + rank, "state": "R", "cpu_s": now_s % 1e6, "command": "python", "leaf": True}
            for rank in range(8)
        ]
        gpus = [{"index": at, "utilisation": 99, "power_w": 600.0, "usual_w": 600.0} for at in range(8)]
        result = {"tasks": tasks, "at_s": now_s, "has_gpus": True, "gpus": gpus}
        return {"id": order["id"], "ok": True, "result": result, "error": ""}

    async def send(self, name: str, items: list[Evidence]) -> None:
        first = self._number[name]
        self._number[name] += len(items)
        self.counts.items += len(items)
        body = {"node": name, "epoch": "bench", "first": first, "items": [to_json(item) for item in items]}
        await self._senders.setdefault(name, self._new_line()).post(EVIDENCE, body)

    def item(self, name: str, kind: str, source: Source, trust: Trust, **data: Any) -> Evidence:
        now = datetime.now(UTC)
        job = self._job_of.get(name) if source is Source.JOB_LOG else None
        return Evidence(
            id=stable_id(name, kind, now.isoformat(), self._rng.random()), at=now, seen_at=now, source=source, kind=kind,
            where=Where(node=name, gpu=data.pop("gpu", None), job=job, attempt=0 if job else None),
            text=f"{kind} of {name} {data}", data=data, trust=trust,
        )  # fmt: skip

    async def progress(self) -> None:
        """One line of progress a second from the batch host of each job."""
        step = 0
        while True:
            step += 1
            await asyncio.gather(*(self._step(on[0], step) for _, on in self.jobs), asyncio.sleep(1.0))

    async def _step(self, name: str, step: int) -> None:
        await self.send(name, [self.item(name, Kind.STEP, Source.JOB_LOG, Trust.USER, step=step, step_time_s=1.0)])

    async def noise(self, per_s: float) -> None:
        """Evidence that convicts nobody: application Xids, thermal slowdowns."""
        while True:
            name = self._rng.choice(self.names[1::2])
            kind, data = self._rng.choice([("clocks_slowdown", {}), (Kind.XID, {"xid": 43}), (Kind.XID, {"xid": 31})])
            await self.send(name, [self.item(name, kind, Source.DCGM, Trust.SYSTEM, gpu=1, **data)])
            await asyncio.sleep(1 / per_s)

    async def fault(self) -> None:
        fresh = [name for name in self.names[::2] if name not in self.faults]  # nobody else tells of these nodes
        if not fresh:
            return
        name, xid = self._rng.choice(fresh), self._rng.choice(FATAL)
        self.faults[name] = time.time()
        await self.send(
            name,
            [
                self.item(name, Kind.XID, Source.KERNEL, Trust.SYSTEM, gpu=3, xid=xid, pci="0000:3b:00"),
                self.item(name, Kind.XID, Source.DCGM, Trust.SYSTEM, gpu=3, xid=xid),
            ],
        )

    async def burst(self, nodes: int) -> float:
        """``nodes`` nodes tell of 20 things each at once; seconds until the last was acknowledged."""
        began = time.monotonic()
        chosen = self._rng.sample(self.names[1::2], min(nodes, len(self.names) // 2))
        kinds = [
            ("nvlink_errors", {"count": 3}),
            ("clocks_slowdown", {}),
            (Kind.XID, {"xid": 43}),
            (Kind.XID, {"xid": 13}),
        ]

        async def tell(name: str) -> None:
            kinds_of = (self._rng.choice(kinds) for _ in range(20))
            items = [
                self.item(name, kind, Source.DCGM, Trust.SYSTEM, gpu=at % 8, **data)
                for at, (kind, data) in enumerate(kinds_of)
            ]
            await self.send(name, items)

        await asyncio.gather(*(tell(name) for name in chosen))
        return time.monotonic() - began


# --- one run ----------------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Seconds of a core so far, with those of children that ended (Slurm's commands)."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """Seconds so far in which the daemon's event loop could have run, and others had the core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("VmHWM")).split()[1]) / 1024


def decisions(folder: Path, faults: dict[str, float]) -> list[float]:
    """Seconds from sending to the verdict, for each fault; one not judged counts as endless."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(f"file:{folder}/state/sentinel.db?mode=ro", uri=True, timeout=20)) as store:
        found = store.execute("SELECT at, json_extract(record, '$.culprits.nodes') FROM verdict ORDER BY id").fetchall()
    first: dict[str, float] = {}
    for at, nodes in found:
        for name in json.loads(nodes or "[]"):
            if name in faults and seconds(at) >= faults[name]:
                first.setdefault(name, seconds(at))
    return [first[name] - sent if name in first else float("inf") for name, sent in faults.items()]


async def phase(what: str, nodes: Nodes, pid: int, for_s: float, options: argparse.Namespace) -> None:
    nodes.counts = Counts()
    began, cpu, waited = time.monotonic(), cpu_s(pid), waited_s(pid)
    faults_before = set(nodes.faults)
    burst_s = None
    if what == "burst":
        burst_s = await nodes.burst(options.burst)
    while time.monotonic() - began < for_s:
        if what != "beating":
            await nodes.fault()
        await asyncio.sleep(options.fault_every)
    took, counts = time.monotonic() - began, nodes.counts
    used_s, starved_s = cpu_s(pid) - cpu, waited_s(pid) - waited
    beats = counts.beats
    print(
        f"  {what:<9} {len(beats) / took:6.0f} beats/s  answered p50 {1000 * quantile(beats, 0.5):.0f} p99 "
        f"{1000 * quantile(beats, 0.99):.0f} ms  late {counts.late}  failed {counts.failed} {counts.said:.80}  "
        f"{counts.items / took:.0f} items/s  {counts.orders} orders  daemon {used_s:.1f} s = {100 * used_s / took:.0f} % "
        f"of its core (others had it for {100 * starved_s / took:.0f} % while it could run), "
        f"{1000 * used_s / max(1, len(beats)):.3f} ms a beat, peak {peak_mib(pid):.0f} MiB  load {load()}",
        flush=True,
    )
    await asyncio.sleep(8)
    if set(nodes.faults) - faults_before:
        took_s = decisions(options.folder, {n: at for n, at in nodes.faults.items() if n not in faults_before})
        print("  " + line(f"{what}: fault sent to decision", took_s, {0.5: 1.0, 0.99: 3.0}), flush=True)
    if burst_s is not None:
        print(f"  burst of {options.burst} x 20 items acknowledged within {burst_s:.2f} s", flush=True)


def silent(options: argparse.Namespace) -> int:
    """How often a node was called silent so far. Until its agent has connected, that is since the daemon's start."""
    return int((options.folder / "daemon.log").read_text().count(" node-silent "))


async def drive(
    port: int, pid: int, jobs: list[tuple[int, list[str]]], count: int, options: argparse.Namespace
) -> None:
    nodes = Nodes(
        port, Munge(str(options.munge_socket)), jobs, count, options.beat_s, in_session=options.credentials == "session"
    )
    tasks = [asyncio.create_task(nodes.beat(name)) for name in nodes.names]
    tasks += [asyncio.create_task(nodes.poll(name)) for name in nodes.names]
    while not nodes.all_heard():
        await asyncio.sleep(0.5)
        for task in tasks:
            if task.done():
                task.result()
    print(f"  all agents connected: {silent(options)} nodes were called silent before", flush=True)
    await asyncio.sleep(8)
    for what in options.phases:
        if what == "working":
            tasks += [asyncio.create_task(nodes.progress()), asyncio.create_task(nodes.noise(2.0))]
        await phase(what, nodes, pid, options.phase_s, options)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            print(f"  a simulated agent ended: {result!r}")


def one(count: int, lab: Lab, options: argparse.Namespace) -> None:
    options.folder = Path(tempfile.mkdtemp(prefix="bl-ingest-"))
    folder: Path = options.folder
    options.munge_socket = lab.munge_socket
    jobs = recorded(folder, lab, count, job_nodes=32)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sentinel.toml").write_text(settings_text(folder, port, lab.munge_socket))
    log = folder / "daemon.log"
    with log.open("w") as out:
        command = [sys.executable, __file__, "--serve", str(folder)]
        command += ["--profile", str(options.profile)] if options.profile else []
        daemon = subprocess.Popen(command, stderr=out, stdout=out)
    try:
        until("the daemon", lambda: " started" in log.read_text(), 120.0)
        print(
            f"{count} nodes x 8 GPUs, {len(jobs)} jobs, credentials: {options.credentials}; daemon pid {daemon.pid}",
            flush=True,
        )
        asyncio.run(drive(port, daemon.pid, jobs, count, options))
    finally:
        called = silent(options)  # while agents and daemon worked
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(30)
    print(f"  called silent: {called} with those; bugs and errors: {log.read_text().count(' ERROR ')}; log {log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--baseline", type=int, default=64, help="nodes of a second run; 0: none")
    parser.add_argument("--phase-s", type=float, default=40.0)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--beat-s", type=float, default=2.0)
    parser.add_argument("--fault-every", type=float, default=0.5)
    parser.add_argument("--burst", type=int, default=512)
    parser.add_argument("--credentials", choices=("session", "munge"), default="session")
    parser.add_argument(
        "--profile", type=Path, help="where the daemon's main thread leaves a profile by its own CPU time"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.profile)
        return
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with lab_up(2, sentinel=False) as lab:
        os.sched_setaffinity(0, {1})
        for pid in (os.getpid(), int((lab.dir / "pids" / "munged").read_text().split()[0])):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {1})
        submit(lab, Request(nodes=2, run="sample", standin=True, steps=100_000))
        until("the sample job", partial(running, lab), 120.0)
        for count in filter(None, (options.nodes, options.baseline)):
            one(count, lab, options)


if __name__ == "__main__":
    main()
