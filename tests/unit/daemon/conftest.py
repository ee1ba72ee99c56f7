"""A world on a store; waiting moves the world's clock instead of taking time."""

from __future__ import annotations

from world_fixtures import store, world

__all__ = ["store", "world"]
