"""A world on a store; waiting moves the clock of the world instead of taking time."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from in_memory.fixtures import store, world

from sentinel.evidence.logs.screen import line_templates, prefilter

__all__ = ["store", "world"]


@pytest.fixture(autouse=True, scope="session")
def rules_prepared_once() -> Iterator[None]:
    """What follows from the text of rules alone is computed once: hundreds of tests start a command, an agent or a daemon,
    each of which would do it anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tomllib, "loads", _remembered(tomllib.loads))
        patch.setattr(prefilter, "ways_of", cache(prefilter.ways_of))
        patch.setattr(line_templates, "fold_digits", cache(line_templates.fold_digits))
        yield


def _remembered(loads: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Whoever calls it gets tables of its own."""
    pickled = cache(lambda text: pickle.dumps(loads(text)))

    def again(text: str) -> dict[str, Any]:
        tables: dict[str, Any] = pickle.loads(pickled(text)) if len(text) > 4096 else loads(text)
        return tables

    return again
