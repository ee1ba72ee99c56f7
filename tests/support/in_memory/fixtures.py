"""Fixtures over ``in_memory.world``: one store for the module (its schema takes longer than a test), emptied for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from in_memory.direct_store import DirectStore
from in_memory.world import World, clear, opened, without_time


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectStore]:
    folder: Path = tmp_path_factory.mktemp("store")
    with opened(folder) as made:
        yield made


@pytest.fixture
def world(store: DirectStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """A new world on the emptied store; waiting moves its clock."""

    def make(**how: object) -> World:
        clear(store)
        made = World(store, **how)  # type: ignore[arg-type]
        without_time(monkeypatch, made.slurm.clock)
        return made

    return make
