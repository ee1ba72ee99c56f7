"""Slurm through its own commands: squeue, sinfo and scontrol. Works with every release that Sentinel supports.

Reading takes JSON (squeue and sinfo from 21.08 on, scontrol from 23.02 on; sinfo of newer releases merges nodes, so
scontrol is asked there). The text form of scontrol is not read where users' words are in it: a job name may hold spaces,
newlines and "JobState=FAILED".

One cluster is asked, also in a federation that shows all of them (fed_display): with --local no other slurmctld is waited
for. scancel has no --local: of a step it reads the jobs of all clusters of a federation, whatever fed_display is, and sends
its request to this slurmctld alone, for each job whose id fits (22.05 to 26.05). So it is given the id, never an array's
task: another cluster's array may have that number, and its task's id be that of another job here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from sentinel.adapters.slurm.in_charge import InCharge
from sentinel.adapters.slurm.parse import Record, array_spec, fleet_of, job_of, node_of, record_of, records
from sentinel.adapters.slurm.process import Answer, Asked, Commands, SlurmSaidNo, error_from, uncounted
from sentinel.adapters.slurm.topology import Topology
from sentinel.adapters.slurm.writer import Writer
from sentinel.errors import Denied, ProtocolError, Unavailable
from sentinel.model.hostlist import expand
from sentinel.model.records import Fleet, JobView, NodeView
from sentinel.model.spares import Spares
from sentinel.text import text_of

SCONTROL_JSON = (23, 2)  # first release whose scontrol knows --json
_RELEASE = re.compile(r"(\d+)\.(\d+)\S*")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def utc_now() -> datetime:
    return datetime.now(UTC)


class CommandReader:
    """``SlurmReader`` over Slurm's commands.

    Args:
        bin: folder of the commands (several separated by ``:``); None takes them from PATH.
        environment: added to ours for the commands, e.g. ``{"SLURM_CONF": ...}``.
        deadline_s: for one command.
        now: aware UTC; the time that a snapshot carries is that of its first request.
    """

    def __init__(
        self,
        *,
        bin: str | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = 10.0,
        now: Callable[[], datetime] = utc_now,
        asked: Asked = uncounted,
    ) -> None:
        self._commands = Commands(bin=bin, environment=environment, deadline_s=deadline_s, asked=asked)
        self._now = now
        self._client: tuple[int, int] | None = None
        self.topology = Topology(lambda: self._commands.run("scontrol", "show", "topology"))
        self.in_charge = InCharge(self._ask, now)

    async def fleet(self) -> Fleet:
        """Two commands, whatever the size, and every ten minutes a third and fourth; that with each where slurm.conf names
        several slurmctld."""
        at = self._now()
        nodes = await self.topology.added(await self._nodes())
        jobs = await self._jobs()
        await self.in_charge.look()
        return fleet_of(at, nodes, jobs, self.topology.unread)

    async def node(self, name: str) -> NodeView | None:
        if not _NODE_NAME.match(name):
            return None
        return node_of(await self._nodes(name), name)

    async def job(self, job: int) -> JobView | None:
        return job_of(await self.job_record(job))

    async def job_record(self, job: int) -> Record | None:
        """The job as Slurm's JSON has it; None when slurmctld does not know it."""
        return record_of(await self._jobs(job), job)

    async def steps(self, job: int) -> dict[int, str]:
        """Each line begins with the step's id, which its name cannot change: other lines are part of a multi-line name."""
        record = await self.job_record(job)
        if record is None:
            return {}
        spec = array_spec(record)
        try:
            words = ("--local", "--steps", "--noheader", f"--jobs={spec}", "--format=%i|%j")
            said = await self._commands.run("squeue", *words)
        except SlurmSaidNo as no:
            if no.answer is Answer.NO_JOB:
                return {}
            raise _unexpected(no) from no
        found = re.findall(rf"^{re.escape(spec)}\.(\d{{1,9}})\|(.*)$", text_of(said), re.MULTILINE)
        return {int(number): name.strip() for number, name in found}

    async def version(self) -> str:
        said = text_of(await self._ask("scontrol", "show", "config"))
        found = re.search(r"^SLURM_VERSION\s*=\s*(\S+)\s*$", said, re.MULTILINE)
        if found is None:
            raise Unavailable("scontrol show config names no SLURM_VERSION")
        return found[1]

    async def booted_at(self) -> datetime | None:
        """When the slurmctld that answers was started or took over, by this host's clock; None: not known."""
        return await self.in_charge.since()

    async def spares(self, reservation: str) -> Spares | None:
        """Read from text: only newer releases have reservations in JSON, and this text contains nothing written by users."""
        said = text_of(await self._ask("scontrol", "--all", "--oneliner", "show", "reservation"))
        line = next((one for one in said.splitlines() if one.startswith(f"ReservationName={reservation} ")), None)
        if line is None:
            return None
        fields = dict(re.findall(r"\b(Nodes|Users)=(\S*)", line.partition(" Comment=")[0]))
        try:
            nodes, users = expand(fields.get("Nodes", "")), expand(fields.get("Users", ""))
        except ProtocolError as error:
            raise Unavailable(f"scontrol show reservation: {error.message}") from error
        return Spares(reservation, nodes, users)

    async def _nodes(self, name: str | None = None) -> list[Record]:
        if await self._client_release() >= SCONTROL_JSON:
            command = ["scontrol", "--json", "--all", "--local", "show", "nodes", *([name] if name else [])]
        else:
            command = ["sinfo", "--json", "--all", "--local", *([f"--nodes={name}"] if name else [])]
        try:
            return await self._records(command, "nodes")
        except SlurmSaidNo as no:
            if name and no.answer is Answer.NO_NODE:
                return []
            raise _unexpected(no) from no

    async def _jobs(self, job: int | None = None) -> list[Record]:
        if await self._client_release() >= SCONTROL_JSON:
            one = [f"{job}"] if job is not None else []
            command = ["scontrol", "--json", "--all", "--local", "show", "jobs", *one]
        else:  # squeue of these releases gives all jobs in JSON, whatever it is asked for
            command = ["squeue", "--json", "--all", "--local", "--states=all"]
        try:
            return await self._records(command, "jobs")
        except SlurmSaidNo as no:
            if job is not None and no.answer is Answer.NO_JOB:
                return []
            raise _unexpected(no) from no

    async def _records(self, command: list[str], key: str) -> list[Record]:
        """Parse the records. sinfo of 22.05 exits with 0 and an empty list if munge is down: only its message shows it.

        An answer of another form may be another release's: which one is installed is asked again for the next question.
        """
        try:
            output, said = await self._commands.run_both(*command)
        except SlurmSaidNo as no:
            if no.answer is Answer.OTHER:  # so says a program that has no --json
                self._client = None
            raise
        try:
            return records(output, key)
        except ProtocolError as error:
            self._client = None
            complaint = error_from(said) if said else None
            if isinstance(complaint, Unavailable | SlurmSaidNo):
                raise complaint from error
            raise Unavailable(f"{command[0]}: {error.message}") from error

    async def _ask(self, program: str, *arguments: str) -> bytes:
        try:
            return await self._commands.run(program, *arguments)
        except SlurmSaidNo as no:
            raise _unexpected(no) from no

    async def _client_release(self) -> tuple[int, int]:
        """Release of the commands (no request): it decides who speaks JSON. Kept while their answers have its form."""
        if self._client is None:
            said = text_of(await self._ask("scontrol", "--version"))
            found = _RELEASE.search(said)
            if found is None:
                raise Unavailable(f"scontrol --version says {said!r:.80}")
            self._client = (int(found[1]), int(found[2]))
        return self._client


class CommandVerbs:
    """The single requests of the writer, each one scontrol."""

    def __init__(self, reader: CommandReader, commands: Commands) -> None:
        self._reader = reader
        self._commands = commands
        self.node = reader.node
        self.job_record = reader.job_record

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        words = [f"Reason={reason}"] if reason is not None else []
        await self._commands.run("scontrol", "update", f"NodeName={node}", f"State={state}", *words)

    async def requeue_hold(self, job: str, *, incomplete: bool) -> None:
        await self._commands.run("scontrol", "requeuehold", *(["Incomplete"] if incomplete else []), job)

    async def hold(self, job: str) -> None:
        await self._commands.run("scontrol", "uhold", job)  # its user may release it, too

    async def release(self, job: str) -> None:
        await self._commands.run("scontrol", "release", job)

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        pairs = [f"{key}={value}" for key, value in fields.items()]
        await self._commands.run("scontrol", "update", f"JobId={job}", *pairs)

    async def set_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        pairs = [f"{key}={value}" for key, value in fields.items()]
        try:
            await self._commands.run("scontrol", "update", f"ReservationName={name}", *pairs)
        except Denied as no:
            # So answers 24.11 where a user to be taken away is not named any more, and 26.05 of one whom it does not know.
            kept = await self._reader.spares(name)  # we are let in: it is an answer
            if (user := fields.get("Users-")) is None or kept is None or user in kept.users:
                raise SlurmSaidNo(Answer.OTHER, no.message) from no

    async def end_step(self, job: str, step: int) -> None:
        await self._commands.run("scancel", f"{job}.{step}")

    async def notify(self, job: str, text: str) -> None:
        await self._commands.run("scontrol", "notify", job, text)


class CommandWriter(Writer):
    """``SlurmWriter`` over scontrol; same arguments as ``CommandReader``."""

    def __init__(
        self,
        *,
        bin: str | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = 10.0,
        asked: Asked = uncounted,
    ) -> None:
        reader = CommandReader(bin=bin, environment=environment, deadline_s=deadline_s, asked=asked)
        commands = Commands(bin=bin, environment=environment, deadline_s=deadline_s, asked=asked)
        super().__init__(CommandVerbs(reader, commands))


def _unexpected(no: SlurmSaidNo) -> Unavailable:
    """Turn a refused query into "not known"."""
    return Unavailable(f"Slurm did not answer the question: {no.message}")
