"""One Slurm for every implementation of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest
from servers.slurm_cluster import Cluster
from servers.slurm_worlds import FakeWorld, RealWorld, World

from sentinel.adapters.slurm import pyslurm_reader
from sentinel.adapters.slurm.commands import CommandReader, CommandWriter

DEADLINE_S = 60.0
HASTY_S = 3.0  # where no answer is to be expected


@pytest.fixture(
    params=[
        "memory",
        pytest.param("commands", marks=pytest.mark.slurm),
        pytest.param("pyslurm", marks=pytest.mark.slurm),
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield FakeWorld()
        return
    if request.param == "pyslurm" and find_spec("pyslurm") is None:
        pytest.skip("optional: pyslurm is not installed")
    cluster: Cluster = request.getfixturevalue("real_slurm")
    settings = {"SLURM_CONF": str(cluster.conf)}
    if request.param == "commands":
        reader = CommandReader(environment=settings, deadline_s=DEADLINE_S)
        real = RealWorld(cluster, reader, CommandWriter(environment=settings, deadline_s=DEADLINE_S))
        hasty = CommandReader(environment=settings, deadline_s=HASTY_S)
        real.hasty = hasty, CommandWriter(environment=settings, deadline_s=HASTY_S)
        yield real
        real.reset()
        return
    version, why_not = pyslurm_reader.probe(settings, DEADLINE_S)
    if not version:
        pytest.skip(f"optional: {why_not}")
    over_pyslurm, writer, child = pyslurm_reader.connect(environment=settings, deadline_s=20.0)
    real = RealWorld(cluster, over_pyslurm, writer)
    yield real
    await child.close()
    real.reset()
