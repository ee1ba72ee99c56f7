"""A webhook: one JSON POST for each notice (docs/webhooks.md). The id is sent as Idempotency-Key, so that a receiver can
drop a repeat. With keys it is signed: whoever knows a key can tell that it is from us, and from when.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.http_post import name_of, post
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.turns import urgency_of
from sentinel.model.records import Notice
from sentinel.text import clean
from sentinel.wire import to_json

__all__ = ["Webhook", "body_of", "name_of", "signature"]
SIGNATURE = "Sentinel-Signature"


class Webhook:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float,
        name: str = "",
        keys: Sequence[bytes] = (),
        authorization: str = "",
        threads: DeliveryThreads | None = None,
        turn: str = "",
    ) -> None:
        """
        Args:
            deadline_s: of a delivery, from when its turn has come.
            name: of the channel; empty: made of the address.
            keys: each of them signs.
            threads: whose turns it takes; None: its own.
            turn: with whose deliveries it takes turns; empty: with those of its name.
        """
        self.name = name or name_of(url)
        self._threads, self._turn = threads or DeliveryThreads(), turn or self.name
        self._url = url
        self._deadline_s = deadline_s
        self._keys = tuple(keys)
        self._authorization = authorization
        self._fix = f"correct [alerts.channels.{name}] url" if name else "correct [alerts] webhooks"

    async def send(self, notice: Notice) -> None:
        async with self._threads.turn(self._turn, urgency_of(notice)):
            await self._send(notice)  # signed with the time when it is sent

    async def _send(self, notice: Notice) -> None:
        body = json.dumps(body_of(notice)).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": notice.id}
        if self._authorization:
            headers["Authorization"] = self._authorization
        if self._keys:
            headers[SIGNATURE] = signature(body, self._keys, int(time.time()))
        await post(self._url, body, headers, deadline_s=self._deadline_s, name=self.name, fix=self._fix)


def body_of(notice: Notice) -> Any:
    """The JSON body of a notice."""
    return clean(
        {
            "id": notice.id,
            "incident": notice.incident,
            "at": to_json(notice.at),
            "title": notice.title,
            # Chats take this key, and look for links and mentions in it; programs take the others.
            "text": escaped(f"{notice.title}\n{notice.body}", Markup.PLAIN),
            **notice.data,
        }
    )


def signature(body: bytes, keys: Sequence[bytes], at_s: int) -> str:
    """``t=UNIX_TIME,v1=HEX[,v1=HEX]``: HMAC-SHA256 of ``UNIX_TIME.BODY``, one for each key."""
    signed = f"{at_s}.".encode() + body
    digests = [hmac.new(key, signed, hashlib.sha256).hexdigest() for key in keys]
    return ",".join([f"t={at_s}", *(f"v1={digest}" for digest in digests)])
