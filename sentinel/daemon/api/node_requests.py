"""Answers the requests of nodes and of the controller's hooks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel import __version__, protocol
from sentinel.daemon.api.node_addresses import NodeAddresses
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.ingest.event_files import EVENT
from sentinel.daemon.ingest.heartbeats import heartbeat_of, reported_by_prolog
from sentinel.daemon.ingest.intake import Intake
from sentinel.daemon.ingest.lost_convictions import LostConvictions
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.daemon.ingest.stated import Allocations, as_received, may_state
from sentinel.daemon.ingest.unreported_jobs import UnreportedJobs
from sentinel.daemon.ingest.watched_folders import unread, watch_list
from sentinel.daemon.runner import Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.watch.events import ConnectionLost, NodeHeard, RequestDelayed, ResourceExhausted
from sentinel.errors import Denied, ProtocolError, Unavailable
from sentinel.log import Log
from sentinel.model.records import Evidence
from sentinel.ports import Clock
from sentinel.telemetry import Telemetry
from sentinel.text import whole_number
from sentinel.wire import MOST_NODE, evidence_from

_EVENT = re.compile(EVENT)
_REFUSED_S = 60.0  # at most one log line per node in this time about evidence that it may not state
# A listing of checkpoints costs the event loop up to 1 us a character when it is unpacked, and 0.5 ms; agents' have 96 KiB.
_MOST_LISTINGS, _MOST_LISTING_CHARACTERS = 16, 192 << 10  # in one request; the node sends the rest again
_DELAY_S = 0.1  # shorter delays of a request are not reported: heartbeats come every 2 s


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. ``addresses``: of the connection, and of the credential's host if the credential names it."""

    uid: int
    addresses: frozenset[str] = field(default=frozenset())


class NodeRequests:
    def __init__(
        self,
        *,
        live: ClusterView,
        runner: Runner,
        orders: OrderBook,
        telemetry: Telemetry,
        clock: Clock,
        log: Log,
        addresses: NodeAddresses,
        allocations: Allocations,
        prologs: Prologs,
        refuse_others: bool = True,
        hard: Callable[[Evidence], bool] = lambda _: False,
        convictions: LostConvictions | None = None,
    ) -> None:
        """``refuse_others``: whether a request from an address that is not the node's is refused, or only logged."""
        self._addresses = addresses
        self._refuse_others = refuse_others
        self._drain_modes: dict[tuple[str, ...], str] = {}  # by a node's partitions; cached, as each heartbeat needs it
        self._wrong_address_logged: set[str] = set()  # nodes for which a wrong address was logged
        self._live = live
        self._runner = runner
        self._intake = Intake(runner.observe, hard)
        self._hard = hard
        self._convictions = convictions
        self._allocations = allocations
        self._stating: set[str] = set()  # nodes of which evidence is being taken in
        self._refused_s: dict[str, float] = {}  # node -> when refused evidence was last logged
        self._instance = secrets.token_hex(4)  # nodes report their checkpoints again when this changes
        self._unreported = UnreportedJobs()
        self._prologs = prologs
        self._orders = orders
        self._telemetry = telemetry
        self._clock = clock
        self._log = log

    async def _sender(self, caller: Caller, body: dict[str, Any]) -> str:
        """The node that a request speaks for.

        Raises:
            Denied: it comes from an address that is not the node's. Unavailable: Slurm has no such node, or was not
            read yet; its agent keeps what it has until a snapshot shows it.
        """
        node = _node_of(body)
        if node is None:
            raise ProtocolError("node must be the node's name")
        seen = self._live.fleet
        # A sender could invent thousands of nodes, whose silence would suspend all checks for silent nodes.
        if seen is None:
            raise Unavailable("Slurm was not read yet: which nodes there are is not known")
        if not seen.may_have_node(node):
            raise Unavailable(f"Slurm has no node {node}", fix="set node in agent.toml to the NodeName of slurm.conf")
        if await self._addresses.may_speak(node, caller.addresses) is False:
            own = seen.nodes[node].address if node in seen.nodes else "another address"
            words = f"a request for {node} from {', '.join(sorted(caller.addresses))}, while Slurm has it at {own}"
            if self._refuse_others:
                raise Denied(words, fix='correct NodeAddr in slurm.conf, or set [daemon] node_addresses = "log"')
            if node not in self._wrong_address_logged:
                self._wrong_address_logged.add(node)
                self._log.warning("node-speaks-from-elsewhere", node=node, reason=words)
        return node

    def known_sender(self, addresses: Collection[str], body: dict[str, Any]) -> str | None:
        """The node that a request from these addresses speaks for; None if that is refused or needs a look-up."""
        node = _node_of(body)
        return node if node is not None and self._addresses.is_known(node, addresses) else None

    async def heartbeat(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        return self.beat(await self._sender(caller, body), body)

    def beat(self, node: str, body: dict[str, Any]) -> dict[str, Any]:
        """Process a heartbeat of this node and return the answer.

        Raises:
            ProtocolError: the heartbeat is malformed; nothing was changed.
        """
        now = self._clock.now()
        now_s = self._runner.seconds()
        heartbeat = heartbeat_of(node, body, now, now_s)
        self._runner.handle(heartbeat)
        self._prologs.refusals.heard(node, body.get("refused"), now, self._live)
        seen = self._live.node(node)
        watched = watch_list(self._live, node, body.get("jobs"))
        answer: dict[str, Any] = {"at": now}
        if watched:
            answer["watch"], answer["instance"] = watched, self._instance
            answer["unread"] = unread(self._live, watched)
        if seen.beat_s is not None:
            answer["beat_s"] = seen.beat_s
        if seen.released_at is not None:
            answer["released_at"] = seen.released_at
        fleet = self._live.fleet
        view = fleet.nodes.get(node) if fleet is not None else None
        in_service = view is not None and not view.drained and view.state != "down"
        lost = self._convictions.heard(node, heartbeat.verdict, now_s) if self._convictions and in_service else ()
        if lost:
            answer["send_again"] = lost
        if fleet is not None and view is not None:
            if isinstance(body.get("jobs"), list):
                if found := self._unreported.of(fleet, node, heartbeat.jobs, now, now_s):
                    answer["unreported"] = found
                if (by_prolog := reported_by_prolog(body["jobs"])) is not None:
                    self._prologs.heard(node, self._unreported.running(fleet, node), by_prolog, fleet.at, now)
            if over := self._unreported.over(fleet, node, heartbeat.jobs, now_s):
                answer["over"] = over
            # Slurm drains a node whose prolog refuses: not allowed in mode suggest, which asks for approval first.
            if view.partitions not in self._drain_modes:
                acts = self._runner.state.settings.modes.of(view.partitions).drain == "act"
                self._drain_modes[view.partitions] = "act" if acts else "observe"
            answer["drain_mode"] = self._drain_modes[view.partitions]
        return answer

    async def evidence(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Take in what a node states, one request of each node at a time: an agent waits for the answer.

        Raises:
            ProtocolError: the request is malformed. Unavailable: another request of the node is being taken in, or
            whether its job ran there is not known.
        """
        node, first, items = await self._sender(caller, body), body.get("first"), body.get("items")
        if not isinstance(first, int) or not isinstance(items, list):
            raise ProtocolError("first must be a number and items a list")
        now = self._clock.now()
        self._prologs.refusals.heard(node, body.get("refused"), now, self._live)  # of a prolog without an agent
        if node in self._stating:
            raise Unavailable(f"a request of {node} is still being taken in", fix="it is sent again by itself")
        self._stating.add(node)
        try:
            return {"acknowledged": first + await self._stated(node, items) - 1}
        finally:
            self._stating.discard(node)

    async def _stated(self, node: str, items: Sequence[Any]) -> int:
        """Take in a node's items; returns how many, from the first on, need not be sent again."""
        stated: list[Evidence | None] = []
        now = self._clock.now()
        for item in items:
            try:
                stated.append(as_received(self._live, node, evidence_from(item), now))
            except ProtocolError as error:
                # Acknowledged nevertheless: sending it again would not help and would block later items.
                stated.append(None)
                self._refuse(node, error.message + self._other_release(node))
        affordable = _affordable(stated)
        self._runner.handle(NodeHeard(now, node, self._runner.seconds()))
        allowed = await self._allowed(node, stated)
        # Items from the first undecided one on will be sent again; of these only convicting ones are taken now.
        known = min(affordable, allowed.index(None) if None in allowed else affordable)
        taken = [
            item
            for place, (item, may) in enumerate(zip(stated, allowed, strict=True))
            if item is not None and may and (place < known or self._hard(item))
        ]
        await self._intake.take(taken)
        if known == 0 and stated:
            raise Unavailable(f"whether a job ran on {node} is not known", fix="it is sent again by itself")
        return known

    async def _allowed(self, node: str, stated: list[Evidence | None]) -> list[bool | None]:
        """For each item, whether the node may state it; None: not known now. Those that name no attempt get theirs."""
        allowed = [item is not None and may_state(self._live, node, item) for item in stated]
        asked = [
            (item.where.job, item.where.attempt)
            if item is not None and may is None and item.where.job is not None
            else None
            for item, may in zip(stated, allowed, strict=True)
        ]
        if any(asked):
            ran = await self._allocations.ran_on(node, dict.fromkeys(filter(None, asked)))
            for place, (key, item) in enumerate(zip(asked, stated, strict=True)):
                if key in ran and item is not None:
                    allowed[place] = (attempt := ran[key]) is not None
                    stated[place] = replace(item, where=replace(item.where, attempt=attempt))
        for item, may in zip(stated, allowed, strict=True):
            if item is not None and may is False:
                self._refuse(node, f"{node} may not state {item.kind} of {item.source} about {item.where}")
        return allowed

    def _other_release(self, node: str) -> str:
        """Which releases the two sides have, where they differ; empty where they do not, or no heartbeat has told."""
        theirs = self._live.node(node).version
        if theirs in ("", __version__):
            return ""
        return f". Its agent has release {theirs}, the daemon {__version__}: upgrade the older one"

    def _refuse(self, node: str, reason: str) -> None:
        self._telemetry.unreadable.inc()
        now_s = self._runner.seconds()
        if now_s - self._refused_s.get(node, float("-inf")) >= _REFUSED_S:
            self._refused_s[node] = now_s
            self._log.warning("evidence-refused", node=node, reason=reason)

    async def poll_orders(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        node = await self._sender(caller, body)
        self._runner.handle(NodeHeard(self._clock.now(), node, self._runner.seconds()))
        finished = False
        try:
            orders = await self._orders.wait(node, protocol.LONG_POLL_S)
            finished = True
        finally:
            if not finished:
                self._runner.handle(ConnectionLost(self._clock.now(), node))
        return {"orders": orders}

    def end_polls(self) -> None:
        """Answer the agents that wait for orders, each of which has a request open for ``LONG_POLL_S``."""
        self._orders.close()

    async def order_result(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        node = await self._sender(caller, body)
        self._orders.result(
            node, str(body.get("id")), body.get("ok") is True, body.get("result"), str(body.get("error", ""))
        )
        return {}

    async def event(self, _caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Process an event reported by a hook of slurmctld.

        Raises:
            ProtocolError: the request names no event.
        """
        event, environment = body.get("event"), body.get("environment")
        if not isinstance(event, str) or not _EVENT.fullmatch(event):
            raise ProtocolError("event must be its name, as job_ended")
        job = whole_number(str(environment.get("SLURM_JOB_ID", ""))) if isinstance(environment, dict) else None
        # Slurm is queried after the hook has its answer: a hook must not wait for Slurm.
        self._runner.report(event, {job} if job is not None else ())
        return {}

    def delayed(self, for_s: float) -> None:
        """Report that requests wait for munged, so that heartbeats are late; short waits are ignored."""
        if for_s >= _DELAY_S:
            self._runner.handle(RequestDelayed(self._clock.now(), for_s))

    def exhausted(self, why: str) -> None:
        """Report that this host can accept no more connections, so that missing heartbeats prove nothing."""
        self._runner.handle(ResourceExhausted(self._clock.now(), why))


def _affordable(items: Sequence[Evidence | None]) -> int:
    """How many items, from the first on, hold no more packed listings than one request may; one in any case."""
    count = characters = 0
    for place, item in enumerate(items):
        listing = item.data.get("listing") if item is not None else None
        if isinstance(listing, str):
            count, characters = count + 1, characters + len(listing)
            if place and (count > _MOST_LISTINGS or characters > _MOST_LISTING_CHARACTERS):
                return place
    return len(items)


def _node_of(body: dict[str, Any]) -> str | None:
    """The node that a request names; None if that is not a node name."""
    node = body.get("node")
    named = isinstance(node, str) and 0 < len(node) <= MOST_NODE and node.isprintable()
    return node if named else None
