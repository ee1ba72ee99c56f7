"""The event loop's own threads as they are when all of them hang: in a shared folder, or in a resolver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Hanging(ThreadPoolExecutor):
    """What is handed to it never begins. ``asked``: what that was."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[Callable[..., Any]] = []

    def submit(self, function: Callable[..., Any], /, *_arguments: Any, **_named: Any) -> Future[Any]:
        self.asked.append(function)
        return Future()


def all_threads_hang() -> Hanging:
    """Let those of the running loop hang."""
    made = Hanging()
    asyncio.get_running_loop().set_default_executor(made)
    return made
