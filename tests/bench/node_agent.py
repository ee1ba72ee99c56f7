"""The agent of one node: from an Xid to the daemon, what it costs at rest, and whether it grows.

    python tests/bench/node_agent.py [--events 100] [--rest-s 30] [--soak-events 2000]

Needs munged. Prints JSON objects: latency of kernel lines and of injected DCGM values (seconds, until the daemon has it),
memory and processor share at rest with an empty node, and memory, files and processes after a soak of jobs and events.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from nodes.agent_process import JOB_GID, JOB_UID  # noqa: E402
from nodes.fake_daemon import FakeDaemon  # noqa: E402

from sentinel.adapters.munge import Munge  # noqa: E402

XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): {xid}, pid=1234, name=python, Ch 0000001e"


class Bench:
    """One node with its agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        names = ("socket", "pid-file", "log-file", "seed-file")
        options = [f"--{name}={folder}/{name}" for name in names]
        self.munged = subprocess.Popen(
            ["munged", "--foreground", "--force", f"--key-file={folder}/key", *options], stderr=subprocess.DEVNULL
        )
        time.sleep(0.5)
        self.daemon = FakeDaemon(Munge(f"{folder}/socket"), sessions=True).start()
        self.state: dict[str, Any] = {
            "gpus": [
                {"index": n, "uuid": f"GPU-{n}", "pci": f"0000:{n:02x}:00.0", "fields": {}, "xids": []}
                for n in range(8)
            ]
        }
        self.write()
        (folder / "kmsg").touch()
        (folder / "agent.toml").write_text(
            f'node = "n1"\nurl = "{self.daemon.url}"\nmunge_socket = "{folder}/socket"\nrun_dir = "{folder}/run"\n'
            f'state = "{folder}/state"\ngpus = 8\ndcgm_bindings = "{ROOT}/deploy/lab/fake_dcgm"\n'
            f'[kernel]\npath = "{folder}/kmsg"\nlines_per_kind = 1000000\n[host]\nperiod_s = 60.0\n'
        )
        environment = {**os.environ, "SENTINEL_FAKE_GPUS": f"{folder}/gpus.json", "PYTHONPATH": str(ROOT)}
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--config", f"{folder}/agent.toml"],
            env=environment,
            stderr=(folder / "agent.log").open("w"),
        )
        assert self.daemon.wait(lambda: bool(self.daemon.heartbeats), 30)
        time.sleep(2.0)

    def write(self) -> None:
        (self.folder / "gpus.tmp").write_text(json.dumps(self.state))
        (self.folder / "gpus.tmp").replace(self.folder / "gpus.json")

    def kernel(self, text: str) -> None:
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        with (self.folder / "kmsg").open("a") as stream:
            stream.write(f"3,{now_us},{now_us},-;{text}\n")

    def latency(self, source: str, count: int, act: Any) -> list[float]:
        """Seconds from each act to the first evidence of this source after it."""
        taken = []
        for number in range(count):
            time.sleep(random.uniform(0.05, 0.6))  # not in step with any poll
            before = len(self.daemon.evidence)
            began = time.time()
            act(number)

            def there(before: int = before) -> bool:
                return any(item["source"] == source for _, item in self.daemon.evidence[before:])

            assert self.daemon.wait(there, 30), (source, number)
            taken.append(next(at for at, item in self.daemon.evidence[before:] if item["source"] == source) - began)
        return taken

    def pids(self) -> list[int]:
        listed = subprocess.run(
            ["ps", "--ppid", str(self.agent.pid), "-o", "pid="], capture_output=True, text=True, check=False
        )
        return [self.agent.pid, *(int(word) for word in listed.stdout.split())]

    def memory(self) -> dict[str, int]:
        """Kilobytes of the agent with its children: resident of the agent, and all of them with shared pages once."""
        pss = 0
        for pid in self.pids():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            pss += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        status = Path(f"/proc/{self.agent.pid}/status").read_text()
        return {"agent_rss_kb": int(status.split("VmRSS:")[1].split()[0]), "all_pss_kb": pss}

    def cpu_s(self) -> float:
        """Processor seconds of the agent, its children, and those of its children that ended."""
        total = 0
        for number, pid in enumerate(self.pids()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11 : 15 if number == 0 else 13])
        return total / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.agent.pid}/fd"))

    def close(self) -> None:
        self.agent.terminate()
        self.agent.wait(20)
        self.daemon.stop()
        self.munged.terminate()
        self.munged.wait(10)


def shares(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        name: round(ordered[int((len(ordered) - 1) * share)], 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }


def job(bench: Bench, number: int) -> None:
    """A job that begins, prints, and ends."""
    log = bench.folder / f"job-{number}.out"
    log.write_text(
        "".join(
            f"[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered\n" for rank in range(4)
        )
    )
    content = {"job": str(number), "attempt": "0", "uid": str(JOB_UID), "gid": str(JOB_GID), "nodelist": "n1",
               "stdout": str(log)}  # fmt: skip
    (bench.folder / "run" / "jobs" / f"{number}.json").write_text(json.dumps(content))


def soak(bench: Bench, events: int) -> dict[str, Any]:
    before = {**bench.memory(), "files": bench.files(), "processes": len(bench.pids())}
    for number in range(events):
        bench.kernel(XID.format(bus=number % 8, xid=31))
        if number % 50 == 0:
            job(bench, 1000 + number)
        if number % 50 == 25:
            (bench.folder / "run" / "jobs" / f"{975 + number}.json").unlink()
        if number % 10 == 0:
            time.sleep(0.2)
    assert bench.daemon.wait(lambda: sum(item["kind"] == "xid" for _, item in bench.daemon.evidence) >= events, 60)
    for path in (bench.folder / "run" / "jobs").glob("*.json"):
        path.unlink()
    time.sleep(15)  # followers linger 10 s
    return {
        "events": events,
        "before": before,
        "after": {**bench.memory(), "files": bench.files(), "processes": len(bench.pids())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--rest-s", type=float, default=30.0)
    parser.add_argument("--soak-events", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            began, used = time.monotonic(), bench.cpu_s()
            time.sleep(asked.rest_s)
            share = (bench.cpu_s() - used) / (time.monotonic() - began)
            print(json.dumps({"rest_s": asked.rest_s, "core_share": round(share, 4), **bench.memory()}), flush=True)
            lines = bench.latency("kernel", asked.events, lambda n: bench.kernel(XID.format(bus=n % 8, xid=31 + n % 3)))
            print(json.dumps({"source": "kernel", "events": asked.events, **shares(lines)}), flush=True)

            def inject(number: int) -> None:
                gpu = bench.state["gpus"][number % 8]
                if number % 2:
                    gpu["xids"].append({"xid": 63, "at_us": int(time.time() * 1e6)})
                else:
                    gpu["fields"]["1523"] = 1 + (gpu["fields"].get("1523") or 0) % 4
                bench.write()

            values = bench.latency("dcgm", asked.events, inject)
            print(json.dumps({"source": "dcgm", "events": asked.events, **shares(values)}), flush=True)
            if asked.soak_events:
                print(json.dumps(soak(bench, asked.soak_events)), flush=True)
        finally:
            bench.close()
        errors = [line for line in (Path(folder) / "agent.log").read_text().splitlines() if " ERROR " in line]
        print(json.dumps({"errors": errors[:5], "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
