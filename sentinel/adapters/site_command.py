"""Runs a site's command with a deadline and bounded output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.text import text_of

REAP_S = 1.0  # how long a killed command may take to go; one that is stuck in the kernel is left behind
_LOOK_S = 0.05  # between two looks whether it has ended
SAID_BYTES = 64 * 1024  # of its output that are kept; what is more is read and dropped
SAID = 300  # characters of its last words that an error carries


async def run(arguments: Sequence[str], *, deadline_s: float, data: bytes = b"") -> None:
    """Run the command without a shell, with ``data`` on its standard input. Processes left in its session are killed.

    Raises:
        Unavailable: it cannot be started.
        Timeout: not within the deadline.
        Refused: it ended with another status than 0.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Unavailable(f"{arguments[0]} cannot be started: {error}") from error
    telling, hearing = asyncio.create_task(_tell(process, data)), asyncio.create_task(_hear(process))
    try:
        await asyncio.wait_for(_ended(process), deadline_s)
    except TimeoutError as error:
        raise Timeout(f"{arguments[0]} did not end within {deadline_s:g} s and was killed") from error
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left: that may hold its output open
        telling.cancel()
        await asyncio.wait({hearing}, timeout=REAP_S)
        hearing.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), REAP_S)
        await asyncio.sleep(0)  # asyncio closes its end of the pipes then
    if process.returncode != 0:
        said = hearing.result() if hearing.done() and not hearing.cancelled() else b""
        words = " ".join(text_of(said).split())[-SAID:]
        raise Refused(f"{arguments[0]} ended with status {process.returncode}{f': {words}' if words else ''}")


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Poll for the exit: ``wait`` of newer Pythons also waits for other processes that hold the output open."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK_S)


async def _tell(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _hear(process: asyncio.subprocess.Process) -> bytes:
    """Read the output and keep its end."""
    assert process.stdout is not None, "it is a pipe"
    said = b""
    while chunk := await process.stdout.read(65536):
        said = (said + chunk)[-SAID_BYTES:]
    return said
