"""One store for the module (its schema takes longer than a test), emptied before each world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core_world import FakeSleep, World, clear, opened

from sentinel.adapters.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("store")
    with opened(folder) as made:
        yield made


@pytest.fixture
def world(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """A new world on the emptied store; waiting moves its clock."""

    def make(**how: object) -> World:
        clear(store)
        made = World(store, **how)  # type: ignore[arg-type]
        sleep = FakeSleep(made.slurm.clock)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        return made

    return make
