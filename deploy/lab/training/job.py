"""What the training job and its stand-in share: place in the job, resume point, lines printed, faults asked for.

Standard library only, and quick to import: every rank of every attempt pays for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEEP_LOCAL = 3
KEEP_GLOBAL = 5
BUSY_S = 1.0  # a rank tells at most about so often that its GPUs have work
# Xids after which a process that used the GPU makes no further step.
FATAL_XIDS = frozenset({13, 31, 43, 48, 62, 74, 79, 94, 95, 119, 120, 140})


@dataclass(frozen=True)
class Options:
    run: str
    steps: int
    step_time_s: float
    local_every: int
    global_every: int
    global_dir: Path
    local_dir: Path
    seed: int
    gpu_faults_kill: bool


@dataclass(frozen=True)
class Place:
    """Where this process stands in the job."""

    job: int
    attempt: int
    rank: int
    world: int
    node: str
    gpus: tuple[int, ...]
    master: str
    port: int


@dataclass(frozen=True)
class Resume:
    step: int
    tier: str
    path: Path


def options() -> Options:
    parser = argparse.ArgumentParser(description="Train a small model; resumes by itself.")
    parser.add_argument("--run", required=True, help="name of the run: its checkpoint folders")
    parser.add_argument("--global-dir", type=Path, required=True, help="folder of the run on the shared file system")
    parser.add_argument("--local-dir", required=True, help="folder of the run on a node's disk; %%N is the node")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-time", type=float, default=0.3, help="seconds a step takes at least")
    parser.add_argument("--local-every", type=int, default=10)
    parser.add_argument("--global-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--gpu-faults-kill", action="store_true", help="a broken GPU raises an error instead of stalling"
    )
    given = parser.parse_args()
    return Options(
        run=given.run,
        steps=given.steps,
        step_time_s=given.step_time,
        local_every=given.local_every,
        global_every=given.global_every,
        global_dir=given.global_dir,
        local_dir=Path(given.local_dir.replace("%N", node_name())),
        seed=given.seed,
        gpu_faults_kill=given.gpu_faults_kill,
    )


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME", os.uname().nodename)


def place() -> Place:
    rank = int(os.environ["SLURM_PROCID"])
    local = int(os.environ.get("SLURM_LOCALID", "0"))
    on_node = int(os.environ.get("SLURM_NTASKS_PER_NODE", "1"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = tuple(int(part) for part in visible.split(",") if part.isdigit())
    return Place(
        job=int(os.environ["SLURM_JOB_ID"]),
        attempt=int(os.environ.get("SLURM_RESTART_COUNT", "0") or 0),
        rank=rank,
        world=int(os.environ["SLURM_NTASKS"]),
        node=node_name(),
        gpus=gpus[local::on_node],
        master=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
    )


def say(text: str) -> None:
    print(text, flush=True)


def step_line(step: int, loss: float, seconds: float, tokens: int) -> str:
    return f"step {step} | loss {loss:.4f} | step time {seconds:.3f} s | {tokens / seconds:.0f} tokens/s"


def resume_point(opt: Options, marker: str = ".metadata") -> Resume | None:
    """What TaskProlog says; otherwise the newest complete checkpoint of the global tier."""
    path = os.environ.get("SENTINEL_RESUME_PATH", "")
    if path:
        step = int(os.environ["SENTINEL_RESUME_STEP"])
        return Resume(step, os.environ.get("SENTINEL_RESUME_TIER", "global"), Path(path.replace("%N", node_name())))
    found = [step for step in steps_in(opt.global_dir) if (folder(opt.global_dir, step) / marker).exists()]
    return Resume(found[-1], "global", folder(opt.global_dir, found[-1])) if found else None


def folder(base: Path, step: int) -> Path:
    return base / f"step-{step}"


def steps_in(base: Path) -> list[int]:
    """Steps with a folder below ``base``, ascending."""
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


def purge_global(base: Path, now: int, keep: int = KEEP_GLOBAL) -> None:
    """Rank 0 removes old folders; newer ones than ``now`` (from before a roll-back) are not its to judge."""
    for step in [s for s in steps_in(base) if s <= now][:-keep]:
        shutil.rmtree(folder(base, step), ignore_errors=True)


def purge_local(base: Path, rank: int, now: int, keep: int = KEEP_LOCAL) -> None:
    """Each rank removes its own parts; the last one of the node removes the folder."""
    for step in [s for s in steps_in(base) if s <= now][:-keep]:
        remove_part(folder(base, step), rank)
        with contextlib.suppress(OSError):  # not empty yet: another rank of this node has its part there
            folder(base, step).rmdir()


def remove_part(where: Path, rank: int) -> None:
    """The marker first, so that what is left half-way is seen to be incomplete."""
    (where / f"__{rank}.metadata").unlink(missing_ok=True)
    for part in where.glob(f"__{rank}_*.distcp"):
        part.unlink(missing_ok=True)


class Trouble:
    """Faults that `lab inject` asks the program itself to have, and what its GPUs do to it."""

    def __init__(self, opt: Options, here: Place) -> None:
        self.here = here
        self.kills = opt.gpu_faults_kill
        self.began_us = time.time_ns() // 1000
        control = os.environ.get("LAB_CONTROL")
        gpus = os.environ.get("LAB_GPUS")
        self.control = Path(control) / f"job-{here.job}.json" if control else None
        self.gpus = Path(gpus.replace("%N", here.node)) if gpus else None
        self._seen: dict[Path, tuple[int, Any]] = {}
        self.step_time_s = opt.step_time_s
        local = os.environ.get("SLURM_LOCALID", "0")
        self.work = opt.local_dir.parent / ".gpus" / f"{local}.json" if self.gpus is not None else None
        self._busy_until = 0.0

    def _read(self, path: Path | None) -> Any:
        """The file's content, parsed again only when it changed; None when there is none."""
        if path is None:
            return None
        try:
            changed = path.stat().st_mtime_ns
            if path not in self._seen or self._seen[path][0] != changed:
                self._seen[path] = (changed, json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        return self._seen[path][1]

    def asked(self, kind: str) -> dict[str, Any] | None:
        """The fault of that kind that is meant for this rank, node and attempt, if any."""
        for fault in (self._read(self.control) or {}).get("faults", []):
            if fault["kind"] != kind:
                continue
            if fault.get("ranks") is not None and self.here.rank not in fault["ranks"]:
                continue
            if fault.get("node") not in (None, self.here.node):
                continue
            if fault.get("attempt") not in (None, self.here.attempt):
                continue
            return dict(fault)
        return None

    def broken_gpu(self) -> str:
        """Why this rank's GPUs make no further step; "" when they do."""
        state = self._read(self.gpus) or {}
        for gpu in state.get("gpus", []):
            if gpu["index"] not in self.here.gpus:
                continue
            if gpu["status"] != "ok":
                return f"GPU {gpu['index']} is {gpu['status']}"
            for event in gpu["xids"]:
                if event["xid"] in FATAL_XIDS and event["at_us"] >= self.began_us:
                    return f"GPU {gpu['index']} had Xid {event['xid']}"
        return ""

    def at_start(self) -> None:
        """A process that starts on a lost GPU fails at once, as CUDA's initialisation does."""
        if self.broken_gpu():
            raise RuntimeError("CUDA error: no CUDA-capable device is detected")

    def before_step(self) -> None:
        """Called by every rank before each step; stalls or raises when a GPU is broken, sleeps when throttled."""
        if self.broken_gpu():
            if self.kills:
                raise RuntimeError(
                    "CUDA error: an illegal state was reported by the device\n"
                    "CUDA kernel errors might be asynchronously reported at some other API call"
                )
            while True:  # work that was given to a dead GPU never comes back; Python still takes signals
                signal.pause()
        if self.asked("fabric"):
            say(
                "NCCL WARN NET/IB : Got completion from peer 10.0.0.9<41234> with status=12 opcode=0 len=0 vendor err 129"
            )
            raise RuntimeError("NCCL error: remote process exited or there was a network error")
        slow = self.asked("slow")
        if slow:
            time.sleep(float(slow["extra_s"]))
        self.give_work()

    def give_work(self) -> None:
        """Tell the fake DCGM until when this rank's GPUs compute; after that they wait for the other ranks, as in NCCL."""
        now = time.time()
        if self.work is None or now + self.step_time_s + 0.2 < self._busy_until:
            return
        self._busy_until = now + max(self.step_time_s, BUSY_S) + 0.3
        told = {"pid": os.getpid(), "gpus": self.here.gpus, "until": self._busy_until}
        with contextlib.suppress(OSError):  # a full disk is the job's trouble, not its GPUs'
            self.work.parent.mkdir(parents=True, exist_ok=True)
            part = self.work.with_suffix(".part")
            part.write_text(json.dumps(told), encoding="utf-8")
            part.replace(self.work)
