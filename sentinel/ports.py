"""The protocols through which stages and runners reach what is outside, kept as small as possible.

Reading and writing Slurm are two ports: what only holds a reader cannot drain a node by construction. Every method has a
deadline inside its adapter and raises ``Unavailable`` (or a child of it) when there is no answer: *not known*, never
"empty".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from sentinel.model.records import Fleet, JobView, NodeView, Notice
from sentinel.model.spares import Spares


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC."""
        ...


class SlurmReader(Protocol):
    async def fleet(self) -> Fleet:
        """All nodes and all jobs that slurmctld still knows, in a fixed number of requests.

        Raises:
            Unavailable: slurmctld did not answer, refused us, or answered something that cannot be parsed.
        """
        ...

    async def node(self, name: str) -> NodeView | None:
        """One node; None when slurmctld says that there is no such node."""
        ...

    async def job(self, job: int) -> JobView | None:
        """One job; None when slurmctld says that it does not know the id (purged, or never there)."""
        ...

    async def steps(self, job: int) -> Mapping[int, str]:
        """Names of the steps that a job runs now, by number, without its script's own. Names are a user's words."""
        ...

    async def version(self) -> str:
        """Release of slurmctld, e.g. "22.05.8"."""
        ...

    async def booted_at(self) -> datetime | None:
        """When the slurmctld that answers was started or, as a backup, took over, in whole seconds; None: not known."""
        ...

    async def spares(self, reservation: str) -> Spares | None:
        """The reservation of this name; None when slurmctld says that there is none."""
        ...


class SlurmWriter(Protocol):
    """Every method is one request. A repeated call that finds its effect in place succeeds."""

    async def drain(self, node: str, reason: str, *, replace: bool = False) -> None:
        """Take no new work. Raises Refused when the node already carries somebody else's drain reason.

        Args:
            replace: also the reason of an earlier drain of ours; else that stays as it is.
        """
        ...

    async def down(self, node: str, reason: str) -> None:
        """Set a dead node down: jobs on it end at once (NODE_FAIL), and it stays drained when it answers again."""
        ...

    async def explain(self, node: str, reason: str) -> None:
        """Our reason in the place of Slurm's own "Prolog error"; on a node that is off and has this reason, our drain anew.

        Raises Refused when any other reason is there.
        """
        ...

    async def undrain(self, node: str) -> None: ...

    async def requeue_hold(self, job: int, attempt: int | None = None) -> bool:
        """Requeue a running or finished job and hold it. Already pending counts as done (then held).

        A job that is cancelled, or that ends while this is asked, is left as it is: the next look shows which.

        Args:
            attempt: the newest attempt (restart count) that may be stopped; None: whichever runs.

        Raises:
            Unavailable: a later attempt runs, or has ended and is not on its way back to the queue. Nothing was changed.

        Returns:
            False: the job was held already, or is cancelled. A hold on it then is not the caller's, unless it asked before.
        """
        ...

    async def update_job(
        self,
        job: int,
        *,
        excluded: Sequence[str] | None = None,
        required: Sequence[str] | None = None,
        admin_comment: str | None = None,
        start_now: bool = False,
        size: tuple[int, int, int] | None = None,
        reservation: str | None = None,
        gone: Sequence[str] = (),
    ) -> None:
        """Change a pending job; ``excluded`` and ``required`` replace the lists (the caller gives the union).

        Args:
            gone: names that Slurm has no node of: the lists of a heterogeneous job's other components lose them, too.
            size: least and most nodes, and tasks, of an elastic job.
            reservation: it may start on the nodes of this one, too; its user needs access (``give_access``).
        """
        ...

    async def give_access(self, reservation: str, user: str) -> None:
        """Jobs of this user may ask for the reservation. Raises Refused when Slurm says no."""
        ...

    async def end_loan(self, job: int, reservation: str) -> None:
        """Remove the reservation from the job's request; its present nodes stay allocated."""
        ...

    async def end_access(self, reservation: str, user: str) -> None:
        """No job of this user may ask for the reservation any more."""
        ...

    async def defer(self, job: int) -> None:
        """A held, pending job is no longer held and starts a month from now; what is not held stays as it is."""
        ...

    async def release(self, job: int) -> None: ...

    async def end_step(self, job: int, step: int) -> None:
        """End one step of a running job; the job goes on. A step that is over is no error."""
        ...

    async def keep_nodes(self, job: int, nodes: Sequence[str]) -> None:
        """A running job keeps these of its nodes and gives the others back. Raises Refused when Slurm does not let it."""
        ...

    async def notify(self, job: int, text: str) -> None:
        """One line into the job's output; a job that is not running is not an error."""
        ...


class Fence(Protocol):
    """Says whether this daemon is the active one, which alone may change anything outside."""

    async def confirm(self) -> None:
        """Raises Unavailable when it is not, or when that is not known."""
        ...

    def left_s(self) -> float:
        """Seconds for which this holds without another check; 0 or less: it does not hold."""
        ...


class Sink(Protocol):
    """A receiver of notices: webhook, chat, pager or mail."""

    name: str

    async def send(self, notice: Notice) -> None:
        """Deliver once. Raises Unavailable when trying again can help, Refused when it cannot."""
        ...


@runtime_checkable
class StandingSink(Protocol):
    """A receiver that shows what is the case now, and forgets it when it restarts."""

    async def repeat(self, notices: Sequence[Notice], now: datetime) -> None:
        """Send again the newest message of each thread that is not over. Raises as ``Sink.send``."""
        ...


class Orders(Protocol):
    """Asks the agent of a node to do something and waits for its answer."""

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        """The agent's result (JSON).

        Raises:
            Unavailable: the agent is not connected, did not answer in time, or could not do it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Signed:
    """What a checked credential says.

    Attributes:
        address: IP address of the host that made it; empty: not known.
        made_s: when, as Unix time of that host; None: not known.
        lives_s: for how long it is good.
    """

    payload: bytes
    uid: int
    gid: int
    address: str = ""
    made_s: float | None = None
    lives_s: float = 300.0


class Credentials(Protocol):
    """Credentials that a peer on this cluster can check (MUNGE)."""

    def encode(self, payload: bytes) -> str: ...

    def encrypt(self, payload: bytes, uid: int) -> str:
        """A credential that only processes of this uid can decode, on any host of the cluster."""
        ...

    def decode(self, credential: str) -> Signed:
        """Check a credential.

        Raises:
            Denied: expired, replayed, rewound or not a credential of this cluster.
            Unavailable: munged does not answer.
        """
        ...
