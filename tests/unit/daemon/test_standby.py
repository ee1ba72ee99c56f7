"""What a daemon that stands by answers: it is alive, it is not the active one, and which release it is."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from sentinel import __version__
from sentinel.adapters.store.lease import DaemonRow
from sentinel.config.settings import Daemon
from sentinel.daemon.standby import StandbyServer, standing_by
from sentinel.errors import UserError
from sentinel.log import Log
from sentinel.protocol import ELSEWHERE
from sentinel.telemetry import Telemetry, described_metrics


class NobodyActive:
    active: DaemonRow | None = None
    address = "http://a:7"
    lease_s = 5.0


async def test_metrics_say_that_it_is_not_active_and_nothing_that_only_the_active_one_knows() -> None:
    settings = Daemon(listen="127.0.0.1:0")
    server = StandbyServer(settings, NobodyActive(), Telemetry(CollectorRegistry()), Log())  # type: ignore[arg-type]
    await server.start()
    host, port = server.address
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as asked:
            async with asked.get("/metrics") as answer:
                lines = (await answer.text()).splitlines()
            async with asked.post("/v1/anything", data=b"{}") as answer:
                elsewhere = answer.status
    finally:
        await server.stop()
    values = {line for line in lines if not line.startswith("#")}
    assert values == {"sentinel_active 0.0", f'sentinel_build_info{{version="{__version__}"}} 1.0'}
    meanings = {name: meaning for name, _, _, meaning in described_metrics()}
    assert f"# HELP sentinel_active {meanings['sentinel_active']}" in lines
    assert elsewhere == ELSEWHERE


def test_a_daemon_that_was_started_again_is_not_named_as_another_one() -> None:
    """Killed and started again at once: the lease's row names the address that is being asked."""
    lease = NobodyActive()
    before = DaemonRow("a:1", lease.address, __version__, 9, datetime.now(UTC))
    lease.active = before
    said = standing_by(lease)  # type: ignore[arg-type]
    assert said == {
        "error": "standby: this daemon has just started, and the one before it may still run",
        "fix": "try again: it becomes active within 5 s if that one is gone",
    }
    lease.active = replace(before, address="http://b:7")
    other = standing_by(lease)  # type: ignore[arg-type]
    assert other["error"] == "standby: the active daemon is http://b:7"


async def test_an_address_that_is_taken_is_one_line() -> None:
    """A second daemon by mistake, on the same host and store: it stands by, and cannot listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Daemon(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        server = StandbyServer(settings, NobodyActive(), Telemetry(CollectorRegistry()), Log())  # type: ignore[arg-type]
        with pytest.raises(UserError, match="is taken by another program"):
            await server.start()
