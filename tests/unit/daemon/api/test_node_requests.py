"""A node speaks only of itself: its address is one that Slurm gives for it, and what it states is about itself."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from core_records import evidence, later
from core_server import Served, serving
from core_world import World

from sentinel import protocol
from sentinel.daemon.api.node_addresses import NodeAddresses
from sentinel.engine.transition import Transition
from sentinel.engine.watch import reconciliation
from sentinel.model.records import Fleet, Kind, NodeView, Source, Trust, Unread, Where
from sentinel.wire import to_json

OTHER = "192.0.2.9"  # no address of this host


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        await made.daemon.fleets.take()
        yield made


def move(served: Served, node: str, address: str) -> None:
    """Slurm has the node at another address."""
    fleet = served.daemon.live.fleet
    assert fleet is not None
    moved = dataclasses.replace(fleet.nodes[node], address=address)
    served.daemon.live.fleet = dataclasses.replace(fleet, nodes={**fleet.nodes, node: moved})


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (protocol.HEARTBEAT, {}),
    (protocol.EVIDENCE, {"first": 0, "items": []}),
    (protocol.ORDERS, {}),
    (protocol.ORDER_RESULT, {"id": "o1", "ok": True}),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_who_speaks_for_a_node_makes_up_no_others(served: Served, path: str, body: dict[str, Any]) -> None:
    """Thousands that fall silent at once would stop all judgement of silence; what is kept of each, the daemon."""
    answer = await served.post(path, {"node": "ghost7", **body})
    assert answer.status == 503 and "ghost7" in answer.body["error"], "its agent keeps what it has, and asks again"
    assert "ghost7" not in served.daemon.live.nodes


async def test_nodes_that_slurm_does_not_have_are_forgotten(served: Served) -> None:
    """They were named before the first snapshot, or Slurm's configuration has them no more."""
    fleet, served.daemon.live.fleet = served.daemon.live.fleet, None
    assert fleet is not None
    for name in ("ghost7", "n1", "odd"):
        assert (await served.post(protocol.HEARTBEAT, {"node": name})).status == 200
    nodes = {name: view for name, view in fleet.nodes.items() if name != "n4"}
    served.daemon.live.node("n4").contact_s = 5.0
    odd = Unread("node", "odd", "its address is no text")
    served.daemon.live.see_fleet(dataclasses.replace(fleet, nodes=nodes, unread=(odd,)))
    reconciliation.snapshot_taken(served.daemon.runner.state, Transition(), fleet.at)
    assert served.daemon.live.nodes.keys() == {"n1", "odd"}, "of a record that cannot be read nothing is known"


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_no_node_speaks_for_another(served: Served, path: str, body: dict[str, Any]) -> None:
    move(served, "n2", OTHER)
    answer = await served.post(path, {"node": "n2", **body})
    assert answer.status == 403 and OTHER in answer.body["error"] and "NodeAddr" in answer.body["fix"]
    assert "n2" not in served.daemon.live.nodes or served.daemon.live.nodes["n2"].state != "heard"
    if path != protocol.ORDERS:  # which waits for an order
        assert (await served.post(path, {"node": "n1", **body})).status == 200


async def test_the_host_that_made_the_credential_counts_as_well(served: Served) -> None:
    move(served, "n2", OTHER)
    served.credentials.address = OTHER
    assert (await served.post(protocol.HEARTBEAT, {"node": "n2"})).status == 200
    served.credentials.address = "127.0.0.1"  # some host's own name for itself
    assert (await served.post(protocol.HEARTBEAT, {"node": "n2"})).status == 403


async def test_a_name_is_resolved_and_what_is_not_known_refuses_nobody(served: Served) -> None:
    move(served, "n2", "n2-hsn")
    assert (await served.post(protocol.HEARTBEAT, {"node": "n2"})).status == 200  # no name server answers
    served.names["n3"], served.names["n3-hsn"] = frozenset(), frozenset({OTHER})
    move(served, "n3", "n3-hsn")
    assert (await served.post(protocol.HEARTBEAT, {"node": "n3"})).status == 403
    served.names["n4"], served.names["n4-hsn"] = frozenset({"127.0.0.1"}), frozenset({OTHER})
    move(served, "n4", "n4-hsn")
    assert (await served.post(protocol.HEARTBEAT, {"node": "n4"})).status == 200  # over another network
    served.daemon.live.fleet = None
    assert (await served.post(protocol.HEARTBEAT, {"node": "n3"})).status == 200


async def test_a_site_may_only_log_it(world: Callable[..., World]) -> None:
    async with serving(world(), node_addresses="log") as served:
        await served.daemon.fleets.take()
        move(served, "n2", OTHER)
        for _ in range(3):
            assert (await served.post(protocol.HEARTBEAT, {"node": "n2"})).status == 200
        assert served.daemon.said.count("node-speaks-from-elsewhere") == 1


async def test_addresses_are_kept_for_a_while() -> None:
    now_s, asked = 0.0, list[str]()

    def resolve(name: str) -> frozenset[str]:
        asked.append(name)
        return frozenset() if now_s > 100.0 else frozenset({OTHER})

    fleet = Fleet(at=later(0.0), nodes={"n1": NodeView(name="n1", state="idle", address="hsn")}, jobs={})
    addresses = NodeAddresses(lambda: fleet, lambda: now_s, resolve)
    assert await addresses.may_speak("n1", {OTHER}) is True
    now_s = 299.0
    assert await addresses.may_speak("n1", {OTHER}) is True
    assert asked == ["hsn"]
    now_s = 301.0
    assert await addresses.may_speak("n1", {OTHER}) is True  # its last ones, while no name server answers
    assert await addresses.may_speak("n1", {"198.51.100.1"}) is False
    assert await addresses.may_speak("n1", set()) is None and await addresses.may_speak("n9", {OTHER}) is None


async def stored(served: Served, node: str, *items: Any) -> list[str]:
    body = {"node": node, "epoch": "e", "first": 1, "items": [to_json(item) for item in items]}
    assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": len(items)}
    await served.daemon.runner.stop()
    return sorted(item.id for item in served.world.store.evidence_since(later(-1.0)))


async def test_a_node_states_nothing_about_another(served: Served) -> None:
    def xid(name: str, **where: Any) -> Any:
        found = evidence(Kind.XID, id=name, data={"xid": 79})
        return dataclasses.replace(found, where=Where(**where), trust=Trust.SYSTEM)

    job = served.world.job  # on n1 and n2
    forged = [xid("node", node="n1"), xid("job", job=job, attempt=0), xid("both", node="n1", job=job, attempt=0)]
    said = dataclasses.replace(xid("said", node="n1"), source=Source.JOB_LOG)
    unknown_job = xid("new", node="n4", job=job + 1, attempt=0)
    assert await stored(served, "n4", *forged, xid("own", node="n4"), said, unknown_job) == ["new", "own", "said"]
    assert served.daemon.said.count("evidence-unparsable node=n4") == 3


@pytest.mark.parametrize("source", [Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR])
async def test_a_node_does_not_speak_as_the_daemon(served: Served, source: Source) -> None:
    job_ended = dataclasses.replace(evidence(Kind.XID, id="x", node="n1"), source=source, trust=Trust.SYSTEM)
    assert await stored(served, "n1", job_ended) == []
