"""A webhook: one JSON POST for each notice. The id is sent as Idempotency-Key, so that a receiver can drop a repeat.

Its address is a secret: with most services whoever knows it can write to the channel. Log, store and messages name the host
and a digest.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import aiohttp

from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model.records import Notice, stable_id
from sentinel.text import clean
from sentinel.wire import to_json


def name_of(url: str) -> str:
    """What stands for the address where others may read it."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return f"{host[:200]}#{stable_id(url)[:8]}"


class Webhook:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(self, url: str, *, deadline_s: float) -> None:
        self.name = name_of(url)
        self._url = url
        self._deadline = aiohttp.ClientTimeout(total=deadline_s)

    async def send(self, notice: Notice) -> None:
        body = clean(
            {
                "id": notice.id,
                "incident": notice.incident,
                "at": to_json(notice.at),
                "title": notice.title,
                "text": f"{notice.title}\n{notice.body}",
                **notice.data,
            }
        )
        headers = {"Idempotency-Key": notice.id}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._deadline) as session,
                # A redirect would be followed with a GET: the notice would be lost, and taken for delivered.
                session.post(self._url, json=body, headers=headers, allow_redirects=False) as answer,
            ):
                if 300 <= answer.status < 400:
                    target = name_of(answer.headers.get("Location", ""))
                    raise Refused(
                        f"webhook {self.name} redirects to {target}",
                        fix="name the address that it redirects to in [alerts] webhooks",
                    )
                if answer.status >= 500 or answer.status == 429:
                    raise Unavailable(f"webhook {self.name} answered {answer.status}")
                if answer.status >= 400:
                    raise Refused(f"webhook {self.name} answered {answer.status}", fix="correct [alerts] webhooks")
        except TimeoutError as error:
            raise Timeout(f"webhook {self.name} did not answer in time") from error
        except aiohttp.InvalidURL:
            raise Refused(f"webhook {self.name} is no address", fix="correct [alerts] webhooks") from None
        except aiohttp.ClientError as error:
            reason = str(error).replace(self._url, self.name)
            raise Unavailable(f"webhook {self.name} cannot be reached: {reason}") from None
