"""A clock of seconds for the choice of checkpoints, which asks nodes again until an order's deadline."""

from __future__ import annotations

import pytest
from in_memory.watch import Seconds

from sentinel.daemon.effects import checkpoints


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(checkpoints, "time", made)
    return made
