"""A store over each database that it supports."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from direct_store import DirectStore


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sentinel.db'}"
        return
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    base = sa.make_url(request.getfixturevalue("postgres_url"))
    name = f"t{uuid.uuid4().hex}"
    admin = sa.create_engine(base, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield base.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture
def store(url: str) -> Iterator[DirectStore]:
    made = DirectStore(url)
    yield made
    made.close()
