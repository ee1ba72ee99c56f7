"""Ids in as many statements as they need: a database takes a limited number of them in one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

MANY = 500  # ids of one statement

Id = TypeVar("Id")


def batched(ids: Collection[Id]) -> Iterator[list[Id]]:
    """As many ids at a time as a statement may name."""
    listed = list(ids)
    for start in range(0, len(listed), MANY):
        yield listed[start : start + MANY]
