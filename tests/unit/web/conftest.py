from __future__ import annotations

from world_fixtures import store, world

__all__ = ["store", "world"]
