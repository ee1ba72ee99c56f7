"""The thread that talks to the daemon: evidence as soon as there is some, a heartbeat now and then."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sentinel.adapters.client import DaemonClient
from sentinel.adapters.spool import Spool
from sentinel.agent.keeping import bug
from sentinel.errors import ProtocolError, SentinelError
from sentinel.log import Log
from sentinel.protocol import EVIDENCE, HEARTBEAT
from sentinel.wire import time_from

log = Log()

UNREAD_S = 0.5  # pause while the disk does not give back what is pending


class Sender:
    """Empties the spool. A daemon that does not answer costs nothing but disk.

    Args:
        heartbeat: makes the body of a heartbeat, without node and time.
    """

    def __init__(
        self,
        node: str,
        spool: Spool,
        client: DaemonClient,
        heartbeat: Callable[[], dict[str, Any]],
        *,
        heartbeat_s: float = 2.0,
        backoff_s: float = 10.0,
        batch: int = 200,
    ) -> None:
        self.node = node
        self.epoch = uuid.uuid4().hex  # numbers on the wire count within one run of the agent
        self.connected: bool | None = None
        self.clock_offset_s: float | None = None  # the daemon's clock minus ours
        self.sent = 0
        self.failures = 0
        self.on_answer: Callable[[dict[str, Any]], None] = lambda _: None  # the daemon's answer to a heartbeat
        self._spool = spool
        self._client = client
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._backoff_s = backoff_s
        self._batch = batch
        self._next_number = 1
        self._stopped = threading.Event()
        self._said = ""

    def run(self) -> None:
        """The thread: until ``stop``."""
        due_s = time.monotonic() + random.random() * self._heartbeat_s  # noqa: S311 - spread, not secret
        while not self._stopped.is_set():
            try:
                if self._spool.wait(max(0.0, due_s - time.monotonic())):
                    self.send_batch()
                if time.monotonic() >= due_s:
                    self.beat()
                    due_s = time.monotonic() + self._heartbeat_s
                self._success()
            except SentinelError as error:
                self._failure(error)
                self._stopped.wait(self.pause_s())
                due_s = min(due_s, time.monotonic() + self._heartbeat_s)
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                bug(log, "sender")
                self._stopped.wait(1.0)
        self._client.close()

    def stop(self) -> None:
        self._stopped.set()
        self._spool.close()
        self._client.interrupt()

    def send_batch(self) -> None:
        """One request with the oldest evidence; what the daemon acknowledges is forgotten."""
        items = self._spool.batch(self._batch)
        if not items:
            self._stopped.wait(UNREAD_S if self._spool.pending else 0.0)
            return
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

    def beat(self) -> None:
        began_s = time.time()
        self._spool.flush_memory()
        body = {"node": self.node, "at": datetime.now(UTC).isoformat(), **self._heartbeat()}
        answer = self._client.post(HEARTBEAT, body)
        ended_s = time.time()
        if "at" in answer:
            self.clock_offset_s = time_from(answer["at"]).timestamp() - (began_s + ended_s) / 2
        self.on_answer(answer)

    def pause_s(self) -> float:
        grown: float = 0.2 * 2.0 ** min(self.failures, 12)
        return min(self._backoff_s, grown) * (0.5 + random.random())  # noqa: S311

    def _success(self) -> None:
        if self.connected is not True:
            log.info("daemon-reached", host=self._client.host, port=self._client.port)
        self.connected, self.failures, self._said = True, 0, ""

    def _failure(self, error: SentinelError) -> None:
        self.connected = False
        self.failures += 1
        if str(error) != self._said:  # the same trouble is said once
            self._said = str(error)
            log.warning("daemon-not-reached", error=error)
