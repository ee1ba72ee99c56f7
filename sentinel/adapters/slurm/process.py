"""Runs a Slurm command with a deadline and turns its failures into Sentinel's errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum

from sentinel.errors import Denied, ProtocolError, SentinelError, Timeout, Unavailable
from sentinel.text import plain, text_of

REAP_S = 1.0  # how long a killed command may take to go; one that is stuck in the kernel is left behind
SAID = 300  # characters of a command's error output that an error quotes


class Answer(StrEnum):
    """The reason of a refusal by slurmctld, as far as callers need to distinguish them."""

    NO_JOB = "no_job"
    NO_NODE = "no_node"
    PENDING = "pending"
    NOT_PENDING = "not_pending"
    FINISHED = "finished"
    DISABLED = "disabled"
    NOT_BATCH = "not_batch"
    NOT_LEADER = "not_leader"
    NODE_STATE = "node_state"
    OTHER = "other"


class SlurmSaidNo(SentinelError):
    """slurmctld refused a request. Never leaves the adapters: the writer translates it."""

    def __init__(self, answer: Answer, said: str) -> None:
        super().__init__(said)
        self.answer = answer


# Order counts: a refusal to authenticate often comes with "unable to contact" in the same breath.
_DENIED = re.compile(
    r"protocol authentication error|invalid user id|access/permission denied|munge|authentication credential"
    r"|authentication plugin|unauthorized|permission denied|authentication: ",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"unable to contact slurm|unable to establish control|zero bytes were transmitted|socket timed out|connection refused"
    r"|connection reset|connection timed out|no route to host|network is unreachable|standby mode|controller in failover"
    r"|could not establish a configuration source|unable to process configuration file|unable to resolve|broken pipe"
    r"|slurmctld.*not responding|temporarily unable|resource temporarily unavailable",
    re.IGNORECASE,
)
_ANSWERS = (
    (Answer.NO_JOB, re.compile(r"invalid job id", re.IGNORECASE)),
    (Answer.NO_NODE, re.compile(r"invalid node name|node \S+ not found", re.IGNORECASE)),
    (Answer.NODE_STATE, re.compile(r"invalid node state", re.IGNORECASE)),
    (Answer.NOT_PENDING, re.compile(r"no longer pending execution|not pending nor", re.IGNORECASE)),
    (Answer.PENDING, re.compile(r"job is pending execution", re.IGNORECASE)),
    (Answer.FINISHED, re.compile(r"already finished|already completing or completed", re.IGNORECASE)),
    (Answer.DISABLED, re.compile(r"presently disabled", re.IGNORECASE)),
    (Answer.NOT_BATCH, re.compile(r"only batch jobs", re.IGNORECASE)),
    (Answer.NOT_LEADER, re.compile(r"not (a )?het\w*( ?job)? leader", re.IGNORECASE)),
)


def error_from(said: str) -> SentinelError:
    """The error for what a failed command wrote. What is not recognised is an answer (OTHER), not a missing one."""
    line = " ".join(said.split())[:SAID]
    if _DENIED.search(said):
        return Denied(f"Slurm refused us: {line}", fix="check munge and the rights of this account (sentinel doctor)")
    if _ABSENT.search(said):
        return Unavailable(f"slurmctld did not answer: {line}")
    for answer, pattern in _ANSWERS:
        if pattern.search(said):
            return SlurmSaidNo(answer, line)
    return SlurmSaidNo(Answer.OTHER, line)


Asked = Callable[[str], None]


def uncounted(_result: str) -> None:
    """A counter that counts nothing."""


class Commands:
    """Slurm's commands of one cluster.

    Args:
        bin: folder of the commands; None takes them from PATH.
        environment: added to ours, e.g. SLURM_CONF. Variables that change what the commands do or print are left out.
        deadline_s: for one command; then its whole process group is killed.
        asked: is told of each request, "answered" (a no is an answer) or "unavailable".
    """

    def __init__(
        self,
        *,
        bin: str | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = 10.0,
        asked: Asked = uncounted,
    ) -> None:
        self._asked = asked
        kept = {key: value for key, value in os.environ.items() if not _changes_meaning(key)}
        self.environment = {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **(environment or {})}
        self.path = bin or self.environment.get("PATH", os.defpath)
        self.deadline_s = deadline_s

    async def run(self, program: str, *arguments: str) -> bytes:
        """stdout of a command that succeeded; raises as ``run_both`` does."""
        return (await self.run_both(program, *arguments))[0]

    async def run_both(self, program: str, *arguments: str) -> tuple[bytes, str]:
        """stdout and stderr of a command that ended with status 0, which does not mean that it has got an answer.

        Raises:
            Timeout: not within the deadline.
            Unavailable: not installed, or slurmctld does not answer it.
            Denied: authentication or rights.
            SlurmSaidNo: slurmctld's no.
        """
        asks = arguments != ("--version",)
        try:
            status, output, said = await self._run(program, arguments)
            error = error_from(said or f"{program} ended with status {status}") if status != 0 else None
            if isinstance(error, Unavailable):
                raise error
        except Unavailable:
            self._asked("unavailable")
            raise
        if asks:
            self._asked("answered")
        if error is not None:
            raise error
        return output, said

    async def _run(self, program: str, arguments: tuple[str, ...]) -> tuple[int, bytes, str]:
        path = shutil.which(program, path=self.path)
        if path is None:
            raise Unavailable(f"{program} not found in {self.path}", fix="install Slurm's commands or set their folder")
        if any(plain(argument) != argument for argument in arguments):
            raise ProtocolError(f"an argument of {program} holds NUL or half a surrogate pair")
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{program} cannot be started: {error}") from error
        try:
            output, said = await asyncio.wait_for(process.communicate(), self.deadline_s)
        except TimeoutError as error:
            await end_process(process)
            raise Timeout(f"{program} did not finish within {self.deadline_s:g} s") from error
        except asyncio.CancelledError:
            await end_process(process)
            raise
        assert process.returncode is not None
        return process.returncode, output, text_of(said).strip()


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill the command's process group; wait a moment for it to go, never for ever."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), REAP_S)


# Of other clusters, in another form, or of fewer jobs: SCANCEL_USER makes scancel end nothing and say 0.
_OPTIONS = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_", "SLURM_TIME_FORMAT", "SLURM_JSON", "SLURM_CLUSTERS")


def _changes_meaning(variable: str) -> bool:
    return variable.startswith(_OPTIONS)
