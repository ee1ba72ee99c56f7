"""A day of a node in as long as it takes: 86,400 GPU samples, 43,200 heartbeats, jobs, kernel lines, host rounds.

    python tests/bench/node_day.py

The parts of the agent run in this process against a daemon that answers at once, so that what they keep is what grows. GPUs
are lost and come back, the driver asks for resets, DCGM's engine restarts and gives its Xids again, prologs read the
verdict.

Prints one JSON object: memory and open files after the first hour and after the day, what was sent, and whether each
fault was told once: ``told_twice`` and ``missed`` must be empty.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from sentinel.adapters.client import DaemonClient  # noqa: E402
from sentinel.adapters.host.kmsg import Record  # noqa: E402
from sentinel.agent.agent import Agent  # noqa: E402
from sentinel.agent.process.children import Ending, Program  # noqa: E402
from sentinel.agent.settings import AgentSettings, Jobs  # noqa: E402
from sentinel.log import Log  # noqa: E402
from sentinel.protocol import EVIDENCE, HEARTBEAT  # noqa: E402

HOUR_S = 3600
KERNEL_XIDS = [0]  # said by the kernel's log


class Quick(DaemonClient):
    """A daemon that has everything at once."""

    received = 0
    kinds: ClassVar[Counter[str]] = Counter()
    ids: ClassVar[Counter[str]] = Counter()

    def post(self, path: str, body: Any, *, deadline_s: float | None = None) -> dict[str, Any]:
        json.dumps(body)
        if path == EVIDENCE:
            self.received += len(body["items"])
            self.kinds.update(item["kind"] for item in body["items"])
            self.ids.update(item["id"] for item in body["items"])
            return {"acknowledged": body["first"] + len(body["items"]) - 1}
        return {"at": datetime.now(UTC).isoformat()} if path == HEARTBEAT else {}


class NoChildren:
    """Stands in for the processes; what they say is said by this bench."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def start(self, program: Program) -> bool:
        self.programs[program.name] = program
        return True

    def stop(self, name: str) -> None:
        self.programs.pop(name, None)

    def running(self, name: str) -> bool:
        return name in self.programs

    def stuck(self, _name: str) -> int:
        return 0


# What is injected: how often, for how long, and the evidence that is due for each.
ACTION_EVERY_S, ACTION_S = 3000, 60
LOST_EVERY_S, LOST_S = 4500, 30
ENGINE_EVERY_S = 7200
PROLOG_EVERY_S = 900
due: Counter[str] = Counter()
xids: list[list[int]] = []  # what the engine still has: 300 s


def gpu_sample(second: int) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = []
    for n in range(8):
        asked = second % ACTION_EVERY_S < ACTION_S and n == second // ACTION_EVERY_S % 8
        fields = {"150": 40 + second % 30, "155": 300.5, "112": 0, "203": 99, "252": 70000, "395": 0, "396": 0, "238": 16,
                  "311": second // 20000, "202": second // 500, "236": 16, "319": 0, "1523": int(asked)}  # fmt: skip
        gpus.append({"id": n, "uuid": f"GPU-{n}", "pci": f"0000:{n:02x}:00.0", "status": 1, "fields": fields})
        if second >= LOST_EVERY_S and second % LOST_EVERY_S < LOST_S and n == (second // LOST_EVERY_S + 3) % 8:
            gpus[-1] = {"id": n, "status": 4, "fields": {}}  # nameless, as the engine lists it
    due["recovery_action"] += second % ACTION_EVERY_S == 0
    due["gpu_lost"] += second > 0 and second % LOST_EVERY_S == 0
    events = []
    if second % 600 == 0:
        xids.append([second % 8, 31, int(time.time() * 1e6) + second])
        events.append(xids[-1])
        due["xid of DCGM"] += 1
        del xids[:-4]
    if second % ENGINE_EVERY_S == 30:
        events = list(xids)  # a probe that starts again is given what the engine has
    return {"type": "sample", "via": "dcgm", "full": True, "gpus": gpus, "events": events, "missing": {}}


def prolog(agent: Agent) -> None:
    agent.verdict.write()
    root = Path(__file__).parents[2]
    environment = {"PATH": os.environ["PATH"], "SENTINEL_RUN_DIR": agent.settings.run_dir, "SENTINEL_HOME": str(root)}
    subprocess.run([str(root / "prolog/10-sentinel")], env=environment, capture_output=True, timeout=60, check=False)


def second_of(agent: Agent, children: NoChildren, reader: Any, second: int) -> None:
    message = json.loads(json.dumps(gpu_sample(second)))
    agent.gpus.heard(message)
    if second % 2 == 0:
        agent.heartbeats.beat()
    if second % 3 == 0:
        agent.verdict.write()
    if second % 60 == 0:
        agent.checks.host()
        children.programs["host"].on_message(
            {"type": "host", "ports": [{"name": "m:1", "state": "ACTIVE", "counters": {}}]}
        )
        children.programs["host"].on_end(Ending("host", 0, False, "", ""))
        now_s = time.time()
        text = f"NVRM: Xid (PCI:0000:{second % 8:02x}:00): 31, pid={second}, name=python, Ch 0000001e, intr 00000000"
        for evidence in reader([Record(second, now_s, 4, 0, text, float(second))], datetime.now(UTC)):
            agent.keep(evidence)
            KERNEL_XIDS[0] += evidence.kind == "xid"
    if second % ENGINE_EVERY_S == 29:
        agent.gpus.heard({"type": "unreadable", "reason": "DCGM, reading fields: the connection is not valid"})
        agent.gpus.ended(Ending("dcgm", 0, False, "", ""))
    if second % PROLOG_EVERY_S == 40:
        prolog(agent)
    if second % 900 == 0:
        job(agent, children, second)
    if agent.spool.pending:
        agent.sender.send_batch()


def job(agent: Agent, children: NoChildren, number: int) -> None:
    """A job with a log of a few lines that comes and goes."""
    path = Path(agent.settings.run_dir) / "jobs" / f"{number + 1}.json"
    content = {"job": str(number + 1), "attempt": "0", "uid": "1", "nodelist": "n1", "stdout": "/x/y"}
    path.write_text(json.dumps(content))
    agent.jobs.scan()
    program = children.programs[f"log:{number + 1}.0"]
    for line in range(20):
        program.on_message({"type": "alive", "cursor": {"inode": 1, "offset": line * 100, "line": line}})
    path.unlink()
    agent.jobs.scan()
    program.on_message({"type": "done", "cursor": {}})


def kept() -> dict[str, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss_kb = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    return {"rss_kb": rss_kb, "files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def main() -> None:
    import sentinel.agent.agent as module

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere:
        for name in (
            "agent",
            "collectors.jobs",
            "collectors.gpus",
            "collectors.periodic_checks",
            "collectors.kernel_log",
            "uplink.sender",
            "uplink.orders",
            "process.state_files",
            "health.diagnostics",
            "process.children",
        ):
            sys.modules[f"sentinel.agent.{name}"].log = Log(nowhere)  # type: ignore[attr-defined]
        children = NoChildren()
        module.Children = lambda: children  # type: ignore[assignment,misc]
        quick: list[Quick] = []

        def client(_self: Agent, **_leads: bool) -> Quick:
            quick.append(Quick("http://daemon:1", None))  # type: ignore[arg-type]
            return quick[-1]

        module.Agent.client = client  # type: ignore[method-assign]
        jobs = Jobs(follow_after_s=0.0)  # each is followed, short as it is
        settings = AgentSettings(node="n1", run_dir=f"{folder}/run", state=f"{folder}/state", gpus=8, jobs=jobs)
        agent = Agent(settings, None)  # type: ignore[arg-type]
        reader = agent.kernel._reader
        began = time.monotonic()
        for second in range(HOUR_S):
            second_of(agent, children, reader, second)
        first = kept()
        for second in range(HOUR_S, 24 * HOUR_S):
            second_of(agent, children, reader, second)
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        answer = {"took_s": round(time.monotonic() - began, 1), "after_an_hour": first, "after_a_day": kept()}
        kinds = Quick.kinds
        told = {"recovery_action": kinds["recovery_action"], "gpu_lost": kinds["gpu_lost"]}
        told["xid of DCGM"] = kinds["xid"] - KERNEL_XIDS[0]
        answer["told_twice"] = [key for key, count in Quick.ids.items() if count > 1]
        answer["told_twice"] += [
            f"{kind}: {count} for {due[kind]}" for kind, count in told.items() if count > due[kind]
        ]
        answer["missed"] = [f"{kind}: {count} of {due[kind]}" for kind, count in told.items() if count < due[kind]]
        print(
            json.dumps(
                {**answer, "evidence_sent": agent.sender.sent, "dropped": agent.spool.dropped, "state_bytes": disk}
            )
        )


if __name__ == "__main__":
    main()
