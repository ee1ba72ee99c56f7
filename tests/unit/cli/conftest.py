from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from in_memory.cli_asked import Asked


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands show times in the zone of whoever asks: here always in the same one."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the zone of whoever asks."""
    with monkeypatch.context() as patch:

        def of(name: str) -> None:
            patch.setenv("TZ", name)
            time.tzset()

        yield of
    time.tzset()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)
