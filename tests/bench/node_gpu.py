"""A node with a real GPU: the probe's values beside nvidia-smi's (idle, busy, waiting), its cost, a program's fault.

    SENTINEL_DCGM=FOLDER python tests/bench/node_gpu.py [--seconds 60] [--out FOLDER]

Needs a GPU that nobody uses, munged, and nvidia-smi; torch for the load. The fault is harmless: a program reads or writes
where nothing is mapped (Xid 31), or traps (Xid 43); the GPU is neither reset nor set otherwise. Prints one JSON object a
part, and leaves the raw messages in ``--out``: samples, nvidia-smi's lines, the agent's evidence, verdicts and log.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "bench")]

from node_dcgm import cost, probe  # noqa: E402
from nodes.agent_process import running_munged  # noqa: E402
from nodes.fake_daemon import FakeDaemon  # noqa: E402
from nodes.installed_dcgm import RealDcgm  # noqa: E402

from sentinel.adapters.munge import Munge  # noqa: E402
from sentinel.agent.collectors.gpu_activity import GpuActivityLog  # noqa: E402
from sentinel.evidence.gpu_samples import sample_from  # noqa: E402

# nvidia-smi's name → DCGM's field
ASKED = {
    "temperature.gpu": "150", "power.draw.average": "155", "power.draw.instant": "157", "utilization.gpu": "203",
    "memory.used": "252", "clocks_event_reasons.active": "112", "pcie.link.gen.gpucurrent": "237",
    "pcie.link.width.current": "238", "pcie.link.width.max": "236", "temperature.memory": "140",
    "ecc.errors.uncorrected.volatile.total": "311", "ecc.errors.corrected.volatile.total": "310",
    "ecc.errors.uncorrected.aggregate.total": "313", "ecc.errors.corrected.aggregate.total": "312",
    "persistence_mode": "66", "clocks.sm": "", "clocks.mem": "",
}  # fmt: skip

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.monotonic() + float(__import__("sys").argv[1])
while time.monotonic() < end:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""

# Assembled by the driver, so that no compiler is needed: one kernel a fault, and one that waits for a flag in memory, as
# NCCL's do for another rank.
KERNELS = """
.version 7.0
.target sm_50
.address_size 64
.visible .global .u32 flag;
.visible .entry waits() { .reg .u64 %a; .reg .u64 %b; .reg .u32 %v; .reg .pred %q; mov.u64 %a, %globaltimer;
again: ld.volatile.global.u32 %v, [flag]; mov.u64 %b, %globaltimer; sub.u64 %b, %b, %a; setp.lt.u64 %q, %b, 300000000000;
    @%q bra again; ret; }
.visible .entry writes() { .reg .u64 %p; mov.u64 %p, 0xdead0000; st.global.u32 [%p], 1; ret; }
.visible .entry reads() { .reg .u64 %p; .reg .u32 %v; mov.u64 %p, 0xdead0000; ld.volatile.global.u32 %v, [%p];
    st.global.u32 [%p], %v; ret; }
.visible .entry traps() { trap; ret; }
.visible .entry leaves_shared() { .reg .u64 %p; mov.u64 %p, 0xfffff0; st.shared.u32 [%p], 1; ret; }
"""
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
made = [ctypes.c_void_p() for _ in range(3)]
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    print(name, code, flush=True)
    return code
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(made[0]), 0)
call("cuCtxSetCurrent", made[0])
call("cuModuleLoadData", ctypes.byref(made[1]), sys.argv[2].encode())
call("cuModuleGetFunction", ctypes.byref(made[2]), made[1], sys.argv[1].encode())
call("cuLaunchKernel", made[2], int(sys.argv[3]), 1, 1, int(sys.argv[4]), 1, 1, 0, None, None, None)
sys.exit(call("cuCtxSynchronize") != 0)
"""


def program(kernel: str, blocks: int = 1, threads: int = 1) -> list[str]:
    return [sys.executable, "-c", PROGRAM, kernel, KERNELS, str(blocks), str(threads)]


@contextmanager
def nvidia_smi(path: Path) -> Iterator[None]:
    """Its values once a second, with the time, in a file."""
    query = ",".join(ASKED)
    with path.open("w") as stream:
        process = subprocess.Popen(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,nounits", "-l", "1"], stdout=stream,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait()


def beside(dcgm: RealDcgm, name: str, seconds: float, out: Path) -> dict[str, Any]:
    """The probe's values and nvidia-smi's over the same seconds."""
    process, samples = probe(dcgm, 1.0), []
    messages: list[dict[str, Any]] = []
    assert process.stdout is not None
    with (out / f"{name}.jsonl").open("w") as stream:
        for _ in range(5):
            stream.write(process.stdout.readline().decode())
        before, began = cost(process.pid)[0], time.monotonic()
        with nvidia_smi(out / f"{name}.smi"):
            while time.monotonic() - began < seconds:
                line = process.stdout.readline().decode()
                stream.write(line)
                message = json.loads(line)
                if message["type"] == "sample" and message.get("full"):
                    samples.append(message["gpus"][0]["fields"])
                    messages.append({**message, "at": time.time()})
        used, memory = cost(process.pid)
    took = time.monotonic() - began
    process.kill()
    process.wait()
    log = GpuActivityLog()
    for message in messages:
        log.add(sample_from(message, datetime.fromtimestamp(message.pop("at"), UTC)))
    return {
        "part": name, "activity": log.report(datetime.now(UTC)), "core_share": round((used - before) / took, 5),
        "memory_mib": round(memory, 1), "samples": len(samples),
        "values": together(samples, (out / f"{name}.smi").read_text()),
    }  # fmt: skip


def together(samples: list[dict[str, Any]], printed: str) -> dict[str, Any]:
    """Of each quantity least, middle and most, by DCGM's probe and by nvidia-smi."""
    rows = [[word.strip() for word in line.split(",")] for line in printed.splitlines()]
    rows = [row for row in rows if len(row) == len(ASKED) and not row[0].startswith("temperature")]
    made: dict[str, Any] = {}
    for column, (name, field) in enumerate(ASKED.items()):
        made[name] = {"dcgm": spread([sample.get(field) for sample in samples]),
                      "nvidia-smi": spread([number(row[column]) for row in rows])}  # fmt: skip
    others = {field for sample in samples for field in sample} - set(ASKED.values())
    made["other fields"] = {
        field: spread([sample.get(field) for sample in samples]) for field in sorted(others, key=int)
    }
    return made


def number(word: str) -> Any:
    try:
        return int(word, 16) if word.startswith("0x") else float(word)
    except ValueError:
        return word


def spread(values: list[Any]) -> Any:
    numbers = [value for value in values if isinstance(value, (int, float))]
    if not numbers:
        return sorted({str(value) for value in values})[:3]
    return [min(numbers), statistics.median(numbers), max(numbers)]


def faults(dcgm: RealDcgm, out: Path) -> Iterator[dict[str, Any]]:
    """Each faulty program once, under an agent: what kernel and DCGM say, and what the node's verdict is."""
    with tempfile.TemporaryDirectory() as keys, running_munged(Path(keys)) as munge:
        daemon = FakeDaemon(Munge(munge), sessions=True).start()
        where = "\n".join(f'{name} = "{value}"' for name, value in dcgm.where.items())
        config = out / "agent.toml"
        config.write_text(
            f'node = "n1"\nurl = "{daemon.url}"\nmunge_socket = "{munge}"\nrun_dir = "{out}/run"\nstate = "{out}/state"\n'
            f'gpus = 1\ndcgm_bindings = "{dcgm.bindings}"\n[dcgm]\ndcgmi = "{dcgm.dcgmi}"\n{where}\n'
        )
        agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--config", str(config)], stderr=(out / "agent.log").open("w"),
            env={**os.environ, **dcgm.environment, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        )  # fmt: skip
        try:
            assert daemon.wait(lambda: bool(daemon.heartbeats), 60)
            time.sleep(8.0)  # the probe has connected
            for kernel in ("writes", "reads", "traps", "leaves_shared"):
                before, began = len(daemon.evidence), time.time()
                done = subprocess.run(
                    program(kernel), capture_output=True, text=True, timeout=60,
                    check=False,
                )  # fmt: skip
                time.sleep(4.0)
                said = [(at - began, item) for at, item in daemon.evidence[before:]]
                yield {
                    "part": f"fault {kernel}", "program": done.stdout.split("\n")[-2:], "exit": done.returncode,
                    "evidence": [{"after_s": round(at, 2), "source": item["source"], "kind": item["kind"],
                                  "text": item["text"], "data": item["data"]} for at, item in said],
                    "verdict": (out / "run" / "verdict").read_text(),
                }  # fmt: skip
            (out / "evidence.json").write_text(json.dumps([item for _, item in daemon.evidence], indent=1))
            (out / "heartbeats.json").write_text(json.dumps(daemon.heartbeats[-3:], indent=1))
        finally:
            agent.terminate()
            agent.wait(60)
            daemon.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    dcgm = RealDcgm(out, str(out / "engine"))
    dcgm.start()
    try:
        print(json.dumps(beside(dcgm, "idle", asked.seconds, out)), flush=True)
        for name, command in (
            ("busy", [sys.executable, "-c", LOAD, "600"]),
            ("waiting", program("waits", 32, 512)),
        ):
            load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(out / f"{name}.err").open("w"))
            time.sleep(8.0)  # torch starts
            print(json.dumps(beside(dcgm, name, asked.seconds, out)), flush=True)
            load.kill()
            load.wait()
        for made in faults(dcgm, out):
            print(json.dumps(made), flush=True)
    finally:
        dcgm.kill()


if __name__ == "__main__":
    main()
