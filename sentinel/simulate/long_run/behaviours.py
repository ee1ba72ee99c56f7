"""What sites do without Sentinel, as far as it is known: each in a few lines, with its assumptions and their sources.

They meet the same failures as Sentinel with the same seed. They are models of descriptions, not the programs themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from sentinel.simulate.long_run.assumptions import FIRST_DIAGNOSTIC_PASSES, Assumption, Span
from sentinel.simulate.long_run.causes import HANG, LOST, TAKEN
from sentinel.simulate.long_run.cluster import REQUEUE_S, Job
from sentinel.simulate.long_run.engine_runner import EngineRunner
from sentinel.simulate.long_run.failures import Failure
from sentinel.simulate.long_run.run import Behaviour, Run

USER_LOOKS = Span(3600.0, 12 * 3600.0)
_BYTEROBUST = "ByteRobust, SOSP 2025"
_BACK_S = (46.0, 65.0)
_GPU_S, _NIC_S, _SWITCH_S, _HANG_S = 10.0, 30.0, 60.0, 600.0
_IMPLICIT_S = 4289.0
_EVICTED_TOO = 7
_TRIES = 2


class Stock:
    """Slurm alone: it requeues the jobs of nodes that are down, and a job that failed waits for its user."""

    assumptions: tuple[Assumption, ...] = (
        Assumption(
            "stock.user_looks_s",
            [USER_LOOKS.median_s, USER_LOOKS.p99_s],
            "s (median, p99)",
            "guess: no pager, nights included",
        ),
        Assumption(
            "stock.requeue_s", REQUEUE_S, "s", "measured in the lab: 121 s of Slurm's own, 128.7 s until RUNNING"
        ),
    )
    person_comes: Span | None = USER_LOOKS

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self) -> None:
        pass

    def struck(self, failure: Failure, job: Job, nodes: tuple[str, ...], told: Iterable[str]) -> None:
        pass

    def ended(self, job: Job) -> None:
        if job.state == "failed":
            self.run.page(job)

    def stepping(self, job: Job) -> None:
        pass

    def reached(self, job: Job) -> None:
        pass

    def node_changed(self, node: str) -> None:
        pass

    def mended(self, node: str) -> None:
        pass

    def at_work(self, job: Job) -> bool:
        return self.run.goes_on(job)


class NcclTimeout(Stock):
    """The script requeues itself whenever it ends, and NCCL's timeout ends what hangs. No node is left out."""

    assumptions: tuple[Assumption, ...] = (
        Assumption("nccl-timeout.requeue_s", REQUEUE_S, "s", "the script calls scontrol requeue; Slurm's own wait"),
        Assumption("nccl-timeout.hang_s", 600.0, "s", "PyTorch's default timeout of a collective"),
        Assumption(
            "nccl-timeout.person", "paged after 10 min down", "", "guess: a broken node comes back again and again"
        ),
    )
    person_comes: Span | None = None

    def ended(self, job: Job) -> None:
        if job.state == "failed":
            self.run.to_queue(job, wait_s=REQUEUE_S)


class OnCall(Stock):
    """A person is paged for every job that ends or makes no step for 10 minutes, finds the node and starts it again."""

    assumptions: tuple[Assumption, ...] = (
        Assumption("on-call.person", "paged at once; comes and works as people do above", "", "guess"),
        Assumption("on-call.hang_s", 600.0, "s", "alert on no step, or NCCL's timeout"),
    )
    person_comes: Span | None = None


class ByteRobust(Stock):
    """Real-time checks, eviction with standby machines, over-eviction where the culprit is not certain."""

    assumptions: tuple[Assumption, ...] = (
        Assumption("byterobust.detected_s", [_GPU_S, _NIC_S, _SWITCH_S], "s", f"{_BYTEROBUST}: GPU, NIC, switch"),
        Assumption("byterobust.hang_s", _HANG_S, "s", f"{_BYTEROBUST}: no RDMA traffic for 10 minutes is a hang"),
        Assumption(
            "byterobust.back_s", [*_BACK_S], "s", f"{_BYTEROBUST}: until it trains again, from standby machines"
        ),
        Assumption(
            "byterobust.implicit_s", _IMPLICIT_S, "s", f"{_BYTEROBUST}: mean of NaN incidents, by dual-phase replay"
        ),
        Assumption(
            "byterobust.evicted_too", _EVICTED_TOO, "machines", f"{_BYTEROBUST}: false ones per decision on a hang"
        ),
        Assumption(
            "byterobust.diagnostic_misses", FIRST_DIAGNOSTIC_PASSES, "of broken nodes", f"{_BYTEROBUST}: EUD finds 70 %"
        ),
        Assumption("byterobust.tries", _TRIES, "restarts", "guess: then a person rolls the code back"),
    )
    person_comes: Span | None = None

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._tries: dict[int, int] = {}

    def struck(self, failure: Failure, job: Job, nodes: tuple[str, ...], told: Iterable[str]) -> None:
        sign, tries = failure.sign, self._tries.get(job.index, 0)
        if sign.ends == TAKEN:
            return
        attempt = (job.index, job.restarts)
        self._tries[job.index] = tries + 1
        if tries >= _TRIES:
            self.run.page(job)
            return
        evicted: tuple[str, ...] = nodes if sign.broken is not None else ()
        if sign.ends == LOST or (sign.kernel and not failure.unseen):
            after_s = _GPU_S
        elif sign.fact is not None and not failure.unseen:
            after_s = _SWITCH_S if "switch" in failure.cause else _NIC_S
        elif sign.ends == HANG:
            after_s = _HANG_S
            others = [name for name in job.on if name not in nodes][: 4 * _EVICTED_TOO]
            evicted = (*nodes, *self.run.rng.sample(others, min(_EVICTED_TOO, len(others))))
        elif sign.broken is not None:  # nothing says which machine: replayed until it is found
            after_s = _IMPLICIT_S
            evicted = () if self.run.rng.random() < FIRST_DIAGNOSTIC_PASSES else nodes
        else:
            after_s = sign.after_s + _GPU_S
        self.run.later(after_s, partial(self._restart, attempt, evicted))

    def _restart(self, attempt: tuple[int, int], evicted: tuple[str, ...]) -> None:
        run, job = self.run, self.run.cluster.jobs[attempt[0]]
        if job.restarts != attempt[1]:
            return
        for node in evicted:
            if not run.cluster.nodes[node].out:
                run.counts.drains += 1
                run.counts.wrong_drains += node not in run.broken
                run.drain(node, "evicted")
        run.to_queue(job, wait_s=max(0.0, run.rng.uniform(*_BACK_S) - run.scenario.start_s))

    def ended(self, job: Job) -> None:
        """Its own checks decide, not the end of the program."""

    def stepping(self, job: Job) -> None:
        self._tries[job.index] = 0

    def at_work(self, job: Job) -> bool:
        return self._tries.get(job.index, 0) <= _TRIES or self.run.goes_on(job)


MAKERS: Mapping[str, Callable[[Run], Behaviour]] = {
    "sentinel": EngineRunner,
    "byterobust": ByteRobust,
    "on-call": OnCall,
    "nccl-timeout": NcclTimeout,
    "stock": Stock,
}
ASSUMPTIONS: Mapping[str, tuple[Assumption, ...]] = {
    "sentinel": (),
    "byterobust": ByteRobust.assumptions,
    "on-call": OnCall.assumptions,
    "nccl-timeout": NcclTimeout.assumptions,
    "stock": Stock.assumptions,
}
