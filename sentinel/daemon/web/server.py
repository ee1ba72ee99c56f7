"""Serves the web page on its own socket or address, to authenticated people, read-only and without scripts.

Every answer forbids scripts, frames and external resources. Only GET and HEAD are answered, and no body is read. The
number of connections, of pages made at once, in all and of each person, and the time for each are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from sentinel.config.settings import Page
from sentinel.daemon.acceptor import listening
from sentinel.daemon.api.accounts import LOOK_UPS
from sentinel.daemon.api.callers import DenialLog, Places, Turns
from sentinel.daemon.api.connections import Connections
from sentinel.daemon.api.transport import STOP_S, CountingServer, http_log
from sentinel.daemon.periodic import Periodic
from sentinel.daemon.web.access import SOCKET, PageAuthentication, Viewer
from sentinel.daemon.web.pages import Pages
from sentinel.daemon.web.templates import style
from sentinel.errors import Denied, SentinelError, Unavailable, UserError
from sentinel.log import Log
from sentinel.telemetry import Telemetry

_PAGES = 2  # views computed at once, one of each person: one may read thousands of incidents
_OF_ONE_PERSON = 16  # concurrent requests of one person: a browser may load as many tabs when it is started
_MOST_FIELDS = 32  # most fields of a request's query
_HEADER_S = 5.0  # from the opening of a connection to the end of its first header
_IDLE_S = 60.0
_OVERDUE_S = 1.0  # how often connections are checked for deadlines
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer:
    """The web page's listener and request handler."""

    def __init__(
        self, settings: Page, who: PageAuthentication, pages: Pages, *, telemetry: Telemetry, log: Log
    ) -> None:
        self._settings, self._who, self._pages = settings, who, pages
        self._telemetry, self._log = telemetry, log
        self._denials = DenialLog(log, time.monotonic)
        self._turns, self._making = Turns(_OF_ONE_PERSON), Places(_PAGES)
        self._style = style().encode()
        self._runner: web.ServerRunner | None = None
        self._periodic = Periodic(telemetry, log)
        self.connections = Connections(
            most=settings.connections,
            most_waiting=settings.connections,
            most_waiting_per_peer=settings.connections,  # behind a proxy all connections have one address
            header_s=_HEADER_S,
            idle_s=_IDLE_S,
            seconds=time.monotonic,
        )

    async def start(self) -> None:
        """Start listening.

        Raises:
            UserError: the address or the socket cannot be used.
        """
        server = CountingServer(
            self._answer,
            self.connections,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_IDLE_S,
            logger=http_log(self._log, self._telemetry),
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
        await self._runner.setup()
        listen = self._settings.listen
        try:
            if listen.startswith(SOCKET):
                path = Path(listen.removeprefix(SOCKET))
                made = await asyncio.to_thread(_local_socket, path)
            else:
                made = await asyncio.to_thread(listening, listen)
        except (OSError, ValueError) as error:
            raise UserError(
                f"[page] listen = {listen!r:.120} cannot be had: {error}", fix="name another one"
            ) from error
        await web.SockSite(self._runner, made).start()
        self._periodic.every(_OVERDUE_S, self._close_overdue, "overdue connections of the page")
        self._periodic.start()
        self._log.info("page-served", listen=listen)

    async def stop(self) -> None:
        self._periodic.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        self._denials.flush()

    @property
    def addresses(self) -> list[Any]:
        """Where it listens; for tests."""
        return list(self._runner.addresses) if self._runner is not None else []

    async def _close_overdue(self) -> None:
        self.connections.close_overdue()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self.connections.began(request.protocol)
        response = web.Response(status=503)
        try:
            try:
                async with asyncio.timeout(self._settings.deadline_s):
                    response = await self._made(request)
            except TimeoutError:
                long = f"this page was not made within {self._settings.deadline_s:g} s"
                response = self._problem(
                    503, long, "the daemon's machine is busy: load it again, or ask for less", None
                )
            async with asyncio.timeout(self._settings.deadline_s):
                response.headers.update(_HEADERS)
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            self._telemetry.refused.labels(status=503).inc()
            if request.transport is not None:
                request.transport.abort()  # the client does not read: disconnect it
        except ConnectionError:
            pass  # the client is gone
        finally:
            self.connections.ended(request.protocol)
        return response

    async def _made(self, request: web.BaseRequest) -> web.Response:
        viewer: Viewer | None = None
        called_rightly = False
        try:
            self._who.check_host(request.headers.get("Host", ""))
            called_rightly = True
            if request.method not in ("GET", "HEAD"):
                return self._problem(
                    405, "the page is only read", "the command line changes things: sentinel --help", None
                )
            if request.path == "/style.css":
                return web.Response(body=self._style, content_type="text/css", charset="utf-8")
            asking = partial(self._who.viewer, request.headers, address=request.remote or "", uid=_peer_uid(request))
            viewer = await LOOK_UPS.call(asking)
            self.connections.proved(request.protocol)
            page = self._pages.page_of(unquote(request.raw_path.partition("?")[0]))
            if page is None:
                return self._problem(404, "there is no such page", "", viewer)
            with self._turns.turn(viewer.name):
                place = partial(self._making.place, viewer.name)
                return _html(200, await self._pages.html(page, _query(request), viewer, place))
        except Denied as error:
            self._denials.denied(request.path[:80], request.remote or "socket", error.message)
            status = 401 if called_rightly and self._who.takes_tokens else 403
            return self._problem(status, error.message, error.fix, None)
        except Unavailable as error:
            return self._problem(503, error.message, error.fix, viewer)
        except UserError as error:
            return self._problem(404 if request.path.count("/") > 1 else 422, error.message, error.fix, viewer)
        except SentinelError as error:
            return self._problem(409, error.message, error.fix, viewer)

    def _problem(self, status: int, message: str, fix: str, viewer: Viewer | None) -> web.Response:
        self._telemetry.refused.labels(status=status).inc()
        response = _html(status, self._pages.problem(status, message, fix, viewer))
        if status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="Sentinel: the token is the password", charset="UTF-8"'
        if status == 405:
            response.headers["Allow"] = "GET, HEAD"
        if status in (401, 403, 405):
            response.force_close()
        return response


def _html(status: int, text: str) -> web.Response:
    body = text.encode("utf-8", "backslashreplace")
    response = web.Response(status=status, body=body, content_type="text/html", charset="utf-8")
    response.enable_compression()
    return response


def _query(request: web.BaseRequest) -> dict[str, str]:
    """The first value of each field."""
    found: dict[str, str] = {}
    with contextlib.suppress(ValueError):
        for key, value in parse_qsl(request.query_string, max_num_fields=_MOST_FIELDS):
            found.setdefault(key, value)
    return found


def _peer_uid(request: web.BaseRequest) -> int | None:
    """The account of the process at the other end of a local socket; None for another kind of connection."""
    found = request.transport.get_extra_info("socket") if request.transport is not None else None
    if found is None or found.family != socket.AF_UNIX:
        return None
    _, uid, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def _local_socket(path: Path) -> socket.socket:
    """A listening local socket to which every account may connect: the kernel identifies who does.

    Raises:
        OSError: it cannot be created, or its path is taken by another file or another program's socket.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise FileExistsError(f"{path} is no socket")
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
                contextlib.suppress(ConnectionRefusedError),
            ):
                probe.connect(str(path))
                raise FileExistsError(f"{path} is another program's")
            path.unlink()
        made.bind(str(path))
        path.chmod(0o666)
    except BaseException:
        made.close()
        raise
    return made
