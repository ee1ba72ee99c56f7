"""A world on a store; waiting moves the clock of the world instead of taking time."""

from __future__ import annotations

from world_fixtures import store, world

__all__ = ["store", "world"]
