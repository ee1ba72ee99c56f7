"""A node speaks only of itself: its address is one that Slurm gives for it, and what it states is about itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hanging_threads import all_threads_hang
from in_memory.server import Served, serving
from in_memory.world import World
from made_records import evidence, later

from sentinel import protocol
from sentinel.daemon.api import node_requests
from sentinel.daemon.api.node_addresses import NodeAddresses
from sentinel.daemon.ingest import fleets
from sentinel.detect.seen import AttemptSeen
from sentinel.engine.transition import Transition
from sentinel.engine.watch import reconciliation
from sentinel.errors import Unavailable
from sentinel.model.records import Fleet, Kind, NodeView, Source, Trust, Unread, Where
from sentinel.wire import to_json

OTHER = "192.0.2.9"  # no address of this host


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
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


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_before_slurm_was_read_nobody_is_a_node(served: Served, path: str, body: dict[str, Any]) -> None:
    """A daemon that starts while slurmctld is away: agents keep what they have, made-up nodes leave nothing behind."""
    fleet, served.daemon.live.fleet = served.daemon.live.fleet, None
    for name in ("ghost7", "n1"):
        answer = await served.post(path, {"node": name, **body})
        assert answer.status == 503 and "Slurm was not read yet" in answer.body["error"]
    assert served.daemon.live.nodes.keys() == set()
    served.daemon.live.fleet = fleet
    if path != protocol.ORDERS:  # which waits for an order
        assert (await served.post(path, {"node": "n1", **body})).status == 200


async def test_nodes_that_slurms_configuration_has_no_more_are_forgotten(served: Served) -> None:
    fleet = served.daemon.live.fleet
    assert fleet is not None
    for name in ("n1", "n4", "odd"):
        served.daemon.live.node(name).contact_s = 5.0
    nodes = {name: view for name, view in fleet.nodes.items() if name != "n4"}
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


async def test_a_site_may_only_log_it(world: Callable[..., World]) -> None:
    async with serving(world(), node_addresses="log") as served:
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


async def test_look_ups_that_hang_take_no_thread_of_others_and_wait_for_none() -> None:
    """Where no name server answers, each of a thousand nodes is looked up: nothing else would get a thread."""
    hanging = all_threads_hang()
    fleet = Fleet(at=later(0.0), nodes={"n1": NodeView(name="n1", state="idle", address="hsn")}, jobs={})
    addresses = NodeAddresses(lambda: fleet, lambda: 0.0, lambda _name: frozenset({OTHER}))
    assert await addresses.may_speak("n1", {OTHER}) is True and not hanging.asked


async def stored(served: Served, node: str, *items: Any, acknowledged: int | None = None) -> list[str]:
    body = {"node": node, "epoch": "e", "first": 1, "items": [to_json(item) for item in items]}
    answer = await served.post(protocol.EVIDENCE, body)
    assert answer.body == {"acknowledged": len(items) if acknowledged is None else acknowledged}
    return sorted(item.id for item in served.world.store.evidence_since(later(-1.0)))


def xid(name: str, **where: Any) -> Any:
    found = evidence(Kind.XID, id=name, data={"xid": 79})
    return dataclasses.replace(found, where=Where(**where), trust=Trust.SYSTEM)


async def test_a_node_states_nothing_about_another(served: Served) -> None:
    job = served.world.job  # on n1 and n2
    forged = [xid("node", node="n1"), xid("job", job=job, attempt=0), xid("both", node="n1", job=job, attempt=0)]
    said = dataclasses.replace(xid("said", node="n1"), source=Source.JOB_LOG)
    assert await stored(served, "n4", *forged, xid("own", node="n4"), said) == ["own"]
    value = served.daemon.telemetry.registry.get_sample_value
    assert value("sentinel_evidence_unreadable_total") == 4.0
    assert served.daemon.said.count("evidence-refused node=n4") == 1, "one line a minute, whatever a node sends"


@pytest.mark.parametrize("source", [Source.CHECKPOINT, Source.PROCESS, Source.AGENT])
async def test_a_node_states_nothing_about_another_by_calling_it_a_users_word(served: Served, source: Source) -> None:
    """Found as an attack: listings, or states of tasks, of another node of its job were taken with the trust of users."""
    job = served.world.job  # on n1 and n2
    forged, own = (
        dataclasses.replace(
            evidence(Kind.CHECKPOINTS_HELD, id=name, source=source, trust=Trust.USER),
            where=Where(node=node, job=job, attempt=0),
        )
        for name, node in (("forged", "n2"), ("own", "n1"))
    )
    assert await stored(served, "n1", forged, own) == ["own"]


def listing(name: str, size: int) -> Any:
    return evidence(Kind.CHECKPOINTS_HELD, id=name, source=Source.CHECKPOINT, node="n4", data={"listing": "x" * size})


@pytest.mark.parametrize(("size", "taken"), [(10, 16), (999, 3), (2000, 1), (5000, 1)])
async def test_of_many_packed_listings_few_are_unpacked_for_one_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, size: int, taken: int
) -> None:
    """Found as an attack: 2,000 of them in one request held the event loop for seconds. The rest is sent again."""
    monkeypatch.setattr(node_requests, "_MOST_LISTING_CHARACTERS", 3000)
    items = [listing(f"l{n:02}", size) for n in range(20 if size < 100 else 4)]
    last = xid("last", node="n4")
    assert len(await stored(served, "n4", *items, last, acknowledged=taken)) == taken
    assert len(await stored(served, "n4", items[taken], last)) == taken + 2


async def test_what_convicts_is_taken_behind_many_listings(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is away, so that the first item is not decided: the whole request comes again and again until it answers."""
    monkeypatch.setattr(node_requests, "_MOST_LISTINGS", 2)
    monkeypatch.setattr(served.nodes, "_hard", lambda item: item.kind == Kind.XID)

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("slurmctld does not answer")

    monkeypatch.setattr(served.daemon.fleets, "take_news", away)
    unknown = evidence("x", id="unknown", source=Source.AGENT, node="n4", job=9999, attempt=0)
    items = [unknown, *(listing(f"l{number}", 10) for number in range(4)), xid("bad", node="n4")]
    body = {"node": "n4", "first": 1, "items": [to_json(item) for item in items]}
    assert (await served.post(protocol.EVIDENCE, body)).status == 503
    assert [e.id for i in served.daemon.state.incidents.values() for e in i.evidence] == ["bad"]


async def test_of_each_node_one_request_at_a_time_is_taken_in(served: Served) -> None:
    holding, there = asyncio.Event(), asyncio.Event()
    allowed = served.nodes._allowed

    async def held(*arguments: Any) -> Any:
        there.set()
        await holding.wait()
        return await allowed(*arguments)

    served.nodes._allowed = held
    body = {"node": "n4", "first": 1, "items": [to_json(xid("x", node="n4"))]}
    first = asyncio.create_task(served.post(protocol.EVIDENCE, body))
    await there.wait()
    again = await served.post(protocol.EVIDENCE, body)
    assert again.status == 503 and "still being taken in" in again.body["error"]
    assert (await served.post(protocol.HEARTBEAT, {"node": "n4"})).status == 200
    holding.set()
    assert (await first).body == {"acknowledged": 1}
    assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": 1}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots for evidence about unknown jobs follow one another without a pause."""
    monkeypatch.setattr(fleets, "_NEWS_S", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_what_a_node_says_of_a_job_counts_only_if_slurm_has_the_job_on_it(served: Served) -> None:
    """Whether it names an attempt or not, and however the job's number was found: also of jobs that are yet to come."""
    job = served.world.job
    steps = [xid(f"a{n}", job=number, attempt=attempt) for n, (number, attempt) in enumerate(
        ((job, None), (job, 1), (job, 7), (job + 1, None), (job + 1, 0), (999_999, 3), (-1, 0))
    )]  # fmt: skip
    known = set(served.daemon.live.attempts)
    assert await stored(served, "n4", *steps) == []
    assert set(served.daemon.live.attempts) == known, "an attempt that nobody has would never be forgotten"
    assert await stored(served, "n1", xid("first", job=job, attempt=0), xid("any", job=job)) == ["any", "first"]


@pytest.mark.usefixtures("at_once")
async def test_evidence_of_a_job_that_began_just_now_waits_for_a_look_at_slurm(served: Served) -> None:
    job = served.world.slurm.submit(nodes=1)
    (node,) = served.world.slurm.jobs[job].on
    assert job not in served.daemon.live.fleet.jobs, "the newest snapshot is from before"
    other = next(name for name in served.daemon.live.fleet.nodes if name != node)
    assert await stored(served, node, xid("began", job=job, attempt=0)) == ["began"]
    assert await stored(served, other, xid("forged", job=job, attempt=0)) == ["began"]


@pytest.mark.usefixtures("at_once")
async def test_evidence_about_an_unknown_job_is_kept_by_its_sender_while_slurm_is_away(served: Served) -> None:
    """What came before it is taken in, and what convicts a node does not wait; nothing is lost or taken twice."""
    served.nodes._hard = lambda item: item.id == "lost"
    items = [xid(name, node="n4", **job) for name, job in (
        ("own", {}), ("new", {"job": 4242, "attempt": 0}), ("lost", {}), ("behind", {})
    )]  # fmt: skip
    served.world.slurm.answers = False
    assert await stored(served, "n4", *items, acknowledged=1) == ["lost", "own"]
    body = {"node": "n4", "epoch": "e", "first": 2, "items": [to_json(item) for item in items[1:]]}
    answer = await served.post(protocol.EVIDENCE, body)
    assert answer.status == 503 and "whether a job ran on n4 is not known" in answer.body["error"]
    served.world.slurm.answers = True
    assert await stored(served, "n4", *items[1:]) == ["behind", "lost", "own"], "Slurm has no job 4242"


@pytest.mark.usefixtures("at_once")
async def test_of_a_job_that_ended_long_ago_the_store_says_where_it_ran(served: Served) -> None:
    view = dataclasses.replace(served.daemon.live.fleet.jobs[served.world.job], id=77, nodes=("n4",))
    out = Transition()
    reconciliation.save_attempts(served.daemon.runner.state, out, [AttemptSeen(view=view, nodes=("n4",))])
    served.world.store.commit(out.changes)
    late = [xid(f"late{n}", job=77, attempt=n) for n in (0, 1)]
    assert await stored(served, "n4", *late) == ["late0"]
    assert await stored(served, "n3", xid("forged", job=77, attempt=0)) == ["late0"]


@pytest.mark.usefixtures("at_once")
async def test_what_names_no_attempt_of_a_job_that_is_not_known_yet_waits_for_what_tells_it(served: Served) -> None:
    """It was refused, and so lost: at a job's very start, and where it came late."""
    job = served.world.slurm.submit(nodes=1)
    (node,) = served.world.slurm.jobs[job].on
    view = dataclasses.replace(served.daemon.live.fleet.jobs[served.world.job], id=77, nodes=("n4",), restarts=2)
    out = Transition()
    reconciliation.save_attempts(served.daemon.runner.state, out, [AttemptSeen(view=view, nodes=("n4",))])
    served.world.store.commit(out.changes)
    served.world.slurm.answers = False
    body = {"node": node, "epoch": "e", "first": 1, "items": [to_json(xid("began", job=job))]}
    assert (await served.post(protocol.EVIDENCE, body)).status == 503
    served.world.slurm.answers = True
    assert await stored(served, node, xid("began", job=job)) == ["began"]
    assert await stored(served, "n4", xid("late", job=77)) == ["began", "late"]
    assert await stored(served, "n1", xid("forged", job=77), xid("other", job=job)) == ["began", "late"]
    assert {number for known, number in served.daemon.live.attempts if known == 77} == {2}


async def test_a_node_has_only_the_jobs_that_slurm_has_on_it(served: Served) -> None:
    """Each other one would be remembered until Slurm answers again, and have the end of a healthy job looked for."""
    job, watch = served.world.job, served.daemon.runner.state.watch
    forged = [{"job": job, "attempt": 0}, *({"job": number, "attempt": 0} for number in range(5000, 6000))]
    assert (await served.post(protocol.HEARTBEAT, {"node": "n4", "jobs": forged})).status == 200
    assert watch.was_on_nodes == set()
    assert (await served.post(protocol.HEARTBEAT, {"node": "n1", "jobs": forged[:1]})).status == 200
    assert watch.was_on_nodes == {(job, 0)}


@pytest.mark.parametrize("source", [Source.SLURM, Source.PROBE, Source.PROMETHEUS, Source.OPERATOR, Source.PROGRESS])
async def test_a_node_does_not_speak_as_the_daemon(served: Served, source: Source) -> None:
    job_ended = dataclasses.replace(evidence(Kind.XID, id="x", node="n1"), source=source, trust=Trust.SYSTEM)
    assert await stored(served, "n1", job_ended) == []
