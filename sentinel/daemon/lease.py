"""Keeps the lease that makes this daemon the active one, and takes it when the active daemon stops renewing it.

Of several daemons on one database, one is active. It renews its lease by incrementing a counter in the database, from a
thread of its own; the others watch the counter. All times here are of CLOCK_BOOTTIME, which nobody sets and which goes
on while the host is suspended:

- the holder acts until nine tenths of ``lease_s`` after it *began* its last renewal that succeeded;
- another one takes the lease when it has *seen* no renewal for ``lease_s``.

So one daemon stops before the next begins, as far as a process can stop itself. A process that was frozen and resumed
is caught elsewhere: its transactions are rolled back (``sentinel.adapters.store.lease``), each write to Slurm checks
the database first and ends with the lease (``sentinel.adapters.slurm.fenced``), and the process restarts itself.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from sentinel.adapters.store.lease import LOST, DaemonRow, LeaseView
from sentinel.adapters.threads import Threads
from sentinel.daemon.clock import boottime_s
from sentinel.errors import SentinelError, Superseded, Unavailable
from sentinel.log import Log

_RENEWALS = 5  # renewals per length of a lease: a few may fail
RENEWAL_FRACTION = 0.4  # of the lease's length, that one may take: after one without an answer another comes in time
_CONFIRMING = 4  # requests to Slurm that ask the database at once whether they may change something
_ACTING_FRACTION = (
    0.9  # share of the length for which the holder acts; the rest covers clocks that run at different speeds
)


class LeaseStore(Protocol):
    """The methods of ``sentinel.adapters.store.store.Store`` that are needed here."""

    token: int | None

    def look_at_lease(self, own: DaemonRow | None = None) -> LeaseView: ...

    def take_lease(self, holder: str, seen: LeaseView) -> bool: ...

    def require_lease(self) -> None: ...

    def forget_daemons(self, holders: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A daemon on this database. ``silent_s``: seconds since this process saw its counter change."""

    row: DaemonRow
    active: bool
    silent_s: float


class Watch:
    """Measures, by this host's clock, for how long each daemon's counter has not changed."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[int, int, float]] = {}  # holder -> (its token, its count, time of that count in s)

    def looked(self, view: LeaseView) -> tuple[Peer, ...]:
        now_s = self._seconds()
        before, self._seen = self._seen, {}
        for row in view.daemons:
            known = before.get(row.holder)
            same = known is not None and known[:2] == (view.token, row.beats)
            self._seen[row.holder] = known if known is not None and same else (view.token, row.beats, now_s)
        if view.holder and view.active is None:  # no counter: an older release, or it died at once
            known = before.get(view.holder)
            self._seen[view.holder] = known if known and known[0] == view.token else (view.token, -1, now_s)
        return tuple(Peer(row, row.holder == view.holder, now_s - self._seen[row.holder][2]) for row in view.daemons)

    def holder_silent_s(self, view: LeaseView) -> float:
        """Seconds since the holder's counter changed, as of the last ``looked``; infinite if nobody holds the lease."""
        return self._seconds() - self._seen[view.holder][2] if view.holder else float("inf")


class Lease:
    """The lease, as seen and taken by this daemon."""

    def __init__(
        self,
        store: LeaseStore,
        own: DaemonRow,
        lease_s: float,
        log: Log,
        *,
        seconds: Callable[[], float] = boottime_s,
        superseded: Callable[[Superseded], None] = lambda _: None,
    ) -> None:
        """
        Args:
            superseded: called, in any thread, when another daemon has taken the lease from us.
        """
        self.every_s = lease_s / _RENEWALS
        self.lease_s = lease_s
        self.address = own.address
        self.peers: tuple[Peer, ...] = ()
        self._store = store
        self._threads = Threads("confirm-lease", _CONFIRMING)
        self._own = own
        self._log = log
        self._seconds = seconds
        self._superseded = superseded
        self._watch = Watch(seconds)
        self._another_renews = False
        self._until_s = float("-inf")
        self._newest = 0  # the token that was seen last while standing by: it only grows
        self._stopped = threading.Event()
        self._problem = ""
        self._turned_s = float("inf")  # when the event loop last ran

    @property
    def active(self) -> DaemonRow | None:
        """The active daemon as of the last read; None if it is not known."""
        return next((peer.row for peer in self.peers if peer.active), None)

    @property
    def other_addresses(self) -> tuple[str, ...]:
        """Of the other daemons of this database, as of the last read."""
        return tuple(peer.row.address for peer in self.peers if peer.row.holder != self._own.holder)

    @property
    def another_renews(self) -> bool:
        """Whether another daemon was seen to renew the lease: it is active, and not only named in the database."""
        return self._another_renews

    def shown(self) -> list[dict[str, Any]]:
        """All daemons as JSON, for views."""
        return [
            {
                "address": peer.row.address,
                "daemon": peer.row.holder,
                "state": "active" if peer.active else "standby",
                "version": peer.row.version,
                "silent_s": round(peer.silent_s, 1),
                "this": peer.row.holder == self._own.holder,
            }
            for peer in self.peers
            if peer.active or peer.silent_s < 2 * self.lease_s
        ]

    # --- standing by --------------------------------------------------------------------------------------------------

    def try_to_take(self) -> bool:
        """Read the lease once, and take it if nobody holds it or its holder is silent or gone. Blocking.

        Raises:
            Unavailable: the database does not answer.
        """
        began_s = self._seconds()
        view = self._look()
        if view.token < self._newest:
            why = f"the lease's token is {view.token}, and was {self._newest}: an older state of the database answers"
            self._log.warning("store-lost-content", reason=why, fix=LOST)
        self._newest = view.token
        silent_s = self._watch.holder_silent_s(view)
        ours = view.holder == self._own.holder  # taken before, and then we got no answer
        if silent_s < self.lease_s and not ours and not died_here(view.holder):
            return False
        if not self._store.take_lease(self._own.holder, view):
            return False
        try:
            self._took(view)
        except SentinelError:
            self._store.token = None  # else the next try, which takes it anew, would be of one that was superseded
            raise
        self._until_s = began_s + _ACTING_FRACTION * self.lease_s
        return True

    def _took(self, view: LeaseView) -> None:
        gone = [row.holder for row in view.daemons if row.holder == view.holder != self._own.holder]
        gone += [peer.row.holder for peer in self.peers if peer.silent_s > 10 * self.lease_s or _gone(peer, self._own)]
        # Rows of who is gone change nothing: the next one that takes the lease removes them.
        with suppress(Unavailable):
            self._store.forget_daemons(gone)
        self._look()

    def _look(self) -> LeaseView:
        self._own = replace(self._own, beats=self._own.beats + 1)
        view = self._store.look_at_lease(self._own)
        before, self.peers = self.active, self._watch.looked(view)
        active = self.active
        same = before is not None and active is not None and before.holder == active.holder != self._own.holder
        self._another_renews = same and (self._another_renews or before != active)
        return view

    # --- acting -------------------------------------------------------------------------------------------------------

    def left_s(self) -> float:
        """Seconds for which this daemon may act without another renewal; 0 or less: it must not act."""
        return self._until_s - self._seconds()

    @property
    def problem(self) -> str:
        """Why the lease is not ours by our clock, so that nothing may be done; empty while it is."""
        return "" if self.left_s() > 0 else self._problem or "the lease was not renewed in time"

    async def confirm(self) -> None:
        """Check, by our clock and in the database, that the lease is ours, before anything outside is changed.

        Raises:
            Superseded, Unavailable: it is not ours, or that is not known: nothing may be changed.
        """
        self._require()
        try:
            await self._threads.call(self._store.require_lease)
        except Superseded as error:
            self._superseded(error)
            raise
        self._require()

    def _require(self) -> None:
        if self.left_s() <= 0:
            why = self._problem or "it was not renewed in time"
            raise Unavailable(f"another daemon may be active: {why}", fix="sentinel status shows which is active")

    async def renewed(self) -> None:
        """Wait until the lease is ours by our clock."""
        while self.left_s() <= 0:
            await asyncio.sleep(self.every_s / 4)

    def keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew the lease in a thread until ``stop``, so that a busy event loop does not delay renewals.

        If the loop is blocked for the length of a lease, renewals stop and the lease expires: a daemon that does
        nothing must not stay active.
        """
        self._turned_s = self._seconds()
        thread = threading.Thread(target=self._renew_until_stopped, args=(loop,), name="lease", daemon=True)
        thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _renew_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        wait_s = self.every_s
        while not self._stopped.wait(wait_s):
            began_s = self._seconds()
            try:
                loop.call_soon_threadsafe(self._turned)
            except RuntimeError:  # the loop was closed
                return
            try:
                self.renew()
            except Exception:  # without this thread the daemon would run on and never act again
                self._log.bug("lease")
            wait_s = max(
                0.0, self.every_s - (self._seconds() - began_s)
            )  # what was not answered is tried again at once

    def _turned(self) -> None:
        self._turned_s = self._seconds()

    def renew(self) -> None:
        """Renew the lease once. Blocking."""
        began_s = self._seconds()
        still_s = began_s - self._turned_s
        turns = still_s <= self.lease_s
        try:
            self._look() if turns else self._store.require_lease()
        except Superseded as error:
            self._until_s = float("-inf")
            self._stopped.set()
            self._superseded(error)
        except SentinelError as error:
            self._troubled(error.message)
        else:
            if not turns:
                self._troubled(f"the event loop has stood still for {still_s:.1f} s")
                return
            self._until_s = began_s + _ACTING_FRACTION * self.lease_s
            if self._problem:
                self._log.info("lease-renewed-again")
            self._problem = ""

    def _troubled(self, reason: str) -> None:
        if not self._problem:
            self._log.warning("lease-not-renewed", reason=reason, acts_for_s=round(max(0.0, self.left_s()), 1))
        self._problem = reason


@cache
def this_place() -> str:
    """Identifies host name, boot and pid namespace: several containers may have the same host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}-{space}"


def died_here(holder: str) -> bool:
    """Whether the lease's holder was a process of this host that is gone; a holder with our own pid ran before us.

    A holder of another container or boot may still run elsewhere under the same host name: its lease must expire first.
    """
    place, _, pid = holder.rpartition(":")
    if place != this_place() or not pid.isdigit():
        return False
    return int(pid) == os.getpid() or _has_exited(int(pid))


def _has_exited(pid: int) -> bool:
    """Whether no thread of the process is left. It may be a zombie still: killed, and not yet waited for by its parent."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel without pidfd (before 5.3): the lease expires
        return False
    exits = select.poll()
    exits.register(process, select.POLLIN)
    try:
        return bool(exits.poll(0))
    finally:
        os.close(process)


def _gone(peer: Peer, own: DaemonRow) -> bool:
    return peer.row.holder != own.holder and died_here(peer.row.holder)
