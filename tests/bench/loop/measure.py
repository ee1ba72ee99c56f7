"""What the benches of the loop share: a lab of their own, quantiles, CPU and memory of process trees, a signed client.

The benches are scripts, run from the root of the source tree:

    PYTHONPATH=$PWD:$PWD/deploy python tests/bench/loop/rest.py --nodes 64

They bring up a lab (real slurmctld, slurmd, munged, daemon, agents), measure, print a table, and take the lab down.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab import cluster, layout, processes, services, slurm
from lab.layout import Lab, LabError

from sentinel.adapters.client import DaemonClient
from sentinel.adapters.munge import Munge
from sentinel.protocol import CHANGE

TICKS = os.sysconf("SC_CLK_TCK")
Limits = dict[str, float]


def load() -> str:
    """Load average of the last minute: every number of a shared machine is read beside it."""
    return f"{os.getloadavg()[0]:.1f}"


@contextmanager
def lab_up(nodes: int, *, sentinel: bool = True, limits: Limits | None = None) -> Iterator[Lab]:
    """A lab in a folder of its own, with ``limits`` in place of the lab's; it is taken down whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="bl-"))
    spec = layout.new_spec(
        folder,
        nodes=nodes,
        gpus=8,
        partition="gpu",
        isolated=False,
        sentinel=sentinel,
        python=sys.executable,
        mode="act",
    )
    began = time.monotonic()
    lab = cluster.up(spec, ready_s=120.0)
    print(f"lab of {nodes} nodes up in {time.monotonic() - began:.1f} s (load {load()})", flush=True)
    try:
        if limits:
            change_limits(lab, limits)
        if sentinel:
            until("all agents heard", lambda: heard(lab) == nodes, 120.0)
        yield lab
    finally:
        cluster.down(folder, keep=False)


def change_limits(lab: Lab, limits: Limits) -> None:
    """Other limits for the daemon, which is started again."""
    path = lab.etc / "sentinel.toml"
    text = path.read_text(encoding="utf-8")
    for key, value in limits.items():
        line = f"{key} = {value}"
        text, found = re.subn(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
        if not found:
            text = text.replace("[limits]\n", f"[limits]\n{line}\n")
    layout.write_atomic(path, text)
    daemon = processes.known(lab, "daemon")
    if daemon is not None:
        daemon.send(signal.SIGTERM)
        processes.wait_gone([daemon], 30.0)
    services.start_daemon(lab)
    services.wait_daemon(lab)


def until(what: str, ready: Callable[[], Any], patience_s: float, *, step_s: float = 0.1) -> Any:
    """The first true answer of ``ready``; LabError when there is none in time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        answer = ready()
        if answer:
            return answer
        time.sleep(step_s)
    raise LabError(f"{what}: not within {patience_s:.0f} s")


# --- what the daemon says ---------------------------------------------------------------------------------------------


def client(lab: Lab) -> DaemonClient:
    return DaemonClient(f"http://127.0.0.1:{lab.spec.daemon_port}", Munge(str(lab.munge_socket)), deadline_s=30.0)


def release(asked: DaemonClient, node: str) -> None:
    """What ``sentinel release`` sends."""
    asked.post(CHANGE, {"change": "release", "arguments": {"node": node}})


def metric(lab: Lab, name: str) -> float:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{lab.spec.daemon_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise LabError(f"the daemon has no metric {name}")
    return float(found[1])


def heard(lab: Lab) -> int:
    try:
        return int(metric(lab, "sentinel_agents_connected"))
    except OSError:
        return -1


def rows(lab: Lab, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of the store, read beside the daemon."""
    with closing(
        sqlite3.connect(f"file:{lab.state / 'sentinel' / 'sentinel.db'}?mode=ro", uri=True, timeout=10)
    ) as store:
        return store.execute(query, values).fetchall()


def seconds(stored: str) -> float:
    """A time of the store as seconds since the epoch."""
    at = datetime.fromisoformat(stored)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def node_states(lab: Lab) -> dict[str, str]:
    """What sinfo shows."""
    said = slurm.client(lab, ["sinfo", "-h", "-N", "-o", "%N %T"])
    return {words[0]: words[1] for words in map(str.split, said.splitlines()) if words}


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    rss_bytes: int
    pss_bytes: int
    processes: int


def tree(pid: int) -> list[int]:
    """``pid`` and its descendants."""
    children: dict[int, list[int]] = {}
    for other in processes.everything():
        children.setdefault(processes.parent_of(other), []).append(other)
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


def usage(pids: Sequence[int]) -> Usage:
    """CPU used so far (with children that ended) and memory now, summed."""
    cpu = rss = pss = count = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended meanwhile
        cpu += sum(int(value) for value in stat[11:15])
        rss += _kb(rollup, "Rss")
        pss += _kb(rollup, "Pss")
        count += 1
    return Usage(cpu / TICKS, rss * 1024, pss * 1024, count)


def _kb(rollup: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) if found else 0


def service(lab: Lab, name: str) -> int:
    found = processes.known(lab, name)
    if found is None:
        raise LabError(f"{name} does not run")
    return found.pid


# --- numbers ----------------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank: of 30 values the 99th percentile is the largest."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def line(what: str, values: Sequence[float], targets: dict[float, float]) -> str:
    """One row: quantiles with their targets, the extremes, how many."""
    parts = [f"p{share * 100:g} {quantile(values, share):6.2f} s (<= {most:g})" for share, most in targets.items()]
    ends = f"min {min(values):.2f} max {max(values):.2f}" if values else "none"
    return f"{what:<44} {'  '.join(parts)}  {ends}  n {len(values)}  load {load()}"
