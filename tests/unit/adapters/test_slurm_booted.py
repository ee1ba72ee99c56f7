"""When slurmctld was started is told by the clock of whoever asks: what that did was done by it."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sentinel.adapters.slurm.commands import CommandReader

NOW = datetime(2026, 3, 1, 12, 0, 0, 300_000, tzinfo=UTC)
SAID = """Configuration data as of 2026-03-01T12:00:00
AccountingStorageHost   = localhost
BOOT_TIME               = 2026-03-01T11:59:10
SLURM_VERSION           = 22.05.8
"""


def reader(folder: Path, said: str, *clock: datetime) -> CommandReader:
    command = folder / "scontrol"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return CommandReader(bin=f"{folder}:/usr/bin:/bin", now=iter(clock).__next__)


@pytest.mark.parametrize(
    ("asked_s", "answered_s", "booted_s"),
    [
        (0.0, 0.1, 0.0),
        (-8.0, 1.0, 0.0),  # a slow answer says nothing about the clocks
        (-1.5, -1.4, 0.0),
        (300.0, 300.1, 300.3),
        (-300.0, -299.9, -299.6),
    ],
)
async def test_the_start_is_told_by_our_clock_where_it_differs(
    tmp_path: Path, asked_s: float, answered_s: float, booted_s: float
) -> None:
    clock = (NOW + timedelta(seconds=s) for s in (asked_s, answered_s))
    booted = await reader(tmp_path, SAID, *clock).booted_at()
    assert booted == datetime(2026, 3, 1, 11, 59, 10, tzinfo=UTC) + timedelta(seconds=booted_s)


@pytest.mark.parametrize("line", [0, 2])
async def test_a_start_that_cannot_be_dated_is_not_known(tmp_path: Path, line: int) -> None:
    lines = SAID.splitlines(keepends=True)
    del lines[line]
    assert await reader(tmp_path, "".join(lines), NOW, NOW).booted_at() is None
