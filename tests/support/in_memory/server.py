"""The daemon's HTTP side on a loopback port, with credentials that say who made them and are good once, as MUNGE's are."""

from __future__ import annotations

import base64
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World
from sentinel import protocol
from sentinel.config.settings import Daemon as DaemonSettings
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.api.node_addresses import NodeAddresses
from sentinel.daemon.api.node_requests import NodeRequests
from sentinel.daemon.api.server import Server
from sentinel.daemon.api.views import Views
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.ingest.lost_convictions import LostConvictions
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.daemon.ingest.stated import Allocations
from sentinel.errors import Denied, Unavailable
from sentinel.log import Log
from sentinel.ports import Signed

NODE, OPERATOR, RESEARCHER = 60001, 60002, 60003  # uids


class FakeCredentials:
    """``Credentials``; ``answers`` False: munged is gone."""

    made_s: float | None

    def __init__(self, uid: int) -> None:
        self.uid, self.made = uid, 0
        self.used: set[str] = set()
        self.answers = True
        self.address, self.made_s = "", None  # what the credentials of others say

    def encode(self, payload: bytes) -> str:
        if not self.answers:
            raise Unavailable("MUNGE: no socket")
        self.made += 1
        return f"{self.uid}:{self.made}:{base64.b64encode(payload).decode()}"

    def encrypt(self, payload: bytes, uid: int) -> str:
        """Only credentials of that uid decode it."""
        return f"{self.encode(payload)}:{uid}"

    def decode(self, credential: str) -> Signed:
        parts = credential.split(":")
        if len(parts) not in (3, 4) or not parts[0].isdecimal() or credential in self.used:
            raise Denied("not a credential, or used before")
        if len(parts) == 4 and parts[3] != str(self.uid):
            raise Denied(f"unauthorized credential for client UID={self.uid}")
        self.used.add(credential)
        return Signed(base64.b64decode(parts[2]), int(parts[0]), 0, self.address, self.made_s)


@dataclass
class Answer:
    status: int
    body: Any
    signature: str
    credential: str
    raw: bytes


class Served:
    """A running server; ``post`` signs as somebody unless told what to send instead."""

    def __init__(self, world: World, *, sinks: Sequence[FakeSink] = (), **settings_of_daemon: Any) -> None:
        self.world = world
        self.daemon = daemon = Daemon(world, sinks)
        clock = world.slurm.clock
        daemon.runner.seconds = lambda: clock.now().timestamp()
        self.orders, log, prologs = OrderBook(), Log(daemon.stream), Prologs()
        self.credentials = FakeCredentials(0)
        given: dict[str, Any] = {"listen": "127.0.0.1:0", "trusted_uids": [NODE], "operators": [OPERATOR]}
        settings = DaemonSettings(**given | {"request_bytes": 1 << 16} | settings_of_daemon)
        self.names: dict[str, frozenset[str]] = defaultdict(frozenset)  # what names resolve to
        self.nodes = NodeRequests(
            live=daemon.live, runner=daemon.runner, orders=self.orders, telemetry=daemon.telemetry, clock=clock, log=log,
            addresses=NodeAddresses(lambda: daemon.live.fleet, lambda: 0.0, self.names.__getitem__),
            allocations=Allocations(daemon.live, daemon.fleets, lambda job: world.store.attempts(job=job)),
            prologs=prologs, refuse_others=settings.node_addresses == "refuse",
            convictions=LostConvictions(world.store.known_evidence, log),
        )  # fmt: skip
        self.server = Server(
            settings=settings,
            credentials=self.credentials,
            nodes=self.nodes,
            views=Views(
                store=world.store, live=daemon.live, fleets=daemon.fleets,
                orders=self.orders, settings=SETTINGS, operators={0, OPERATOR}, clock=clock, prologs=prologs,
            ),
            changes=OperatorCommands(
                store=world.store, live=daemon.live, fleets=daemon.fleets, clock=clock, reader=world.slurm,
                writer=world.slurm, runner=daemon.runner, log=log,
            ),
            telemetry=daemon.telemetry,
            log=log,
        )  # fmt: skip
        self.signers = {uid: FakeCredentials(uid) for uid in (0, NODE, OPERATOR, RESEARCHER)}
        self.session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        host, port = self.server.address
        return f"http://{host}:{port}"

    async def post(
        self,
        path: str,
        body: object = None,
        *,
        uid: int = NODE,
        raw: bytes | None = None,
        credential: str | None = None,
    ) -> Answer:
        content = json.dumps({} if body is None else body).encode() if raw is None else raw
        signed = self.signers[uid].encode(protocol.digest_of(path, content)) if credential is None else credential
        headers = {protocol.HEADER: signed} if signed else {}
        async with self.session.post(self.url + path, data=content, headers=headers) as response:
            answer = await response.read()
            shown = json.loads(answer) if response.content_type == "application/json" else answer.decode()
            return Answer(response.status, shown, response.headers.get(protocol.HEADER, ""), signed, answer)


@asynccontextmanager
async def serving(world: World, *, sinks: Sequence[FakeSink] = (), **settings_of_daemon: Any) -> AsyncIterator[Served]:
    made = Served(world, sinks=sinks, **settings_of_daemon)
    with contextlib.suppress(Unavailable):
        await made.daemon.fleets.take()  # as the daemon does before it listens
    await made.server.start()
    try:
        async with aiohttp.ClientSession() as made.session:
            yield made
    finally:
        await made.server.stop()
