"""One POST for a notice; what the receiver answers decides whether trying again can help."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from core_records import AT

from sentinel.adapters.webhook import Webhook
from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model import Notice

NOTICE = Notice(
    "note1", "inc1", AT, "n1 drained", "a GPU's memory fails\nresumed from step 200", {"cause": "gpu_memory_ecc"}
)


class Receiver:
    """A real HTTP server on loopback."""

    def __init__(self) -> None:
        self.status = 200
        self.location = ""
        self.silent = asyncio.Event()
        self.silent.set()
        self.got: list[tuple[dict[str, str], Any]] = []
        self.runner = web.AppRunner(web.Application(), handler_cancellation=True)
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), json.loads(await request.read())))
        await self.silent.wait()
        return web.Response(status=self.status, headers={"Location": self.location} if self.location else None)

    async def start(self) -> None:
        self.runner.app.router.add_post("/hook", self.answer)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/hook"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    made.silent.set()
    await made.runner.cleanup()


async def test_notice_is_one_post_that_can_be_told_from_its_repeat(receiver: Receiver) -> None:
    hook = Webhook(receiver.url, deadline_s=60.0)
    await hook.send(NOTICE)
    await hook.send(NOTICE)
    (headers, body), (again, _) = receiver.got
    assert headers["Idempotency-Key"] == again["Idempotency-Key"] == "note1" and hook.name == receiver.url
    assert headers["Content-Type"].startswith("application/json")
    assert body == {
        "id": "note1", "incident": "inc1", "at": "2026-03-01T12:00:00Z", "title": "n1 drained",
        "text": "n1 drained\na GPU's memory fails\nresumed from step 200", "cause": "gpu_memory_ecc",
    }  # fmt: skip


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_taken(receiver: Receiver, status: int) -> None:
    receiver.status = status
    await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_trying_again_can_help(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Unavailable, match=f"answered {status}"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)


@pytest.mark.parametrize("status", [400, 401, 404, 410])
async def test_trying_again_cannot_help(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Refused, match=f"answered {status}") as caught:
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert "webhooks" in caught.value.fix


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """A client would turn the POST into a GET of the other address, and its 200 into a delivery."""
    receiver.status, receiver.location = status, f"{receiver.url}/elsewhere"
    with pytest.raises(Refused, match=r"redirects to .*elsewhere"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert len(receiver.got) == 1


async def test_receiver_that_does_not_answer_in_time(receiver: Receiver) -> None:
    receiver.silent.clear()
    with pytest.raises(Timeout):
        await Webhook(receiver.url, deadline_s=0.01).send(NOTICE)


async def test_receiver_that_is_not_there(receiver: Receiver) -> None:
    await receiver.runner.cleanup()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)


@pytest.mark.parametrize("url", ["nothing", "http://", "http://[::1"])
async def test_address_that_is_none_is_refused_and_not_tried_again(url: str) -> None:
    with pytest.raises(Refused, match="no address") as caught:
        await Webhook(url, deadline_s=60.0).send(NOTICE)
    assert "webhooks" in caught.value.fix
