"""Requests: who made them, for what, once; and what nodes, hooks and people get for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial

import aiohttp
import pytest
from in_memory.server import NODE, OPERATOR, RESEARCHER, FakeCredentials, Served, serving
from in_memory.world import World
from made_records import evidence, later

from sentinel import protocol
from sentinel.adapters.client import DaemonClient
from sentinel.engine.events import Event
from sentinel.engine.watch.events import ConnectionLost, NodeHeard
from sentinel.errors import Denied, Refused, Unavailable, UserError
from sentinel.model.records import Kind, Source
from sentinel.text import plain
from sentinel.wire import to_json

FOR_NODES = (protocol.HEARTBEAT, protocol.EVIDENCE, protocol.ORDERS, protocol.ORDER_RESULT, protocol.EVENT)
ALL = (*FOR_NODES, protocol.VIEW, protocol.CHANGE)
STATUS = {"view": "status"}


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        yield made


# --- who asks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL)
async def test_request_without_a_credential_is_denied(served: Served, path: str) -> None:
    answer = await served.post(path, credential="")
    assert answer.status == 403 and protocol.HEADER in answer.body["error"] and answer.body["fix"]
    assert served.daemon.live.nodes == {} and "request-denied" in served.daemon.said


async def test_credential_is_good_once(served: Served) -> None:
    first = await served.post(protocol.VIEW, STATUS)
    again = await served.post(protocol.VIEW, STATUS, credential=first.credential)
    assert (first.status, again.status) == (200, 403)


async def test_credential_is_for_one_path_and_one_body(served: Served) -> None:
    def signed(path: str, body: object) -> str:
        return FakeCredentials(NODE).encode(protocol.digest_of(path, json.dumps(body).encode()))

    node = {"node": "n1"}
    other_path = await served.post(protocol.HEARTBEAT, node, credential=signed(protocol.ORDER_RESULT, node))
    other_body = await served.post(protocol.HEARTBEAT, {"node": "n2"}, credential=signed(protocol.HEARTBEAT, node))
    for answer in (other_path, other_body):
        assert answer.status == 403 and "another request" in answer.body["error"]
    assert served.daemon.live.nodes == {}


async def test_forged_credential_is_denied(served: Served) -> None:
    for forged in ("x", "a:b:c", "0:1", "\u00ff"):
        assert (await served.post(protocol.VIEW, STATUS, credential=forged)).status == 403


@pytest.mark.parametrize("uid", [OPERATOR, RESEARCHER])
@pytest.mark.parametrize("path", FOR_NODES)
async def test_only_trusted_accounts_speak_for_nodes(served: Served, path: str, uid: int) -> None:
    answer = await served.post(path, {"node": "n1"}, uid=uid)
    assert answer.status == 403 and f"uid {uid}" in answer.body["error"] and served.daemon.live.nodes == {}


@pytest.mark.parametrize("uid", [NODE, RESEARCHER])
async def test_only_operators_change_state(served: Served, uid: int) -> None:
    change = {"change": "drain", "arguments": {"node": "n1", "reason": "fan"}}
    client = DaemonClient(served.url, served.signers[uid])
    with pytest.raises(Denied, match=f"uid {uid} may not do this") as caught:
        await asyncio.get_running_loop().run_in_executor(None, client.post, protocol.CHANGE, change)
    client.close()
    assert caught.value.signed, "the daemon's own word, so that it is known that nothing was done"
    assert served.world.slurm.calls == []
    answer = await served.post(protocol.CHANGE, change, uid=OPERATOR)
    assert answer.status == 200 and answer.body["drained"] is True
    assert served.world.slurm.nodes["n1"].drained


async def test_answer_is_signed_for_its_request(served: Served) -> None:
    answer = await served.post(protocol.VIEW, STATUS)
    signed = FakeCredentials(0).decode(answer.signature)
    assert signed.uid == 0 and signed.payload == protocol.digest_of(answer.credential, answer.raw)


async def test_munge_that_is_gone_is_no_answer_and_not_a_refusal(served: Served) -> None:
    served.credentials.answers = False
    answer = await served.post(protocol.VIEW, STATUS)
    assert answer.status == 503 and "MUNGE" in answer.body["error"]


# --- what they send ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b'{"node": "\xff"}', b"[]", b"7", b"null", b'"x"', b"[" * 4000, b"1" * 4000],
    ids=lambda raw: repr(raw[:4]),
)
async def test_body_that_is_no_object(served: Served, path: str, raw: bytes) -> None:
    answer = await served.post(path, raw=raw, uid=0)
    assert answer.status == 400 and "JSON" in answer.body["error"]


async def test_body_that_is_too_large(served: Served) -> None:
    body = {"node": "n1", "first": 0, "items": ["x" * (1 << 16)]}
    assert (await served.post(protocol.EVIDENCE, body)).status == 413
    assert served.daemon.live.nodes == {}


@pytest.mark.parametrize("path", [protocol.HEARTBEAT, protocol.EVIDENCE, protocol.ORDERS, protocol.ORDER_RESULT])
@pytest.mark.parametrize("node", [None, "", 7, ["n1"], "n" * 256, "n1\nERROR bug"])
async def test_node_must_be_a_name(served: Served, path: str, node: object) -> None:
    answer = await served.post(path, {"node": node, "first": 0, "items": []})
    assert answer.status == 400 and "name" in answer.body["error"] and served.daemon.live.nodes == {}


@pytest.mark.parametrize(("view", "arguments"), [("ghost", {}), (None, []), ("nodes", {"node": "ghost"}), ("why", 7)])
async def test_wrong_view_is_told_with_its_fix(served: Served, view: object, arguments: object) -> None:
    answer = await served.post(protocol.VIEW, {"view": view, "arguments": arguments}, uid=RESEARCHER)
    assert answer.status in (400, 422) and answer.body["fix"]


# --- nodes -------------------------------------------------------------------------------------------------------------


async def test_heartbeat(served: Served) -> None:
    body: dict[str, object] = {
        "node": "n1", "version": "1" * 99, "at": later(-2.5).isoformat(), "verdict": {"state": "good"},
        "spool": {"pending": 3, "dropped": 4, "given_up": 1}, "kernel_readable": False,
        "jobs": [{"job": (job := served.world.slurm.submit(nodes=2)), "attempt": 0}],
    }  # fmt: skip
    answer = await served.post(protocol.HEARTBEAT, body)
    assert answer.body == {"at": to_json(later(0.0)), "drain_mode": "act"}, "its partition's mode: the prolog obeys it"
    seen = served.daemon.live.nodes["n1"]
    assert (seen.state, seen.clock_offset_s, seen.verdict) == ("heard", -2.5, {"state": "good"})
    assert (seen.kernel_readable, seen.lost, len(seen.version)) == (False, 5, 40)
    while job not in served.daemon.live.fleet.jobs:
        await asyncio.sleep(0)
    assert served.daemon.live.nodes_of(job, 0) == ("n3", "n4")  # its job was worth a look


async def test_heartbeat_of_a_job_that_falls_silent_is_wanted_again_soon(served: Served) -> None:
    daemon, job = served.daemon, served.world.job
    await daemon.fleets.take()
    for number in range(30):
        item = evidence(Kind.STEP, at_s=number - 29.0, source=Source.JOB_LOG, job=job, attempt=0, data={"step": number})
        daemon.live.note(item)
    log = {"job": job, "attempt": 0, "looked_ago_s": 0.5}

    async def beat(at_s: float) -> dict[str, object]:
        served.world.slurm.clock.at = later(at_s)
        body = {"node": "n1", "boot_id": "b", "sent_s": 70.0 + at_s, "logs": [log, {"job": "torn"}]}
        answer = (await served.post(protocol.HEARTBEAT, body)).body
        return {name: value for name, value in answer.items() if name not in ("at", "drain_mode")}

    assert await beat(0.5) == {} and await beat(2.5) == {}
    assert await beat(4.5) == {"beat_s": 0.5}
    assert daemon.live.attempts[job, 0].observed.silent_s == pytest.approx(3.5)  # since the line was known here
    log["job"], before = 999, daemon.live.attempts[job, 0].observed
    assert await beat(6.5) == {} and daemon.live.attempts[job, 0].observed == before


async def test_nobody_but_a_node_of_the_job_speaks_for_its_log(served: Served) -> None:
    daemon, job = served.daemon, served.world.job
    await daemon.fleets.take()
    body = {"node": "n4", "boot_id": "b", "sent_s": 1.0, "logs": [{"job": job, "attempt": 0, "looked_ago_s": 0.0}]}
    await served.post(protocol.HEARTBEAT, body)
    assert daemon.live.attempts[job, 0].observed.through_s is None
    await served.post(protocol.HEARTBEAT, {**body, "node": "n1"})
    assert daemon.live.attempts[job, 0].observed.through_s is not None


async def test_torn_heartbeat_counts_and_its_parts_are_not_known(served: Served) -> None:
    body: dict[str, object] = {
        "node": "n1",
        "verdict": "torn",
        "spool": [1],
        "jobs": [{"job": [], "attempt": {}}],
        "version": None,
    }
    assert (await served.post(protocol.HEARTBEAT, body)).status == 200
    seen = served.daemon.live.nodes["n1"]
    assert (seen.state, seen.clock_offset_s, seen.verdict) == ("heard", None, {})
    assert (seen.kernel_readable, seen.lost) == (None, None)
    assert (await served.post(protocol.HEARTBEAT, {"node": "n1", "at": "noon"})).status == 400


async def test_evidence_is_acknowledged_once_it_is_stored(served: Served) -> None:
    item = evidence(Kind.XID, node="n1", data={"xid": 43}, text="NVRM: Xid 43")
    body = {"node": "n1", "epoch": "e", "first": 40, "items": [to_json(item), "torn", {"id": 7}]}
    for _ in range(2):
        assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": 42}
    assert served.world.store.evidence_since(later(-1.0)) == [item]
    value = served.daemon.telemetry.registry.get_sample_value
    assert value("sentinel_evidence_unreadable_total") == 4.0
    assert served.daemon.said.count("evidence-refused node=n1") == 1
    await served.daemon.runner.stop()


HOSTILE = "a\0b \ud800 \udcff"


async def test_one_hostile_item_hides_no_other_and_is_kept_where_it_can_be(served: Served) -> None:
    """NUL and half a pair are JSON; no database, terminal or receiver takes them. A number may have no end."""
    good = [evidence(Kind.XID, node="n1", data={"xid": number}) for number in (43, 48)]
    hostile = to_json(evidence(Kind.XID, node="n1", id="hostile", text=HOSTILE, data={HOSTILE: HOSTILE}))
    endless = [to_json(evidence(id=f"big{n}")) | {"where": {name: 2**70}} for n, name in enumerate(("job", "attempt"))]
    body = {"node": "n1", "epoch": "e", "first": 1, "items": [to_json(good[0]), hostile, *endless, to_json(good[1])]}
    assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": 5}
    seen = {item.id: item for item in served.world.store.evidence_since(later(-1.0))}
    assert set(seen) == {good[0].id, good[1].id, "hostile"} and seen["hostile"].text == plain(HOSTILE)
    assert served.daemon.said.count("evidence-refused node=n1") == 1
    await served.daemon.runner.stop()
    assert served.daemon.bugs() == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            protocol.HEARTBEAT,
            {"node": "n1", "version": HOSTILE, "verdict": {HOSTILE: HOSTILE}, "jobs": [{"job": HOSTILE}]},
        ),
        (protocol.EVENT, {"event": HOSTILE, "environment": {"SLURM_JOB_NAME": HOSTILE, "SLURM_JOB_ID": HOSTILE}}),
        (protocol.ORDER_RESULT, {"node": "n1", "id": HOSTILE, "ok": False, "error": HOSTILE, "result": HOSTILE}),
        (protocol.VIEW, {"view": HOSTILE, "arguments": {}}),
        (protocol.VIEW, {"view": "nodes", "arguments": {"node": HOSTILE}}),
        (protocol.VIEW, {"view": "why", "arguments": {"incident": HOSTILE}}),
        (protocol.VIEW, {"view": "history", "arguments": {"user": HOSTILE}}),
        (protocol.VIEW, {"view": "jobs", "arguments": {"job": 2**70}}),
        (protocol.CHANGE, {"change": HOSTILE, "arguments": {}}),
        (protocol.CHANGE, {"change": "drain", "arguments": {"node": HOSTILE, "reason": HOSTILE}}),
        (protocol.CHANGE, {"change": "drain", "arguments": {"node": "n1", "reason": HOSTILE}}),
        (protocol.CHANGE, {"change": "release", "arguments": {"node": HOSTILE}}),
    ],
)
async def test_hostile_text_in_any_request_is_an_answer(served: Served, path: str, body: object) -> None:
    answer = await served.post(path, body, uid=0)
    assert answer.status in (200, 400, 422), answer.body
    status = await served.post(protocol.VIEW, STATUS)
    assert status.status == 200 and served.daemon.bugs() == 0


async def test_a_path_comes_back_to_its_node_with_its_bytes(served: Served) -> None:
    asked = asyncio.create_task(served.orders.ask("n1", "inventory", {"path": "/s/\udcff"}, deadline_s=60.0))
    await asyncio.sleep(0)
    (order,) = (await served.post(protocol.ORDERS, {"node": "n1"})).body["orders"]
    assert order["arguments"] == {"path": "/s/\udcff"}
    result = {"node": "n1", "id": order["id"], "ok": True, "result": {"path": "/s/\udcff"}}
    assert (await served.post(protocol.ORDER_RESULT, result)).status == 200
    assert await asked == {"path": "/s/\udcff"}


@pytest.mark.parametrize("torn", [{"first": "0", "items": []}, {"items": []}, {"first": 0, "items": {}}, {"first": 0}])
async def test_torn_batch_is_not_acknowledged(served: Served, torn: dict[str, object]) -> None:
    answer = await served.post(protocol.EVIDENCE, {"node": "n1", **torn})
    assert answer.status == 400 and "acknowledged" not in answer.body


async def test_store_that_does_not_answer_acknowledges_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(_changes: object) -> None:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(served.world.store, "commit", commit)
    items = [to_json(evidence(Kind.XID, node="n1"))]
    answer = await served.post(protocol.EVIDENCE, {"node": "n1", "first": 0, "items": items})
    assert answer.status == 503 and "store" in answer.body["error"]


async def test_order_goes_to_its_node_and_its_result_comes_back(served: Served) -> None:
    asked = asyncio.create_task(served.orders.ask("n1", "task_states", {"job": 7}, deadline_s=60.0))
    await asyncio.sleep(0)
    (order,) = (await served.post(protocol.ORDERS, {"node": "n1"})).body["orders"]
    assert (order["kind"], order["arguments"]) == ("task_states", {"job": 7}) and 0.0 < order["deadline_s"] <= 60.0
    result = {"node": "n1", "id": order["id"], "ok": True, "result": {"tasks": []}}
    assert (await served.post(protocol.ORDER_RESULT, result)).body == {}
    assert await asked == {"tasks": []}
    assert served.daemon.live.nodes["n1"].state == "heard"


async def test_poll_that_breaks_off_is_a_lost_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, handle = asyncio.Event(), served.daemon.runner.handle

    def handled(event: Event) -> asyncio.Future[None]:
        if isinstance(event, ConnectionLost) and event.node == "n1":
            lost.set()
        return handle(event)

    monkeypatch.setattr(served.daemon.runner, "handle", handled)
    async with aiohttp.ClientSession() as session:
        content = json.dumps({"node": "n1"}).encode()
        signed = served.signers[NODE].encode(protocol.digest_of(protocol.ORDERS, content))
        headers = {protocol.HEADER: signed}
        polling = asyncio.create_task(
            session.post(served.url + protocol.ORDERS, data=content, headers=headers).__aenter__()
        )
        while "n1" not in served.orders._polling:
            await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    assert await asyncio.wait_for(lost.wait(), 30.0)


async def test_poll_that_is_answered_is_no_loss(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    events, handle = [], served.daemon.runner.handle

    def handled(event: Event) -> asyncio.Future[None]:
        events.append(type(event))
        return handle(event)

    monkeypatch.setattr(served.daemon.runner, "handle", handled)
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.0)
    assert (await served.post(protocol.ORDERS, {"node": "n1"})).body == {"orders": []} and events == [NodeHeard]


@pytest.mark.parametrize(
    ("environment", "jobs"),
    [({"SLURM_JOB_ID": "7"}, {7}), ({"SLURM_JOB_ID": "../1"}, set()), ({"SLURM_JOB_ID": "²"}, set()), ("torn", set()),
     (None, set()), ({"SLURM_JOB_ID": "7" * 5000}, set())],
)  # fmt: skip
async def test_event_of_a_hook(
    served: Served, monkeypatch: pytest.MonkeyPatch, environment: object, jobs: set[int]
) -> None:
    reported: list[tuple[str, set[int]]] = []
    monkeypatch.setattr(served.daemon.runner, "report", lambda event, jobs: reported.append((event, set(jobs))))
    body = {"event": "job_ended", "environment": environment}
    assert (await served.post(protocol.EVENT, body)).status == 200
    assert reported == [("job_ended", jobs)]


# --- without a credential, and the client of the command line -----------------------------------------------------------


async def test_metrics_and_health_are_open(served: Served) -> None:
    async with served.session.get(served.url + "/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    served.server._works = lambda: False
    async with served.session.get(served.url + "/healthz") as answer:
        assert (answer.status, await answer.text()) == (503, "store cannot be written\n")
    async with served.session.get(served.url + "/metrics") as answer:
        assert answer.status == 200 and "sentinel_evidence_total" in await answer.text()


@pytest.mark.parametrize("path", ["/", "/v1/view/../../etc/passwd", "/v1/nothing"])
async def test_there_is_nothing_else(served: Served, path: str) -> None:
    assert (await served.post(path)).status == 404


async def test_client_of_the_command_line(served: Served) -> None:
    client = DaemonClient(served.url, served.signers[OPERATOR])
    thread = partial(asyncio.get_running_loop().run_in_executor, None)  # the server answers from this one
    try:
        seen = await thread(client.post, protocol.VIEW, STATUS)
        assert seen["open_incidents"] == []
        release = {"change": "release", "arguments": {"node": "n1"}}
        with pytest.raises(Refused, match="n1 is not drained"):
            await thread(client.post, protocol.CHANGE, release)
        with pytest.raises(UserError) as caught:
            await thread(client.post, protocol.CHANGE, {"change": "explode"})
        assert "upgrade" in caught.value.fix
    finally:
        client.close()
