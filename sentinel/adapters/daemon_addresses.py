"""The addresses of the daemons that share one database, and which of them clients use now. Standard library only."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

_AVOID_S = 10.0  # for how long an address that did not answer in time is avoided, if there are others


class Client(Protocol):
    """What is needed of ``sentinel.adapters.client.DaemonClient``."""

    address: str

    def interrupt(self) -> None: ...


def addresses_of(url: str) -> list[str]:
    """The addresses of a setting that names one daemon, or several separated by commas."""
    return [part.strip() for part in url.split(",") if part.strip()]


class Addresses:
    """The addresses of the daemons that share one database, and which one is used now.

    Shared by the clients of one process. The leading client, whose requests are short and frequent, notices when the
    active daemon changes; the others switch at once, even in the middle of a request.
    """

    def __init__(self, url: str) -> None:
        self.all = addresses_of(url) or [url]
        self.current = self.all[0]
        self._silent_s: dict[str, float] = {}  # when a request there was not answered in time
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()

    def register(self, client: Client) -> None:
        with self._lock:
            self._clients.add(client)

    def mark_silent(self, address: str) -> None:
        """No answer in time from this address: switch to the next one, and avoid this one for ``_AVOID_S``."""
        self._silent_s[address] = time.monotonic()
        self.switch_from(address)

    def switch_from(self, address: str) -> None:
        """Switch to the next address, unless another client already did. Called when the daemon there stands by or cannot be
        reached. Recently silent addresses are skipped: a request there would wait for its full deadline again."""
        at, now_s = self.all.index(address), time.monotonic()
        for other in (*self.all[at + 1 :], *self.all[:at]):
            if now_s - self._silent_s.get(other, float("-inf")) > _AVOID_S:
                self.switch_to(other, instead_of=address)
                return

    def switch_to(self, address: str, *, instead_of: str) -> None:
        with self._lock:
            if self.current != instead_of:
                return
            self.current = address
            others = [client for client in self._clients if client.address == instead_of]
        for client in others:
            client.interrupt()
