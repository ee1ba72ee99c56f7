"""Bounds the server's connections: their number, how many may be idle, and for how long.

Anybody who reaches the port can open connections. Connections of authenticated nodes and operators, and connections
with a request in progress whose sender is known, are never closed in favour of a new one. Of the others, the address
that has the most of them loses the one that has waited longest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum


class _State(Enum):
    NEW = "no whole header yet"
    ASKING = "a request under way, of whom is not known"
    BUSY = "a request under way of somebody who is known"
    IDLE = "between two requests"


@dataclass(slots=True)
class _Connection:
    peer: str
    close: Callable[[], None]
    state: _State
    since_s: float
    trusted: bool = False


class Connections:
    """The table of open connections.

    Args:
        most: limit of all connections. most_waiting: limit of connections that wait for a request or its
        authentication, and are not known to be trusted. most_waiting_per_peer: the same limit for one address.
        header_s: longest time from opening a connection to the end of the first header. idle_s: longest time from the
        end of a request to the next one. seconds: a monotonic clock. full: called when a connection is refused because
        all others are trusted or busy.
    """

    def __init__(
        self,
        *,
        most: int,
        most_waiting: int,
        most_waiting_per_peer: int,
        header_s: float,
        idle_s: float,
        seconds: Callable[[], float],
        full: Callable[[], None] = lambda: None,
    ) -> None:
        self.closed = 0  # connections closed in favour of a new one
        self.overdue = 0
        self.refused = 0
        self._most = most
        self._most_waiting = most_waiting
        self._most_waiting_per_peer = most_waiting_per_peer
        self._header_s = header_s
        self._idle_s = idle_s
        self._seconds = seconds
        self._full = full
        self._all: dict[Hashable, _Connection] = {}
        # Connections that may be closed in favour of a new one, by address; the longest waiting first.
        self._waiting_of: dict[str, dict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def opened(self, key: Hashable, peer: str, close: Callable[[], None]) -> None:
        """Add a new connection; if there are too many, close another one or, if none may be closed, this one."""
        if len(self._all) >= self._most and not self._close_first(self._of_busiest_peer()):
            self.refused += 1
            close()
            self._full()
            return
        self._all[key] = _Connection(peer, close, _State.NEW, self._seconds())
        self._wait(key)
        self._bound(peer)

    def began(self, key: Hashable) -> None:
        """A request's header arrived."""
        self._turn(key, _State.ASKING)

    def proved(self, key: Hashable) -> None:
        """The sender of the request in progress was authenticated."""
        self._turn(key, _State.BUSY)

    def trust(self, key: Hashable) -> None:
        """The sender of the request in progress speaks for nodes or is an operator."""
        if (found := self._all.get(key)) is not None:
            found.trusted = True

    def ended(self, key: Hashable) -> None:
        """The request was answered."""
        self._turn(key, _State.IDLE)
        if (found := self._all.get(key)) is not None:
            self._bound(found.peer)

    def lost(self, key: Hashable) -> None:
        found = self._all.pop(key, None)
        if found is not None:
            self._stop_waiting(key, found.peer)

    def close_overdue(self) -> None:
        """Close connections that have waited too long for a header. Called about once a second."""
        now_s = self._seconds()
        for key, found in list(self._all.items()):
            limit_s = self._header_s if found.state is _State.NEW else self._idle_s
            if found.state in (_State.NEW, _State.IDLE) and now_s - found.since_s > limit_s:
                self.overdue += 1
                self._close(key)

    def _turn(self, key: Hashable, state: _State) -> None:
        found = self._all.get(key)
        if found is None:
            return  # closed meanwhile
        found.state, found.since_s = state, self._seconds()
        self._stop_waiting(key, found.peer)
        if state is not _State.BUSY and not found.trusted:
            self._wait(key)

    def _wait(self, key: Hashable) -> None:
        self._waiting_of.setdefault(self._all[key].peer, {})[key] = None

    def _stop_waiting(self, key: Hashable, peer: str) -> None:
        of_peer = self._waiting_of.get(peer)
        if of_peer is not None:
            of_peer.pop(key, None)
            if not of_peer:
                del self._waiting_of[peer]

    def _bound(self, peer: str) -> None:
        if len(self._waiting_of.get(peer, ())) > self._most_waiting_per_peer:
            self._close_first(self._waiting_of[peer])
        elif sum(map(len, self._waiting_of.values())) > self._most_waiting:
            self._close_first(self._of_busiest_peer())

    def _of_busiest_peer(self) -> dict[Hashable, None]:
        """Waiting connections of the address that has the most: a flood from few addresses closes its own."""
        return max(self._waiting_of.values(), key=len, default={})

    def _close_first(self, waiting: dict[Hashable, None]) -> bool:
        key = next(iter(waiting), None)
        if key is None:
            return False
        self.closed += 1
        self._close(key)
        return True

    def _close(self, key: Hashable) -> None:
        close = self._all[key].close
        self.lost(key)
        close()


def open_files_limit(wanted: int, files: int, reserve: int) -> int:
    """How many connections this process may have: one descriptor each, with ``reserve`` kept for other uses."""
    return max(1, min(wanted, files - reserve))
