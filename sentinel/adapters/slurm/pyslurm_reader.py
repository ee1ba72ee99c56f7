"""Slurm through pyslurm, where a release is installed that fits: no process per question, and no text of commands.

pyslurm runs in a child process (``slurm_pyslurm_child``), one request at a time, each with a deadline; after a deadline or
a crash the child is killed with its process group, and the next request starts another. What pyslurm cannot say goes to
scontrol: one task of an array by its task number, clearing a node list, and a hold that the user may release
(``Job.hold("user")`` ends the process with pyslurm 22.5.3).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sentinel.adapters.slurm.commands import CommandReader, CommandVerbs, utc_now
from sentinel.adapters.slurm.parse import Record, fleet_of, job_of, node_of, record_of
from sentinel.adapters.slurm.process import Asked, Commands, SlurmSaidNo, end_process, error_from, uncounted
from sentinel.adapters.slurm.writer import Writer
from sentinel.errors import Timeout, Unavailable
from sentinel.model.records import Fleet, JobView, NodeView
from sentinel.model.spares import Spares
from sentinel.text import json_of, text_of

CHILD = (sys.executable, "-m", "sentinel.adapters.slurm.pyslurm_child")
LINE_BYTES = 512 * 1024 * 1024  # an answer is one line: a fleet of 16,000 nodes with its jobs is some tens of MB


def probe(environment: Mapping[str, str], deadline_s: float, command: tuple[str, ...] = CHILD) -> tuple[str, str]:
    """(version of a pyslurm that can be used here, why not); one of the two is empty. Asks no slurmctld."""
    try:
        done = subprocess.run(
            command,
            input=b'{"verb": "hello", "arguments": []}\n',
            env={**os.environ, **environment},
            capture_output=True,
            timeout=deadline_s,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"pyslurm does not answer: {error}"
    try:
        said = json_of(done.stdout)["ok"]
        version, lacks = str(said["pyslurm"]), list(said["lacks"])
    except (ValueError, KeyError, TypeError):
        lines = text_of(done.stderr).strip().splitlines()
        return "", f"pyslurm does not import: {lines[-1] if lines else f'status {done.returncode}'}"[:300]
    if lacks:
        return "", f"pyslurm {version} is too old (no {', '.join(lacks)}); 22.5.3 or 23.2.3 and newer fit"
    return version, ""


class Child:
    """The process with pyslurm in it; started when needed."""

    def __init__(
        self,
        environment: Mapping[str, str],
        deadline_s: float,
        command: tuple[str, ...] = CHILD,
        asked: Asked = uncounted,
    ) -> None:
        self._asked = asked
        self._environment = {**os.environ, **environment}
        self._deadline_s = deadline_s
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, verb: str, *arguments: object) -> Any:
        """The result; counted. Raises as ``_ask`` does."""
        try:
            result = await self._ask(verb, *arguments)
        except Unavailable:
            self._asked("unavailable")
            raise
        except SlurmSaidNo:
            self._asked("answered")
            raise
        self._asked("answered")
        return result

    async def _ask(self, verb: str, *arguments: object) -> Any:
        """The result.

        Raises:
            Timeout: not within the deadline; the child is killed.
            Unavailable: the child could not be started, died or has a pyslurm that does not fit; Denied is possible.
            SlurmSaidNo: slurmctld's no.
        """
        async with self._turn:
            try:
                line = await asyncio.wait_for(self._exchange(verb, arguments), self._deadline_s)
            except TimeoutError as error:
                await self.close()
                raise Timeout(f"pyslurm did not answer {verb} within {self._deadline_s:g} s") from error
            except (OSError, ValueError) as error:
                await self.close()
                raise Unavailable(f"the process with pyslurm failed: {error}") from error
            except asyncio.CancelledError:
                await self.close()
                raise
        try:
            answer = json_of(line)
        except ValueError as error:
            await self.close()
            raise Unavailable(f"the process with pyslurm died on {verb}") from error
        if "ok" in answer:
            return answer["ok"]
        if "no" in answer:
            raise error_from(str(answer["no"]))
        raise Unavailable(
            f"pyslurm on {verb}: {answer.get('broken')!r:.300}", fix="remove this pyslurm: it does not fit"
        )

    async def _exchange(self, verb: str, arguments: tuple[object, ...]) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                limit=LINE_BYTES,
            )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()

    async def close(self) -> None:
        """Kill the child; wait a moment for it to go, never for ever."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            await end_process(process)


class PyslurmReader:
    """``SlurmReader`` over pyslurm: two requests a fleet. slurmctld's release is asked with scontrol, pyslurm hides it."""

    def __init__(self, child: Child, commands: CommandReader, *, now: Callable[[], datetime] = utc_now) -> None:
        self._child = child
        self._commands = commands
        self._now = now

    async def fleet(self) -> Fleet:
        at = self._now()
        nodes = await self._commands.topology.added(await self._records("nodes"))
        jobs = await self._records("jobs")
        await self._commands.in_charge.look()
        return fleet_of(at, nodes, jobs, self._commands.topology.unread)

    async def node(self, name: str) -> NodeView | None:
        return node_of(await self._records("nodes"), name)

    async def job(self, job: int) -> JobView | None:
        return job_of(await self.job_record(job))

    async def job_record(self, job: int) -> Record | None:
        # Not Job.load: it asks for the steps as well, and an array's id gives it any of the tasks.
        return record_of(await self._records("jobs"), job)

    async def steps(self, job: int) -> Mapping[int, str]:
        return await self._commands.steps(job)

    async def version(self) -> str:
        return await self._commands.version()

    async def booted_at(self) -> datetime | None:
        return await self._commands.booted_at()

    async def spares(self, reservation: str) -> Spares | None:
        return await self._commands.spares(reservation)

    async def _records(self, verb: str) -> list[Record]:
        try:
            found = await self._child.ask(verb)
        except SlurmSaidNo as no:
            raise Unavailable(f"Slurm did not answer the question: {no.message}") from no
        if not isinstance(found, list):
            raise Unavailable(f"pyslurm's {verb} are not a list of records")
        return [record if isinstance(record, dict) else {"no record": record} for record in found]


class PyslurmVerbs(CommandVerbs):
    """The single requests of the writer: through pyslurm what it can say, the rest through scontrol."""

    def __init__(self, child: Child, reader: PyslurmReader, commands: Commands, others: CommandReader) -> None:
        super().__init__(others, commands)
        self._child = child
        self.node = reader.node
        self.job_record = reader.job_record

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        await self._child.ask("set_node", node, state, reason)

    async def release(self, job: str) -> None:
        await (self._child.ask("release", int(job)) if job.isdecimal() else super().release(job))

    async def notify(self, job: str, text: str) -> None:
        await self._child.ask("notify", int(job), text)


class PyslurmWriter(Writer):
    """``SlurmWriter`` over pyslurm and, for job updates, scontrol."""


def connect(
    *,
    bin: str | None = None,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = 10.0,
    command: tuple[str, ...] = CHILD,
    now: Callable[[], datetime] = utc_now,
    asked: Asked = uncounted,
) -> tuple[PyslurmReader, PyslurmWriter, Child]:
    """Reader and writer over one child; the caller closes the child."""
    child = Child(environment or {}, deadline_s, command, asked)
    others = CommandReader(bin=bin, environment=environment, deadline_s=deadline_s, asked=asked)
    commands = Commands(bin=bin, environment=environment, deadline_s=deadline_s, asked=asked)
    reader = PyslurmReader(child, others, now=now)
    return reader, PyslurmWriter(PyslurmVerbs(child, reader, commands, others)), child
