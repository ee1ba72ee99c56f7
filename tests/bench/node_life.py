"""A node's life with its real processes: agent, DCGM's host engine, hooks; faults, restarts, log rotation, a clock step.

    SENTINEL_DCGM=FOLDER python tests/bench/node_life.py [--minutes 20] [--rest-s 0] [--seed 1] [--faketime LIBRARY]

Over the double without SENTINEL_DCGM (tests/README.md); a real engine needs made-up GPUs (NVML injection), to lose some.
Needs munged. With libfaketime (the path of its library) the clock of agent and engine is set an hour forth and back; its
release 0.9.10 (Debian 12) is refused: it refuses each wait of Python's (``breaks_waits``). A round
is one thing that a day brings, without the hours between; rounds are told at random, and each waits until the agent told it.
Prints one JSON object: rounds of each kind; what was told twice, never, or made up; memory, files, processes and bytes on
disk after a tenth of the time and at the end; processor share of the agent with its probe, also at rest where asked for.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from nodes.agent_process import JOB_GID, JOB_UID, running_munged  # noqa: E402
from nodes.fake_daemon import FakeDaemon  # noqa: E402
from nodes.installed_dcgm import REAL, Dcgm, DoubleDcgm, RealDcgm  # noqa: E402

from sentinel.adapters.munge import Munge  # noqa: E402

GPUS = 4  # of those that the engine has, the double's four
BUSES = tuple(0x1B + 0x10 * n for n in range(8)) if REAL else tuple(0x1B + n for n in range(4))
XID_FIELD = 230
CODES = (13, 31, 43, 45, 48, 63, 74, 92, 94, 119)
PATIENCE_S = 120.0
DEVICE = "/dev/kmsg"
TICKS = os.sysconf("SC_CLK_TCK")


class Life:
    """One node; each act does something and waits until it was told."""

    def __init__(
        self,
        folder: Path,
        dcgm: Dcgm,
        daemon: FakeDaemon,
        munge: str,
        faketime: str,
        rng: random.Random,
        acts: bool = True,
    ) -> None:
        self.folder, self.dcgm, self.daemon, self.munge, self.rng = folder, dcgm, daemon, munge, rng
        self.clock = folder / "clock"
        # A file is looked at ten times a second, the device is waited for; but lines can be put into a file alone.
        self.kernel_log = folder / "kmsg" if acts else Path(DEVICE)
        self.environment = {**os.environ, **dcgm.environment, "PYTHONPATH": str(ROOT)}
        if faketime:
            self.set_clock(0)
            for environment in (self.environment, dcgm.environment):
                environment |= {"LD_PRELOAD": faketime, "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1"}  # fmt: skip
            if said := breaks_waits(self.environment):
                raise SystemExit(f"{faketime} does not leave time.sleep as it is: {said}")
        self.due: Counter[tuple[str, object]] = Counter()  # kind and what of it: as often as it happened
        self.rounds: Counter[str] = Counter()
        self.late: list[str] = []
        self.used_s = 0.0  # processor seconds of agents that were ended
        self.job = 0
        if acts:
            self.kernel_log.touch()
        dcgm.start()
        self.start()

    def set_clock(self, hours: int) -> None:
        temporary = self.clock.with_suffix(".new")
        temporary.write_text(f"{hours:+d}h\n" if hours else "+0\n")
        temporary.replace(self.clock)

    def start(self) -> None:
        config = self.folder / "agent.toml"
        where = "\n".join(f'{name} = "{value}"' for name, value in self.dcgm.where.items())
        config.write_text(
            f'node = "n1"\nurl = "{self.daemon.url}"\nmunge_socket = "{self.munge}"\nrun_dir = "{self.folder}/run"\n'
            f'state = "{self.folder}/state"\ndcgm_bindings = "{self.dcgm.bindings}"\n[kernel]\npath = "{self.kernel_log}"\n'
            f'lines_per_kind = 1000000\n[dcgm]\ndcgmi = "{self.dcgm.dcgmi}"\n{where}\n'
        )
        log = (self.folder / "agent.log").open("a")
        command = [sys.executable, "-m", "sentinel", "agent", "--config", str(config)]
        self.agent = subprocess.Popen(command, env=self.environment, stderr=log, cwd=self.folder)
        log.close()
        self.until("the agent begins", lambda: (self.folder / "run" / "jobs").is_dir() and bool(self.daemon.heartbeats))

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        if not self.daemon.wait(holds, PATIENCE_S):
            self.late.append(what)

    def told(self) -> Counter[tuple[str, object]]:
        """Xids by source, GPU and number, and GPUs lost; once each by identity, however often it was sent."""
        made: Counter[tuple[str, object]] = Counter()
        for item in {item["id"]: item for _, item in list(self.daemon.evidence)}.values():
            if item["kind"] == "xid":
                which = item["where"].get("gpu") if item["source"] == "dcgm" else item["data"].get("pci")
                made[(f"xid {item['source']}", (which, item["data"]["xid"]))] += 1
            elif item["kind"] in ("gpu_lost", "row_remap_failure", "dcgm_all_blank"):
                made[(item["kind"], item["where"].get("gpu"))] += 1
        return made

    def happens(self, kind: str, what: object) -> None:
        key = (kind, what)
        self.due[key] += 1
        self.until(f"{kind} {what}", lambda: self.told()[key] >= self.due[key])

    # ------------------------------------------------------------------------------------------------ what a day brings

    def xid_in_dcgm(self) -> None:
        gpu, code = self.rng.randrange(GPUS), self.rng.choice(CODES)
        self.dcgm.inject(gpu, XID_FIELD, code)
        self.happens("xid dcgm", (gpu, code))
        time.sleep(1.1)  # an injected one is dated in whole seconds: the same again would be this one

    def xid_in_the_kernel(self) -> None:
        gpu, code = self.rng.randrange(GPUS), self.rng.choice(CODES)
        now_us, pci = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000, f"0000:{BUSES[gpu]:02x}:00"
        with self.kernel_log.open("a") as stream:
            stream.write(f"3,{now_us},{now_us},-;NVRM: Xid (PCI:{pci}): {code}, pid={now_us % 99999}, name=python\n")
        self.happens("xid kernel", (pci, code))

    def a_gpu_is_lost_and_comes_back(self) -> None:
        gpu = self.rng.randrange(GPUS)
        self.dcgm.lose(gpu)
        self.happens("gpu_lost", gpu)
        self.dcgm.gives_back(gpu)
        time.sleep(5.0)  # the engine looks, the probe begins again

    def the_engine_restarts(self) -> None:
        self.dcgm.kill()
        time.sleep(self.rng.uniform(0.0, 5.0))
        self.dcgm.start()
        time.sleep(5.0)

    def the_agent_is_killed(self) -> None:
        self.used_s += self.cpu_s()
        self.agent.kill()
        self.agent.wait()
        self.daemon.heartbeats.clear()
        self.start()

    def a_job_whose_log_is_rotated(self) -> None:
        self.job += 1
        log, place = self.folder / f"job-{self.job}.out", self.folder / "run" / "jobs" / f"{self.job}.json"
        log.write_text("step 1 loss 2.0\n")
        content = {"job": str(self.job), "attempt": "0", "uid": str(JOB_UID), "gid": str(JOB_GID), "nodelist": "n1",
                   "stdout": str(log)}  # fmt: skip
        place.write_text(json.dumps(content))
        time.sleep(2.0)
        log.rename(log.with_suffix(".1"))
        log.write_text("step 2 loss 1.9\n")
        time.sleep(1.0)
        for path in (place, log, log.with_suffix(".1")):
            path.unlink()

    def prolog_and_health_check(self) -> None:
        for file in ("prolog/10-sentinel", "deploy/slurm/health-check"):
            environment = {
                "PATH": os.environ["PATH"], "SENTINEL_RUN_DIR": f"{self.folder}/run", "SENTINEL_HOME": str(ROOT),
                "SENTINEL_HOOK_CONF": "/nowhere", "SENTINEL_PYTHON": sys.executable, "SLURMD_NODENAME": "n1",
                "SENTINEL_DCGM_HOST": self.dcgm.host, "SENTINEL_DCGMI": self.dcgm.dcgmi, "SLURM_JOB_ID": "31",
            }  # fmt: skip
            subprocess.run([str(ROOT / file)], env=environment, capture_output=True, timeout=PATIENCE_S, check=False)

    def the_clock_is_set(self) -> None:
        self.set_clock(self.rng.choice((-1, 0, 1)))
        time.sleep(15.0)

    # ------------------------------------------------------------------------------------------------ what it costs

    def pids(self) -> list[int]:
        listed = ["ps", "--ppid", str(self.agent.pid), "-o", "pid="]
        return [
            self.agent.pid,
            *map(int, subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()),
        ]

    def cpu_s(self) -> float:
        total = 0
        for number, pid in enumerate(self.pids()):
            fields = of_process(pid, "stat").rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11 : 15 if number == 0 else 13])
        return total / TICKS

    def at_rest(self, seconds: float) -> dict[str, float]:
        time.sleep(20.0)  # past its start
        before_s, began_s = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return {"core_share": round((self.cpu_s() - before_s) / (time.monotonic() - began_s), 5), **self.kept()}

    def kept(self) -> dict[str, int]:
        pids = self.pids()
        disk = [path.stat().st_size for path in (self.folder / "state").rglob("*") if path.is_file()]
        own = int(Path(f"/proc/{self.agent.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 2**20
        return {
            "agent_mib": own, "all_rss_mib": sum(memory_mib(pid, "Rss") for pid in pids),
            "all_pss_mib": sum(memory_mib(pid, "Pss") for pid in pids), "processes": len(pids),
            "files": len(os.listdir(f"/proc/{self.agent.pid}/fd")), "state_bytes": sum(disk), "state_files": len(disk),
        }  # fmt: skip


def breaks_waits(environment: dict[str, str]) -> str:
    """What Python says when it waits under this library; empty where waits are right.

    Python waits until a time of the monotonic clock. libfaketime 0.9.10 moves that time by what it takes the wall clock for,
    though it was told to leave the monotonic clock alone: the time lies before zero, which the kernel calls invalid.
    """
    program = (
        "import time; began = time.monotonic(); time.sleep(0.2); assert time.monotonic() - began >= 0.2, 'too short'"
    )
    made = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return made.stderr.strip().rpartition("\n")[2] if made.returncode else ""


def memory_mib(pid: int, name: str) -> int:
    """``Pss`` divides a page that processes share, as that of an interpreter, among them: only its sums are true."""
    lines = of_process(pid, "smaps_rollup").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0) // 1024


def of_process(pid: int, name: str) -> str:
    """A file of /proc; empty where the process has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rest-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faketime", default="")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with (
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory() as keys,
        running_munged(Path(keys)) as munge,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        dcgm = (RealDcgm if REAL else DoubleDcgm)(folder, str(folder / "engine"))
        daemon = FakeDaemon(Munge(munge), sessions=True).start()
        life = Life(folder, dcgm, daemon, munge, asked.faketime, rng, asked.minutes > 0)
        weights = {
            life.xid_in_dcgm: 10,
            life.xid_in_the_kernel: 10,
            life.a_gpu_is_lost_and_comes_back: 3,
            life.the_engine_restarts: 2,
            life.the_agent_is_killed: 1,
            life.a_job_whose_log_is_rotated: 4,
            life.prolog_and_health_check: 2,
            life.the_clock_is_set: 1 if asked.faketime else 0,
        }  # fmt: skip
        rest = life.at_rest(asked.rest_s) if asked.rest_s else {}
        began_s, before_s = time.monotonic(), life.cpu_s()
        first: dict[str, int] = {}
        while (passed_s := time.monotonic() - began_s) < asked.minutes * 60:
            if not first and passed_s > 0.1 * asked.minutes * 60:
                first = life.kept()
            (act,) = rng.choices(list(weights), list(weights.values()))
            act()
            life.rounds[act.__name__] += 1
        time.sleep(15.0)  # followers of logs linger
        told = life.told()
        share = (life.used_s + life.cpu_s() - before_s) / (time.monotonic() - began_s)
        last = life.kept()
        life.agent.terminate()
        life.agent.wait(PATIENCE_S)
        dcgm.kill()
        daemon.stop()
        log = (folder / "agent.log").read_text().splitlines()
        errors = [line for line in log if " ERROR " in line]
        answer: dict[str, Any] = {
            "engine": REAL or "double", "at_rest": rest, "minutes": asked.minutes, "rounds": dict(life.rounds),
            "late": life.late,
            "never_told": [str(key) for key in life.due - told], "twice_or_made_up": [str(key) for key in told - life.due],
            "after_a_tenth": first, "at_the_end": last, "core_share": round(share, 4),
            "kinds": dict(Counter(item["kind"] for _, item in daemon.evidence)), "evidence": len(daemon.evidence),
            "errors": len(errors), "first_errors": errors[:5], "load": os.getloadavg()[0],
        }  # fmt: skip
        print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
