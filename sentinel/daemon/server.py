"""The daemon's HTTP side: nodes, hooks and people, each known by the MUNGE credential of its request.

Nothing unauthenticated changes state: without a valid credential only ``/metrics`` and ``/healthz`` answer.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import exposition

from sentinel import protocol
from sentinel.daemon.beside import Beside
from sentinel.daemon.changes import Changes
from sentinel.daemon.events import Events
from sentinel.daemon.holders import held_gpus
from sentinel.daemon.intake import Intake
from sentinel.daemon.joined_saves import JoinedSaves
from sentinel.daemon.judge import Judge
from sentinel.daemon.live import Live
from sentinel.daemon.orders import OrderBook
from sentinel.daemon.saving import watch_list
from sentinel.daemon.views import Views
from sentinel.daemon.watch import Watch
from sentinel.errors import Denied, ProtocolError, SentinelError, Unavailable, UserError
from sentinel.log import Log
from sentinel.model import Evidence
from sentinel.ports import Clock, Credentials
from sentinel.settings import Daemon
from sentinel.telemetry import Telemetry
from sentinel.wire import evidence_from, time_from, to_text

# munged takes its time over each credential (a tenth of a millisecond and more) and answers few clients at once. Waiting
# for it is not the event loop's business: with thousands of nodes nothing else would be done.
_SIGNERS = 4
_STATUS = {Denied: 403, Unavailable: 503, ProtocolError: 400, UserError: 422}

Handler = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any]]]
Page = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Server:
    def __init__(
        self,
        *,
        settings: Daemon,
        credentials: Credentials,
        live: Live,
        watch: Watch,
        judge: Judge,
        orders: OrderBook,
        events: Events,
        views: Views,
        changes: Changes,
        telemetry: Telemetry,
        clock: Clock,
        log: Log,
        joined: JoinedSaves | None = None,
        hard: Callable[[Evidence], bool] = lambda _: False,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._live = live
        self._watch = watch
        self._intake = Intake(judge.observe, hard)
        self._joined = joined or JoinedSaves(live)
        self._instance = secrets.token_hex(4)  # to whom nodes have told what they hold: another one forgot it
        self._orders = orders
        self._events = events
        self._views = views
        self._changes = changes
        self._telemetry = telemetry
        self._clock = clock
        self._log = log
        self._trusted = {0, os.getuid(), *settings.trusted_uids}
        self._operators = {0, os.getuid(), *settings.operators}
        self._pages: dict[tuple[str, str], Page] = {
            ("GET", "/metrics"): self._metrics,
            ("GET", "/healthz"): self._healthz,
        }
        self._runner: web.ServerRunner | None = None
        self._signers = Beside(_SIGNERS, "munge", log)

    async def start(self) -> None:
        for path, handler, allowed in (
            (protocol.HEARTBEAT, self._heartbeat, self._trusted),
            (protocol.EVIDENCE, self._evidence, self._trusted),
            (protocol.ORDERS, self._poll_orders, self._trusted),
            (protocol.ORDER_RESULT, self._order_result, self._trusted),
            (protocol.EVENT, self._event, self._trusted),
            (protocol.VIEW, self._view, None),
            (protocol.CHANGE, self._change, self._operators),
        ):
            self._pages["POST", path] = self._signed(path, handler, allowed)
        most_bytes = self._settings.request_bytes

        def request(message: Any, payload: Any, kept: Any, writer: Any, task: Any) -> web.BaseRequest:
            return web.BaseRequest(message, payload, kept, writer, task, kept._loop, client_max_size=most_bytes)

        # Without aiohttp's applications: a fixed table needs no router, and there are a thousand requests a second.
        # A broken connection cancels its handler: a lost long poll is the first sign of a lost node.
        server = web.Server(self._page, request_factory=request, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server)
        await self._runner.setup()
        host, _, port = self._settings.listen.rpartition(":")
        await web.TCPSite(self._runner, host.strip("[]") or None, int(port)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._signers.stop()

    async def _page(self, request: web.BaseRequest) -> web.Response:
        page = self._pages.get((request.method, request.path))
        if page is not None:
            return await page(request)
        known = any(path == request.path for _, path in self._pages)
        return _problem(405 if known else 404, f"{request.method} {request.path:.80} is not answered here")

    # --- who asks -----------------------------------------------------------------------------------------------------

    def _signed(self, path: str, handler: Handler, allowed: set[int] | None) -> Page:
        first = path == protocol.EVIDENCE  # it may convict a node, and a burst of it is a few hundred credentials

        async def answer(request: web.BaseRequest) -> web.Response:
            credential = request.headers.get(protocol.HEADER, "")
            try:
                raw = await request.read()
                asked_s = time.monotonic()
                uid = await self._signers.call(self._caller, path, credential, raw, first=first)
                self._watch.waited(time.monotonic() - asked_s)
                if allowed is not None and uid not in allowed:
                    raise Denied(f"uid {uid} may not do this", fix="see [daemon] trusted_uids and operators")
                result = await handler(uid, _object(raw))
            except SentinelError as error:
                status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
                if isinstance(error, Denied):
                    self._log.warning("request-denied", path=path, peer=request.remote, reason=error.message)
                return _problem(status, error.message, error.fix)
            raw = to_text(result).encode()
            try:
                digest = protocol.digest_of(credential, raw)
                signed = await self._signers.call(self._credentials.encode, digest, first=first)
            except SentinelError as error:
                return _problem(503, error.message)
            return web.Response(body=raw, content_type="application/json", headers={protocol.HEADER: signed})

        return answer

    def _caller(self, path: str, credential: str, body: bytes) -> int:
        if not credential:
            raise Denied(f"no {protocol.HEADER} header", fix="requests carry a MUNGE credential")
        payload, uid, _ = self._credentials.decode(credential)
        if not hmac.compare_digest(payload, protocol.digest_of(path, body)):
            raise Denied("the credential is for another request")
        return uid

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def _heartbeat(self, _uid: int, body: dict[str, Any]) -> dict[str, Any]:
        node = _name(body)
        now = self._clock.now()
        self._watch.heard(node)
        seen = self._live.node(node)
        seen.version = str(body.get("version", ""))[:40]
        seen.verdict = body["verdict"] if isinstance(body.get("verdict"), dict) else {}
        seen.spool = body["spool"] if isinstance(body.get("spool"), dict) else {}
        if body.get("at") is not None:
            seen.clock_offset_s = (time_from(body["at"]) - now).total_seconds()
        seen.gpus = held_gpus(body.get("jobs"))
        self._watch.runs(node, body.get("jobs"))
        watched = watch_list(self._live, node, body.get("jobs"))
        answer: dict[str, Any] = {"at": now}
        if watched:
            answer["watch"], answer["instance"] = watched, self._instance
        if seen.released_at is not None:
            answer["released_at"] = seen.released_at
        return answer

    async def _evidence(self, _uid: int, body: dict[str, Any]) -> dict[str, Any]:
        node, first, items = _name(body), body.get("first"), body.get("items")
        if not isinstance(first, int) or not isinstance(items, list):
            raise ProtocolError("first must be a number and items a list")
        evidence: list[Evidence] = []
        for item in items:
            try:
                evidence.append(evidence_from(item))
            except ProtocolError as error:
                # Acknowledged all the same: sent again it would be no better, and would block what follows.
                self._log.warning("evidence-unparsable", node=node, reason=error.message)
                self._telemetry.unreadable.inc()
        self._watch.heard(node)
        taken = self._joined.take(evidence, self._clock.now())
        try:
            await self._intake.take(taken)
        except SentinelError:
            self._joined.untold(taken)  # the node sends its listing again
            raise
        if self._joined.unsaved:
            await asyncio.to_thread(self._joined.save)
        return {"acknowledged": first + len(items) - 1}

    async def _poll_orders(self, _uid: int, body: dict[str, Any]) -> dict[str, Any]:
        node = _name(body)
        self._watch.heard(node)
        finished = False
        try:
            orders = await self._orders.wait(node, protocol.LONG_POLL_S)
            finished = True
        finally:
            if not finished:
                self._watch.lost_connection(node)
        return {"orders": orders}

    async def _order_result(self, _uid: int, body: dict[str, Any]) -> dict[str, Any]:
        self._orders.result(
            _name(body), str(body.get("id")), body.get("ok") is True, body.get("result"), str(body.get("error", ""))
        )
        return {}

    async def _event(self, _uid: int, body: dict[str, Any]) -> dict[str, Any]:
        environment = body.get("environment")
        await self._events.arrived(str(body.get("event")), environment if isinstance(environment, dict) else {})
        return {}

    # --- people -------------------------------------------------------------------------------------------------------

    async def _view(self, uid: int, body: dict[str, Any]) -> dict[str, Any]:
        arguments = body.get("arguments")
        return await self._views.show(str(body.get("view")), arguments if isinstance(arguments, dict) else {}, uid)

    async def _change(self, uid: int, body: dict[str, Any]) -> dict[str, Any]:
        arguments = body.get("arguments")
        return await self._changes.make(str(body.get("change")), arguments if isinstance(arguments, dict) else {}, uid)

    async def _metrics(self, _request: web.BaseRequest) -> web.Response:
        text = exposition.generate_latest(self._telemetry.registry)
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})

    async def _healthz(self, _request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number or a nesting without end
        raise ProtocolError(f"the body is not JSON: {error!s:.200}") from error
    if not isinstance(body, dict):
        raise ProtocolError("the body is not a JSON object")
    return body


def _name(body: dict[str, Any]) -> str:
    node = body.get("node")
    if not isinstance(node, str) or not node or len(node) > 255 or not node.isprintable():
        raise ProtocolError("node must be the node's name")
    return node


def _problem(status: int, message: str, fix: str = "") -> web.Response:
    return web.json_response({"error": message, "fix": fix}, status=status)
