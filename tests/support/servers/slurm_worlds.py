"""Clusters on which the contract suite of the Slurm ports runs: the one in memory, and a real one under each adapter."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from in_memory.slurm import FakeSlurm

from sentinel.model.records import JobView, NodeView
from sentinel.ports import SlurmReader, SlurmWriter
from servers.slurm_cluster import Cluster

T = TypeVar("T")
PATIENCE_S = 120.0  # how long a real cluster may take for what it does within a second or two when nothing else runs
SCRIPTS = {
    "sleep": "echo started; sleep 600",
    "fail": "exit 3",
    "signal": "kill -9 $$",
    "steps": "srun --job-name=sentinel-run-0 --nodes=2 --ntasks=2 sleep 600; sleep 600",
    "stubborn": "trap '' TERM; sleep 600 & wait; sleep 600",
}


class World(Protocol):
    reader: SlurmReader
    writer: SlurmWriter
    names: list[str]

    def submit(
        self,
        script: str = "sleep",
        *,
        nodes: int = 1,
        name: str = "train",
        comment: str = "",
        excluded: str = "",
        requeue: bool = True,
        held: bool = False,
    ) -> int: ...

    def submit_array(self, tasks: int) -> list[int]: ...

    def submit_interactive(self) -> int: ...

    def cancel(self, job: int) -> None: ...

    def requeue(self, job: int) -> None: ...

    def hold(self, job: int) -> None: ...

    def unhold(self, job: int) -> None: ...

    def suspend_and_resume(self, job: int) -> None: ...

    def lose(self, node: str) -> None: ...

    def revive(self, node: str) -> None: ...

    def person_drains(self, node: str, reason: str) -> None: ...

    def frozen(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    def output(self, job: JobView) -> str: ...

    async def job(self, job: int, condition: Callable[[JobView], bool]) -> JobView: ...

    async def node(self, node: str, condition: Callable[[NodeView], bool]) -> NodeView: ...

    def reset(self) -> None: ...


class FakeWorld:
    """Over ``FakeSlurm``: what a real cluster does in a second has happened at once."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm()
        self.reader: SlurmReader = self.slurm
        self.writer: SlurmWriter = self.slurm
        self.names = list(self.slurm.nodes)

    def submit(
        self,
        script: str = "sleep",
        *,
        nodes: int = 1,
        name: str = "train",
        comment: str = "",
        excluded: str = "",
        requeue: bool = True,
        held: bool = False,
    ) -> int:
        job = self.slurm.submit(
            nodes=nodes,
            name=name,
            comment=comment,
            excluded=[item for item in excluded.split(",") if item],
            requeue=requeue,
            held=held,
        )
        if self.slurm.jobs[job].state == "RUNNING" and script in {"fail", "signal"}:
            self.slurm.end(job, exit_code=3 if script == "fail" else 0, exit_signal=9 if script == "signal" else 0)
        if script == "steps":
            self.slurm.begin_step(self.slurm.jobs[job], "sentinel-run-0", self.slurm.jobs[job].on[:2])
        return job

    def submit_array(self, tasks: int) -> list[int]:
        array = max(self.slurm.jobs, default=100) + tasks  # Slurm gives the array's own id to its last task
        return [self.slurm.submit(array=(array, task)) for task in range(1, tasks + 1)]

    def submit_interactive(self) -> int:
        return self.slurm.submit(batch=False)

    def cancel(self, job: int) -> None:
        self.slurm.cancel(job)

    def requeue(self, job: int) -> None:
        self.slurm.person_requeues(job)

    def hold(self, job: int) -> None:
        self.slurm.person_holds(job)

    def unhold(self, job: int) -> None:
        self.slurm.jobs[job].held = False

    def suspend_and_resume(self, job: int) -> None:
        self.slurm.jobs[job].record["suspend_time"] = int(self.slurm.clock.now().timestamp())

    def lose(self, node: str) -> None:
        self.slurm.lose(node)

    def revive(self, node: str) -> None:
        self.slurm.revive(node)

    def person_drains(self, node: str, reason: str) -> None:
        self.slurm.person_drains(node, reason)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        self.slurm.answers = False
        try:
            yield
        finally:
            self.slurm.answers = True

    def output(self, job: JobView) -> str:
        return "\n".join(self.slurm.jobs[job.id].printed)

    async def job(self, job: int, condition: Callable[[JobView], bool]) -> JobView:
        seen = await self.reader.job(job)
        assert seen is not None and condition(seen), seen
        return seen

    async def node(self, node: str, condition: Callable[[NodeView], bool]) -> NodeView:
        seen = await self.reader.node(node)
        assert seen is not None and condition(seen), seen
        return seen

    def reset(self) -> None:
        pass


class RealWorld:
    """Over a real cluster, through the adapter under test. The script of a person is Slurm's own command."""

    def __init__(self, cluster: Cluster, reader: SlurmReader, writer: SlurmWriter) -> None:
        self.cluster = cluster
        self.reader = reader
        self.writer = writer
        self.hasty = reader, writer  # while nobody answers
        self.names = list(cluster.names)
        self._lost: set[str] = set()

    def submit(
        self,
        script: str = "sleep",
        *,
        nodes: int = 1,
        name: str = "train",
        comment: str = "",
        excluded: str = "",
        requeue: bool = True,
        held: bool = False,
    ) -> int:
        options = [f"--nodes={nodes}", "--exclusive", f"--job-name={name}", "--open-mode=append"]
        options += [f"--comment={comment}"] if comment else []
        options += [f"--exclude={excluded}"] if excluded else []
        options += ["--requeue" if requeue else "--no-requeue"]
        options += ["--hold"] if held else []
        return self.cluster.submit(SCRIPTS[script] + "\n", *options)

    def submit_array(self, tasks: int) -> list[int]:
        array = self.cluster.submit(SCRIPTS["sleep"] + "\n", f"--array=1-{tasks}", "--exclusive")
        found: list[str] = []

        def all_there() -> bool:
            found[:] = self.cluster.command(
                "squeue", "-h", "-r", "-t", "R", "-j", f"{array}", "-o", "%a %A"
            ).splitlines()
            return len(found) == tasks

        self.cluster.wait(all_there, "array tasks running", within_s=PATIENCE_S)
        lines = self.cluster.command("squeue", "-h", "-r", "-j", f"{array}", "-O", "ArrayTaskID,JobID").splitlines()
        return [int(job) for _, job in sorted((int(task), job) for task, job in (line.split() for line in lines))]

    def submit_interactive(self) -> int:
        before = set(self._ids())
        self.cluster.background("srun", "--nodes=1", "--exclusive", "sleep", "600")
        self.cluster.wait(lambda: bool(set(self._ids("R")) - before), "srun's job", within_s=PATIENCE_S)
        return (set(self._ids("R")) - before).pop()

    def _ids(self, states: str = "all") -> list[int]:
        return [int(item) for item in self.cluster.command("squeue", "-h", "-t", states, "-o", "%A").split()]

    def cancel(self, job: int) -> None:
        self.cluster.command("scancel", f"{job}")

    def requeue(self, job: int) -> None:
        self.cluster.command("scontrol", "requeue", f"{job}")

    def hold(self, job: int) -> None:
        self.cluster.command("scontrol", "uhold", f"{job}")

    def unhold(self, job: int) -> None:
        self.cluster.command("scontrol", "release", f"{job}")

    def suspend_and_resume(self, job: int) -> None:
        self.cluster.command("scontrol", "suspend", f"{job}")
        self.cluster.command("scontrol", "resume", f"{job}")

    def lose(self, node: str) -> None:
        self._lost.add(node)
        self.cluster.kill_node(node)

    def revive(self, node: str) -> None:
        self._lost.discard(node)
        self.cluster.start_node(node)

    def person_drains(self, node: str, reason: str) -> None:
        self.cluster.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        patient = self.reader, self.writer
        self.cluster.signal("slurmctld", signal.SIGSTOP)
        self.reader, self.writer = self.hasty
        try:
            yield
        finally:
            self.cluster.signal("slurmctld", signal.SIGCONT)
            self.reader, self.writer = patient

    def output(self, job: JobView) -> str:
        shown = self.cluster.command("scontrol", "show", "job", f"{job.id}")
        path = Path(shown.partition("StdOut=")[2].partition("\n")[0])
        return path.read_text() if path.exists() else ""  # slurmstepd may not have got so far

    async def job(self, job: int, condition: Callable[[JobView], bool]) -> JobView:
        return await self._until(lambda: self.reader.job(job), condition)

    async def node(self, node: str, condition: Callable[[NodeView], bool]) -> NodeView:
        return await self._until(lambda: self.reader.node(node), condition)

    async def _until(self, ask: Callable[[], Awaitable[T | None]], condition: Callable[[T], bool]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = await ask()
            if seen is not None and condition(seen):
                return seen
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s; last seen {seen}\n{self.cluster.logs()}"
            await asyncio.sleep(0.1)

    def reset(self) -> None:
        """Nobody's job and nobody's drain is left."""
        for node in sorted(self._lost):
            self.revive(node)
        jobs = self.cluster.command("squeue", "-h", "-t", "all", "-o", "%A").split()
        if jobs:
            self.cluster.command("scancel", "--signal=KILL", *jobs, check=False)
            self.cluster.command("scancel", *jobs, check=False)
        for name, state in self.cluster.node_states().items():
            if state.rstrip("*") not in {"IDLE", "COMPLETING"}:
                self.cluster.command("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.cluster.wait(
            lambda: set(self.cluster.node_states().values()) == {"IDLE"}, "all nodes idle again", within_s=PATIENCE_S
        )


def running(job: JobView) -> bool:
    return job.state == "running"


def waiting(job: JobView) -> bool:
    return job.state == "pending"


def waits_held(job: JobView) -> bool:
    return job.state == "pending" and job.held
