"""A cluster, a job and a daemon's means to act, all in memory but the store; and what kills or starves them at will.

``Fate`` wraps anything and counts the calls that cross into it. At the chosen call it kills (before or after the effect),
or lets a number of calls find no answer. After a kill every call fails, as nothing runs on in a process that is gone.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import sqlalchemy as sa
from made_records import OPTED_IN, ended, incident, verdict

from in_memory.direct_store import DirectStore
from in_memory.slurm import FakeClock, FakeSlurm
from sentinel import policy
from sentinel.actions import Means, Task
from sentinel.adapters.store import tables
from sentinel.adapters.threads import Threads
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.errors import Timeout
from sentinel.model.intent import Intent
from sentinel.model.records import (
    Cause,
    Incident,
    JobView,
    Outcome,
    Plan,
    Restart,
    Result,
    Scalar,
    Scope,
    Step,
    Verdict,
)
from sentinel.policy import Situation

T = TypeVar("T")
_real_sleep = asyncio.sleep
ACT = Modes(default=Mode(drain="act", restart="act"))
WIDE = Limits(drain_fraction=1.0, breaker_nodes=50)


class Killed(BaseException):
    """kill -9: no handler of the daemon's may catch it."""


class Fate:
    """``kill_at``/``fail_at``: number of the call, from 0. ``after``: the effect happens, its answer does not arrive."""

    def __init__(
        self, *, kill_at: int | None = None, fail_at: int | None = None, fails: int = 1, after: bool = False
    ) -> None:
        self.kill_at, self.fail_at, self.fails, self.after = kill_at, fail_at, fails, after
        self.count = 0
        self.dead = False
        self.names: list[str] = []

    def wrap(self, inner: T, label: str, *, only: Callable[[str], bool] = lambda _: True) -> T:
        return cast(T, _Wrapped(self, inner, label, only))

    def before(self, name: str) -> int:
        if self.dead:
            raise Killed
        number = self.count
        self.count += 1
        self.names.append(name)
        if not self.after:
            self._strike(number, name)
        return number

    def done(self, number: int, name: str) -> None:
        if self.dead:
            raise Killed
        if self.after:
            self._strike(number, name)

    def _strike(self, number: int, name: str) -> None:
        if number == self.kill_at:
            self.dead = True
            raise Killed(name)
        if self.fail_at is not None and self.fail_at <= number < self.fail_at + self.fails:
            raise Timeout(f"{name} did not answer")


class _Wrapped:
    def __init__(self, fate: Fate, inner: object, label: str, only: Callable[[str], bool]) -> None:
        self._fate, self._inner, self._label, self._only = fate, inner, label, only

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or not self._only(name):
            return found
        fate, label = self._fate, f"{self._label}.{name}"
        if inspect.iscoroutinefunction(found):

            async def awaited(*arguments: Any, **named: Any) -> Any:
                number = fate.before(label)
                result = await found(*arguments, **named)
                fate.done(number, label)
                return result

            return awaited

        def called(*arguments: Any, **named: Any) -> Any:
            number = fate.before(label)
            result = found(*arguments, **named)
            fate.done(number, label)
            return result

        return called


class FakeCheckpoints:
    """Three checkpoints of which the newest is torn; remembers what was moved away."""

    def __init__(self, chosen: Mapping[str, Scalar] | None = None) -> None:
        newest: dict[str, Scalar] = {"path": "/shared/run/step-200", "step": 200, "tier": "global"}
        self.chosen: dict[str, Scalar] = dict(chosen) if chosen is not None else newest
        self.there = {"/shared/run/step-100", "/shared/run/step-200", "/shared/run/step-300"}
        self.moved: list[str] = []

    async def choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        return self.chosen | {"explanation": "the newest that is whole"}

    async def quarantine(self, task: Task, job: JobView, chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        newer = sorted(path for path in self.there if chosen.get("step") == 200 and path.endswith("300"))
        self.there -= set(newer)
        self.moved += newer
        return {"moved": len(newer)}


class FakeResume:
    def __init__(self) -> None:
        self.files: dict[int, dict[str, str]] = {}

    async def write(self, job: int, values: Mapping[str, str]) -> None:
        self.files[job] = dict(values)


class FakeProgress:
    """The job prints a step ``after_s`` of running."""

    def __init__(self, slurm: FakeSlurm, *, after_s: float = 5.0, steps: bool = True) -> None:
        self._slurm, self._after_s, self._steps = slurm, after_s, steps
        self._began: set[tuple[int, int]] = set()
        slurm.started = lambda job: self._began.add((job.id, job.restarts))

    def has_run(self, job: int, attempt: int) -> bool:
        return (job, attempt) in self._began

    def last_step(self, job: int, attempt: int) -> int | None:
        return 250 if attempt == 0 else None

    def first_step(self, job: int, attempt: int) -> int | None:
        this = self._slurm.jobs.get(job)
        if not self._steps or this is None or this.state != "RUNNING" or this.restarts != attempt:
            return None
        ran_s = self._slurm.clock.now().timestamp() - this.started
        return 201 if ran_s >= self._after_s else None


class StoredSteps:
    """``Steps`` over the store, for a single action without an engine."""

    def __init__(self, store: DirectStore, clock: FakeClock) -> None:
        self._store, self._clock = store, clock

    def outcome(self, incident: str, step: Step) -> Outcome | None:
        return self._store.outcome(incident, step)

    async def progressed(self, task: Task, data: Mapping[str, Scalar]) -> None:
        self._store.intend(task.plan, task.step, self._clock.now())
        self._store.record(task.plan, Outcome(task.step, Result.NOT_KNOWN, self._clock.now(), "", data))


class World:
    """Four nodes, one job on two of them; the store outlives every kill."""

    def __init__(self, store: DirectStore, *, nodes: int = 4, wide: int = 2, comment: str = OPTED_IN) -> None:
        self.store = store
        self.slurm = FakeSlurm(nodes=nodes)
        self.job = self.slurm.submit(nodes=wide, comment=comment)
        self.checkpoints, self.resume = FakeCheckpoints(), FakeResume()
        self.progress = FakeProgress(self.slurm)
        self.verbs = self.slurm._verbs

    def means(self, fate: Fate) -> Means:
        self.slurm._verbs = fate.wrap(self.verbs, "request", only=lambda name: name not in ("node", "job_record"))
        return Means(
            clock=self.slurm.clock,
            reader=fate.wrap(self.slurm, "reader", only=lambda name: name in ("node", "job", "fleet")),
            writer=self.slurm,
            ledger=StoredSteps(self.store, self.slurm.clock),
            checkpoints=fate.wrap(self.checkpoints, "checkpoints"),
            resume=fate.wrap(self.resume, "resume"),
            progress=self.progress,
            pending_s=90.0,
            booted_at=self.slurm.booted_at,
            seconds=lambda: self.slurm.clock.now().timestamp(),
        )

    async def decide(
        self, judged: Verdict, *, limits: Limits = WIDE, modes: Modes = ACT
    ) -> tuple[Incident, Verdict, Plan]:
        """The plan that policy makes for ``judged`` about the job's first attempt."""
        fleet = await self.slurm.fleet()
        happened = incident(ended(self.job), job=self.job, nodes=judged.drain)
        situation = Situation(fleet=fleet, job=fleet.jobs[self.job], intent=Intent(restart=True), last_step=250)
        made = policy.decide(
            judged, happened, situation, limits=limits, modes=modes, act_confidence=0.6, now=self.slurm.clock.now()
        )
        self.store.save_incident(happened, user="alice")
        self.store.save_verdict(happened.id, judged, self.slurm.clock.now())
        self.store.save_plan(made)
        return happened, judged, made

    def end_state(self) -> dict[str, Any]:
        """What must be the same whatever was cut: Slurm's state, the resume point, the checkpoints that are left."""
        job = self.slurm.jobs.get(self.job)
        return {
            "nodes": {n.name: (n.drained, n.down, n.reason) for n in self.slurm.nodes.values()},
            "job": job
            and (job.state, job.held, job.restarts, job.excluded, job.required, job.admin_comment, bool(job.on)),
            "resume": self.resume.files,
            "checkpoints": sorted(self.checkpoints.there),
            "results": {(row["kind"], row["node"] or row["job"]): row["result"] for row in self.store.steps_of("inc1")},
        }

    def effects(self) -> dict[str, int]:
        """How often each request that changes something was made; repeating an assignment changes nothing."""
        counts: dict[str, int] = {}
        for call in self.slurm.calls:
            if call[0] != "set_job":
                name = " ".join(call[:3]) if call[0] == "set_node" else call[0]
                counts[name] = counts.get(name, 0) + 1
        return {**counts, "moved": len(self.checkpoints.moved)}


ECC = verdict(drain=("n1",), gpus=("n1:3",))
LOST = verdict(Cause.NODE_FAILURE, scope=Scope.NODE, drain=("n1",))
SUSPECTED = verdict(Cause.NCCL_HANG_UNKNOWN, scope=Scope.UNKNOWN, suspect=("n2",))
USER = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD, advice="index error")


_DELETE_ALL = [sa.delete(table) for table in tables.metadata.sorted_tables]


def clear(store: DirectStore) -> None:
    with store.engine.begin() as connection:
        for statement in _DELETE_ALL:
            connection.execute(statement)


@contextmanager
def opened(url: str | Path) -> Iterator[DirectStore]:
    store = DirectStore(url if isinstance(url, str) else f"sqlite:///{url / 'sentinel.db'}")
    with store.engine.begin() as connection:  # which refuse to empty the audit between two worlds
        for trigger in ("audit_no_update", "audit_no_delete") if connection.dialect.name == "sqlite" else ():
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
    sa.event.listen(store.engine, "connect", _careless)
    store.engine.dispose()
    try:
        yield store
    finally:
        store.close()


def _careless(connection: Any, _record: object) -> None:
    """No test survives a loss of power; thousands of transactions need not wait for the disk."""
    connection.execute("PRAGMA synchronous=OFF")


class FakeSleep:
    """Stands in for asyncio.sleep: time passes on the fake clock only, and only when nobody has anything else to do.

    Whose time has come is woken, the earliest first; two who sleep a second each do so during the same second. What the
    code gives to threads happens at once (``in_step``): else the clock would have to wait for them, and the order of what
    they do would be another on a busy machine.
    """

    _newest: FakeSleep | None = None  # who waits in an earlier world waits for ever

    def __init__(self, clock: FakeClock) -> None:
        FakeSleep._newest = self
        self._clock = clock
        self._asleep: list[tuple[datetime, asyncio.Future[None]]] = []
        self._looking = False

    async def __call__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        until = self._clock.at + timedelta(seconds=seconds)
        self._asleep.append((until, woken))
        self._look_later(loop)
        await woken

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._looking:
            self._looking = True
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """When nothing else can run, go to the next time that somebody waits for; come again while anybody sleeps."""
        self._looking = False
        if FakeSleep._newest is not self:
            return
        self._asleep = [entry for entry in self._asleep if not entry[1].done()]  # without the cancelled
        if not self._asleep:
            return
        if not loop._ready:  # type: ignore[attr-defined]  # nothing public tells whether a loop is idle
            self._clock.at = max(self._clock.at, min(until for until, _ in self._asleep))
            for _, woken in sorted((e for e in self._asleep if e[0] <= self._clock.at), key=lambda e: e[0]):
                woken.set_result(None)
        self._look_later(loop)


async def in_step(call: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """Stands in for asyncio.to_thread and ``Threads.call``: others have their turn, then it is done before anything else."""
    await _real_sleep(0)
    return call(*arguments, **named)


def without_time(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """Waiting moves ``clock`` and takes no time, and no thread does anything."""
    monkeypatch.setattr(asyncio, "sleep", FakeSleep(clock))
    monkeypatch.setattr(asyncio, "to_thread", in_step)
    monkeypatch.setattr(Threads, "call", lambda _self, call, *arguments: in_step(call, *arguments))
