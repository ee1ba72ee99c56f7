"""One POST for a notice; what the receiver answers decides whether trying again can help."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from made_records import AT

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.webhook import Webhook, name_of
from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model.records import Notice

NOTICE = Notice(
    "note1", "inc1", AT, "n1 drained", "a GPU's memory fails\nresumed from step 200", {"cause": "gpu_memory_ecc"}
)


class Receiver:
    """A real HTTP server on loopback."""

    def __init__(self) -> None:
        self.status = 200
        self.location = ""
        self.retry_after = ""
        self.silent = asyncio.Event()
        self.silent.set()
        self.got: list[tuple[dict[str, str], Any]] = []
        self.runner = web.AppRunner(web.Application(), handler_cancellation=True)
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), json.loads(await request.read())))
        await self.silent.wait()
        headers = {"Location": self.location, "Retry-After": self.retry_after}
        return web.Response(status=self.status, headers={name: value for name, value in headers.items() if value})

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


other = receiver


async def test_notice_is_one_post_that_can_be_told_from_its_repeat(receiver: Receiver) -> None:
    hook = Webhook(receiver.url, deadline_s=60.0)
    await hook.send(NOTICE)
    await hook.send(NOTICE)
    (headers, body), (again, _) = receiver.got
    assert headers["Idempotency-Key"] == again["Idempotency-Key"] == "note1" and hook.name == name_of(receiver.url)
    assert headers["Content-Type"].startswith("application/json")
    assert body == {
        "id": "note1", "incident": "inc1", "at": "2026-03-01T12:00:00Z", "title": "n1 drained",
        "text": "n1 drained\na GPU's memory fails\nresumed from step 200", "cause": "gpu_memory_ecc",
    }  # fmt: skip


async def test_the_text_for_chats_mentions_nobody(receiver: Receiver) -> None:
    """Chats that show a webhook's ``text`` read mentions and links in it; the keys beside are for programs."""
    said = "@channel &commat;all <!here> https://evil.example"
    await Webhook(receiver.url, deadline_s=60.0).send(Notice("note1", "inc1", AT, said, said, {"operator_text": said}))
    ((_, body),) = receiver.got
    assert not any(sign in body["text"] for sign in ("@", "&c", "<!", "://")) and body["text"].count("channel") == 2
    assert body["title"] == body["operator_text"] == said


async def test_text_that_no_receiver_takes_is_sent_as_its_escape(receiver: Receiver) -> None:
    hostile = "a\0b \ud800 \udcff"
    await Webhook(receiver.url, deadline_s=60.0).send(
        Notice("note1", "inc1", AT, hostile, hostile, {"user": hostile, "nodes": [hostile]})
    )
    ((_, body),) = receiver.got
    shown = "a\\x00b \\ud800 \\xff"
    assert (body["title"], body["text"], body["user"], body["nodes"]) == (shown, f"{shown}\n{shown}", shown, [shown])


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_taken(receiver: Receiver, status: int) -> None:
    receiver.status = status
    await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert len(receiver.got) == 1, "and not sent again"


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_trying_again_can_help(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Unavailable, match=f"answered {status}"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)


@pytest.mark.parametrize(
    ("asked", "after_s"),
    [
        ("20", 20.0),
        ("0.65", 0.65),
        ("", 0.0),
        ("-5", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("Thu, 26 Nov 2026 04:00:00 GMT", 0.0),
    ],
)
async def test_pause_that_the_receiver_asks_for(receiver: Receiver, asked: str, after_s: float) -> None:
    receiver.status, receiver.retry_after = 429, asked
    with pytest.raises(Unavailable) as caught:
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert caught.value.after_s == after_s


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
    with pytest.raises(Refused, match=r"redirects to 127\.0\.0\.1#"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert len(receiver.got) == 1


async def test_receiver_that_does_not_answer_in_time(receiver: Receiver) -> None:
    receiver.silent.clear()
    with pytest.raises(Timeout):
        await Webhook(receiver.url, deadline_s=0.01).send(NOTICE)


async def test_what_was_sent_and_not_answered_may_have_been_heard(receiver: Receiver) -> None:
    receiver.silent.clear()
    with pytest.raises(Timeout) as silent:
        await Webhook(receiver.url, deadline_s=1.0).send(NOTICE)
    gone = receiver.url
    receiver.silent.set()
    await receiver.runner.cleanup()
    with pytest.raises(Unavailable) as away:
        await Webhook(gone, deadline_s=60.0).send(NOTICE)
    assert silent.value.late and not away.value.late


async def test_receiver_that_is_not_there(receiver: Receiver) -> None:
    await receiver.runner.cleanup()
    with pytest.raises(Unavailable, match=r"cannot be reached: Connection refused$"):
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)


async def test_receiver_that_speaks_no_tls(receiver: Receiver) -> None:
    with pytest.raises(Unavailable, match=r"cannot be reached: .*SSL"):
        await Webhook(receiver.url.replace("http:", "https:"), deadline_s=60.0).send(NOTICE)


@pytest.mark.parametrize("url", ["nothing", "http://", "http://[::1"])
async def test_address_that_is_none_is_refused_and_not_tried_again(url: str) -> None:
    with pytest.raises(Refused, match="no address") as caught:
        await Webhook(url, deadline_s=60.0).send(NOTICE)
    assert "webhooks" in caught.value.fix


SECRET = "T0KEN/xyzzy"


@pytest.mark.parametrize("url", [f"http://127.0.0.1:9/{SECRET}", f"http://[::1/{SECRET}", f"nonsense {SECRET}", SECRET])
async def test_an_address_is_in_no_message(url: str) -> None:
    hook = Webhook(url, deadline_s=60.0)
    with pytest.raises((Refused, Unavailable)) as caught:
        await hook.send(NOTICE)
    assert SECRET not in f"{caught.value}{caught.value.__cause__}{hook.name}" and len(hook.name) < 255


async def test_where_a_webhook_redirects_to_is_no_less_secret(receiver: Receiver) -> None:
    receiver.status, receiver.location = 302, f"https://chat.example.net/{SECRET}"
    with pytest.raises(Refused, match=r"chat\.example\.net#") as caught:
        await Webhook(receiver.url, deadline_s=60.0).send(NOTICE)
    assert SECRET not in str(caught.value)


def test_names_of_two_addresses_differ() -> None:
    assert name_of("https://a.example/1") != name_of("https://a.example/2") and len(name_of("x" * 9999)) < 255


async def test_an_address_that_is_written_otherwise_than_it_is_asked_is_not_shown_either() -> None:
    """What does not speak HTTP is told with the address as it was asked: in small letters, with %20 for a space."""

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    async with server:
        url = f"http://LOCALHOST:{server.sockets[0].getsockname()[1]}/T0KEN/a b"
        with pytest.raises(Unavailable, match=r"cannot be reached: .+") as caught:
            await Webhook(url, deadline_s=60.0).send(NOTICE)
    assert "T0KEN" not in str(caught.value)


@pytest.mark.parametrize("of", ["one object", "one of a user's for each message"])
async def test_many_messages_at_once_come_a_few_at_a_time_and_hold_up_no_other_receiver(
    receiver: Receiver, other: Receiver, of: str
) -> None:
    """One that handles them one after the other would answer none of hundreds in time, and get each of them again."""
    turns = DeliveryThreads()
    receiver.silent.clear()

    def hook() -> Webhook:
        return Webhook(receiver.url, deadline_s=60.0, name="tickets", threads=turns, turn="tickets of ada")

    same = hook()
    hooks = [same if of == "one object" else hook() for _ in range(9)]
    storm = [asyncio.create_task(one.send(NOTICE)) for one in hooks]
    while len(receiver.got) < 2 or len(other.got) < 20:  # meanwhile any further one would have come
        await Webhook(other.url, deadline_s=60.0, name="pager", threads=turns).send(NOTICE)
    assert len(receiver.got) == 2
    receiver.silent.set()
    await asyncio.gather(*storm)
    assert len(receiver.got) == 9
