from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any

import pytest

from sentinel.adapters.client import DaemonClient
from sentinel.errors import Denied, Unavailable
from sentinel.ports import Signed


class PlainCredentials:
    """Credentials that say who made them; each is good once, as with MUNGE."""

    def __init__(self, uid: int | None = None) -> None:
        self.uid = os.getuid() if uid is None else uid
        self.made = 0
        self.used: set[str] = set()

    def encode(self, payload: bytes) -> str:
        self.made += 1
        return f"{self.uid}:{self.made}:{base64.b64encode(payload).decode()}"

    def encrypt(self, payload: bytes, uid: int) -> str:
        raise NotImplementedError("nothing is encrypted here")

    def decode(self, credential: str) -> Signed:
        uid, _, content = credential.split(":") if credential.count(":") == 2 else ("", "", "")
        if not uid or credential in self.used:
            raise Denied("not a credential, or used before")
        self.used.add(credential)
        return Signed(base64.b64decode(content), int(uid), 0)


class ScriptedClient(DaemonClient):
    """Answers by a function instead of over the network."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__("http://daemon:1", PlainCredentials())
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def post(self, path: str, body: Any, *, deadline_s: float | None = None) -> dict[str, Any]:
        self.asked.append((path, dict(body)))
        return self.answer(path, dict(body))


@pytest.fixture
def credentials() -> type[PlainCredentials]:
    return PlainCredentials


@pytest.fixture
def scripted() -> type[ScriptedClient]:
    return ScriptedClient


@pytest.fixture
def away() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    def answer(_path: str, _body: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable("nobody there")

    return answer
