"""A command of the site's that hangs, fails or prints without end holds nobody up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sentinel.adapters.site_command import run
from sentinel.errors import Refused, Timeout, Unavailable

LONG_S = 30.0  # none of these takes so long


async def test_it_gets_its_input_and_no_shell(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    await run(["/bin/sh", "-c", f'cat > {kept}; echo "$0" >> {kept}', "$(id)"], deadline_s=LONG_S, data=b"{}\n")
    assert kept.read_text() == "{}\n$(id)\n"


async def test_one_that_does_not_read_its_input_is_no_error(tmp_path: Path) -> None:
    done = tmp_path / "done"
    await run(["/bin/sh", "-c", f"exec <&-; touch {done}"], deadline_s=LONG_S, data=b"x" * 1_000_000)
    assert done.exists()


async def test_a_failure_says_its_last_words() -> None:
    with pytest.raises(Refused, match="status 3: no such BMC"):
        await run(["/bin/sh", "-c", "echo no such BMC >&2; exit 3"], deadline_s=LONG_S)


async def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(Timeout, match="was killed"):
        await run(["/bin/sh", "-c", f"echo $$ > {pid}; trap '' TERM; while :; do sleep 1; done"], deadline_s=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_endless_output_is_dropped() -> None:
    with pytest.raises(Timeout):
        await run(["/bin/sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"], deadline_s=0.5)


async def test_a_child_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    child = tmp_path / "child"
    await run(["/bin/sh", "-c", f"sleep 600 & echo $! > {child}; exit 0"], deadline_s=LONG_S)
    pid = int(child.read_text())
    os.kill(pid, signal.SIGKILL)  # fails where it had been waited for, or ended with the command


async def test_one_that_cannot_be_started() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        await run(["/no/such/program"], deadline_s=LONG_S)
