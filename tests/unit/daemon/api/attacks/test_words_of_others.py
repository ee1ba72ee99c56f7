"""Found as attacks by root of one node: no word of a node counts for a node, a job or an attempt that it has no part in."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from in_memory.daemon import RULES, beside
from in_memory.server import Served, serving
from in_memory.world import World
from made_records import ended, evidence

from sentinel import protocol
from sentinel.engine.reconcile.node_proof import good_since
from sentinel.model.records import Cause, Evidence, Kind, Source, Trust, Where
from sentinel.wire import to_json

Worlds = Callable[..., World]
FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
FUTURE = datetime.fromisoformat("2199-01-01T00:00:00Z")


def stated(served: Served, kind: str, source: Source, where: Where, **parts: Any) -> Evidence:
    now = served.world.slurm.clock.now()
    return dataclasses.replace(evidence(kind, id=f"{where.node}-{kind}"), **{
        "at": now, "seen_at": now, "source": source, "where": where, "trust": Trust.SYSTEM, **parts,
    })  # fmt: skip


async def send(served: Served, node: str, *items: Evidence) -> None:
    body = {"node": node, "epoch": "e", "first": 1, "items": [to_json(item) for item in items]}
    assert (await served.post(protocol.EVIDENCE, body)).body == {"acknowledged": len(items)}


async def comes(check: Callable[[], object]) -> None:
    for _ in range(100):
        if check():
            return
        await asyncio.sleep(1.0)  # of the fake clock
    assert check()


def kept(served: Served) -> list[Evidence]:
    return list(served.world.store.evidence_since(datetime.fromisoformat("2020-01-01T00:00:00Z")))


@pytest.mark.parametrize("victim", ["n2", "n4"])  # in a job with the sender, and not
async def test_no_node_passes_a_diagnostic_in_the_words_of_another(world: Worlds, victim: str) -> None:
    """One such item, and a node was proven good for ever: a GPU that fell off its bus drained it no more."""
    async with serving(world()) as served:
        daemon = served.daemon
        await daemon.start()
        passed: dict[str, Any] = {"at": FUTURE, "data": {"level": 4}}
        for job in (None, served.world.job):
            where = Where(node=victim, job=job, attempt=None if job is None else 0)
            for source in (Source.JOB_LOG, Source.ERROR_FILE, Source.DIAGNOSTIC):
                await send(served, "n1", stated(served, Kind.DIAG_PASSED, source, where, **passed))
        fault = stated(served, Kind.XID, Source.KERNEL, Where(node=victim), data={"xid": 79}, text=FALLEN)
        await send(served, victim, fault)
        await comes(lambda: served.world.slurm.nodes[victim].drained)
        assert fault in kept(served) and all(item.kind != Kind.DIAG_PASSED for item in kept(served))


async def test_a_node_passes_its_own_diagnostic_and_only_by_one(served: Served) -> None:
    now, live, state = served.world.slurm.clock.now(), served.daemon.live, served.daemon.state
    data: dict[str, Any] = {"level": 4}
    await send(served, "n3", stated(served, Kind.DIAG_PASSED, Source.AGENT, Where(node="n3"), data=data))
    assert len(live.nodes["n3"].pool) == 1 and not good_since(state, "n3", now - timedelta(minutes=1), 4)
    await send(served, "n4", stated(served, Kind.DIAG_PASSED, Source.DIAGNOSTIC, Where(node="n4"), data=data))
    assert good_since(state, "n4", now - timedelta(minutes=1), 4)


async def test_no_time_is_later_than_its_node_can_have_seen(served: Served) -> None:
    """One from the year 2199 was never forgotten, and newer than every fault; that of a clock that is ahead is its own."""
    now, live = served.world.slurm.clock.now(), served.daemon.live
    ahead = now + timedelta(hours=2)
    await served.post(protocol.HEARTBEAT, {"node": "n3", "at": to_json(ahead)})
    for node, at in (("n3", ahead), ("n4", FUTURE)):
        await send(
            served, node, stated(served, "odd", Source.HOST, Where(node=node), id=f"of-{node}", at=at, seen_at=at)
        )
    (own,), (forged,) = live.nodes["n3"].pool, live.nodes["n4"].pool
    until = served.world.slurm.clock.now()
    assert own.at == ahead and now <= own.seen_at <= until
    assert now <= forged.seen_at <= until and forged.at - forged.seen_at == timedelta(minutes=5), (
        "so far clocks may differ"
    )


async def test_a_node_that_is_not_of_this_age_has_no_clock(served: Served) -> None:
    answer = await served.post(protocol.HEARTBEAT, {"node": "n3", "at": "9999-12-31T00:00:00Z"})
    assert answer.status == 400 and "not a time between" in answer.body["error"]


@pytest.mark.parametrize("kind", [Kind.JOB_ENDED, Kind.STALL, Kind.NUMBERS, Kind.SLOW, Kind.NODE_UNREACHABLE])
async def test_what_the_daemon_finds_no_node_states(served: Served, kind: str) -> None:
    """Neither of its own job: an end that Slurm does not know stopped a healthy job."""
    data: dict[str, Any] = {"state": "failed", "exit_code": 1, "step": 5, "silent_s": 600.0}
    job = served.world.job
    places = [Where(job=job, attempt=0), Where(node="n1", job=job, attempt=0), Where(node="n1")]
    sources = [Source.AGENT, Source.JOB_LOG, Source.PROGRESS]
    forged = [stated(served, kind, source, where, data=data) for source in sources for where in places]
    await send(served, "n1", *forged)
    assert kept(served) == [] and not served.daemon.state.incidents


async def test_what_names_no_attempt_is_of_the_one_that_the_node_had(world: Worlds) -> None:
    """It went to the newest attempt, on other nodes by now."""
    async with serving(world()) as served:
        job, live = served.world.slurm.jobs[served.world.job], served.daemon.live
        job.restarts, job.on, job.started = 1, ("n3", "n4"), job.started + 60
        served.world.slurm.clock.at += timedelta(seconds=120)
        await served.daemon.fleets.take()
        assert live.attempts[served.world.job, 0].nodes == ("n1", "n2")
        for node, attempt in (("n1", 0), ("n3", 1)):
            words = stated(served, "odd", Source.AGENT, Where(job=served.world.job), id=f"of-{node}")
            await send(served, node, words)
            assert live.attempts[served.world.job, attempt].pool[-1].id == f"of-{node}"
        assert {item.where.attempt for item in kept(served)} == {0, 1}
        live.attempts.pop((served.world.job, 0))
        await send(served, "n1", stated(served, "odd", Source.AGENT, Where(job=served.world.job), id="of which one?"))
        assert [item.id for item in live.attempts[served.world.job, 1].pool] == ["of-n3"]


@pytest.mark.parametrize("of_job", [False, True])
async def test_words_of_one_node_judge_no_job_of_another(world: Worlds, of_job: bool) -> None:
    """The owner of a job on n3 read a line that root of n4 had made up, and his job was held for it."""
    rule = max((one for one in RULES.rules if not one.frame), key=lambda one: one.weights.get(Cause.USER_CODE, 0.0))
    async with serving(world()) as served:
        daemon = served.daemon
        job = beside(served.world, "n3")
        await daemon.fleets.take()
        await daemon.start()
        where = Where(node="n3", job=served.world.job if of_job else None, attempt=0 if of_job else None)
        sender = "n1" if of_job else "n4"
        said = {"rule": rule.id, "trust": Trust.USER, "text": rule.match[0], "line": 7}
        counted: dict[str, Any] = {"data": {"gpu3/pcie_replay": 99999}}
        await send(
            served, sender,
            stated(served, rule.kind, Source.JOB_LOG, where, **said),
            stated(served, Kind.COUNTERS, Source.JOB_LOG, where, **counted),
        )  # fmt: skip
        this = served.world.slurm.jobs[job]
        this.state, this.ended = "FAILED", served.world.slurm.clock.now().timestamp() + 1
        await daemon.fleets.take()
        await daemon.observe([ended(job)])
        await comes(
            lambda: any(one.job == job and one.id in daemon.state.plans for one in daemon.state.incidents.values())
        )
        (incident,) = (one for one in daemon.state.incidents.values() if one.job == job)
        assert {item.kind for item in incident.evidence} == {Kind.JOB_ENDED}
        assert not served.world.store.counters(datetime.fromisoformat("2020-01-01T00:00:00Z"))


async def test_a_log_of_a_job_still_names_other_hosts(served: Served) -> None:
    """The node that reads the log of all ranks passes on what they say, each line with the host that it names."""
    words = stated(served, "odd", Source.JOB_LOG, Where(node="n2", job=served.world.job, attempt=0), trust=Trust.USER)
    await send(served, "n1", words)
    assert kept(served) == [words]
    assert not served.daemon.live.node("n2").pool
