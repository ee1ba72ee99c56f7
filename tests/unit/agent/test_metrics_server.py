"""Whoever connects to the agent's metrics holds neither threads nor memory of root's agent, and scrapers get through."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.agent import metrics
from sentinel.errors import Unavailable, UserError


class NoMetrics:
    def __init__(self, agent: object) -> None:
        pass

    def collect(self) -> list[Any]:
        return []


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[metrics.BoundedServer]:
    monkeypatch.setattr(metrics, "AgentCollector", NoMetrics)
    monkeypatch.setattr(metrics, "CONNECTION_S", 0.3)
    server = metrics.serve(SimpleNamespace(), "127.0.0.1:0")  # type: ignore[arg-type]
    yield server
    server.shutdown()
    server.server_close()


def scrape(server: metrics.BoundedServer) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=30) as answer:
        return int(answer.status)


def test_it_is_scraped(served: metrics.BoundedServer) -> None:
    assert scrape(served) == 200


def test_silent_connections_are_few_and_end(served: metrics.BoundedServer) -> None:
    before = set(threading.enumerate())
    held = [socket.create_connection(served.server_address[:2], timeout=30) for _ in range(50)]
    refused = [connection for connection in held[metrics.MOST_CONNECTIONS :] if connection.recv(1) == b""]
    assert len(refused) == 50 - metrics.MOST_CONNECTIONS
    assert threading.active_count() <= len(before) + metrics.MOST_CONNECTIONS
    assert [connection.recv(1) for connection in held[: metrics.MOST_CONNECTIONS]] == [b""] * metrics.MOST_CONNECTIONS
    for thread in set(threading.enumerate()) - before:  # a connection holds its place until its thread has ended
        thread.join(30)
    assert scrape(served) == 200
    for connection in held:
        connection.close()


def test_a_request_that_drips_ends_too(served: metrics.BoundedServer) -> None:
    with socket.create_connection(served.server_address[:2], timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        with pytest.raises(OSError):
            while True:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    raise ConnectionResetError
    assert scrape(served) == 200


def test_an_address_that_is_none_or_taken(served: metrics.BoundedServer) -> None:
    with pytest.raises(UserError, match=r"metrics\.listen"):
        metrics.serve(SimpleNamespace(), "anywhere")  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="in use"):
        metrics.serve(SimpleNamespace(), f"127.0.0.1:{served.server_address[1]}")  # type: ignore[arg-type]
