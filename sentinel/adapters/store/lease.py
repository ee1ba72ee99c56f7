"""Decides which of several daemons on one database is active, without comparing clocks of hosts.

The holder of the lease counts up in a row of its own. Who stands by watches that row: when it has not changed for the
lease's length *by the watcher's own monotonic clock*, it takes the lease, which has a token that grows by one each time.
Every transaction of a daemon that acts ends with a look at the token, under a lock that a taker waits for: what an earlier
holder still writes is rolled back, whenever it wakes up. No times of two hosts are compared, and a clock that is set
changes nothing.

A database that daemons share may be replaced under a running one by a replica that lagged: it holds less than the daemon
wrote and remembers. The token that this one took is then not there, or another daemon's. Each transaction therefore also has
a number, counted in the daemon's row, and one that does not come after all those that the database has confirmed is rolled
back, too. A commit whose answer was lost may have been done: the row has the name of the daemon's last batch, by which that
is found out before the batch is written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from sentinel.adapters.store import tables as t
from sentinel.adapters.store.changes import insert_into, upsert
from sentinel.errors import ContentLost, Superseded
from sentinel.text import plain

ACTIVE = "active"
_FAR_FUTURE = datetime(9999, 1, 1, tzinfo=UTC)  # daemons of releases before take a lease whose time is over
_HELD = sa.select(t.lease.c.holder, t.lease.c.token).where(t.lease.c.name == ACTIVE)
LOST = (
    "was a replica promoted that lagged, or is an old primary back? Replicate synchronously, fence: docs/two-daemons.md"
)
_LOCKED = _HELD.with_for_update(read=True)


@dataclass(frozen=True, slots=True)
class DaemonRow:
    """One daemon, as it says of itself.

    Attributes:
        holder: host and process id.
        address: where it is asked.
        beats: how often it has counted up.
    """

    holder: str
    address: str
    version: str
    beats: int
    since: datetime


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The lease and all daemons, as of one transaction. ``holder``: empty when nobody has the lease."""

    holder: str
    token: int
    daemons: tuple[DaemonRow, ...]

    @property
    def active(self) -> DaemonRow | None:
        return next((row for row in self.daemons if row.holder == self.holder), None)


def look(connection: sa.Connection) -> LeaseView:
    row = connection.execute(_HELD).first()
    columns = (t.daemon.c.holder, t.daemon.c.address, t.daemon.c.version, t.daemon.c.beats, t.daemon.c.since)
    found = connection.execute(sa.select(*columns).order_by(t.daemon.c.since, t.daemon.c.holder))
    daemons = tuple(DaemonRow(*values) for values in found)
    return LeaseView(row.holder if row is not None else "", row.token if row is not None else 0, daemons)


def beat(connection: sa.Connection, own: DaemonRow, *, acts: bool) -> None:
    """Count up in our own row.

    ``acts``: we have the lease, and so the row; where it is not there, who took over removed it, or it is lost. Another one
    would say that we wrote nothing yet.
    """
    values = {name: getattr(own, name) for name in ("holder", "address", "version", "beats", "since")}
    if acts:
        connection.execute(sa.update(t.daemon).where(t.daemon.c.holder == own.holder).values(**values))
    else:
        upsert(connection, t.daemon, ["holder"], values)


def take(connection: sa.Connection, holder: str, seen: LeaseView) -> int | None:
    """The new token, when the lease is still as it was seen; None when somebody was faster.

    Waits for transactions of the holder that look at the token now.
    """
    first = insert_into(connection, t.lease).values(name=ACTIVE, holder="", until=_FAR_FUTURE, token=0)
    connection.execute(first.on_conflict_do_nothing())
    lease = t.lease.c
    as_seen = sa.and_(lease.name == ACTIVE, lease.token == seen.token, lease.holder == seen.holder)
    values = {"holder": holder, "until": _FAR_FUTURE, "token": seen.token + 1}
    taken = connection.execute(sa.update(t.lease).where(as_seen).values(**values))
    return seen.token + 1 if taken.rowcount == 1 else None


def leave(connection: sa.Connection, holder: str, token: int | None) -> None:
    """Give the lease back if it is ours, and be no daemon of this database any more."""
    ours = sa.and_(t.lease.c.name == ACTIVE, t.lease.c.holder == holder, t.lease.c.token == token)
    connection.execute(sa.update(t.lease).where(ours).values(holder=""))
    connection.execute(sa.delete(t.daemon).where(t.daemon.c.holder == holder))


def forget(connection: sa.Connection, holders: list[str]) -> None:
    """Rows of daemons that are gone."""
    connection.execute(sa.delete(t.daemon).where(t.daemon.c.holder.in_(holders)))


def count(connection: sa.Connection, holder: str, batch: str = "") -> int | None:
    """The number of this transaction among ours; its row is locked until the commit. None: we have no row.

    ``batch``: a name that is kept until the next one; empty: the one before stays.
    """
    commits, ours = t.daemon.c.commits, t.daemon.c.holder == holder
    values = {"commits": commits + 1} | ({"batch": batch} if batch else {})
    return connection.execute(sa.update(t.daemon).where(ours).values(**values).returning(commits)).scalar()


def number_with(connection: sa.Connection, holder: str, batch: str) -> int | None:
    """The number of our last transaction if the batch of this name is there; None: it is not, and will not be.

    Waits for a transaction of ours that the server still has: its commit may have been asked for.
    """
    row = t.daemon.c
    ours = sa.select(row.commits, row.batch).where(row.holder == holder).with_for_update()
    found = connection.execute(ours).first()
    return found.commits if found is not None and found.batch == batch else None


def counted(connection: sa.Connection, holder: str) -> int | None:
    """The number of the last transaction of ours that the database holds. None: we have no row."""
    return connection.execute(sa.select(t.daemon.c.commits).where(t.daemon.c.holder == holder)).scalar()


def require(connection: sa.Connection, holder: str, token: int) -> None:
    """The last statement of a transaction of the daemon with this token; the lock is held until its commit.

    Raises:
        Superseded: another daemon has the lease. ContentLost: the database does not know that this one took it: tokens
        only grow, and each is given to one daemon.
    """
    row = connection.execute(_LOCKED).first()
    found = row.token if row is not None else 0
    if row is None or found < token or (found == token and row.holder not in ("", plain(holder))):
        raise ContentLost(
            f"the database does not hold the lease that this daemon took: token {found} where it had {token}", fix=LOST
        )
    if found > token or not row.holder:
        raise Superseded(f"{row.holder or 'another daemon'} is the active daemon")
