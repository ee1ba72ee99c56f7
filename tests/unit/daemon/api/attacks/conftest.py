"""An API that is served, with deadlines that nobody misses unless a test is about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from in_memory.server import Served, serving
from in_memory.world import World
from servers.asked_by_anybody import PATIENCE_S, hurries


@pytest.fixture
async def served(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr("sentinel.daemon.api.transport._DEFER_ACCEPT_S", 1)
    # Looks often for what is overdue. Nothing is on a busy machine, unless a test is about it: see ``hurries``.
    async with serving(world(nodes=12), header_s=0.2) as made:
        hurries(made, header_s=PATIENCE_S, body_s=PATIENCE_S, idle_s=PATIENCE_S)
        yield made
