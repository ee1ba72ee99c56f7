"""Tells whether a job that prints no steps is doing anything, from two observations of its processes and GPUs.

A silent job may be evaluating, saving or compiling, which shows in /proc and in the power draw of its GPUs. To call a job
waiting, every node must have been observed: the others may be waiting for the one rank that works, and a node that does not
answer is not known. Pure: agents' answers in, a ``Motion`` out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sentinel.detect.observed_silence import seconds_of

STILL_CPU = 0.05  # of one core; watchdog and heartbeat threads of a waiting process take a few thousandths
STILL_BYTES_PER_S = 64_000.0  # a waiting process still writes its log
WRITING_BYTES_PER_S = 1_000_000.0  # a save, whatever its format
LEAST_APART_S = 2.0  # between two observations: clock ticks and telemetry are too coarse for less
SPINS = 0.9  # utilisation from which a GPU may be spinning: a kernel that waits in a collective counts as running
SPIN_POWER = 0.75  # share of the usual power up to which it does: a waiting kernel draws far less than a computing one
WORK_POWER = 0.9  # share of the usual power from which a GPU computes
IDLE = 0.1  # utilisation up to which a GPU is idle
QUIET = 0.03  # traffic share (see ``GpuActivity``) up to which a GPU only waits: polling a flag in memory takes less
BUSY = 0.1  # traffic share from which it works
WAITING_WORDS = frozenset({"spins", "idle"})
QUIET_BYTES_PER_S = 1_000_000.0  # ssh, Slurm, monitoring and keepalives send less; a step's collectives more
CARRIES_BYTES_PER_S = 10_000_000.0  # mean from which a job trains over these adapters: its gradients, once in each step
FEW = 0.25  # share of a job's GPUs that may work while it is told for how long the others have waited


class Motion(StrEnum):
    STOPPED = "stopped"  # a task was stopped by a signal: not a pause
    WAITS = "waits"  # every process and GPU of the job was observed, and all only wait
    QUIET = "quiet"  # no process and no network adapter moves data; what the GPUs do is not known
    LOOPS = "loops"  # all GPUs are idle and no data moves, but a process uses a core: the host computes, or loops
    STORAGE = "storage"  # a process is in uninterruptible sleep: storage or a driver, which have their own timeouts
    WRITES = "writes"  # data is written: a save
    WORKS = "works"  # a GPU computes or moves data as it does in steps: a long step, an evaluation
    UNCLEAR = "unclear"  # something moves, and it may be work or may be a loop
    UNSEEN = "unseen"  # most of the job's nodes could not be observed: nothing is known
    UNKNOWN = "unknown"  # not every node answered; those that did (at least half) show no activity


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    state: str
    cpu_s: float
    read_bytes: int | None  # None: the kernel would not tell
    written_bytes: int | None
    leaf: bool


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """The activity of one GPU over the last seconds; ``usual_w`` is its power while the job made steps.

    ``traffic``: the largest of tensor activity, memory activity (0 to 1) and NVLink and PCIe traffic relative to the usual;
    None if the node has no profiling fields. ``still_s``: for how long it has only waited, sampled once a second.
    ``idle_periods`` (``stood`` in the answer of an agent): earlier ones, as (seconds since it began, length in seconds).
    """

    index: int
    utilisation: float | None
    power_w: float | None
    usual_w: float | None
    traffic: float | None = None
    still_s: float | None = None
    idle_periods: tuple[tuple[float, float], ...] = ()

    @property
    def blocked(self) -> bool:
        """Whether a kernel runs that neither computes nor moves data: one that waits for its peers in a collective. Power
        alone does not tell it from a generation bound by memory."""
        return self.word == "spins" and self.traffic is not None

    @property
    def word(self) -> str:
        """What the GPU does: "spins", "works", "moves", "idle" or "unclear"."""
        if self.utilisation is None:
            return "unclear"
        if self.utilisation <= IDLE:  # copies of a save run without a kernel
            return "works" if self.traffic is not None and self.traffic >= BUSY else "idle"
        if self.utilisation < SPINS:
            return "moves"
        share = self.power_w / self.usual_w if self.power_w is not None and self.usual_w else None
        if share is not None and share >= WORK_POWER:
            return "works"
        if self.traffic is not None and self.traffic > QUIET:
            return "works" if self.traffic >= BUSY else "unclear"
        if self.traffic is not None or (share is not None and share <= SPIN_POWER):
            return "spins"
        return "unclear"


@dataclass(frozen=True, slots=True)
class Look:
    """One node's observation at one moment. ``gpus`` None: it has GPUs, and their activity is not known."""

    at_s: float
    processes: tuple[Process, ...]
    gpus: tuple[GpuActivity, ...] | None
    network_bytes: int | None = None  # sent and received by the node's adapters since it started; None: not known


def read_look(answer: object, at_s: float) -> Look | None:
    """Parse an agent's answer to ``task_states``; None if it lists no processes.

    Without one that does a task's work, the activity of the node's GPUs says nothing of the job. An answer that lists no
    process at all says that none is there.
    """
    listed = answer.get("tasks") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(listed, list):
        return None
    processes = tuple(made for item in listed if isinstance(item, dict) and (made := _process(item)) is not None)
    if listed and not processes:
        return None
    if not any(process.leaf for process in processes):
        return Look(at_s, processes, None)
    told = answer.get("at_s")
    at_s = found if (found := seconds_of(told)) is not None else at_s
    gpus, network_bytes = answer.get("gpus"), _whole(answer.get("network_bytes"))
    if not isinstance(gpus, list):
        none = gpus is None and answer.get("has_gpus", True) is not False
        return Look(at_s, processes, None if none else (), network_bytes)
    return Look(at_s, processes, tuple(_gpu(item) for item in gpus if isinstance(item, dict)), network_bytes)


def _process(item: Mapping[str, object]) -> Process | None:
    pid, state = item.get("pid"), item.get("state")
    if not isinstance(pid, int) or not isinstance(state, str):
        return None
    cpu_s = item.get("cpu_s")
    return Process(
        pid=pid,
        state=state[:1],
        cpu_s=float_of(cpu_s) or 0.0,
        read_bytes=_whole(item.get("read_bytes")),
        written_bytes=_whole(item.get("written_bytes")),
        leaf=item.get("leaf", True) is True,
    )


def _gpu(item: Mapping[str, object]) -> GpuActivity:
    return GpuActivity(
        index=_whole(item.get("index")) or 0,
        utilisation=float_of(item.get("utilisation")),
        power_w=float_of(item.get("power_w")),
        usual_w=float_of(item.get("usual_w")),
        traffic=float_of(item.get("traffic")),
        still_s=float_of(item.get("still_s")),
        idle_periods=tuple(_pairs(item.get("stood"))),
    )


def _pairs(value: object) -> Iterator[tuple[float, float]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) == 2:
            ago_s, length_s = float_of(item[0]), float_of(item[1])
            if ago_s is not None and length_s is not None:
                yield ago_s, length_s


def float_of(value: object) -> float | None:
    """A number of evidence as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer that no float holds
        return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def stopped(look: Look) -> Process | None:
    """The first task stopped by a signal; one observation is enough. A task stopped by a debugger does not count."""
    return next((process for process in look.processes if process.leaf and process.state == "T"), None)


def motion_of_node(before: Look, after: Look) -> Motion:
    """What one node did between two observations at least ``LEAST_APART_S`` apart."""
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
            return Motion.UNCLEAR  # a process was started: the job is doing something
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
    words = [gpu.word for gpu in after.gpus] if after.gpus is not None else None
    if words is not None and "works" in words:
        return Motion.WORKS
    if moved > STILL_BYTES_PER_S * over_s or unread:
        return Motion.UNCLEAR
    return _by_gpus(words, active, quiet=_network_rate(before, after, QUIET_BYTES_PER_S) < QUIET_BYTES_PER_S)


def _by_gpus(words: Sequence[str] | None, active: int, *, quiet: bool) -> Motion:
    """The motion when no process moves data, from GPU activities, the number of processes that use a core, and whether the
    network is quiet.

    A process may use a core only to poll its GPU, which then spins.
    """
    if words is None or not WAITING_WORDS.issuperset(words):
        return Motion.QUIET if quiet and (words is None or "moves" not in words) else Motion.UNCLEAR
    if active and not words:
        return Motion.UNCLEAR
    if active and "idle" in words and active != words.count("spins"):
        return Motion.LOOPS  # a process whose GPU is idle computes or loops on the host
    return Motion.WAITS


def _grown(before: int | None, after: int | None) -> float:
    return max(0, (after or 0) - (before or 0))


def _network_rate(before: Look, after: Look, unknown: float) -> float:
    """Bytes a second that the node's adapters moved between two observations; ``unknown`` if that is not known."""
    first, last, over_s = before.network_bytes, after.network_bytes, after.at_s - before.at_s
    if first is None or last is None or over_s <= 0.0:
        return unknown
    if last < first:  # the node was started again, or an adapter is gone
        return unknown
    return (last - first) / over_s


def trains_over_network(nodes: Sequence[str], earlier: Mapping[str, Look], now: Mapping[str, Look]) -> bool:
    """Whether the job's nodes moved as much since earlier observations of some of them as steps of several nodes do.

    Else its collectives may take a way whose counters are not seen, and quiet adapters say nothing of it.
    """
    rates = [_network_rate(earlier[node], now[node], 0.0) for node in nodes if node in earlier and node in now]
    return len(nodes) > 1 and min(rates, default=0.0) >= CARRIES_BYTES_PER_S


def motion_of_job(
    nodes: Sequence[str], before: Mapping[str, Look], after: Mapping[str, Look], *, by_network: bool = False
) -> Motion:
    """The motion of the whole job: the strongest activity of any node; WAITS only if every node waits.

    ``by_network``: the job trains over the network (``trains_over_network``), so that a quiet one says something.

    If some nodes do not answer, the others count if they are at least half: otherwise one frozen node, for which all wait,
    would hide the hang. If most do not answer, the fault is more likely ours, and nothing is known of the job.
    """
    if any(stopped(look) is not None for look in after.values()):
        return Motion.STOPPED
    each = [
        motion_of_node(before[node], after[node]) if node in before and node in after else Motion.UNKNOWN
        for node in nodes
    ]
    unknown = each.count(Motion.UNKNOWN)
    if unknown == len(each) or 2 * unknown > len(each):
        return Motion.UNSEEN
    found = {Motion.UNCLEAR if motion is Motion.QUIET and not by_network else motion for motion in each}
    weaker = (Motion.UNKNOWN, Motion.LOOPS, Motion.QUIET)
    for motion in (Motion.WRITES, Motion.STORAGE, Motion.WORKS, Motion.UNCLEAR, *weaker):
        if motion in found:
            return motion
    return Motion.WAITS


def all_blocked(nodes: Sequence[str], looks: Mapping[str, Look]) -> bool:
    """Whether every GPU of the job waits inside a collective.

    Then nobody is left who could release the others: a rank that fetches data, saves or computes on its host has no kernel
    running, and whoever waits for it in turn waits for a rank whose GPU is idle.
    """
    gpus = [looks[node].gpus if node in looks else None for node in nodes]
    return sum(len(each or ()) for each in gpus) > 1 and all(each and all(gpu.blocked for gpu in each) for each in gpus)


@dataclass(frozen=True, slots=True)
class GpuIdleness:
    """How long all GPUs of a job, or all but a few that work, have been waiting; known only if every GPU is observed."""

    still_s: float  # for so long none of them has worked
    since: datetime  # when the first GPU began to wait; a GPU that waits since before the first step is not used by the job
    idle_periods: tuple[tuple[datetime, float], ...] = ()  # earlier ones, of any GPU: begin, length in s


def gpu_idleness(nodes: Sequence[str], looks: Mapping[str, Look], now: datetime) -> GpuIdleness | None:
    """For how long all GPUs but a few have been waiting; None if more work, one is not known, or there is none."""
    still_s, longest_s, idle_periods = float("inf"), 0.0, set[tuple[datetime, float]]()
    working, waiting = 0, 0
    for node in nodes:
        look = looks.get(node)
        if look is None or look.gpus is None:
            return None
        for gpu in look.gpus:
            if gpu.still_s is None or gpu.word == "unclear":
                return None
            idle_periods.update((now - timedelta(seconds=ago_s), length_s) for ago_s, length_s in gpu.idle_periods)
            if gpu.word not in WAITING_WORDS:
                working += 1
                continue
            waiting += 1
            still_s, longest_s = min(still_s, gpu.still_s), max(longest_s, gpu.still_s)
    if longest_s <= 0.0 or working > FEW * (working + waiting):
        return None
    return GpuIdleness(still_s, now - timedelta(seconds=longest_s), tuple(sorted(idle_periods)))


MOTION_TEXT = {
    Motion.STOPPED: "a task is stopped",
    Motion.WAITS: "no process of the job computes, reads or writes, and its GPUs only wait",
    Motion.QUIET: "no process and no network adapter of its nodes moves data; what its GPUs do is not known",
    Motion.LOOPS: "all its GPUs stand and no data moves, while a process takes a core",
    Motion.STORAGE: "processes sleep in the kernel",
    Motion.WRITES: "it writes data",
    Motion.WORKS: "a GPU works as in its steps",
    Motion.UNCLEAR: "something moves, which may be work or a loop",
    Motion.UNKNOWN: "not every node could be asked",
    Motion.UNSEEN: "its nodes could not be asked",
}
