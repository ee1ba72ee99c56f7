"""Bounded, seeded fuzzing of the daemon's API: whatever comes with a good credential, no bug, no 500, bounded memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_memory.server import NODE, OPERATOR, RESEARCHER, Served, serving
from in_memory.world import World
from made_records import evidence, later

from sentinel import protocol
from sentinel.model.records import Kind
from sentinel.wire import to_json

MOST_BYTES = 64 << 20  # of memory that a few hundred hostile requests may take at once
PATHS = (protocol.HEARTBEAT, protocol.EVIDENCE, protocol.ORDER_RESULT, protocol.EVENT, protocol.VIEW, protocol.CHANGE)
WORDS = st.sampled_from(
    [
        "n1",
        "n2",
        "status",
        "nodes",
        "jobs",
        "incidents",
        "why",
        "history",
        "doctor",
        "past",
        "drain",
        "release",
        "pause",
        "resume",
        "job_ended",
        "node_down",
        "xid",
        "kernel",
        "slurm",
        "2026-03-01T12:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "\0",
        "\ud800",
        "\udcff",
        "\u202e",
        "%n%s",
        "=cmd|' /C calc'!A0",
        "<b>",
        "../../etc/passwd",
        "x" * 5000,
        "9" * 5000,
        "\u00b2",
    ]
)
SCALARS = st.one_of(
    WORDS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([2**63, -(2**70), 10**400, 1e308]),
)
KEYS = st.sampled_from(
    [
        "node",
        "jobs",
        "job",
        "attempt",
        "gpus",
        "logs",
        "looked_ago_s",
        "sent_s",
        "boot_id",
        "at",
        "verdict",
        "spool",
        "version",
        "first",
        "items",
        "id",
        "kind",
        "source",
        "where",
        "data",
        "text",
        "trust",
        "seen_at",
        "ok",
        "result",
        "error",
        "event",
        "environment",
        "SLURM_JOB_ID",
        "view",
        "change",
        "arguments",
        "days",
        "user",
        "cause",
        "incident",
        "reason",
        "what",
        "by",
        "last_known",
        "after",
        "verify",
    ]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=20
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=8)
GOOD = to_json(evidence(Kind.XID, node="n1", data={"xid": 43}))


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        await made.daemon.fleets.take()
        yield made


def checked(served: Served, answer: Any, sent: object) -> None:
    assert answer.status in (200, 400, 403, 409, 413, 422, 503), (answer.status, sent)
    assert served.daemon.bugs() == 0, (sent, served.daemon.said[-2000:])


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(PATHS), body=BODIES, uid=st.sampled_from([0, NODE, OPERATOR, RESEARCHER]), own=st.booleans()
)
async def test_any_body(served: Served, path: str, body: dict[str, Any], uid: int, own: bool) -> None:
    sent = {**body, **({"node": "n1"} if own else {})}
    checked(served, await served.post(path, sent, uid=uid), sent)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(changed=st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, max_size=3), first=st.integers(-(2**40), 2**40))
async def test_evidence_with_any_fields(served: Served, changed: dict[str, Any], first: int) -> None:
    good = to_json(evidence(Kind.XID, node="n1", data={"xid": 43}))
    sent = {"node": "n1", "epoch": "e", "first": first, "items": [{**GOOD, **changed}, good]}
    checked(served, await served.post(protocol.EVIDENCE, sent), sent)
    await served.daemon.runner.stop()
    kept = {item.id for item in served.world.store.evidence_since(later(-1.0))}
    assert good["id"] in kept, "what is sound beside it is kept"


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from((*PATHS, protocol.ORDERS)), raw=st.binary(max_size=200))
async def test_any_bytes(served: Served, path: str, raw: bytes) -> None:
    answer = await served.post(path, raw=raw, uid=0)
    assert answer.status in (400, 413, 422), (answer.status, raw)  # 422: an object, as {} is
    checked(served, answer, raw)


ARGUMENTS = (
    "what incident job node since days by user cause last_known corrected after verify all nodes limit kind".split()
)
HOSTILE = [
    [], {}, "", 0, -1, 1.5, 1e308, float("inf"), True, "9" * 5000, "\u0661" * 5000, "\u00b2", "\ud800", "n[1-99999999]",
    "[0-9]" * 40, 2**63, 10**30, "9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:59", "last", "x" * 300, None, ["n1"],
    "%", "n1," * 4000,
]  # fmt: skip


@pytest.mark.parametrize("argument", ARGUMENTS)
async def test_every_view_with_any_argument(served: Served, argument: str) -> None:
    for view in served.server._views._views:
        for value in HOSTILE:
            sent = {"view": view, "arguments": {argument: value}}
            checked(served, await served.post(protocol.VIEW, sent, uid=RESEARCHER), sent)


@pytest.mark.parametrize("event", [None, [], 7, "", "job ended", "x" * 41, "job_ended\n"])
async def test_what_names_no_event_is_refused(served: Served, event: Any) -> None:
    assert (
        await served.post(protocol.EVENT, {"event": event, "environment": {"SLURM_JOB_ID": "7"}}, uid=0)
    ).status == 400


async def test_memory_of_hostile_requests_is_bounded(served: Served) -> None:
    """Nested and repeated JSON takes far more than its bytes."""
    shapes = (b"[" * 3000, b'{"a":' * 2000, b"[[],[],[]," * 1600, b'{"arguments":{"x":"' + b"\\u0000" * 2000 + b'"}}')
    tracemalloc.start()
    try:
        for _ in range(4):
            paths = (protocol.VIEW, protocol.CHANGE, protocol.EVIDENCE)
            await asyncio.gather(*(served.post(path, raw=raw, uid=0) for path in paths for raw in shapes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES and served.daemon.bugs() == 0
