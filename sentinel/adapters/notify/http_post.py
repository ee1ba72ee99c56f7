"""Sends one POST to a receiver of messages; the answer decides whether a retry may help.

An address is a secret: with most services whoever knows it can write to the channel. Log, store and messages name the host
and a digest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp

from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model.records import stable_id


def name_of(url: str) -> str:
    """A name for the address without its secrets, for logs."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return f"{host[:200]}#{stable_id(url)[:8]}"


async def post(
    url: str, body: bytes, headers: Mapping[str, str], *, deadline_s: float, name: str, fix: str, what: str = "webhook"
) -> None:
    """
    Args:
        name: what stands for the receiver in messages.
        fix: what to do where trying again cannot help.

    Raises:
        Timeout, Unavailable: trying again can help. ``late``: the request was sent.
        Refused: it cannot.
    """
    timeout, trace, sent = aiohttp.ClientTimeout(total=deadline_s), aiohttp.TraceConfig(), list[object]()

    async def was_sent(_session: object, _context: object, what: object) -> None:
        sent.append(what)

    trace.on_request_chunk_sent.append(was_sent)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trace_configs=[trace]) as session,
            # A redirect would be followed with a GET: the message would be lost, and taken for delivered.
            session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            if 300 <= answer.status < 400:
                target = name_of(answer.headers.get("Location", ""))
                raise Refused(
                    f"{what} {name} redirects to {target}", fix=f"name the address that it redirects to: {fix}"
                )
            if answer.status >= 500 or answer.status == 429:
                busy = Unavailable(f"{what} {name} answered {answer.status}")
                busy.after_s = _seconds(answer.headers.get("Retry-After", ""))
                raise busy
            if answer.status in (401, 403) and "Authorization" in headers:  # a token that is being changed
                raise Unavailable(
                    f"{what} {name} answered {answer.status}", fix="is its authorization_file up to date?"
                )
            if answer.status >= 400:
                raise Refused(f"{what} {name} answered {answer.status}", fix=fix)
    except TimeoutError as error:
        silent = Timeout(f"{what} {name} did not answer in time")
        silent.late = bool(sent)
        raise silent from error
    except aiohttp.ClientSSLError as error:  # a ValueError where the certificate is not trusted; its errno is OpenSSL's
        raise Unavailable(f"{what} {name} cannot be reached: {str(error).replace(url, name)}") from None
    except (aiohttp.InvalidURL, ValueError):
        raise Refused(f"{what} {name} is no address", fix=fix) from None
    except aiohttp.ClientError as error:
        lost = Unavailable(f"{what} {name} cannot be reached: {_reason(error).replace(url, name)}")
        lost.late = bool(sent)
        raise lost from None


def _reason(error: aiohttp.ClientError) -> str:
    number = error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    # What is no answer of HTTP: the error's text has the address in it, and not as the settings write it.
    return error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)


def _seconds(text: str) -> float:
    """Of the header Retry-After; 0 where it says none, or a date, by a clock that need not be ours."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
