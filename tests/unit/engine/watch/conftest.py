"""Four nodes whose silence is watched, and the answers of their slurmd's ports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from in_memory.watch import Ports, Scene
from in_memory.world import World

from sentinel.daemon.effects import perform


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Ports:
    made = Ports()
    monkeypatch.setattr(perform, "slurmd_answers", made)
    return made


@pytest.fixture
def opened(world: Callable[..., World], ports: Ports) -> Callable[..., Awaitable[Scene]]:
    """Four nodes, heard just now; the job runs on n1 and n2."""

    async def make() -> Scene:
        scene = Scene(world())
        await scene.fleets.take()
        scene.hear(*scene.world.slurm.nodes)
        return scene

    return make
