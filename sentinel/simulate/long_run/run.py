"""One run: failures strike jobs, somebody reacts, repairs and people come; time jumps from event to event."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from sentinel.simulate.long_run import assumptions
from sentinel.simulate.long_run.account import Counts, JobTime
from sentinel.simulate.long_run.causes import HANG, LOST, TAKEN
from sentinel.simulate.long_run.cluster import LEAF_NODES, REQUEUE_S, Cluster, Job
from sentinel.simulate.long_run.failures import Failure, Lemons, failures_of
from sentinel.simulate.long_run.scenario import NCCL_TIMEOUT_S, Scenario

PAGE_AFTER_S = 600.0  # a job that is down so long, with nobody at work on it, calls a person
OLD_NEWS_S = 300.0  # a drain so soon after a node was mended answers to what was wrong with it
SLURMD_TIMEOUT_S = 300.0  # Slurm's default: then a node that does not answer is down


class Behaviour(Protocol):
    """Who reacts. Each method is told what can be seen from outside, when it happens.

    ``person_comes``: how soon a person looks at a job that is down; None: as people on call do.
    """

    person_comes: assumptions.Span | None

    def begin(self) -> None: ...

    def struck(self, failure: Failure, job: Job, nodes: tuple[str, ...], told: Iterable[str]) -> None:
        """A failure stops a job. ``told``: healthy nodes that print something too."""

    def ended(self, job: Job) -> None:
        """Slurm has a final state for the job, or has put it back into the queue."""

    def stepping(self, job: Job) -> None:
        """The job makes steps."""

    def reached(self, job: Job) -> None:
        """The job has made its last step before a failure."""

    def node_changed(self, node: str) -> None:
        """A node went out of service or came back."""

    def mended(self, node: str) -> None:
        """What was wrong with the node is over by itself."""

    def at_work(self, job: Job) -> bool:
        """Whether something is being done about the job that is down."""


class Run:
    """The world of one seed and one behaviour."""

    def __init__(self, scenario: Scenario, seed: int, name: str) -> None:
        self.scenario = scenario
        self.seed = seed
        self.rng = random.Random(f"{seed}/{name}")  # noqa: S311 - repeatable, not secret
        self.now_s = 0.0
        self.ends_s = scenario.days * 86400
        names = [f"n{number:05d}" for number in range(scenario.total_nodes)]
        self.cluster = Cluster(names, [scenario.job_nodes] * scenario.jobs, scenario.gpus_per_node, scenario.errors)
        self.times = [JobTime(scenario.interval_s, scenario.save_s) for _ in self.cluster.jobs]
        self.counts = Counts()
        self.lemons = Lemons(names, seed)
        self.broken: dict[str, Failure] = {}
        self.behaviour: Behaviour
        self.resume_s: dict[int, float] = {}  # by job: the work in the checkpoint that it was told to resume from
        self.struck_by: dict[int, list[Failure]] = {}  # by job: what it is down for
        self._torn: set[int] = set()  # jobs whose newest checkpoint cannot be read
        self._bug: dict[int, Failure] = {}
        self._with_person: set[int] = set()  # numbers of failures that a person ended
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._paged: set[int] = set()
        self._halted: set[tuple[int, int]] = set()  # attempts that met a failure
        self._healed: dict[str, float] = {}  # when a node was last mended

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, after_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + max(after_s, 0.0), self._count, what))

    def go(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Run the simulation. ``progress`` is told of each day that has passed."""
        for failure in failures_of(self.scenario, self.seed):
            self.later(failure.at_s, partial(self._strike, failure))
        self.behaviour.begin()
        for job in self.cluster.jobs:
            self.start(job)
        day = 0
        while self._queue and self._queue[0][0] < self.ends_s:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()
            while (day + 1) * 86400 <= self.now_s:
                day += 1
                progress(1)
        self.now_s = self.ends_s
        progress(int(self.ends_s / 86400) - day)
        for time in self.times:
            time.close(self.ends_s)
        self.counts.unresolved = sum(len(failures) for failures in self.struck_by.values())

    # -- failures --------------------------------------------------------------------------------------------------

    def _strike(self, failure: Failure) -> None:
        job = self.cluster.jobs[failure.job]
        if not job.runs:
            return  # hardware fails under load, and programs only where they run
        self._hit(failure, job, self._nodes_of(failure, job), fresh=True)

    def _nodes_of(self, failure: Failure, job: Job) -> tuple[str, ...]:
        first = self.lemons.choose(job.on, failure.place)
        if failure.sign.nodes == 1:
            return (job.on[first],)
        leaf = int(job.on[first][1:]) // LEAF_NODES
        return tuple(name for name in job.on if int(name[1:]) // LEAF_NODES == leaf)

    def _hit(self, failure: Failure, job: Job, nodes: tuple[str, ...], *, fresh: bool) -> None:
        """A failure stops a job on these nodes."""
        sign, attempt = failure.sign, (job.index, job.restarts)
        if fresh:
            self.counts.incidents += 1
            self.struck_by.setdefault(job.index, []).append(failure)
            self.interrupted(job, failure.cause)
            if failure.torn:
                self._torn.add(job.index)
            if sign.broken is not None:
                self.broken.update(dict.fromkeys(nodes, failure))
            if failure.needs_code:
                self._bug[job.index] = failure
        self._halted.add(attempt)
        if sign.ends == TAKEN:
            self._take(nodes, job)
        elif sign.ends == LOST:
            self.later(SLURMD_TIMEOUT_S, partial(self._slurm_notices, nodes, attempt))
        elif sign.ends == HANG:
            self.later(NCCL_TIMEOUT_S, partial(self.end, job, attempt, 1, 6))
        else:
            self.later(sign.after_s, partial(self.end, job, attempt, sign.exit_code, sign.exit_signal))
        if sign.broken is assumptions.SWITCH_REPAIR and fresh:
            self.later(failure.repair_s, partial(self._heals, nodes, failure))
        told = self._bystanders(job, failure, nodes)
        self.behaviour.struck(failure, job, nodes, told)
        self.later(PAGE_AFTER_S, partial(self._page, job, failure))

    def _bystanders(self, job: Job, failure: Failure, nodes: tuple[str, ...]) -> tuple[str, ...]:
        others = [name for name in job.on if name not in nodes and name not in self.broken]
        return tuple(self.rng.sample(others, min(failure.misleading, len(others)))) if failure.misleading else ()

    def _slurm_notices(self, nodes: tuple[str, ...], attempt: tuple[int, int]) -> None:
        """Slurm misses the node: its job is put back into the queue."""
        for node in nodes:
            if node in self.broken and not self.cluster.nodes[node].down:
                self.set_down(node)
        self._node_fail(attempt)

    def _take(self, nodes: tuple[str, ...], job: Job) -> None:
        """Operators take nodes for maintenance at once."""
        for node in nodes:
            self.cluster.nodes[node].drained = "maintenance by ops"
            self.set_down(node)
        self._node_fail((job.index, job.restarts))

    def _node_fail(self, attempt: tuple[int, int]) -> None:
        """Slurm requeues the job of a node that is down."""
        job = self.cluster.jobs[attempt[0]]
        if job.runs and job.restarts == attempt[1]:
            self.to_queue(job, wait_s=REQUEUE_S)
            self.behaviour.ended(job)

    def _heals(self, nodes: tuple[str, ...], failure: Failure) -> None:
        for node in nodes:
            if self.broken.get(node) is failure:
                del self.broken[node]
                self._healed[node] = self.now_s
                self.behaviour.mended(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def set_down(self, node: str) -> None:
        self.cluster.nodes[node].down = True
        self._out(node)

    def drain(self, node: str, reason: str) -> None:
        self.cluster.nodes[node].drained = reason
        self._out(node)

    def _out(self, node: str) -> None:
        """The node is out of service: somebody looks after it."""
        self.cluster.changed()
        failure = self.broken.get(node)
        repair_s = failure.repair_s if failure is not None else assumptions.RESET.draw(self.rng)
        self.later(repair_s, partial(self._repaired, node, failure))
        self.behaviour.node_changed(node)

    def _repaired(self, node: str, failure: Failure | None) -> None:
        """The node is back, tested, released by a person."""
        if failure is not None and self.broken.get(node) is failure:
            del self.broken[node]
            self._healed[node] = self.now_s
        there = self.cluster.nodes[node]
        if node in self.broken or not there.out:
            return
        there.drained, there.down = "", False
        self.cluster.changed()
        self.behaviour.node_changed(node)
        self.schedule()

    # -- jobs ------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Slurm starts what may start."""
        for job in self.cluster.jobs:
            if job.state == "pending" and not job.held and job.eligible_s <= self.now_s:
                self.start(job)

    def start(self, job: Job) -> None:
        """Start the job if there are nodes for it; else it waits."""
        if job.state != "pending" or job.held or job.eligible_s > self.now_s + 1e-6:
            return
        free = self.cluster.free(job)
        if len(free) < job.size:
            return
        job.on, job.state, job.started_s, job.ended_s = tuple(free[: job.size]), "running", self.now_s, None
        self.cluster.changed()
        self.behaviour.node_changed("")
        attempt = (job.index, job.restarts)
        start_s = self.scenario.start_s * self.rng.uniform(0.85, 1.15)
        if job.index in self._torn and job.index not in self.resume_s:
            start_s *= 2  # the script finds out by itself, and takes the one before
        again = next((self.broken[name] for name in job.on if name in self.broken), None) or self._bug.get(job.index)
        if again is not None:
            nodes = tuple(name for name in job.on if self.broken.get(name) is again)
            self.later(start_s * self.rng.uniform(0.5, 1.0), partial(self._again, again, attempt, nodes))
        else:
            self.later(start_s, partial(self._steps, attempt))

    def _again(self, failure: Failure, attempt: tuple[int, int], nodes: tuple[str, ...]) -> None:
        """The attempt meets what stopped the one before."""
        job = self.cluster.jobs[attempt[0]]
        if job.runs and job.restarts == attempt[1]:
            self._hit(failure, job, nodes or (job.on[0],), fresh=False)

    def _steps(self, attempt: tuple[int, int]) -> None:
        """The attempt makes its first step."""
        job = self.cluster.jobs[attempt[0]]
        if not job.runs or job.restarts != attempt[1] or attempt in self._halted:
            return
        newest_s = self.newest_s(job)
        self.times[job.index].start(self.now_s, min(self.resume_s.pop(job.index, newest_s), newest_s))
        self._torn.discard(job.index)
        for failure in self.struck_by.pop(job.index, []):
            self.counts.down_s.append(self.now_s - failure.at_s)
            if failure.number in self._with_person:
                self.counts.by_person += 1
                self.counts.persons_causes[f"{failure.cause}: {failure.sign.name}"] += 1
            else:
                self.counts.automated += 1
        self._paged.discard(job.index)
        self.behaviour.stepping(job)

    def newest_s(self, job: Job) -> float:
        """The work in the job's newest checkpoint that can be read."""
        return self.times[job.index].saved_s(self.now_s, torn=job.index in self._torn)

    def interrupted(self, job: Job, cause: str) -> None:
        """From now on the job makes no steps."""
        if self.times[job.index].trains:
            self.behaviour.reached(job)
        self.times[job.index].stop(self.now_s, cause)

    def settled(self, node: str) -> bool:
        """Whether the node has been healthy for so long that new evidence about it is about a new failure."""
        return self.now_s - self._healed.get(node, -1e9) > OLD_NEWS_S

    def goes_on(self, job: Job) -> bool:
        """Whether the job goes on by itself: it starts, or waits for nodes or for its time in the queue."""
        if job.runs:
            return (job.index, job.restarts) not in self._halted
        if job.state != "pending" or job.held:
            return False
        return job.eligible_s - self.now_s < 3600.0

    def end(self, job: Job, attempt: tuple[int, int], exit_code: int, exit_signal: int = 0) -> None:
        """The program of this attempt ends by itself, if it still runs."""
        if job.runs and job.restarts == attempt[1]:
            job.state, job.exit_code, job.exit_signal = "completing", exit_code, exit_signal
            self.cluster.changed()
            self.later(self.scenario.times.job_end.draw(self.rng), partial(self._ended, job, attempt))

    def _ended(self, job: Job, attempt: tuple[int, int]) -> None:
        if job.state == "completing" and job.restarts == attempt[1]:
            job.state, job.ended_s = "failed", self.now_s
            self.cluster.changed()
            self.behaviour.ended(job)

    def to_queue(self, job: Job, *, wait_s: float) -> None:
        """The job goes back into the queue, under the next restart count, and may start after ``wait_s``."""
        job.state, job.restarts, job.held = "pending", job.restarts + 1, False
        job.eligible_s = self.now_s + wait_s
        self.cluster.changed()
        if wait_s < 86400:
            self.later(wait_s, partial(self.start, job))

    # -- people ----------------------------------------------------------------------------------------------------

    def _page(self, job: Job, failure: Failure) -> None:
        """Call a person if the job is still down and nobody is at work on it."""
        if failure not in self.struck_by.get(job.index, []) or job.index in self._paged:
            return
        if self.behaviour.at_work(job):
            self.later(PAGE_AFTER_S, partial(self._page, job, failure))
            return
        self.page(job)

    def seen_to(self, number: int | None) -> None:
        """A person helped to end the failure of this job (its id)."""
        for job in self.cluster.jobs:
            if job.id == number:
                self._with_person.update(one.number for one in self.struck_by.get(job.index, []))

    def page(self, job: Job) -> None:
        """Call a person about a job that is down."""
        failures = self.struck_by.get(job.index)
        if not failures or job.index in self._paged:
            return
        self._paged.add(job.index)
        comes_s = (self.behaviour.person_comes or assumptions.PERSON_COMES).draw(self.rng)
        works_s = assumptions.PERSON_WORKS.draw(self.rng)
        self.later(comes_s + works_s, partial(self._mends, job, failures[-1]))

    def _mends(self, job: Job, failure: Failure) -> None:
        """A person has found the node or the bug, and starts the job again."""
        self._paged.discard(job.index)
        if failure not in self.struck_by.get(job.index, []):
            return
        self._with_person.update(one.number for one in self.struck_by[job.index])
        self._bug.pop(job.index, None)
        for node in job.on:
            if node in self.broken and not self.cluster.nodes[node].out:
                self.drain(node, "ops: broken")
        if job.state != "pending":
            self.to_queue(job, wait_s=0.0)
        else:
            job.held, job.eligible_s = False, self.now_s
        job.excluded = ()
        self.start(job)
        self.later(PAGE_AFTER_S, partial(self._page, job, failure))
