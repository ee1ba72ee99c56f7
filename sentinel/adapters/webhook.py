"""A webhook: one JSON POST for each notice. The id is sent as Idempotency-Key, so that a receiver can drop a repeat."""

from __future__ import annotations

import aiohttp

from sentinel.errors import Refused, Timeout, Unavailable
from sentinel.model import Notice
from sentinel.wire import to_json


class Webhook:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(self, url: str, *, deadline_s: float) -> None:
        self.name = url
        self._deadline = aiohttp.ClientTimeout(total=deadline_s)

    async def send(self, notice: Notice) -> None:
        body = {
            "id": notice.id,
            "incident": notice.incident,
            "at": to_json(notice.at),
            "title": notice.title,
            "text": f"{notice.title}\n{notice.body}",
            **notice.data,
        }
        headers = {"Idempotency-Key": notice.id}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._deadline) as session,
                # A redirect would be followed with a GET: the notice would be lost, and taken for delivered.
                session.post(self.name, json=body, headers=headers, allow_redirects=False) as answer,
            ):
                if 300 <= answer.status < 400:
                    target = answer.headers.get("Location", "")[:200]
                    raise Refused(
                        f"webhook {self.name} redirects to {target!r}", fix="name that one in [alerts] webhooks"
                    )
                if answer.status >= 500 or answer.status == 429:
                    raise Unavailable(f"webhook {self.name} answered {answer.status}")
                if answer.status >= 400:
                    raise Refused(f"webhook {self.name} answered {answer.status}", fix="correct [alerts] webhooks")
        except TimeoutError as error:
            raise Timeout(f"webhook {self.name} did not answer in time") from error
        except aiohttp.InvalidURL as error:
            raise Refused(f"webhook {self.name!r} is no address", fix="correct [alerts] webhooks") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"webhook {self.name} cannot be reached: {error}") from error
