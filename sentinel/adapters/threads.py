"""Threads of their own for one kind of blocking call.

asyncio's own threads are few, and one whose call hangs is lost to everybody, whatever deadline its caller has: a shared
folder, or a resolver, that does not answer takes all of them within minutes. What must never wait for such calls, and what
may hang itself, is therefore called here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """
    Args:
        most: calls at once; further ones wait for their turn.
    """

    def __init__(self, name: str, most: int) -> None:
        self._executor = ThreadPoolExecutor(most, name)  # starts none before its first call

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call ``function`` in one of the threads. Whoever is cancelled meanwhile leaves it to end by itself."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
