"""slurmd's port: who answers there, and what of the daemon's own host and network proves nothing about a node."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from dataclasses import replace

import pytest
from made_records import node

from sentinel.daemon.effects.slurmd_probe import slurmd_answers
from sentinel.errors import Unavailable


async def test_port_that_listens_and_port_that_does_not() -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await slurmd_answers(node("n1", port=port), 30.0) is None
    server.close()
    await server.wait_closed()
    assert await slurmd_answers(node("n1", port=port), 30.0) == "Connection refused"


@pytest.mark.parametrize(("late_s", "said"), [(0.0, "no answer"), (0.6, None)])
async def test_port_that_says_nothing_in_time_as_far_as_a_busy_daemon_can_tell(
    monkeypatch: pytest.MonkeyPatch, late_s: float, said: str | None
) -> None:
    loop = asyncio.get_running_loop()
    began_s = now_s = loop.time()

    async def never(*_where: object) -> None:
        nonlocal now_s
        now_s = began_s + 30.0 + late_s  # the loop notices the deadline so late
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "time", lambda: now_s)
    monkeypatch.setattr(asyncio, "open_connection", never)
    assert await slurmd_answers(node("n1"), 30.0) == said


@pytest.mark.parametrize(
    "problem", [None, socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")]
)
async def test_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch, problem: Exception | None) -> None:
    """What our resolver does not know, or does not say in time, is no node that is gone."""

    async def unknown(*_where: object, **_how: object) -> None:
        if problem is not None:
            raise problem
        await asyncio.Event().wait()  # no name server answers

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    assert await slurmd_answers(replace(node("n1"), address="n1-hsn"), 0.05) is None


@pytest.mark.parametrize(
    ("hosts", "said"),
    [(("127.0.0.2", "127.0.0.1"), None), (("127.0.0.2",), "Connection refused"),
     (("::2", "127.0.0.2"), "Connection refused"), (("127.0.0.2", "::2"), "Connection refused"), (("::2",), None)],
)  # fmt: skip
async def test_name_with_several_addresses(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], said: str | None
) -> None:
    """One of a network that we have no way into says nothing; what another one answers does."""
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port, real = server.sockets[0].getsockname()[1], asyncio.open_connection

    async def several(*_where: object, **_how: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    async def connect(host: str, port: int) -> object:
        if ":" in host:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        return await real(host, port)

    monkeypatch.setattr(asyncio, "open_connection", connect)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", several)
    async with server:
        assert await slurmd_answers(replace(node("n1", port=port), address="n1-hsn"), 30.0) == said


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EADDRNOTAVAIL])
async def test_we_who_ran_out_of_something_learn_nothing_about_a_node(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def exhausted(*_where: object, **_how: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "open_connection", exhausted)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", exhausted)
    for address in ("127.0.0.1", "n1-hsn"):
        with pytest.raises(Unavailable, match=os.strerror(number)):
            await slurmd_answers(replace(node("n1"), address=address), 30.0)


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EPERM, errno.EACCES])
async def test_no_way_out_of_this_machine_is_no_answer_of_a_node(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async def barred(*_where: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "open_connection", barred)
    assert await slurmd_answers(node("n1"), 30.0) is None
