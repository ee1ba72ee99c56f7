"""Within one receiver what asks for a person's decision goes first; one that is silent delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from made_records import AT

from sentinel.adapters.notify import alertmanager, webhook
from sentinel.adapters.notify.chat import Chat
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.mail import Mail, MailServer
from sentinel.adapters.notify.turns import ORDINARY, Turns
from sentinel.adapters.notify.wording import Wording
from sentinel.model.records import Notice


class Hook:
    """A receiver on loopback; with ``answers`` it answers only once that is set."""

    def __init__(self, answers: asyncio.Event | None = None) -> None:
        self.got: list[str] = []
        self.came = asyncio.Condition()
        self._answers = answers
        self.runner = web.AppRunner(web.Application(), handler_cancellation=True)

    async def start(self) -> str:
        self.runner.app.router.add_post("/", self._answer)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}/"

    async def _answer(self, request: web.Request) -> web.Response:
        async with self.came:
            self.got.append(request.headers["Idempotency-Key"])
            self.came.notify_all()
        if self._answers is not None:
            await self._answers.wait()
        return web.Response()

    async def has(self, count: int) -> None:
        async with self.came:
            await self.came.wait_for(lambda: len(self.got) >= count)


@pytest.fixture
async def made() -> AsyncIterator[Callable[[Hook], Any]]:
    hooks: list[Hook] = []

    async def start(hook: Hook) -> str:
        hooks.append(hook)
        return await hook.start()

    yield start
    for hook in hooks:
        await hook.runner.cleanup()


def notice(name: str, stage: str = "restarting", severity: str = "info") -> Notice:
    return Notice(name, name, AT, "a title", "a body", {"stage": stage, "severity": severity})


LATER = (notice("job9", "failed", "critical"), notice("plan1", "asked", "warning"), notice("plan2", "asked"))


@pytest.mark.parametrize("kind", [webhook, alertmanager])
async def test_a_request_for_a_decision_does_not_wait_behind_hundreds_of_ordinary_messages(
    monkeypatch: pytest.MonkeyPatch, kind: ModuleType
) -> None:
    begun, answers = list[str](), asyncio.Event()

    async def post(_url: str, body: bytes, *_arguments: object, **_how: object) -> None:
        begun.append(next(name for name in names if f'"{name}"'.encode() in body))
        await answers.wait()

    monkeypatch.setattr(kind, "post", post)
    made = {webhook: webhook.Webhook, alertmanager: alertmanager.Alertmanager}[kind]
    sink = made("http://127.0.0.1:9", name="mine", deadline_s=60.0)
    ordinary = [notice(f"m{number}") for number in range(100)]
    names = [one.id for one in (*ordinary, *LATER)]
    under_way = []
    for one in (*ordinary, *LATER):
        under_way.append(asyncio.create_task(sink.send(one)))
        await asyncio.sleep(0)
    assert begun == ["m0", "m1"]
    answers.set()
    await asyncio.gather(*under_way)
    assert begun == ["m0", "m1", "plan1", "plan2", "job9", *(f"m{number}" for number in range(2, 100))]


async def test_chats_and_mail_have_the_same_order() -> None:
    class Seen(DeliveryThreads):
        async def call(self, *_arguments: Any, urgency: int = ORDINARY) -> Any:
            urgencies.append(urgency)

    urgencies, threads = list[int](), Seen()
    server = MailServer("127.0.0.1", 25, "none", "sentinel@x", "", "", 60.0)
    for sink in (
        Chat("ntfy://x", Wording("operators"), name="chat", deadline_s=60.0, threads=threads),
        Mail(server, ["ops@x"], Wording("operators"), name="mail", deadline_s=60.0, threads=threads),
    ):
        for one in (notice("m1"), *LATER):
            await sink.send(one)
    assert urgencies == [2, 1, 0, 0] * 2


async def test_a_channel_that_does_not_answer_delays_no_other(made: Callable[[Hook], Any]) -> None:
    threads, silent, well = DeliveryThreads(), Hook(asyncio.Event()), Hook()
    tarpit = webhook.Webhook(await made(silent), deadline_s=60.0, name="tarpit", threads=threads)
    stuck = [asyncio.create_task(tarpit.send(notice(f"m{number}"))) for number in range(20)]
    await silent.has(1)
    pager = webhook.Webhook(await made(well), deadline_s=60.0, name="pager", threads=threads)
    await asyncio.gather(*(pager.send(notice(f"m{number}")) for number in range(20)))
    assert len(well.got) == 20 and not any(one.done() for one in stuck)
    for one in stuck:
        one.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_whoever_is_cancelled_takes_nobodys_turn() -> None:
    turns, got = Turns(1), list[str]()

    async def deliver(name: str, urgency: int) -> None:
        async with turns.turn(urgency):
            got.append(name)

    order = (("gone", 0), ("cut off", 1), ("second", 2), ("third", 2))
    async with turns.turn():
        tasks = {name: asyncio.create_task(deliver(name, urgency)) for name, urgency in order}
        await asyncio.sleep(0)
        tasks["gone"].cancel()
        await asyncio.sleep(0)
    tasks["cut off"].cancel()  # the turn is its by now, and it has not begun
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert got == ["second", "third"]
    await asyncio.wait_for(deliver("last", 2), 60.0)
