"""Does a job that prints no steps do anything? Two looks at its processes and GPUs, compared.

Silence may be an evaluation, a save, a compilation. What a job does then shows in /proc and in the power that its GPUs
draw; what it does not do shows as well. A verdict needs every node's word: one rank that may be at work is whom the others
wait for, and who does not answer is not known. Pure: answers of agents in, words out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

STILL_CPU = 0.05  # of one core; watchdog and heartbeat threads of a waiting process take a few thousandths
STILL_BYTES_PER_S = 64_000.0  # a waiting process still writes its log
WRITING_BYTES_PER_S = 1_000_000.0  # a save, whatever its format
LEAST_APART_S = 2.0  # clock ticks and telemetry are too coarse for closer looks
SPINS = 0.9  # of the time a kernel runs: waiting inside a collective counts as work in this number
SPIN_POWER = 0.75  # of the job's own usual power: a waiting kernel draws far less than one that computes
WORK_POWER = 0.9
IDLE = 0.1


class Motion(StrEnum):
    STOPPED = "stopped"  # a task was stopped by a signal: no pause
    WAITS = "waits"  # every process and GPU of the job was seen, and none does anything but wait
    STORAGE = "storage"  # somebody sleeps in the kernel: storage or a driver, with its own patience
    WRITES = "writes"  # data is written: a save
    UNCLEAR = "unclear"  # something moves, and it may be work or may be a loop
    UNKNOWN = "unknown"  # not every node answered


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    rank: int | None
    state: str
    cpu_s: float
    read_bytes: int | None  # None: the kernel would not tell
    written_bytes: int | None
    leaf: bool


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Of one GPU over the last seconds; ``usual_w`` is what it drew while the job made steps."""

    index: int
    utilisation: float | None
    power_w: float | None
    usual_w: float | None

    @property
    def word(self) -> str:
        """ "spins", "works", "idle" or "unclear"."""
        if self.utilisation is None:
            return "unclear"
        share = self.power_w / self.usual_w if self.power_w is not None and self.usual_w else None
        if self.utilisation >= SPINS:
            if share is not None and share <= SPIN_POWER:
                return "spins"
            return "works" if share is not None and share >= WORK_POWER else "unclear"
        return "idle" if self.utilisation <= IDLE else "works"


@dataclass(frozen=True, slots=True)
class Look:
    """What one node said at one moment. ``gpus`` None: it has some and does not know what they do."""

    at_s: float
    processes: tuple[Process, ...]
    gpus: tuple[GpuActivity, ...] | None


def read_look(answer: object, at_s: float) -> Look | None:
    """An agent's answer to ``task_states``; None where it holds no process of the job."""
    listed = answer.get("tasks") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(listed, list):
        return None
    processes = tuple(made for item in listed if isinstance(item, dict) and (made := _process(item)) is not None)
    if not any(process.leaf for process in processes):
        return None
    told = answer.get("at_s")
    at_s = float(told) if isinstance(told, (int, float)) and not isinstance(told, bool) else at_s
    gpus = answer.get("gpus")
    if not isinstance(gpus, list):
        return Look(at_s, processes, None if gpus is None and answer.get("has_gpus", True) is not False else ())
    return Look(at_s, processes, tuple(_gpu(item) for item in gpus if isinstance(item, dict)))


def _process(item: Mapping[str, object]) -> Process | None:
    pid, state = item.get("pid"), item.get("state")
    if not isinstance(pid, int) or not isinstance(state, str):
        return None
    rank, cpu_s = item.get("rank"), item.get("cpu_s")
    return Process(
        pid=pid,
        rank=rank if isinstance(rank, int) else None,
        state=state[:1],
        cpu_s=_float(cpu_s) or 0.0,
        read_bytes=_whole(item.get("read_bytes")),
        written_bytes=_whole(item.get("written_bytes")),
        leaf=item.get("leaf", True) is True,
    )


def _gpu(item: Mapping[str, object]) -> GpuActivity:
    return GpuActivity(
        index=_whole(item.get("index")) or 0,
        utilisation=_float(item.get("utilisation")),
        power_w=_float(item.get("power_w")),
        usual_w=_float(item.get("usual_w")),
    )


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def stopped(look: Look) -> Process | None:
    """The first task that a signal stopped; one look is enough for that. A debugger's stop is its user's own doing."""
    return next((process for process in look.processes if process.leaf and process.state == "T"), None)


def motion_of_node(before: Look, after: Look) -> Motion:
    """What happened on one node between two looks at least ``LEAST_APART_S`` apart."""
    if stopped(after) is not None:
        return Motion.STOPPED
    over_s = after.at_s - before.at_s
    if over_s < LEAST_APART_S:
        return Motion.UNKNOWN
    earlier = {process.pid: process for process in before.processes}
    active, written, moved, slept, unread = 0, 0.0, 0.0, False, False
    for process in after.processes:
        known = earlier.get(process.pid)
        if known is None:
            return Motion.UNCLEAR  # something was started: a pause is at work
        active += process.cpu_s - known.cpu_s > STILL_CPU * over_s
        slept = slept or (process.state == "D" and known.state == "D")
        counts = (known.read_bytes, known.written_bytes, process.read_bytes, process.written_bytes)
        if None in counts:
            unread = unread or process.leaf
            continue
        written += _grown(known.written_bytes, process.written_bytes)
        moved += _grown(known.read_bytes, process.read_bytes) + _grown(known.written_bytes, process.written_bytes)
    if written >= WRITING_BYTES_PER_S * over_s:
        return Motion.WRITES
    if slept:
        return Motion.STORAGE
    if moved > STILL_BYTES_PER_S * over_s or unread:
        return Motion.UNCLEAR
    return _by_gpus(after.gpus, active)


def _by_gpus(gpus: Sequence[GpuActivity] | None, active: int) -> Motion:
    """No data moves. A process that takes a core may only poll for its GPU, if that one is seen to wait."""
    if gpus is None:
        return Motion.UNCLEAR
    words = {gpu.word for gpu in gpus}
    if words & {"works", "unclear"}:
        return Motion.UNCLEAR
    if active and (not gpus or words != {"spins"}):
        return Motion.UNCLEAR  # the rank whose GPU idles computes on the host, or loops there
    return Motion.WAITS


def _grown(before: int | None, after: int | None) -> float:
    return max(0, (after or 0) - (before or 0))


def motion_of_job(nodes: Sequence[str], before: Mapping[str, Look], after: Mapping[str, Look]) -> Motion:
    """The job's: the strongest sign of life of any node; waiting only if every node says so."""
    if any(stopped(look) is not None for look in after.values()):
        return Motion.STOPPED
    found = {
        motion_of_node(before[node], after[node]) if node in before and node in after else Motion.UNKNOWN
        for node in nodes
    }
    for motion in (Motion.WRITES, Motion.STORAGE, Motion.UNCLEAR, Motion.UNKNOWN):
        if motion in found:
            return motion
    return Motion.WAITS if found else Motion.UNKNOWN


WORDS = {
    Motion.STOPPED: "a task is stopped",
    Motion.WAITS: "no process of the job computes, reads or writes, and its GPUs only wait",
    Motion.STORAGE: "processes sleep in the kernel",
    Motion.WRITES: "it writes data",
    Motion.UNCLEAR: "something moves, which may be work or a loop",
    Motion.UNKNOWN: "not every node could be asked",
}
