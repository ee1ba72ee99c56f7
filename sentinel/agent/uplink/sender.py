"""Sends evidence to the daemon as soon as there is some, in a thread.

A request is bounded in bytes. A refused request is split until the item that the daemon does not accept is alone. This
item is given up, counted, and replaced by a message that says so, so that it does not block those behind it.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sentinel.adapters.client import DaemonClient
from sentinel.adapters.spool import Spool
from sentinel.adapters.spool_files import Item, Value
from sentinel.agent.process.retries import Retries
from sentinel.errors import ProtocolError, SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.protocol import EVIDENCE
from sentinel.wire import to_json

log = Log()

UNREAD_S = 0.5  # pause while the disk does not return pending items
REQUEST_BYTES = 512 << 10  # of items in one request; the daemon takes 4 MiB, and many nodes may send at once
ITEM_BYTES = 1 << 20  # usually a few KB (a line, a listing); a larger item is given up unsent
GIVEN_UP = "given_up"  # key in the data of the message that replaces an item


class Sender:
    """Sends the spool's content in order. While the daemon does not answer, evidence stays on disk."""

    def __init__(
        self,
        node: str,
        spool: Spool,
        client: DaemonClient,
        *,
        flush_s: float = 2.0,
        backoff_s: float = 10.0,
        batch: int = 200,
    ) -> None:
        self.node = node
        self.epoch = uuid.uuid4().hex  # sequence numbers are valid within one run of the agent
        self.sent = 0
        self.given_up = 0  # items that the daemon refused since this process started
        self._spool = spool
        self._client = client
        self._flush_s = flush_s
        self._batch = batch
        self._most = batch  # most items in the next request; fewer after a refusal
        self._next_number = 1
        self._retries = Retries(backoff_s)
        self._stopped = threading.Event()

    def run(self) -> None:
        """The thread's loop, until ``stop``."""
        flush_at_s = 0.0
        while not self._stopped.is_set():
            try:
                if self._spool.wait(self._flush_s):
                    self.send_batch()
                if time.monotonic() >= flush_at_s:
                    self._spool.flush_memory()
                    flush_at_s = time.monotonic() + self._flush_s
                self._retries.succeeded()
            except SentinelError as error:
                if self._retries.failed(error):
                    log.warning("evidence-not-sent", error=error)
                self._stopped.wait(self._retries.pause_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("sender")
                self._stopped.wait(1.0)
        self._client.close()

    def stop(self) -> None:
        self._stopped.set()
        self._spool.close()
        self._client.interrupt()

    def send_batch(self) -> None:
        """Send the oldest evidence in one request, and remove from the spool what the daemon acknowledges."""
        items = self._spool.batch(self._batch)
        if not items:
            self._stopped.wait(UNREAD_S if self._spool.pending else 0.0)
            return
        sizes = [len(json.dumps(item.content)) for item in items[: self._most]]
        if sizes[0] > ITEM_BYTES:
            self._give_up(items[0], f"it has {sizes[0]} bytes, more than {ITEM_BYTES}")
            return
        fitting = sum(total <= REQUEST_BYTES for total in itertools.accumulate(sizes))
        items = items[: max(1, fitting)]
        try:
            self._send(items)
        except SentinelError as error:
            if not error.signed or isinstance(error, Unavailable):
                raise  # the error is not about the message
            self._refused(items, error)
        else:
            self._most = min(self._batch, self._most * 2)

    def _send(self, items: Sequence[Item]) -> None:
        first = self._next_number
        body = {"node": self.node, "epoch": self.epoch, "first": first, "items": [item.content for item in items]}
        answer = self._client.post(EVIDENCE, body)
        acknowledged = answer.get("acknowledged")
        if not isinstance(acknowledged, int) or isinstance(acknowledged, bool):
            raise ProtocolError(f"the daemon acknowledged {acknowledged!r:.40}")
        count = min(acknowledged - first + 1, len(items))
        if count <= 0:
            raise ProtocolError(f"the daemon acknowledged number {acknowledged}, sent was {first} on")
        self._spool.acknowledge(items[count - 1].number)
        self._next_number = first + count
        self.sent += count

    def _refused(self, items: Sequence[Item], error: SentinelError) -> None:
        if len(items) == 1:
            self._give_up(items[0], error.message)
        else:
            self._most = len(items) // 2

    def _give_up(self, item: Item, reason: str) -> None:
        self.given_up += 1
        content = item.content if isinstance(item.content, Mapping) else {}
        kind, identity, data = content.get("kind"), content.get("id"), content.get("data")
        log.warning("evidence-given-up", kind=kind, id=identity, reason=reason)
        if not (isinstance(data, Mapping) and GIVEN_UP in data):
            now = datetime.now(UTC)
            told = Evidence(
                id=stable_id(GIVEN_UP, self.node, self.epoch, item.number),
                at=now,
                seen_at=now,
                source=Source.AGENT,
                kind=Kind.UNREADABLE,
                where=Where(node=self.node),
                text=f"evidence of kind {str(kind)[:48]} was given up: {reason[:300]}",
                data={GIVEN_UP: str(identity)[:40]},
                trust=Trust.SYSTEM,
            )
            self._spool.append(to_json(told), Value.NORMAL)
        self._spool.acknowledge(item.number)
        self._most = 1  # send the next item alone, too
