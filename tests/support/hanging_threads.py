"""The event loop's own threads as they are when all of them hang, and calls that may hang and are not for the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sentinel.adapters.threads import Threads

_real_call = Threads.call


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


def fails_on_the_event_loop(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Let a function fail where it is called on the running loop: it may take half a minute. Returns what it is asked."""
    real, on_loop, asked = getattr(owner, name), threading.get_ident(), list[object]()

    def called(*arguments: Any) -> Any:
        assert threading.get_ident() != on_loop, f"{name} is called on the event loop"
        asked.extend(arguments)
        return real(*arguments)

    monkeypatch.setattr(owner, name, called)
    monkeypatch.setattr(Threads, "call", _real_call)  # a world's own does it at once
    return asked
