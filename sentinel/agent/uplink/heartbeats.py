"""Sends heartbeats to the daemon, in a thread and over a connection of its own, so that evidence cannot delay them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sentinel.adapters.client import DaemonClient
from sentinel.agent.process.retries import Retries
from sentinel.detect.observed_silence import seconds_of
from sentinel.errors import SentinelError
from sentinel.log import Log
from sentinel.protocol import HEARTBEAT
from sentinel.wire import time_from

log = Log()

LEAST_BEAT_S = 0.2  # shortest interval that the daemon can ask for


class Heartbeats:
    """Sends one heartbeat per interval.

    Args:
        body: makes the body of a heartbeat, without node and time.
    """

    def __init__(
        self,
        node: str,
        client: DaemonClient,
        body: Callable[[], dict[str, Any]],
        *,
        heartbeat_s: float = 2.0,
        backoff_s: float = 10.0,
    ) -> None:
        self.node = node
        self.connected: bool | None = None
        self.clock_offset_s: float | None = None  # the daemon's clock minus ours
        self.took_s = 0.0  # the last one, from its making to its answer
        self.on_answer: Callable[[dict[str, Any]], None] = lambda _: None  # the daemon's answer
        self._client = client
        self._body = body
        self._heartbeat_s = heartbeat_s
        self._next_s = heartbeat_s  # until the next heartbeat; the daemon may ask for an earlier one
        self._retries = Retries(backoff_s)
        self._stopped = threading.Event()

    def run(self) -> None:
        """The thread's loop, until ``stop``."""
        wait_s = random.random() * self._heartbeat_s  # noqa: S311 - spread, not secret
        while not self._stopped.wait(wait_s):
            began_s = time.monotonic()
            try:
                self.beat()
                if self.connected is not True:
                    log.info("daemon-reached", host=self._client.host, port=self._client.port)
                self.connected = True
                self._retries.succeeded()
                wait_s = max(0.0, self._next_s - (time.monotonic() - began_s))
            except SentinelError as error:
                self.connected = False
                if self._retries.failed(error):
                    log.warning("daemon-not-reached", error=error)
                wait_s = self._retries.pause_s()
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("heartbeats")
                wait_s = 1.0
        self._client.close()

    def stop(self) -> None:
        self._stopped.set()
        self._client.interrupt()

    def beat(self) -> None:
        began_s = time.time()
        # Take sent_s before the body: ages in the body, counted from sent_s, must not come out too young.
        sent_s = time.monotonic()
        sent = {"node": self.node, "at": datetime.now(UTC).isoformat(), "sent_s": sent_s}
        body = {**sent, **self._body()}
        answer = self._client.post(HEARTBEAT, body)
        ended_s, self.took_s = time.time(), time.monotonic() - sent_s
        if "at" in answer:
            self.clock_offset_s = time_from(answer["at"]).timestamp() - (began_s + ended_s) / 2
        soon_s = seconds_of(answer.get("beat_s"))
        self._next_s = self._heartbeat_s if soon_s is None else min(self._heartbeat_s, max(LEAST_BEAT_S, soon_s))
        self.on_answer(answer)
