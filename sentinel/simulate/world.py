"""Runs one history: virtual time, the cluster, the network, the store, and one run of the daemon after the other."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from sentinel.daemon.clock import SteadyClock
from sentinel.errors import Unavailable
from sentinel.simulate import faults, people
from sentinel.simulate.agents import Agents
from sentinel.simulate.crossings import Crossings, Killed
from sentinel.simulate.daemon import SimulatedDaemon, under_way
from sentinel.simulate.happened import Happened, HistoryEnded, SlurmWrite
from sentinel.simulate.heartbeats import Heartbeats
from sentinel.simulate.histories import SPARES, Happening, History, JobSpec, settings_of
from sentinel.simulate.machines import Machines
from sentinel.simulate.observer import Observer
from sentinel.simulate.presence import Presence
from sentinel.simulate.programs import Programs
from sentinel.simulate.promises import Violation, check
from sentinel.simulate.rest import Rest
from sentinel.simulate.slurm.cluster import SimulatedSlurm
from sentinel.simulate.slurm.records import KeptNodes, SimulatedJob, SlurmTimes
from sentinel.simulate.store import MemoryStore
from sentinel.simulate.timeline import AT, Timeline
from sentinel.simulate.two_daemons import TwoDaemons

T = TypeVar("T")
TIMES = SlurmTimes(epilog_s=1.0, min_job_age_s=300.0)  # as the lab was measured; MinJobAge is Slurm's default
_AT_S = AT.timestamp()
_REGISTERS_S = 2000.0  # every 20th ping: only then slurmctld compares its jobs with those of the node
_SAVED_S = (0.001, 0.008)  # one transaction


class _Clock:
    """slurmctld's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now()


class World(Timeline):
    """Runs one history. ``tell`` is called with each line when it is to be printed."""

    def __init__(self, history: History, *, tell: Callable[[float, str], None] | None = None) -> None:
        super().__init__()
        self.history = history
        self.ends_s = history.ends_s
        self.last_s = max((_lasts_s(one) for one in history.happenings), default=0.0)  # what happens by itself is over
        self.rng = random.Random(f"{history.seed}/{history.number}")  # noqa: S311 - repeatable, not secret
        self.tell = tell
        self.own_off_s = 0.0  # the daemon's clock minus slurmctld's
        self.settings = settings_of(history.setup)
        self.store = MemoryStore()
        self.store_full = False
        self.paused = False
        self.commanded = ""  # the newest command of an operator
        self.clock_off_s: dict[str, float] = {}  # by node
        self.daemon: SimulatedDaemon | None = None
        self.lives = 0
        # From when to when no daemon lived, or it was frozen or without answer.
        self.away: list[tuple[float, float]] = []
        self.frozen_until_s = 0.0
        self.slurmctld_saved_s = 0.0  # what happened later is forgotten when it is killed
        self.slurmctld_dead_until_s = 0.0  # until then nobody can reach it: it is being started again
        self.violations: list[Violation] = []
        self.crossings = Crossings(self.rng, self.later, self._killed, self._lost)
        self.saved_at_cut: frozenset[str] | None = None  # incidents in the store when something was cut the first time
        self._over = False
        self.agents = Agents(self)
        self.heartbeats = Heartbeats(self)
        self.doubled = TwoDaemons(self) if history.setup.daemons > 1 else None
        self.programs = Programs(self)
        self.machines = Machines(self)
        self.presence = Presence(self)
        self.slurm = SimulatedSlurm(
            history.setup.nodes,
            clock=_Clock(self),
            times=dataclasses.replace(TIMES, ghost_s=_REGISTERS_S) if self.watched else TIMES,
            seconds=lambda: _AT_S + self.now_s,
        )
        self.specs: dict[int, JobSpec] = {}
        self.jobs: list[int] = []  # ids, in the order of the setup
        self._began_s: dict[tuple[int, int], float] = {}
        self.observer = Observer(self)

    @property
    def watched(self) -> bool:
        """Whether the daemon itself watches for heartbeats and steps."""
        return self.history.setup.watched

    # -- time ------------------------------------------------------------------------------------------------------

    def own_clock(self) -> SteadyClock:
        """That of a daemon that starts."""
        return SteadyClock(lambda: self.now(self.own_off_s), lambda: self.now_s)

    def own_now(self, more_s: float = 0.0) -> datetime:
        """By the daemon's clock: that of its plans, outcomes and snapshots."""
        own = self.daemon.clock.now() if self.daemon is not None else self.now(self.own_off_s)
        return own + timedelta(seconds=more_s)

    def thread_s(self) -> float:
        return self.rng.uniform(*_SAVED_S)

    def go_on(self, until_s: float | None) -> None:
        """See ``sentinel.simulate.event_loop.Time``."""
        while True:
            moment_s = self.ends_s if until_s is None else min(until_s, self.ends_s)
            if (following_s := self.next_s()) is not None:
                moment_s = min(moment_s, following_s)
            due_s = self.slurm.next_due_s()
            if due_s is not None:
                moment_s = min(moment_s, due_s - _AT_S)
            if frozen := self.now_s < self.frozen_until_s:
                moment_s = min(moment_s, self.frozen_until_s)
            self.now_s = max(self.now_s, moment_s)
            if due_s is not None and due_s - _AT_S <= self.now_s:
                self.slurm.catch_up()
            something = self.do_due()
            if something:
                self.slurm.catch_up()
            if self.now_s >= self.ends_s:
                self._over = True
                self.stop_daemon()
                return
            if self.now_s < self.frozen_until_s:
                if until_s is not None:
                    until_s = max(until_s, self.frozen_until_s)
                continue
            if something or frozen or (until_s is not None and self.now_s >= until_s):
                return

    def run(self) -> list[Violation]:
        """Let it happen; returns the promises that were broken, the first first."""
        self._begin()
        while not self._over:
            if self.daemon is None:
                self.go_on(None)
            else:
                self.crossings.dead = False
                self.daemon.run()
        if self.doubled is not None:
            self.doubled.over()
        self.happened(HistoryEnded())
        return self.violations

    def _begin(self) -> None:
        self.slurm.started, self.slurm.stopped = self._job_began, self._job_stopped
        self.slurm.step_over = self.programs.step_over
        setup = self.history.setup
        for index, node in enumerate(self.slurm.nodes.values()):
            node.partitions, node.topology = (setup.partitions[index % len(setup.partitions)],), setup.place_of(index)
        if setup.spares:
            self.slurm.kept = KeptNodes(SPARES, setup.spares)
        for spec in self.history.setup.jobs:
            self._submit(spec)
        self._save_slurm()
        for happening in self.history.happenings:
            self.at(happening.at_s, lambda one=happening: self._happen(one))  # type: ignore[misc]
        if self.watched:
            self.heartbeats.begin()
        Rest(self).begin()
        if self.doubled is not None:
            self.doubled.begin()
        else:
            self._start_daemon()

    def _happen(self, happening: Happening) -> None:
        self.say_what(f"-- {happening}")
        for part in (faults.FAULTS, people.ACTS):
            if happening.what in part:
                part[happening.what](self, happening)
                return
        raise ValueError(f"nothing is called {happening.what!r}")

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _submit(self, spec: JobSpec) -> None:
        first = self.jobs[0] if self.jobs else None
        count = 2 if spec.kind in ("array", "het") else 1
        ids: list[int] = []
        following = max(self.slurm.jobs, default=100) + 1
        for task in range(count):
            name = following + task
            self.specs[name] = spec
            ids.append(
                self.slurm.submit(
                    nodes=spec.nodes,
                    comment=json.dumps({"sentinel": spec.wishes(name)}),
                    user=spec.user,
                    requeue=spec.requeue,
                    excluded=spec.excluded,
                    required=spec.required,
                    partition=spec.partition,
                    array=(following + count - 1, task) if spec.kind == "array" else None,
                    het=following if spec.kind == "het" else None,
                    after_ok=first if spec.kind == "after" else None,
                    no_kill=bool(spec.trains_on),
                )
            )
        for this in map(self.slurm.jobs.__getitem__, ids):
            this.feature = spec.feature  # the first nodes have it, on which it began
            if spec.least:
                this.record["tasks_per_node"], this.most = 1, spec.nodes
        self.jobs.extend(ids)

    def spec_of(self, job: int) -> JobSpec:
        return self.specs[job]

    def final_s(self, job: int) -> float | None:
        """When the epilogs of its newest attempt that ended were over; None while none was."""
        at_s = self.slurm.final_s.get(job)
        return at_s - _AT_S if at_s is not None else None

    def job_named(self, who: str) -> SimulatedJob | None:
        """The job of "job0" or "job0/1"; None when Slurm has forgotten it."""
        index = int(who.removeprefix("job").partition("/")[0])
        return self.slurm.jobs.get(self.jobs[index % len(self.jobs)]) if self.jobs else None

    def node_named(self, who: str) -> str | None:
        """A node's own name, or a node of a job as it runs now or ran last."""
        if not who.startswith("job"):
            return who if who in self.slurm.nodes else None
        job = self.job_named(who)
        program = self.programs.newest.get(job.id) if job is not None else None
        nodes = (job.on if job is not None else ()) or (program.nodes if program is not None else ())
        index = int(who.partition("/")[2] or 0)
        return nodes[index % len(nodes)] if nodes else None

    def began_s(self, job: int, attempt: int) -> float:
        """When the attempt began; -1 if it never did."""
        return self._began_s.get((job, attempt), -1.0)

    def _job_began(self, job: SimulatedJob) -> None:
        self._began_s[job.id, job.restarts] = self.now_s
        self.say_what(f"slurm: job {job.id} attempt {job.restarts} runs on {','.join(job.on)}")
        self.programs.began(job)

    def _job_stopped(self, job: SimulatedJob, state: str) -> None:
        self.say_what(f"slurm: job {job.id} attempt {job.restarts} stops: {state}")
        self.observer.ended[job.id] = (job.restarts, state, self.now_s)
        self.programs.stopped(job)
        self.later(self.slurm.times.epilog_s + 0.05, lambda: self._tell_end(job.id))

    def _tell_end(self, job: int) -> None:
        if self.daemon is not None:
            self.daemon.job_ended(job)

    # -- Slurm -----------------------------------------------------------------------------------------------------

    def _save_slurm(self) -> None:
        """Only histories in which slurmctld crashes need what it had saved."""
        if any(happening.what == "slurmctld-crash" for happening in self.history.happenings):
            self.slurm.save_state()
            self.slurmctld_saved_s = self.now_s
            self.later(self.slurm.times.save_s, self._save_slurm, idle=True)

    def wrote(self, verb: str, target: str, fields: Mapping[str, str]) -> None:
        """The daemon's request reaches slurmctld."""
        self.say_what(f"sentinel: {verb} {target} {' '.join(f'{k}={v}' for k, v in fields.items())}".rstrip())
        node = self.slurm.nodes.get(target)
        job = self.slurm.find(target)
        self.happened(SlurmWrite(verb, target, fields, under_way.get(), copy.copy(node), copy.copy(job)))

    # -- the daemon ------------------------------------------------------------------------------------------------

    def save(self, what: Callable[[], T]) -> T:
        """A transaction of the daemon's store.

        Raises:
            Unavailable: the disk is full, or the answer is lost.
        """
        number = self.crossings.count
        self.crossings.count += 1
        if self.crossings.dead:
            raise Killed
        if self.store_full:
            raise Unavailable("the store does not answer: database or disk is full")
        if self.crossings.cut(number, after=False) is not None:
            raise Unavailable("the store does not answer: database is locked")
        result = what()
        if self.crossings.cut(number, after=True) is not None:
            raise Unavailable("the store does not answer: database is locked")
        return result

    def _start_daemon(self) -> None:
        if self.daemon is None and not self._over:
            self.lives += 1
            self.say_what(f"-- the daemon starts (life {self.lives})")
            self.daemon = SimulatedDaemon(self)

    def _lost(self, crossing: int, deadline_s: float) -> None:
        """An answer is lost: whoever waits for it gives up after the deadline."""
        self.say_what(f"-- an answer is lost at crossing {crossing}")
        self.away.append((self.now_s, self.now_s + deadline_s))
        self._note_cut()

    def _note_cut(self) -> None:
        if self.saved_at_cut is None:
            self.saved_at_cut = frozenset(self.store.incidents)

    def _killed(self, crossing: int, down_s: float) -> None:
        self._note_cut()
        self.say_what(f"-- the daemon is killed at crossing {crossing}")
        self.end_life(down_s)

    def end_life(self, down_s: float) -> None:
        """The daemon's process is gone; the next one starts after ``down_s``."""
        if self.daemon is None:
            return
        self.away.append((self.now_s, self.now_s + down_s))
        if self.doubled is not None:
            self.doubled.ended(down_s)
            return
        self.stop_daemon()
        self.later(down_s, self._start_daemon)

    def stop_daemon(self) -> None:
        if self.daemon is not None:
            self.crossings.dead = True
            self.daemon.loop.stop()
            self.daemon = None

    def end_state(self) -> dict[str, object]:
        """What must be the same whatever was cut: Slurm's state, incidents, and of what people were told, up to which end.

        Not the ids of incidents: one that was not saved yet is found anew, perhaps by other evidence of the same failure.
        """
        store = self.store
        return {
            "nodes": {n.name: (n.drained, n.down) for n in self.slurm.nodes.values()},
            "jobs": {j.id: (j.state, j.held, j.restarts, j.excluded, j.required) for j in self.slurm.jobs.values()},
            "incidents": sorted(
                (str(incident.job), str(store.verdicts[name].cause), str(incident.state))
                for name, incident in store.incidents.items()
                if name in store.verdicts
            ),
            "told": sorted(
                (
                    str(store.incidents[name].job),
                    str(store.verdicts[name].cause),
                    str(heard[max(heard)].data.get("stage")),
                )
                for name, heard in self.observer.notices.items()
                if name
            ),
        }

    # -- what is noted ---------------------------------------------------------------------------------------------

    def happened(self, what: Happened) -> None:
        """Check every promise against what has just happened."""
        for violation in check(self.observer, what):
            self.say_what(f"BROKEN {violation.promise}: {violation.why}")
            self.violations.append(violation)

    def say(self, event: str, values: Mapping[str, object]) -> None:
        if self.tell is not None:
            self.tell(self.now_s, " ".join(["daemon:", event, *(f"{k}={v}" for k, v in values.items())]))

    def say_what(self, line: str) -> None:
        if self.tell is not None:
            self.tell(self.now_s, line)


def _lasts_s(happening: Happening) -> float:
    return happening.at_s + max(float(happening.data.get(key, 0.0)) for key in ("for_s", "down_s", "late_s"))
