"""A store over each database that it supports, and the agent's children as real processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_memory.direct_store import DirectStore
from servers.postgres import empty_database

from sentinel.agent.process.children import Children


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sentinel.db'}"
        return
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    with empty_database(request.getfixturevalue("postgres_url")) as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[DirectStore]:
    made = DirectStore(url)
    yield made
    made.close()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.shut_down()
    thread.join(5)
