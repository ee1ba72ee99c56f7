"""A channel's secret is changed while the daemon runs: no message is lost, and nobody restarts anything."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from made_records import AT

from sentinel.adapters.notify.channels import receivers
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.config.alerts import Alerts, Channel
from sentinel.errors import FileError, Unavailable
from sentinel.model.records import Notice
from sentinel.ports import Sink, StandingSink

NOTICE = Notice("note1", "inc1", AT, "title", "body", {"severity": "warning"})


class Receiver:
    """Takes what brings ``token``; keeps the path and signatures of each request."""

    def __init__(self) -> None:
        self.token, self.got, self.url = "", list[tuple[str, int]](), ""
        self.runner = web.AppRunner(web.Application())

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append((request.path, request.headers.get("Sentinel-Signature", "").count("v1=")))
        brought = request.headers.get("Authorization", "")
        return web.Response(status=200 if brought in (f"Bearer {self.token}", "") else 401)

    async def start(self) -> None:
        self.runner.app.router.add_post("/{path:.*}", self.answer)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.runner.cleanup()


def written(path: Path, text: str) -> str:
    """As tools that rotate secrets do it: the file is another one from one moment to the next."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.rename(path)
    return str(path)


def sink_of(channel: Channel) -> Sink:
    (made,) = receivers(Alerts(deadline_s=60.0, channels={"ops": channel}), DeliveryThreads())
    return made


@pytest.mark.parametrize("kind", ["webhook", "alertmanager"])
async def test_a_new_token_is_sent_without_a_restart(receiver: Receiver, tmp_path: Path, kind: str) -> None:
    receiver.token, file = "first", tmp_path / "token"
    sink = sink_of(Channel(kind=kind, url=receiver.url, authorization_file=written(file, "first")))
    await sink.send(NOTICE)
    receiver.token = "second"
    with pytest.raises(Unavailable, match="answered 401") as caught:  # the file follows in a moment
        await sink.send(NOTICE)
    assert "authorization_file" in caught.value.fix
    written(file, "second")
    await sink.send(NOTICE)
    assert len(receiver.got) == 3 and sink.name == "ops"


async def test_what_stands_is_repeated_with_the_new_token(receiver: Receiver, tmp_path: Path) -> None:
    receiver.token, file = "second", tmp_path / "token"
    sink = sink_of(Channel(kind="alertmanager", url=receiver.url, authorization_file=written(file, "first")))
    written(file, "second")
    assert isinstance(sink, StandingSink)
    await sink.repeat([NOTICE], AT)
    assert not isinstance(
        sink_of(Channel(kind="webhook", url=receiver.url, authorization_file=str(file))), StandingSink
    )


async def test_addresses_and_keys_are_read_again_too(receiver: Receiver, tmp_path: Path) -> None:
    url, keys = tmp_path / "url", tmp_path / "keys"
    written(url, f"{receiver.url}/old")
    written(keys, "k" * 32)
    sink = sink_of(Channel(kind="webhook", url_file=str(url), keys_file=str(keys)))
    await sink.send(NOTICE)
    written(url, f"{receiver.url}/new")
    written(keys, f"{'k' * 32}\n{'n' * 32}")
    await sink.send(NOTICE)
    assert receiver.got == [("/old", 1), ("/new", 2)]


async def test_half_of_a_change_makes_a_message_wait(receiver: Receiver, tmp_path: Path) -> None:
    receiver.token, file = "first", tmp_path / "token"
    sink = sink_of(Channel(kind="webhook", url=receiver.url, authorization_file=written(file, "first")))
    file.write_text("")
    with pytest.raises(Unavailable, match=r"channel ops: .*0 lines"):
        await sink.send(NOTICE)
    file.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        await sink.send(NOTICE)
    written(file, "first")
    await sink.send(NOTICE)
    assert len(receiver.got) == 1


async def test_a_pipe_is_read_once(receiver: Receiver) -> None:
    reading, writing = os.pipe()
    os.write(writing, f"{receiver.url}/piped\n".encode())
    os.close(writing)
    os.fchmod(reading, 0o600)
    sink = sink_of(Channel(kind="webhook", url_file=f"/proc/self/fd/{reading}"))
    await sink.send(NOTICE)
    await sink.send(NOTICE)
    os.close(reading)
    assert receiver.got == [("/piped", 0)] * 2


def test_a_file_that_cannot_be_used_still_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"alerts\.channels\.ops\.authorization_file"):
        sink_of(Channel(kind="webhook", url="http://h", authorization_file=str(tmp_path / "none")))


async def test_a_file_that_does_not_answer_holds_up_no_thread_of_others(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file server that is gone."""
    file, back, stat = written(tmp_path / "token", "first"), threading.Event(), os.stat
    channel = Channel(kind="webhook", url=receiver.url, authorization_file=file)
    (sink,) = receivers(Alerts(deadline_s=0.05, channels={"ops": channel}), DeliveryThreads())

    def answers_later(path: Any, **how: Any) -> os.stat_result:
        if path == file:
            back.wait(60.0)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", answers_later)
    try:
        for _ in range(3):
            with pytest.raises(Unavailable, match="ops: "):
                await asyncio.wait_for(sink.send(NOTICE), 10.0)
        assert threading.active_count() < 10 and receiver.got == []
    finally:
        back.set()
