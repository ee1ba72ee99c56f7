"""The daemon's HTTP server for nodes, hooks and people.

Each request is authenticated by a MUNGE credential, or, from agents, by the key of a session opened with one; only
``/metrics`` and ``/healthz`` need neither. Authentication precedes reading the body. The size of a body is bounded by
its kind of request, connections by ``sentinel.daemon.api.connections``, and each stage has a deadline.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from sentinel import protocol
from sentinel.adapters.encrypted_bodies import decrypted, encrypted
from sentinel.config.settings import Daemon
from sentinel.daemon.api.accounts import uids_of
from sentinel.daemon.api.callers import MOST_CREDENTIAL, DenialLog, Places, Turns, UsedCredentials
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.api.memory_budget import MemoryBudget
from sentinel.daemon.api.node_addresses import addresses_of
from sentinel.daemon.api.node_requests import Caller, NodeRequests
from sentinel.daemon.api.sessions import NoSession, Session, Sessions
from sentinel.daemon.api.transport import Listener, Page, answered
from sentinel.daemon.api.views import Views
from sentinel.daemon.ingest.quick_heartbeats import QuickHeartbeats
from sentinel.errors import Denied, ProtocolError, SentinelError, StandingBy, Unavailable, UserError
from sentinel.log import Log
from sentinel.ports import Credentials, Signed
from sentinel.telemetry import EXPOSITION_TYPE, Telemetry
from sentinel.text import is_deep
from sentinel.wire import to_text

# Threads that talk to munged, which takes 0.1 ms or more per credential and serves few clients at once.
_SIGNERS = 4
_SESSIONS = 2  # sessions per possible connection: restarted agents leave their old ones behind
_STATUS = {
    NoSession: protocol.NO_SESSION,
    Denied: 403,
    StandingBy: protocol.ELSEWHERE,
    Unavailable: 503,
    ProtocolError: 400,
    UserError: 422,
}
# Largest body of each kind of request, in bytes; [daemon] request_bytes bounds all of them.
_SIZES = {
    protocol.SESSION: 1 << 10,
    protocol.HEARTBEAT: 256 << 10,  # a few hundred bytes for each job on the node
    protocol.EVIDENCE: 4 << 20,  # an agent sends 512 KiB at once
    protocol.ORDERS: 4 << 10,
    protocol.ORDER_RESULT: 4 << 20,  # the checkpoints of a job
    protocol.EVENT: 512 << 10,  # the environment of a job's epilog
    protocol.VIEW: 16 << 10,
    protocol.CHANGE: 16 << 10,
}
_SMALL_BYTES = 8 << 10  # bodies up to this size do not wait for memory: there are no more of them than connections
_MEMORY_BYTES = 32 << 20  # of bodies handled at once, and as much of answers; parsed JSON takes ten times as much
_VIEWS = 2  # views computed at once: one may read thousands of incidents
_METRICS_S = 1.0  # how long the text of the metrics is cached

T = TypeVar("T")
Handler = Callable[[Caller, dict[str, Any]], Awaitable[dict[str, Any]]]


class _Problem(SentinelError):
    """A request refused with a specific HTTP status; its connection is closed."""

    def __init__(self, status: int, message: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of request. ``allowed``: uids that may send it; None: everybody of the cluster."""

    path: str
    handler: Handler
    allowed: Collection[int] | None
    most_bytes: int
    in_session: bool = False  # whether a session may sign it


@dataclass(frozen=True, slots=True)
class _Proof:
    """The authenticated sender of a request, and how its answer is signed."""

    mark: str  # the request's credential or session mark
    signed: Signed
    session: Session | None = None  # None: MUNGE


class Server:
    def __init__(
        self,
        *,
        settings: Daemon,
        credentials: Credentials,
        nodes: NodeRequests,
        views: Views,
        changes: OperatorCommands,
        telemetry: Telemetry,
        log: Log,
        acts: Callable[[], bool] = lambda: True,
        works: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            acts: whether this daemon holds the lease; otherwise nodes are referred to the active one.
            works: whether what it sees is judged and done, for ``/healthz``.
        """
        self._works = works
        self._settings = settings
        self._credentials = credentials
        self._nodes = nodes
        self._views = views
        self._changes = changes
        self._telemetry = telemetry
        self._trusted = {0, os.getuid(), *settings.trusted_uids}
        self._operators = {0, os.getuid(), *uids_of(settings.operators)[0]}
        self._known = self._trusted | self._operators
        self._pages: dict[tuple[str, str], Page] = {
            ("GET", "/metrics"): self._metrics,
            ("GET", "/healthz"): self._healthz,
        }
        self._signers = ThreadPoolExecutor(_SIGNERS, "munge")
        self._sessions = Sessions(settings.session_s, _SESSIONS * settings.connections, time.monotonic)
        self._used = UsedCredentials(time.time)
        self._began_s = time.time()
        self._turns = Turns()
        self._denials = DenialLog(log, time.monotonic)
        self._bodies, self._answers = MemoryBudget(_MEMORY_BYTES), MemoryBudget(_MEMORY_BYTES)
        self._viewing = Places(_VIEWS)
        self._metrics_text, self._metrics_s = b"", float("-inf")
        self._acts = acts
        self._listener = Listener(
            settings, self._page, telemetry, log, full=lambda: nodes.exhausted("all connections are in use"),
            quick=QuickHeartbeats(self._sessions, nodes, self._trusted, acts) if settings.wire != "munge" else None,
        )  # fmt: skip
        self.connections = self._listener.connections

    async def start(self) -> None:
        nodes, trusted, size = self._nodes, self._trusted, self._settings.request_bytes
        kinds = [
            _Kind(path, handler, trusted, min(_SIZES[path], size), in_session=True)
            for path, handler in (
                (protocol.HEARTBEAT, nodes.heartbeat),
                (protocol.EVIDENCE, nodes.evidence),
                (protocol.ORDERS, nodes.poll_orders),
                (protocol.ORDER_RESULT, nodes.order_result),
            )
        ]
        for path, handler, allowed in (
            (protocol.EVENT, nodes.event, trusted),
            (protocol.VIEW, self._view, None),
            (protocol.CHANGE, self._change, None),
        ):
            kinds.append(_Kind(path, handler, allowed, min(_SIZES[path], size)))
        if self._sessions.offered:
            kinds.append(_Kind(protocol.SESSION, self._no_content, trusted, _SIZES[protocol.SESSION]))
        for kind in kinds:
            self._pages["POST", kind.path] = partial(self._signed, kind)

        await self._listener.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, while it serves."""
        return self._listener.address

    async def stop(self) -> None:
        self._nodes.end_polls()
        await self._listener.stop()
        self._signers.shutdown(wait=False, cancel_futures=True)
        self._denials.flush()

    # --- authentication -----------------------------------------------------------------------------------------------

    async def _page(self, request: web.BaseRequest) -> web.Response:
        self.connections.began(request.protocol)
        if request.transport is not None:  # until the sender is known, further input stays in the kernel
            request.transport.pause_reading()
        try:
            page = self._pages.get((request.method, request.path))
            if page is None:
                known = any(path == request.path for _, path in self._pages)
                raise _Problem(405 if known else 404, f"{request.method} {request.path:.80} is not answered here")
            response = await page(request)
            await self._deliver(request, response)
        except SentinelError as error:
            response = self._refusal(request, error)
            await self._deliver(request, response)
        finally:  # any other exception is a bug: aiohttp answers 500 and logs it
            self.connections.ended(request.protocol)
            answered(request.protocol)
            request.protocol.resume_reading()
        return response

    def _refusal(self, request: web.BaseRequest, error: SentinelError) -> web.Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        if isinstance(error, Denied):
            self._denials.denied(request.path[:80], request.remote or "", error.message)
        elif isinstance(error, _Problem):
            status = error.status
        self._telemetry.refused.labels(status=status).inc()
        response = _problem(status, error.message, error.fix)
        if isinstance(error, _Problem | Denied):
            response.force_close()
        return response

    async def _deliver(self, request: web.BaseRequest, response: web.Response) -> None:
        """Send the answer. A client that does not read it in time is disconnected: the answer occupies memory."""
        body, transport = response.body, request.transport
        small = isinstance(body, bytes) and len(body) <= _SMALL_BYTES
        unread = transport is None or transport.get_write_buffer_size() > 0
        try:
            async with asyncio.timeout(None if small and not unread else self._settings.body_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            self._telemetry.refused.labels(status=408).inc()
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            return  # it is gone

    async def _signed(self, kind: _Kind, request: web.BaseRequest) -> web.Response:
        mark = request.headers.get(protocol.HEADER, "")
        if kind.in_session and protocol.is_session_mark(mark) and len(mark) <= MOST_CREDENTIAL:
            session, signed = self._sessions.check(mark, request.remote or "")
            proof = _Proof(mark, signed, session)
        else:
            proof = _Proof(mark, await self._sender(kind, mark))
        self.connections.proved(request.protocol)
        request.protocol.resume_reading()
        sealed = request.content_type == protocol.ENCRYPTED
        try:
            if self._settings.wire == "munge" and not sealed:
                raise Denied("a request in clear is not read here", fix='set wire = "munge", and the daemon\'s uid')
            return await self._carried_out(kind, request, proof, sealed=sealed)
        except SentinelError as error:  # signed as well: its sender may drop evidence because of it
            response = self._refusal(request, error)
            assert isinstance(response.body, bytes)
            if sealed:
                response.body = await self._munge(encrypted, self._credentials, response.body, proof.signed.uid)
            response.headers[protocol.HEADER] = await self._mark(proof, response.status, response.body)
            return response

    async def _carried_out(self, kind: _Kind, request: web.BaseRequest, proof: _Proof, *, sealed: bool) -> web.Response:
        signed, key = proof.signed, b""
        most = protocol.encrypted_bytes(kind.most_bytes) if sealed else kind.most_bytes
        with self._turns.turn(None if signed.uid in self._known else signed.uid):
            length = most if request.content_length is None else request.content_length
            async with self._bodies.taking(length if _SMALL_BYTES < length <= most else 0):
                raw = await self._body(request, most)
                if not hmac.compare_digest(signed.payload, protocol.digest_of(kind.path, raw)):
                    raise Denied("the credential is for another request")
                if sealed:
                    raw = await self._munge(decrypted, self._credentials, raw, signed.uid, kind.most_bytes)
                if kind.allowed is not None or signed.uid in self._operators:
                    self.connections.trust(request.protocol)
                caller = Caller(signed.uid, addresses_of(request.remote, signed.address))
                result = await kind.handler(caller, _object(raw))
                if kind.allowed is self._trusted and not self._acts():
                    # The evidence is saved, but the node has to send it again: another daemon may be active.
                    raise StandingBy("standby: the lease was not renewed", fix="another daemon may be active")
            if kind.path == protocol.SESSION:
                result["session"], key = self._sessions.open(signed, request.remote or "")
            return await self._signed_answer(request, proof, result, key, sealed=sealed)

    async def _sender(self, kind: _Kind, credential: str) -> Signed:
        """Authenticate a request by its credential, before its body is read."""
        if not credential or len(credential) > MOST_CREDENTIAL:
            raise Denied(f"no {protocol.HEADER} header", fix="requests carry a MUNGE credential")
        asked_s = time.monotonic()
        signed = await self._munge(self._credentials.decode, credential)
        self._nodes.delayed(time.monotonic() - asked_s)
        if kind.allowed is not None and signed.uid not in kind.allowed:
            raise Denied(f"uid {signed.uid} may not do this", fix="see [daemon] trusted_uids and operators")
        if kind.path == protocol.CHANGE and signed.made_s is not None and signed.made_s + 1.0 < self._began_s:
            # Whether it was carried out before the restart is not known. MUNGE's times are in whole seconds.
            raise Denied("the credential is older than this daemon", fix="send the command again")
        self._used.use(credential, signed, person=signed.uid not in self._known)
        return signed

    async def _munge(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that waits for munged in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._signers, partial(function, *arguments))

    async def _mark(self, proof: _Proof, status: int, body: bytes, key: bytes = b"") -> str:
        """The credential or mark that signs an answer. ``key``: of the session that the answer opens."""
        if proof.session is not None:
            return protocol.answer_mark(proof.session.key, proof.mark, status, body)
        digest = protocol.digest_of(proof.mark, body)
        if key:
            return await self._munge(self._credentials.encrypt, protocol.with_key(digest, key), proof.signed.uid)
        return await self._munge(self._credentials.encode, digest)

    async def _no_content(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def _body(self, request: web.BaseRequest, most_bytes: int) -> bytes:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _Problem(415, "a body with a content encoding is not read", "send it as it is")
        if (request.content_length or 0) > most_bytes:
            raise _Problem(413, f"a body of more than {most_bytes} bytes is not read", "send less at once")
        body = bytearray()
        try:
            # Most bodies arrive with their header and need no timer.
            async with asyncio.timeout(None if request.content.is_eof() else self._settings.body_s):
                async for part in request.content.iter_any():
                    body += part
                    if len(body) > most_bytes:
                        raise _Problem(413, f"a body of more than {most_bytes} bytes is not read", "send less at once")
        except TimeoutError as error:
            raise _Problem(408, f"the body did not arrive within {self._settings.body_s:g} s") from error
        except web.RequestPayloadError as error:
            raise _Problem(400, "the body cannot be read") from error
        return bytes(body)

    async def _signed_answer(
        self, request: web.BaseRequest, proof: _Proof, result: dict[str, Any], key: bytes, *, sealed: bool
    ) -> web.Response:
        raw, kind = to_text(result).encode(), "application/json"
        if sealed:
            raw = await self._munge(encrypted, self._credentials, raw, proof.signed.uid)
            kind = protocol.ENCRYPTED
        mark = await self._mark(proof, 200, raw, key)
        response = web.Response(body=raw, content_type=kind, headers={protocol.HEADER: mark})
        if len(raw) > _SMALL_BYTES:
            async with self._answers.taking(len(raw)):
                await self._deliver(request, response)
        return response

    # --- people -------------------------------------------------------------------------------------------------------

    async def _view(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        arguments = body.get("arguments")
        given = arguments if isinstance(arguments, dict) else {}
        return await self._views.show(str(body.get("view")), given, caller.uid, self._viewing.place(caller.uid))

    async def _change(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        # Not before: this answer is signed, so that it is known that nothing was done.
        if caller.uid not in self._operators:
            raise Denied(f"uid {caller.uid} may not do this, and nothing was done", fix="[daemon] operators may")
        arguments = body.get("arguments")
        return await self._changes.make(
            str(body.get("change")),
            arguments if isinstance(arguments, dict) else {},
            caller.uid,
            ", ".join(sorted(caller.addresses)),
        )

    async def _metrics(self, _request: web.BaseRequest) -> web.Response:
        now_s = time.monotonic()
        if now_s - self._metrics_s >= _METRICS_S:
            self._metrics_text, self._metrics_s = self._telemetry.exposition(), now_s
        return web.Response(body=self._metrics_text, headers={"Content-Type": EXPOSITION_TYPE})

    async def _healthz(self, _request: web.BaseRequest) -> web.Response:
        works = self._works()
        tells = {} if works else {protocol.TELLS: "yes"}
        if not self._acts():
            return web.Response(text=f"{protocol.STANDBY}\n", headers=tells)
        if not works:  # a proxy or a monitor reads the status; why is shown to those who prove who they are
            return web.Response(text=f"{protocol.BLOCKED}\n", status=503, headers=tells)
        return web.Response(text=f"{protocol.ACTIVE}\n")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)  # keeps bytes of file names that are not UTF-8
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or an endless number or nesting
        raise ProtocolError(f"the body is not JSON: {error!s:.200}") from error
    if is_deep(raw, body):
        raise ProtocolError("the body is nested too deeply")
    if not isinstance(body, dict):
        raise ProtocolError("the body is not a JSON object")
    return body


def _problem(status: int, message: str, fix: str = "") -> web.Response:
    return web.json_response({"error": message, "fix": fix}, status=status)
