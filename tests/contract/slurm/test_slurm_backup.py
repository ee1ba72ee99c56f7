"""A backup slurmctld that takes over is a start: what its predecessor had not saved is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from servers import slurm_backup, slurm_cluster
from servers.slurm_backup import TwoControllers

from sentinel.adapters.slurm.commands import CommandReader, CommandWriter

pytestmark = pytest.mark.slurm


@pytest.fixture
def two() -> Iterator[TwoControllers]:
    if why := slurm_cluster.missing() or slurm_backup.missing():
        pytest.skip(why)
    with TwoControllers(nodes=1, gpus=1) as made:
        yield made


async def known(reader: CommandReader) -> datetime:
    """Since when slurmctld works: said once it has begun to."""
    for _ in range(600):
        await reader.fleet()
        if (found := await reader.booted_at()) is not None:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError("not known within a minute")


async def test_a_takeover_counts_as_a_start_of_slurmctld(two: TwoControllers) -> None:
    settings = {"SLURM_CONF": str(two.conf)}
    reader = CommandReader(environment=settings, deadline_s=60.0)
    await known(reader)
    await CommandWriter(environment=settings, deadline_s=60.0).drain("n1", "sentinel:i1 ecc n1:0")
    asked_at = datetime.now(UTC)
    before = await reader.booted_at()
    assert before is not None and before <= asked_at
    two.stop("slurmctld")
    two.wait(lambda: "BOOT_TIME" in two.command("scontrol", "show", "config", check=False), "the takeover")
    for one in (reader, CommandReader(environment=settings, deadline_s=60.0)):  # the other saw nobody else before
        found = await known(one)
        assert asked_at < found <= datetime.now(UTC), "BOOT_TIME is that of the backup's process, which was there first"
    two.start_controller()
    assert await known(reader) > found
