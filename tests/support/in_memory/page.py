"""The page served over a world in memory, on a loopback port or a socket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from in_memory.daemon import SETTINGS, Daemon
from in_memory.world import World
from sentinel.config.settings import Page
from sentinel.daemon.api.views import Views
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.daemon.web.access import PageAuthentication
from sentinel.daemon.web.pages import Pages
from sentinel.daemon.web.server import PageServer
from sentinel.log import Log

OPERATOR = os.getuid()


class ServedPage:
    """``get`` asks as a proxy for somebody, unless the page listens on a socket."""

    def __init__(self, world: World, *, cluster: str = "lab", **settings: Any) -> None:
        self.world = world
        self.daemon = daemon = Daemon(world)
        given: dict[str, Any] = {"listen": "127.0.0.1:0", "user_header": "X-User", "proxies": ["127.0.0.1"]}
        page = Page(**given | settings)
        self.views = Views(
            store=world.store, live=daemon.live, fleets=daemon.fleets, orders=OrderBook(), settings=SETTINGS,
            operators={OPERATOR}, clock=world.slurm.clock, prologs=Prologs(),
        )  # fmt: skip
        self.pages = Pages(self.views, world.slurm.clock, cluster=cluster, racks=page.racks, see_all=page.see == "all")
        self.server = PageServer(
            page, PageAuthentication(page, {OPERATOR}), self.pages, telemetry=daemon.telemetry, log=Log(daemon.stream)
        )
        self.session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        found = self.server.addresses[0]
        return "http://localhost" if isinstance(found, str) else f"http://{found[0]}:{found[1]}"

    async def get(
        self, path: str = "/", *, user: str = "root", method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str, Any]:
        """Status, text and headers."""
        sent = {"X-User": user} if headers is None else headers
        async with self.session.request(method, self.url + path, headers=sent, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer.headers


@asynccontextmanager
async def serving_page(world: World, **settings: Any) -> AsyncIterator[ServedPage]:
    made = ServedPage(world, **settings)
    await made.server.start()
    listen = str(settings.get("listen", ""))
    connector = aiohttp.UnixConnector(listen.removeprefix("unix:")) if listen.startswith("unix:") else None
    try:
        async with aiohttp.ClientSession(connector=connector) as made.session:
            yield made
    finally:
        await made.server.stop()
