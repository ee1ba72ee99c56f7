"""Prometheus' HTTP API: range queries with a deadline and a bounded answer, over TLS and with credentials if the site asks.

The file with the credentials is read at each request, and certificates when they change, so that both can be changed without
a restart.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from sentinel.config.settings import Prometheus as Settings
from sentinel.errors import Denied, FileError, ProtocolError, Refused, Timeout, Unavailable, UserError
from sentinel.given_files import MadeOfFiles, opened, require_file
from sentinel.text import json_of


class Prometheus:
    """One Prometheus, or what speaks its API (Thanos, Mimir, VictoriaMetrics)."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            FileError: a certificate or key that cannot be used.
        """
        self.url = settings.url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise UserError("[prometheus] url is no address", fix="write http://host:9090")
        self._settings = settings
        self._deadline = aiohttp.ClientTimeout(total=settings.deadline_s)
        files = filter(None, (settings.ca_file, settings.certificate_file, settings.key_file))
        self._tls = MadeOfFiles(files, partial(_tls, settings)) if self.url.startswith("https://") else None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """End the connections. Queries from then on are ``Unavailable``."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def range(self, query: str, start: datetime, end: datetime, step_s: float) -> dict[str, Any]:
        """The answer of ``/api/v1/query_range``.

        Raises:
            Unavailable: no answer in time, no connection, a server that says no for now, an answer that is too long; or
                it was closed.
            Refused: the query is wrong.
            ProtocolError: no JSON.
        """
        form = {
            "query": query,
            "start": f"{start.timestamp():.3f}",
            "end": f"{end.timestamp():.3f}",
            "step": f"{step_s:.3f}",
            "timeout": f"{self._settings.deadline_s:g}s",
        }
        headers, tls = await asyncio.to_thread(self._credentials)
        if self._closed:  # aiohttp's own error would be taken for a bug
            raise Unavailable("Prometheus is not asked any more: the daemon stops")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._deadline)
        try:
            async with self._session.post(
                f"{self.url}/api/v1/query_range",
                data=form,
                headers=headers,
                ssl=tls,
                allow_redirects=False,
            ) as answer:
                raw = await self._bounded(answer)
                status = answer.status
        except TimeoutError as error:
            raise Timeout(f"Prometheus did not answer within {self._settings.deadline_s:g} s") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"Prometheus cannot be reached: {error!s:.200}", fix="see [prometheus] url") from error
        return _understood(status, raw)

    async def _bounded(self, answer: aiohttp.ClientResponse) -> bytes:
        most = self._settings.answer_bytes
        parts, size = [], 0
        async for part in answer.content.iter_chunked(1 << 16):
            parts.append(part)
            size += len(part)
            if size > most:
                raise Unavailable(
                    f"Prometheus' answer is longer than {most} bytes", fix="aggregate in the query: sum by (...)"
                )
        return b"".join(parts)

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        """The headers, and the certificates as the files have them now."""
        try:
            return self._headers(), self._tls.now() if self._tls is not None else True
        except FileError as error:  # half of a change
            raise Unavailable(error.message, fix=error.fix) from error

    def _headers(self) -> dict[str, str]:
        if not self._settings.authorization_file:
            return {}
        path = Path(self._settings.authorization_file)
        try:
            with opened(path) as file:
                text = file.whole().decode("ascii").strip()
        except (OSError, FileError, UnicodeDecodeError) as error:
            raise Denied(f"{path}: the credentials for Prometheus cannot be read: {error!s:.120}") from error
        if not text or not text.isprintable():
            raise Denied(f"{path}: no credentials for Prometheus", fix="one line: a token, or e.g. Basic dXNlcjpwYXNz")
        return {"Authorization": text if " " in text else f"Bearer {text}"}


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        for name in filter(None, (settings.ca_file, settings.certificate_file, settings.key_file)):
            require_file(Path(name))
        made = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.certificate_file:
            made.load_cert_chain(settings.certificate_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        named = settings.certificate_file or settings.ca_file
        raise FileError(
            named, f"cannot be used: {error!s:.200}", key="prometheus", fix="give certificates and key as PEM files"
        ) from error
    return made


def _understood(status: int, raw: bytes) -> dict[str, Any]:
    if status in (401, 403):
        raise Denied(f"Prometheus answered {status}", fix="see [prometheus] authorization_file")
    try:
        body = json_of(raw)
    except ValueError as error:
        if status >= 300:
            raise Unavailable(f"Prometheus answered {status}", fix="see [prometheus] url") from error
        raise ProtocolError(f"Prometheus' answer is not JSON: {raw[:60]!r}") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"Prometheus' answer is no object: {raw[:60]!r}")
    if status == 400 or body.get("errorType") == "bad_data":
        raise Refused(f"Prometheus refuses the query: {body.get('error', '')!s:.300}", fix="correct the query")
    if status != 200:
        raise Unavailable(f"Prometheus answered {status}: {body.get('error', '')!s:.200}")
    return body
